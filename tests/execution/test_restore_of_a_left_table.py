"""A Delta table to which the pipeline does not write any more, and that somebody puts back over a ``rewind``."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import expire_all
from tests.execution.test_dead_letters import typed
from tests.execution.test_letters_once import live
from tests.execution.test_restore_over_a_rewind import (
    Counted,
    ids,
    is_refused,
    lake,
    letters_rewound,
    rewound,
    three_batches,
)
from tests.execution.test_restore_over_a_rewind import world as world
from tests.execution.typed_commands import advised, said

pytestmark = pytest.mark.slow  # tables, services or worlds that live long


def test_rows_in_a_table_that_the_pipeline_has_left_are_in_no_rewinds_way(world: Counted) -> None:
    for head in (2, 4, 6):
        world.batch(head)
    before, rows = lake(world).version(), ids(world)
    rewound(world, 0)
    world.rests()
    world.options["sink"] = DeltaSink(str(world.root / "other"))
    for head in (7, 8):
        world.batch(head)
    lake(world).restore(before)
    newest = world.checkpoint.offset_log.latest_id()
    assert newest is not None
    rewound(world, newest - 1)
    world.rests()
    assert sorted(DeltaTable(str(world.root / "other")).to_pyarrow_table().column("id").to_pylist()) == [7, 8]
    assert ids(world) == rows


def test_check_tells_how_to_remove_them_by_hand_and_no_rewind_that_empties_the_table_of_now(world: Counted) -> None:
    _left_and_put_back(world)
    rows = _of_now(world)
    (told,) = _told(world)
    assert "does not write to this table any more" in told, told
    assert "UPDATE … SET lane = NULL, batch_id = NULL WHERE lane = 'live' AND batch_id IN (1, 2)" in told
    assert not advised(told, world)
    lake(world).update(
        predicate="lane = 'live' AND batch_id IN (1, 2)",
        updates={"lane": "cast(null as string)", "batch_id": "cast(null as bigint)"},
    )
    assert _told(world) == []
    assert _of_now(world) == rows


def test_a_clear_by_code_that_names_it_still_is_told_so_too(world: Counted) -> None:
    _left_and_put_back(world)
    now, world.options["sink"] = world.options["sink"], DeltaSink(str(world.lake))
    told = is_refused(world, lambda: world.run(1, clear_number=1))
    assert "does not write to this table any more" in told, told
    assert not advised(told, world)
    lake(world).delete("lane = 'live' AND batch_id IN (1, 2)")
    world.run(1, clear_number=1)
    world.options["sink"] = now
    world.batch(20)
    assert _of_now(world)[-1] == 20


def test_a_table_that_the_pipeline_names_again_is_left_no_more(world: Counted) -> None:
    _left_and_put_back(world)
    world.options["sink"] = DeltaSink(str(world.lake))
    told = is_refused(world, lambda: world.run(50))
    (words,) = advised(told, world)
    expire_all(world.root)
    status, text = said(words)
    assert status == 0, text
    world.rests()
    assert ids(world) == [1, 2, *range(3, 10)]
    assert _told(world) == []


def test_letters_in_a_table_that_the_newest_attempt_has_left_are_taken_out_once_it_is_named_again(
    tmp_path: Path,
) -> None:
    world, before = letters_rewound(tmp_path)
    world.land(4)
    world.options["sink"] = DeltaSink(str(tmp_path / "other"))
    live(world, 1)
    lake(world).restore(before)
    world.options["sink"] = DeltaSink(str(tmp_path / "lake"))
    world.land(5)
    told = is_refused(world, lambda: live(world, 2))
    assert "--lane dead-letters`" in told
    typed(world, told)
    live(world, 2)
    assert ids(world) == [1, 3, 5]


def _left_and_put_back(world: Counted) -> None:
    three_batches(world)
    before = lake(world).version()
    rewound(world, 0)
    world.options["sink"] = DeltaSink(str(world.root / "other"))
    for head in (7, 8, 9):
        world.batch(head)
    lake(world).restore(before)


def _of_now(world: Counted) -> list[int]:
    return sorted(DeltaTable(str(world.root / "other")).to_pyarrow_table().column("id").to_pylist())


def _told(world: Counted) -> list[str]:
    found = check_table(world.checkpoint, everything=True).findings
    return [one.message for one in found if "has rows again" in one.message]
