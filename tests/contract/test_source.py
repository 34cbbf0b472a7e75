"""What every source must do, whatever it reads. A new source adds a factory to ``SYSTEMS``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from acme_microbatch.counter import CounterSource
from acme_microbatch.counter_reader import numbers
from jobs.orders_api import OrdersApi

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import OpenSource, ReadLimit, Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.sources.python import PythonSource
from tests.contract.contexts import context_in
from tests.contract.registered import registered
from tests.support import kafka
from tests.support.database_systems import Rows, RowsInMariaDb
from tests.support.lake_systems import DeltaTables, IcebergTables
from tests.support.landing_bucket import Objects
from tests.support.orders_api import OrdersServer, serving
from tests.support.slot_table import Changes


class System(Protocol):
    """A system that a source reads, and data that arrives in it. Made with a folder, and what ends it at the end.

    ``keeps_a_log``: the source writes down what it plans. One that does not need not plan the same twice: the offset
    entry decides. ``counts``: it knows how much there is in a range before it is read.
    """

    source: Source
    keeps_a_log: bool
    counts: bool

    def arrive(self) -> None:
        """One more unit of data."""

    def break_it(self) -> None:
        """Take away what the source reads, as an outage does."""

    def rows(self, read: Read) -> list[int]:
        """What the reader would find: in each unit of data its number. Asked of a source that has several splits."""


class Files:
    """Small JSON files, at most two a batch."""

    keeps_a_log = True
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, ordered: bool = False) -> None:
        self._folder = root / "landing"
        self._folder.mkdir()
        self._number = itertools.count()
        self.source: Source = FileSource(str(self._folder), schema="id long", max_files=2, ordered=ordered)

    def arrive(self) -> None:
        number = next(self._number)
        (self._folder / f"{number:04}.json").write_text(f'{{"id": {number}}}\n')

    def break_it(self) -> None:
        self._folder.rename(self._folder.with_name("elsewhere"))

    def rows(self, read: Read) -> list[int]:
        paths = [path for group in read.arguments["groups"] for path in group["paths"]]
        return [json.loads(Path(path).read_text())["id"] for path in paths]


class Counter:
    """Somebody else's: numbers, at most two a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack, *, block: int | None = None) -> None:
        self._head = root / "orders.txt"
        self._head.write_text("0")
        self.source: Source = CounterSource(str(self._head), max_rows=2, block=block)

    def arrive(self) -> None:
        self._head.write_text(str(int(self._head.read_text()) + 1))

    def break_it(self) -> None:
        self._head.unlink()

    def rows(self, read: Read) -> list[int]:
        return list(numbers(read.arguments))


