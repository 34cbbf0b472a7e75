"""A Delta table that somebody has put back over a ``rewind`` of which not all is on record: how far the way on goes."""

from __future__ import annotations

import shutil

import pytest

from tests.execution.maintaining import expire_all
from tests.execution.test_dead_letters import typed
from tests.execution.test_restore_over_a_rewind import Counted, ids, is_refused, lake, rewound
from tests.execution.test_restore_over_a_rewind import world as world
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import said


def records_left_behind(world: Counted) -> None:
    """As a copy of the checkpoint does."""
    shutil.rmtree(world.root / "checkpoint" / "maintenance")


def half_on_record(world: Counted) -> None:
    """Of two rewinds the nearer one is on record, and the RESTORE goes to before both."""
    for head in (2, 4, 6, 8):
        world.batch(head)
    before = lake(world).version()
    rewound(world, 0)
    world.batch(8)
    world.batch(9)
    world.batch(10)
    records_left_behind(world)
    rewound(world, 2)
    lake(world).restore(before)


def test_where_one_that_came_back_is_on_no_record_all_is_read_again(world: Counted) -> None:
    half_on_record(world)
    told = is_refused(world, lambda: world.run(50))
    assert "--to -1 --drop-output" in told
    typed(world, told)
    world.rests()
    assert ids(world) == list(range(1, 11))
    assert is_clean(world)


@pytest.mark.parametrize("is_any_on_record", [True, False])
def test_no_nearer_rewind_is_accepted_then(world: Counted, is_any_on_record: bool) -> None:
    half_on_record(world)
    if not is_any_on_record:
        records_left_behind(world)
    expire_all(world.root)
    version = lake(world).version()
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "1", "--drop-output"])
    assert (status, lake(world).version()) == (2, version)
    assert "--to -1 --drop-output` takes them out" in text
    assert "Nothing was done" in text
