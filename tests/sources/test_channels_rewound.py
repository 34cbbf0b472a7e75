"""Commands at pipelines of channels: whether plans go on from where a batch ended, at servers that have taken rows, and
where they begin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from tests.execution import world as execution
from tests.execution.maintaining import applied, backed_up, planned, put_back, rewind
from tests.execution.world import KEY
from tests.support import kinesis, tablestore

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


class Streamed(execution.World):
    """A pipeline of a stream of Kinesis, into a table."""

    first = "shardId-000000000000"

    def __init__(self, root: Path, *, channels: int = 1) -> None:
        super().__init__(root)
        self.clock = now_ms()
        self.sources = {"orders": self.served(channels)}  # type: ignore[dict-item]

    def served(self, channels: int) -> Any:
        connections.find_by(kinesis.connection)
        self.server: Any = kinesis.Stream(shards=channels)
        return KinesisSource(self.server.name, conn_id="kinesis", idle_seconds=0, discover_seconds=0)

    def send(self, *ids: int) -> None:
        """Rows of these ids, one after the other."""
        self.server.send([f"[{id}]" for id in ids])

    def batches(self, *batches: list[int]) -> None:
        """A run for each of them."""
        for number, ids in enumerate(batches):
            self.send(*ids)
            self.run(number)

    def split(self) -> None:
        """The first channel ends, and has two children."""
        self.server.split(self.first)

    def keep_nothing(self) -> None:
        """By its settings the server keeps rows for no time at all; those that are there stay there."""
        self.server.set("retention_hours", 0)

    def with_gaps(self) -> None:
        """From the next run on the source goes on without rows that are gone."""
        self.sources = {name: replace(one, on_data_loss="record_gap") for name, one in self.sources.items()}  # type: ignore[call-arg]


class Tunneled(Streamed):
    """A pipeline of a tunnel, into a table."""

    first = "shard-000"

    def served(self, channels: int) -> Any:
        connections.find_by(tablestore.connection)
        self.server = tablestore.Table(shards=channels)
        return TablestoreSource(
            self.server.name, self.server.tunnel, conn_id="tablestore", idle_seconds=0, discover_seconds=0
        )

    def send(self, *ids: int) -> None:
        self.server.put([f"[{id}]" for id in ids])

    def split(self) -> None:
        self.server.arrange("split", self.first)

    def keep_nothing(self) -> None:
        self.server.set("hours", 0)


BOTH = pytest.mark.parametrize("system", [Streamed, Tunneled])


@BOTH
def test_a_rewind_behind_which_the_next_run_stops_is_refused_unless_it_may_skip(
    tmp_path: Path, system: type[Streamed]
) -> None:
    """The rows of what is rewound are all there; that the last one before them is gone stops the read."""
    world = system(tmp_path)
    world.batches([1, 2], [3, 4, 5])
    world.server.arrange("trim", world.first, 2)
    with pytest.raises(
        MaintenanceError,
        match=rf"next run would stop.*live/0.*'orders'.*{world.first}.*record_gap.*Nothing was done.*--allow-skip",
    ):
        applied(world, rewind(0))
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}
    notes = "\n".join(applied(world, rewind(0, allow_skip=True)).notes)
    assert world.first in notes
    assert "record_gap" in notes
    assert world.table() == {0: [1, 2]}
    with pytest.raises(Exception, match=world.first):
        world.run(2)
    world.with_gaps()
    world.run(3)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}


@BOTH
def test_where_a_table_lost_a_batch_whose_rows_are_gone_the_way_on_that_works_is_named(
    tmp_path: Path, system: type[Streamed]
) -> None:
    """A position behind that batch leads nowhere: what came after its last row may be gone as well."""
    world = system(tmp_path)
    world.batches([1, 2])
    backed_up(world)
    for number, ids in enumerate([[3, 4, 5], [6]], start=1):
        world.send(*ids)
        world.run(number)
    put_back(world, "lake")
    world.server.arrange("trim", world.first, 5)
    with pytest.raises(MaintenanceError, match=r"live/1 cannot be planned again.*--allow-skip"):
        planned(world, rewind(0))
    told, way = applied(world, rewind(0, allow_skip=True)).notes
    assert "lost to the table: what batch live/1 read" in told
    assert "the next run would stop where batch live/0 ended" in way
    assert "on_data_loss='record_gap' goes on" in way
    assert "set-offset" not in f"{told} {way}"
    with pytest.raises(Exception, match=world.first):
        world.run(3)
    world.with_gaps()
    world.run(4)
    assert world.table() == {0: [1, 2], 1: [6]}


@BOTH
def test_the_only_copy_of_rows_that_are_gone_stays_in_the_table_unless_the_source_goes_on_without(
    tmp_path: Path, system: type[Streamed]
) -> None:
    """The refusal names the way on."""
    world = system(tmp_path)
    world.batches([1, 2], [3, 4, 5], [6])
    world.server.arrange("trim", world.first, 5)
    for allow_skip in (False, True):
        with pytest.raises(
            MaintenanceError,
            match=r"live/1 cannot be planned again.*only copy.*not even with --allow-skip.*Rewind to 1 or",
        ):
            planned(world, rewind(0, allow_skip=allow_skip))
    applied(world, rewind(1, allow_skip=True))
    world.with_gaps()
    world.run(3)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5], 2: [6]}
    with pytest.raises(MaintenanceError, match=r"rows would be lost.*--allow-skip"):
        planned(world, rewind(0))
    applied(world, rewind(0, allow_skip=True))
    world.run(4)
    assert world.table() == {0: [1, 2], 1: [6]}


@BOTH
def test_a_rewind_to_before_the_first_batch_that_would_stop_is_refused(tmp_path: Path, system: type[Streamed]) -> None:
    """The first batch began longer ago than rows are kept, and no row of before tells that all are there."""
    world = system(tmp_path)
    world.batches([1, 2], [3])
    world.keep_nothing()
    with pytest.raises(MaintenanceError, match=rf"next run would stop.*first batch began.*{world.first}"):
        applied(world, rewind(-1))
    assert world.table() == {0: [1, 2], 1: [3]}
    applied(world, rewind(-1, allow_skip=True))
    with pytest.raises(Exception, match=world.first):
        world.run(2)


def some_rows_are_gone_that_nobody_needs(world: Streamed) -> None:
    world.server.arrange("trim", world.first, 1)


def all_rows_are_there(world: Streamed) -> None:
    """No row was taken."""


def a_closed_channel(world: Streamed) -> None:
    world.split()
    world.run(3)
    world.send(6)
    world.run(4)
    assert [6] in world.table().values()


@BOTH
@pytest.mark.parametrize("happens", [all_rows_are_there, some_rows_are_gone_that_nobody_needs, a_closed_channel])
@pytest.mark.parametrize("to", [0, 1])
def test_a_rewind_behind_which_all_is_there_goes_on(
    tmp_path: Path, system: type[Streamed], happens: Callable[[Streamed], None], to: int
) -> None:
    """Also beside a channel without any row."""
    world = system(tmp_path, channels=2)
    world.batches([1, 2], [3, 4, 5], [7])
    happens(world)
    before = world.table()
    assert not planned(world, rewind(to)).notes[1:]
    applied(world, rewind(to))
    for number in range(10, 16):
        world.run(number)
    ids = sorted(id for rows in before.values() for id in rows)
    assert sorted(id for rows in world.table().values() for id in rows) == ids


@pytest.mark.parametrize("is_read", [True, False])
def test_behind_a_torn_first_entry_a_stream_that_is_read_from_its_latest_begins_where_it_began(
    tmp_path: Path, is_read: bool
) -> None:
    """That is on record beside the entry."""
    world = Streamed(tmp_path)
    world.sources = {"orders": replace(world.sources["orders"], start="latest")}  # type: ignore[call-arg]
    world.send(1)
    world.server.arrange("age", 5000)
    if is_read:
        world.run(0)
    else:
        world.staged(0)
    world.send(2)
    if is_read:
        world.run(1)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1\n{")
    world.expire_leases()
    applied(world)
    world.run(2)
    world.run(3)
    assert sorted(id for ids in world.table().values() for id in ids) == [2]
    if is_read:
        world.run(0, clear_number=1)
        assert world.checkpoint.replays.is_answered(KEY)
        assert sorted(id for ids in world.table().values() for id in ids) == [2]
        applied(world, rewind(-1))
        world.run(4)
        world.run(5)
        assert sorted(id for ids in world.table().values() for id in ids) == [2]


def as_an_older_version(checkpoint: Path) -> None:
    """Neither the batch nor its replay has told a first row."""
    for entry in (checkpoint / "commits" / "1", *(checkpoint / "replays").rglob("*")):
        if entry.is_file():
            entry.write_text(re.sub(r'"firsts":\s*\{[^}]+\}', '"firsts":{}', entry.read_text()))


@BOTH
def test_what_the_newest_replay_told_counts_for_what_is_in_the_table(tmp_path: Path, system: type[Streamed]) -> None:
    """Of a batch that an older version has read the row before it is looked for, until a replay tells its first one."""
    world = system(tmp_path)
    world.with_gaps()
    world.batches([1, 2], [3, 4, 5])
    world.run(1, clear_number=1)
    as_an_older_version(tmp_path / "checkpoint")
    world.server.arrange("trim", world.first, 2)
    with pytest.raises(MaintenanceError, match=rf"gone since they were read: rows of {world.first}"):
        planned(world, rewind(0))
    world.run(1, clear_number=2)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}, "made again of the rows that it had"
    applied(world, rewind(0))
    assert world.table() == {0: [1, 2]}
    world.run(2)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}
