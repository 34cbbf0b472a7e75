"""A Delta table that somebody has put back by RESTORE to before a ``rewind``: what that took out has rows again, and by
the log's application transactions it is out."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, expire_all, filled, rewind
from tests.execution.test_dead_letters import Checked
from tests.execution.test_letters_once import live, replay
from tests.execution.two_tables import is_clean
from tests.execution.world import World


def lake(world: World) -> DeltaTable:
    return DeltaTable(str(world.lake))


def ids(world: World) -> list[int]:
    return sorted(lake(world).to_pyarrow_table().column("id").to_pylist())


def rewound_and_restored(world: World, to: int, *, lane: str = "live") -> None:
    """The user undoes the rewind, in the table alone."""
    before, rows = lake(world).version(), ids(world)
    expire_all(world.root)
    applied(world, rewind(to, lane=lane))
    assert ids(world) != rows
    lake(world).restore(before)
    assert ids(world) == rows


def take_out(told: str) -> None:
    """What the error says."""
    python, option, code = shlex.split(told.partition("Take them out: ")[2])
    assert (python, option) == ("python", "-c")
    exec(code)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), 4)


@pytest.mark.parametrize("is_optimized", [False, True])
def test_rows_of_the_batch_that_is_made_again_go_as_it_comes_in(world: World, is_optimized: bool) -> None:
    if is_optimized:
        lake(world).optimize.compact()
    rewound_and_restored(world, 2)
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "rows of batch live/3 again, which was taken out; put back, most likely, by version" in finding.message
    assert re.search(r"Take them out: python -c .*batch_id IN \(3\)", finding.message)
    assert finding.repair.startswith("If it names no way on, ")  # a file that others share cannot be moved
    world.run(10)
    assert ids(world) == [0, 1, 2, 3]
    assert is_clean(world)


def test_none_is_made_before_the_rows_of_later_ones_are_taken_out(world: World) -> None:
    """What those had read, the next batch may read."""
    rewound_and_restored(world, 0)
    world.land(9)
    with pytest.raises(SinkError, match="has rows of batches live/2, live/3 again") as refused:
        world.run(10)
    assert ids(world) == [0, 1, 2, 3]
    assert str(refused.value) in {one.message for one in check_table(world.checkpoint, everything=False).findings}
    take_out(str(refused.value))
    while world.run(10 + len(world.checkpoint.commit_log.ids())) is not None:
        assert max(Counter(ids(world)).values()) == 1
    assert ids(world) == [0, 1, 2, 3, 9]
    assert is_clean(world)


def test_rows_stay_of_which_no_batch_reads_any_more_what_they_are_of(world: World) -> None:
    """They are the only ones: somebody has set a position behind them since, and batches went on from there."""
    rewound_and_restored(world, 2)
    skipped = partial(plan_set_offset, lane="live", source="orders", offset='{"logOffset":3}')
    applied(world, partial(skipped, allow_skip=True, allow_reread=False))
    for later in (False, True):
        if later:
            world.land(9)
            world.run(10)
        (message,) = (one.message for one in check_table(world.checkpoint, everything=True).findings)
        assert "rows of batch live/3 again" in message
        assert "they may be the only rows of what they are of. Leave them there" in message
        assert "Take them out" not in message
    assert ids(world) == [0, 1, 2, 3, 9]


@pytest.fixture
def of_letters(tmp_path: Path) -> Checked:
    """A world whose letters were run again, and that was taken back, but for the table."""
    world = Checked(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    replay(world, 10)
    rewound_and_restored(world, -1, lane="dead-letters")
    return world


def test_letters_that_are_there_again_keep_their_batch_from_being_replayed(of_letters: Checked) -> None:
    world = of_letters
    with pytest.raises(SinkError, match="has rows of batch dead-letters/0 again") as refused:
        live(world, 0, clear_number=1)
    take_out(str(refused.value))
    live(world, 0, clear_number=1)
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)


def test_letters_are_run_again_in_place_of_those(of_letters: Checked) -> None:
    world = of_letters
    replay(world, 11)
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)


def test_rows_that_a_clear_has_made_of_letters_are_told_of_until_another_clear_brings_them_back(tmp_path: Path) -> None:
    """They went with the RESTORE that brought the letters' back: without those the table has them in no form."""
    world = Checked(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    replay(world, 10)
    before = lake(world).version()
    expire_all(world.root)
    applied(world, rewind(-1, lane="dead-letters"))
    live(world, 0, clear_number=1)
    assert ids(world) == [1, 2, 3]
    lake(world).restore(before)
    with pytest.raises(SinkError, match=r"no rows there any more: live/0, .* After that bring back live/0,") as refused:
        live(world, 0, clear_number=2)
    take_out(str(refused.value))
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "put back by" in finding.message
    live(world, 0, clear_number=2)
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)
