"""What a source must do that plans without an end, whatever it reads. A new one adds a factory to ``SYSTEMS``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from acme_microbatch.counter import CounterSource
from acme_microbatch.counter_reader import numbers

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime.channels import read_here
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import LATE, OpenSource, Source
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from airflow_provider_microbatch.sources.tablestore import TablestoreSource
from tests.contract.contexts import context_in
from tests.contract.registered import registered
from tests.support import kinesis, tablestore


class System(Protocol):
    """A system of which only reading tells where a batch ends, and data that arrives in it."""

    source: Source
    begins_on_record: bool
    """Whether where the first batch begins is put on record when it is planned."""

    def arrive(self) -> None:
        """One more unit of data."""

    def told(self, read: Read) -> tuple[list[int], Mapping[str, Any]]:
        """The units that a reader finds now, and what it tells."""


class LateCounter:
    """Somebody else's: numbers up to where the counter is when it is read."""

    begins_on_record = False

    def __init__(self, root: Path) -> None:
        self._head = root / "numbers.txt"
        self._head.write_text("0")
        self.source: Source = CounterSource(str(self._head), late=True)

    def arrive(self) -> None:
        self._head.write_text(str(int(self._head.read_text()) + 1))

    def told(self, read: Read) -> tuple[list[int], Mapping[str, Any]]:
        found = numbers(read.arguments)
        return list(found), {"end": found.stop - 1}


class Kinesis:
    """A stream with two shards, and records in one of them.

    :param server: which one keeps it.
    """

    begins_on_record = True

    def __init__(self, root: Path, *, server: str = kinesis.OURS) -> None:
        connections.find_by(partial(kinesis.connection, server=server))
        self._stream = kinesis.Stream(shards=2, server=server)
        self._number = itertools.count()
        self.source: Source = KinesisSource(
            self._stream.name, conn_id=kinesis.CONN_ID, idle_seconds=0, discover_seconds=0
        )

    def arrive(self) -> None:
        self._stream.send([str(next(self._number))])

    def told(self, read: Read) -> tuple[list[int], Mapping[str, Any]]:
        secrets = {"aws_access_key_id": kinesis.KEY, "aws_secret_access_key": kinesis.SECRET}
        rows, told = read_here(json.loads(json.dumps(read.arguments)), secrets)
        return [int(row[1]) for row in rows], told


class Tablestore:
    """A table whose log has two shards, and rows in one of them."""

    begins_on_record = True

    def __init__(self, root: Path) -> None:
        connections.find_by(tablestore.connection)
        self._table = tablestore.Table(shards=2)
        self._number = itertools.count()
        self.source: Source = TablestoreSource(
            self._table.name, self._table.tunnel, conn_id=tablestore.CONN_ID, idle_seconds=0, discover_seconds=0
        )

    def arrive(self) -> None:
        self._table.put([str(next(self._number))])

    def told(self, read: Read) -> tuple[list[int], Mapping[str, Any]]:
        rows, told = read_here(json.loads(json.dumps(read.arguments)), tablestore.SECRETS)
        return [int(dict(row[1])["id"]) for row in rows], told


SYSTEMS: dict[str, Callable[[Path], System]] = {
    "acme's late counter": LateCounter,
    "kinesis": Kinesis,
    "kinesis of moto": partial(Kinesis, server=kinesis.MOTO),
    "tablestore": Tablestore,
}

system_name = registered(SYSTEMS)


@pytest.fixture
def system(system_name: str, tmp_path: Path) -> Iterator[System]:
    with lifetime():  # clients live as long as in a task
        yield SYSTEMS[system_name](tmp_path)


@pytest.fixture
def reopen(system: System, tmp_path: Path) -> Callable[[], OpenSource]:
    """The source as a new process sees it."""

    return lambda: system.source.open(context_in(tmp_path / "checkpoint"))


def test_it_is_late_only_if_there_is_something(system: System, reopen: Callable[[], OpenSource]) -> None:
    assert reopen().latest_offset(None) is None
    system.arrive()
    assert reopen().has_new(None)
    assert reopen().latest_offset(None) is LATE


def test_what_was_read_resolves_to_where_the_next_batch_begins(
    system: System, reopen: Callable[[], OpenSource]
) -> None:
    system.arrive()
    planned = reopen().read_late(None)
    system.arrive()
    rows, told = system.told(planned)
    end = reopen().resolve(None, told)
    assert end is not None
    assert not reopen().has_new(end)
    assert reopen().latest_offset(end) == end
    system.arrive()
    after, _ = system.told(reopen().read_late(end))
    assert len(rows) == 2
    assert len(after) == 1
    assert not {*rows} & {*after}


def test_a_resolved_range_is_read_as_it_was(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    rows, told = system.told(reopen().read_late(None))
    end = reopen().resolve(None, told)
    system.arrive()
    again, told_again = system.told(reopen().read(None, end))
    assert again == rows
    assert reopen().resolve(None, told_again) == end


def test_to_read_nothing_resolves_to_the_start(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    _, told = system.told(reopen().read_late(None))
    end = reopen().resolve(None, told)
    _, nothing = system.told(reopen().read_late(end))
    assert reopen().resolve(end, nothing) == end


def test_a_reader_that_does_not_tell_is_named(reopen: Callable[[], OpenSource]) -> None:
    with pytest.raises(SourceError, match="orders"):
        reopen().resolve(None, {})


def test_it_writes_nothing_but_where_it_begins(
    system: System, reopen: Callable[[], OpenSource], tmp_path: Path
) -> None:
    system.arrive()
    assert reopen().has_new(None)
    assert not (tmp_path / "checkpoint").exists()
    reopen().latest_offset(None)
    begins = reopen().initial_offset()
    assert (begins is not None) == system.begins_on_record
    written = {path: path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}
    assert bool(written) == system.begins_on_record
    _, told = system.told(reopen().read_late(begins))
    reopen().resolve(begins, told)
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()} == written
    assert reopen().initial_offset() == begins


def test_a_definition_travels_as_json(system: System) -> None:
    data = json.loads(json.dumps(system.source.to_dict()))
    assert Definition.from_dict(data, any_server=True) == system.source


def test_what_a_commit_is_said_twice_takes_nothing_away(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    rows, told = system.told(reopen().read_late(None))
    end = reopen().resolve(None, told)
    assert end is not None
    reopen().commit(end)
    reopen().commit(end)
    assert system.told(reopen().read(None, end))[0] == rows
    assert reopen().not_replayable(None, end) is None
    assert reopen().is_after(end, None)
    reopen().check_offset(end)
