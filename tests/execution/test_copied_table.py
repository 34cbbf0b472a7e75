"""A table with the rows of batches, and no record of them: somebody has copied one of the pipeline's. Whatever makes
such a batch again there is refused until its rows are gone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import expire_all
from tests.execution.test_restore_over_a_rewind import Counted, lake, rewound, three_batches
from tests.execution.test_restore_over_a_rewind import world as world
from tests.execution.two_tables import is_clean
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.support.iceberg_table import connection_of, opened_in, sink_in

pytestmark = pytest.mark.slow  # tables, services or worlds that live long


def copied(world: Counted, to: Path) -> None:
    write_deltalake(str(to), lake(world).to_pyarrow_table())


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().column("id").to_pylist())


def is_refused(table: Path, run: Callable[[], object]) -> str:
    """Nothing is changed in the table; and the condition of the DELETE that is named."""
    before = ids(table)
    with pytest.raises(SinkError, match=r"and its log has no record of (it|them)") as refused:
        run()
    assert ids(table) == before
    (condition,) = re.findall(rf"DELETE FROM delta\.`{re.escape(str(table))}` WHERE ([^)]*)\)", str(refused.value))
    return condition


def test_a_rewind_does_not_take_them_out_beside_rows_that_stay(world: Counted) -> None:
    """Read again in other batches, they would be there twice, whatever becomes of the numbers."""
    three_batches(world)
    other = world.root / "other"
    copied(world, other)
    world.options["sink"] = DeltaSink(str(other))
    world.batch(7)
    expire_all(world.root)
    words = ["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]
    status, told = said(words)
    assert status != 0
    assert "rows of batch live/1, and its log has no record" in told, told
    assert "So it is with batch live/2." in told, told
    assert (ids(other), ids(world.lake)) == ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6])
    assert said(words[:-1])[0] != 0
    DeltaTable(str(other)).delete("lane = 'live' AND batch_id IN (1, 2)")
    rewound(world, 0)
    world.rests()
    assert ids(other) == list(range(1, 8))
    assert is_clean(world)


def test_nor_is_one_put_beside_them_that_was_rewound_before_the_sink_was_led_there(world: Counted) -> None:
    three_batches(world)
    other = world.root / "other"
    copied(world, other)
    rewound(world, 1)
    world.options["sink"] = DeltaSink(str(other))
    condition = is_refused(other, lambda: world.run(50))
    DeltaTable(str(other)).delete(condition)
    assert world.run(50, try_number=2) is not None
    world.rests()
    assert ids(other) == list(range(1, 7))
    assert is_clean(world)


def test_nor_are_those_that_are_cleared_since_the_copy_was_put_in_place_of_the_table(world: Counted) -> None:
    three_batches(world)
    kept = world.root / "kept"
    copied(world, kept)
    world.batch(8)
    (own,) = (world.lake / "_table_id").iterdir()
    shutil.rmtree(world.lake)
    write_deltalake(str(world.lake), DeltaTable(str(kept)).to_pyarrow_table())
    (world.lake / "_table_id" / own.name).mkdir(parents=True)
    with pytest.raises(SinkError, match="What it had of batches 0 to 3 is in no table"):
        world.run(50)
    told = [one.message for one in check_table(world.checkpoint, everything=True).findings]
    for number in range(3):
        assert any(f"rows of batch live/{number}, and its log has no record" in one for one in told), told
        assert not any(f"live/{number} is committed and not in" in one for one in told), told
    for number in range(3):
        condition = is_refused(world.lake, lambda: world.run(number + 1, clear_number=1))  # noqa: B023
        lake(world).delete(condition)
        world.run(number + 1, clear_number=1)
    world.run(4, clear_number=1)
    assert ids(world.lake) == list(range(1, 9))
    assert is_clean(world)


def test_nor_are_those_of_an_iceberg_table_that_was_made_anew_of_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its errors say: its folder _microbatch goes, and the tasks are cleared."""
    folder = tmp_path / "lake"
    monkeypatch.setattr(connections, "_found_by", [lambda _: connection_of(folder)])
    world, log = World(tmp_path, sink=sink_in(folder)), opened_in(folder)._log
    for number in range(2):
        world.land(number)
        world.run(number)
    catalog, name = log.catalog.get(), log.catalog.table
    had = catalog.load_table(name).scan().to_arrow()
    catalog.drop_table(name)
    catalog.create_table(name, had.schema, location=f"file://{log.root}").append(had)
    shutil.rmtree(log.hidden)
    told = "rows of batch live/{}, and its properties have no record of it"
    world.land(2)
    with pytest.raises(SinkError, match=told.format(1)):
        world.run(2)
    found = [one.message for one in check_table(world.checkpoint, everything=True).findings]
    for number in range(2):
        assert any(told.format(number) in one for one in found), found
        with pytest.raises(SinkError, match=told.format(number)):
            world.run(number, clear_number=1)
        catalog.load_table(name).delete(f"lane = 'live' AND batch_id = {number}")
        world.run(number, clear_number=1)
    world.run(2)
    assert sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert is_clean(world)