class Api:
    """An HTTP API by a source of the user's own, at most two orders a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(serving(OrdersServer()))
        self._number = itertools.count()
        self.source: Source = OrdersApi(self._server.url, max_rows=2)

    def arrive(self) -> None:
        self._server.add(next(self._number))

    def break_it(self) -> None:
        self._server.is_down = True


class PythonStream(Counter):
    """A data source of PySpark's, planned by a process of its own.

    :param reader: which of them.
    """

    counts = False

    def __init__(self, root: Path, stack: ExitStack, *, reader: str) -> None:
        super().__init__(root, stack)
        self.source = PythonSource(f"number_streams:{reader}", options={"path": str(self._head)})


class Kafka:
    """Records of a topic with one partition, at most two a batch."""

    keeps_a_log = False
    counts = True

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._broker = kafka.running()
        self._topic = self._broker.topic()
        self._number = itertools.count()
        self.source: Source = KafkaSource(bootstrap_servers=self._broker.address, topics=[self._topic], max_rows=2)

    def arrive(self) -> None:
        self._broker.send(self._topic, [str(next(self._number))])

    def break_it(self) -> None:
        self._broker.remove(self._topic)


SYSTEMS: dict[str, Callable[[Path, ExitStack], System]] = {
    "file": Files,
    "file, ordered": partial(Files, ordered=True),
    "s3": Objects,
    "s3, ordered": partial(Objects, ordered=True),
    "acme's counter": Counter,
    "acme's counter, in blocks": partial(Counter, block=1),
    "polling": Api,
    "python": partial(PythonStream, reader="LimitedNumbers"),
    "jdbc": Rows,
    "jdbc, by time": partial(Rows, timestamp="updated_at"),
    "jdbc, mariadb": RowsInMariaDb,
    "jdbc, mariadb by time": partial(RowsInMariaDb, timestamp="updated_at"),
    "slot": Changes,
    "kafka": Kafka,
    "delta-source": DeltaTables,
    "iceberg-source": IcebergTables,
    "delta-source, change feed": partial(DeltaTables, change_feed=True),
}


SERVED = (
    "s3",
    "s3, ordered",
    "python",
    "jdbc",
    "jdbc, by time",
    "jdbc, mariadb",
    "jdbc, mariadb by time",
    "slot",
    "kafka",
)
system_name = registered(SYSTEMS, slow=SERVED)


@pytest.fixture
def system(system_name: str, tmp_path: Path) -> Iterator[System]:
    with ExitStack() as stack:
        yield SYSTEMS[system_name](tmp_path, stack)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def reopen(system: System, checkpoint: Path) -> Callable[[], OpenSource]:
    """The source as a new process sees it."""

    return lambda: system.source.open(context_in(checkpoint, clock_ms=lambda: 1_795_000_000_000))


def entries(checkpoint: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


def test_the_definition_travels_as_json(system: System) -> None:
    data = json.loads(json.dumps(system.source.to_dict()))
    assert Definition.from_dict(data, any_server=True) == system.source


def test_opening_touches_nothing(system: System, checkpoint: Path, reopen: Callable[[], OpenSource]) -> None:
    system.break_it()
    reopen()
    assert not checkpoint.exists()


def test_check_names_what_is_missing(system: System, checkpoint: Path, reopen: Callable[[], OpenSource]) -> None:
    reopen().check()
    system.break_it()
    with pytest.raises(SourceError, match="orders"):
        reopen().check()
    assert not checkpoint.exists()


def test_nothing_yet(reopen: Callable[[], OpenSource]) -> None:
    source = reopen()
    assert source.has_new(None) is False
    assert source.latest_offset(None) is None
    assert source.finished(None) is False


def test_has_new_sees_data_and_writes_nothing(
    system: System, checkpoint: Path, reopen: Callable[[], OpenSource]
) -> None:
    polled = reopen()
    assert not polled.has_new(None)
    system.arrive()
    assert polled.has_new(None)
    assert polled.has_new(None)
    assert not checkpoint.exists()

    position = reopen().latest_offset(None)
    before = entries(checkpoint)
    assert polled.has_new(None)
    assert not polled.has_new(position)
    system.arrive()
    assert polled.has_new(position)
    assert reopen().has_new(position)
    assert entries(checkpoint) == before


def test_an_offset_is_one_line_of_json(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    offset = reopen().latest_offset(None)
    assert offset is not None
    assert "\n" not in offset
    assert offset != "-"
    json.loads(offset)


def test_a_position_that_a_person_gives_is_checked(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    offset = reopen().latest_offset(None)
    assert offset is not None
    reopen().check_offset(offset)
    assert reopen().is_after(offset, None) in (True, None)
    assert reopen().is_after(None, offset) in (False, None)
    with pytest.raises(SourceError):
        reopen().check_offset('{"of":"another source"}')


def test_a_plan_that_was_not_written_down_is_made_again_as_it_was(
    system: System, reopen: Callable[[], OpenSource]
) -> None:
    system.arrive()
    planned = reopen().latest_offset(None)
    read = reopen().read(None, planned)
    system.arrive()
    assert reopen().has_new(None)
    again = reopen().latest_offset(None)
    assert again == planned or not system.keeps_a_log
    assert reopen().is_after(planned, again) in (False, None)
    assert reopen().read(None, planned) == read


def test_two_planners_at_once_agree(system: System, reopen: Callable[[], OpenSource]) -> None:
    one, other = reopen(), reopen()
    system.arrive()
    planned = one.latest_offset(None)
    system.arrive()
    again = other.latest_offset(None)
    assert again == planned or not system.keeps_a_log
    assert reopen().is_after(planned, again) in (False, None)


def test_nothing_new_is_the_same_offset(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    position = reopen().latest_offset(None)
    assert reopen().latest_offset(position) == position
    assert not reopen().has_new(position)


def test_ranges_follow_each_other_and_a_recorded_one_reads_the_same_later(
    system: System, reopen: Callable[[], OpenSource]
) -> None:
    position = None
    reads = []
    for _ in range(5):
        system.arrive()
        start, position = position, reopen().latest_offset(position)
        assert position != start
        reads.append((start, position, reopen().read(start, position)))
    for start, end, read in reads:
        assert reopen().read(start, end) == read
        assert reopen().not_replayable(start, end) is None
        reopen().verify(start, end)


def test_data_is_known_as_the_same_by_whoever_plans_it_and_as_no_other(
    system: System, reopen: Callable[[], OpenSource], tmp_path: Path
) -> None:
    def known(source: OpenSource, ranges: int) -> list[str | None]:
        found, position = list[str | None](), None
        for _ in range(ranges):
            start, position = position, source.latest_offset(position, ReadLimit(rows=1, splits=1))
            found.append(source.known_as(start, position))
        return found

    for _ in range(2):
        system.arrive()
    elsewhere = tmp_path / "another checkpoint"
    other = system.source.open(context_in(elsewhere, name="refunds", clock_ms=lambda: 1_795_000_000_000))
    first = known(reopen(), 1)
    assert None not in first
    assert known(other, 1) == first
    system.arrive()
    system.arrive()
    source, start = reopen(), reopen().latest_offset(None, ReadLimit(rows=1, splits=1))
    later = source.known_as(start, source.latest_offset(start, ReadLimit(rows=1, splits=1)))
    assert later not in (None, *first)


def test_an_empty_range_can_be_read(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    position = reopen().latest_offset(None)
    empty = reopen().read(position, position)
    assert empty.reader == reopen().read(None, position).reader
    assert reopen().read(None, None).reader == empty.reader


def test_a_read_is_json_values_and_names_an_importable_reader(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    read = reopen().read(None, reopen().latest_offset(None))
    assert json.loads(json.dumps(read.arguments)) == read.arguments
    module, _, function = read.reader.partition(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_lag_falls_to_nothing_when_all_is_planned(system: System, reopen: Callable[[], OpenSource]) -> None:
    for _ in range(5):
        system.arrive()
    position, lags = None, [reopen().lag(None)]
    while (end := reopen().latest_offset(position)) != position:
        position = end
        lags.append(reopen().lag(position))
    known = [[figure for figure in (lag.rows, lag.splits, lag.bytes) if figure is not None] for lag in lags]
    assert known == sorted(known, reverse=True)
    assert not any(known[-1])


def test_a_commit_can_be_said_twice_and_takes_nothing_away(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    position = reopen().latest_offset(None)
    assert position is not None
    reopen().commit(position)
    system.arrive()
    reopen().commit(position)
    assert reopen().has_new(position)


def test_facts_are_pinned_once_and_may_be_told_again(reopen: Callable[[], OpenSource]) -> None:
    reopen().learned({})
    reopen().learned({})


def test_an_outage_is_an_error_and_not_an_absence_of_data(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    position = reopen().latest_offset(None)
    system.arrive()
    system.break_it()
    with pytest.raises(SourceError, match="orders"):
        reopen().has_new(position)
    with pytest.raises(SourceError, match="orders"):
        reopen().latest_offset(position)


def test_under_the_smallest_limit_each_batch_has_one_unit_and_none_is_left_out(
    system: System, reopen: Callable[[], OpenSource]
) -> None:
    for _ in range(3):
        system.arrive()
    least, position, batches = ReadLimit(rows=1, bytes=1, splits=1), None, []
    while (end := reopen().latest_offset(position, least)) != position:
        batches.append(reopen().describe(position, end))
        position = end
    assert len(batches) == 3
    assert all(1 in (batch.rows, batch.splits) for batch in batches) or not system.counts
    assert not reopen().has_new(position)


def test_figures_have_words(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    end = reopen().latest_offset(None)
    words = reopen().in_words(None, end)
    assert words or not system.counts
    assert all(isinstance(count, int) and count > 0 for count in words.values())
    assert words.keys() <= {reopen().splits, "rows", "bytes"}


def test_splits_tile_the_range_and_are_the_same_at_each_call(system: System, reopen: Callable[[], OpenSource]) -> None:
    position = None
    for _ in range(3):
        system.arrive()
        system.arrive()
        start, position = position, reopen().latest_offset(position)
        splits = reopen().splits_of(start, position)
        whole = reopen().read(start, position)
        if [split.read for split in splits] != [whole]:
            rows = [row for split in splits for row in system.rows(split.read)]
            assert rows == system.rows(whole), "their reads add up to the read of the range"
            assert len(set(rows)) == len(rows)
        assert len({split.id for split in splits}) == len(splits)
        system.arrive()
        assert reopen().splits_of(start, position) == splits, "whatever has come since, and whoever asks"


def test_splits_of_other_ranges_are_no_splits_of_this_one(system: System, reopen: Callable[[], OpenSource]) -> None:
    """What a subtask has finished must never pass for the output of other rows."""
    position, seen = None, list[tuple[str, str]]()
    for _ in range(3):
        system.arrive()
        start, position = position, reopen().latest_offset(position)
        seen += [(split.id, json.dumps(split.read.arguments)) for split in reopen().splits_of(start, position)]
    assert len(set(seen)) == len(seen)


def test_an_empty_range_has_one_split(system: System, reopen: Callable[[], OpenSource]) -> None:
    system.arrive()
    position = reopen().latest_offset(None)
    (split,) = reopen().splits_of(position, position)
    assert split.read == reopen().read(position, position)


def test_what_readers_of_splits_tell_is_joined_by_an_importable_function(
    system: System, reopen: Callable[[], OpenSource]
) -> None:
    for _ in range(2):
        system.arrive()
    for split in reopen().splits_of(None, reopen().latest_offset(None)):
        module, _, function = split.read.joins.partition(":")
        assert not split.read.joins or callable(getattr(__import__(module, fromlist=[function]), function))
