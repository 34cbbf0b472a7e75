"""Shards of a server that speaks Kinesis' protocol, read by boto3: what ends, splits, goes, expires and is refused."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime import channel_ends
from airflow_provider_microbatch.runtime.channels import ChannelError, _read_groups, told
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.kinesis import Shards
from airflow_provider_microbatch.runtime.reading import SourceReadError, own_token
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from airflow_provider_microbatch.sources.ways_on import TellsMadeAgain
from tests.sources.served_channels import ChannelWorld
from tests.support import kinesis

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
A, B, C, D, E = (f"shardId-{number:012}" for number in range(5))


class World(ChannelWorld):
    """A stream, a checkpoint, and what batches have read.

    :param arguments: of the source.
    """

    def __init__(self, root: Path, *, shards: int = 1, **arguments: Any) -> None:
        super().__init__(root, connect=kinesis.connection, **arguments)
        self.stream = kinesis.Stream(shards=shards)

    def source(self, **arguments: Any) -> KinesisSource:
        return KinesisSource(self.stream.name, conn_id="kinesis", **arguments)

    def sent(self, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        return [row[1].decode() for row in rows]


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


def test_children_are_read_when_their_parent_has_ended_and_that_is_committed(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=2)
    world.stream.send(["1", "2", "3"])
    world.stream.split(A)
    world.stream.send(["4"])
    world.stream.send(["5"], at=0.9)
    assert world.batch() == ["1", "2"]
    assert world.batch() == ["3"]
    assert world.position[A]["finished"]
    assert world.batch() == ["4", "5"]
    assert world.batch() is None


def test_a_child_of_two_waits_for_both(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, max_records=1)
    world.stream.send(["1"])
    world.stream.send(["2", "3", "4"], at=0.9)
    world.stream.merge(A, B)
    world.stream.send(["5"])
    assert [world.batch() for _ in range(4)] == [["1", "2"], ["3"], ["4"], ["5"]]


def test_what_was_merged_and_split_since_the_position_comes_in_its_order(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1"])
    assert world.batch() == ["1"]
    world.stream.merge(A, B)
    world.stream.send(["2"])
    world.stream.split(C)
    world.stream.send(["3"])
    world.stream.send(["4"], at=0.9)
    assert world.batch() == []
    assert world.batch() == ["2"]
    assert world.batch() == ["3", "4"]
    assert world.position.keys() == {A, B, C, D, E}


def test_parents_that_retention_took_unread_stop_the_plan_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1"])
    assert world.batch() == ["1"]
    world.stream.merge(A, B)
    world.stream.send(["2"])
    for shard in (A, B):
        world.stream.arrange("expire", shard)
    with pytest.raises(SourceError, match=rf"orders.*{A}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["2"]
    assert world.told["gaps"] == [A, B]


def test_records_that_went_unread_stop_the_read_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    assert world.batch() == ["1"]
    world.stream.send(["2", "3"])
    world.backdate(2 * DAY_MS)
    world.stream.arrange("trim", A, 2)
    with pytest.raises(ChannelError, match=rf"orders.*{A}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [A]


@pytest.mark.parametrize("start", ["trim_horizon", "latest"])
def test_records_that_went_from_a_shard_of_which_none_was_read_yet_stop_the_read_or_are_told(
    tmp_path: Path, start: str
) -> None:
    world = World(tmp_path, shards=2, start=start)
    assert world.open().has_new(None) == (start == "latest")
    if start == "latest":
        world.committed = world.open().latest_offset(None)  # type: ignore[assignment]
    world.stream.send(["1"])
    assert world.batch() == ["1"]
    world.stream.send(["2", "3"], at=0.9)
    world.backdate(2 * DAY_MS)
    world.stream.arrange("trim", B, 1)
    with pytest.raises(ChannelError, match=rf"orders.*{B}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert B in world.told["gaps"]


def test_records_that_went_from_a_child_before_it_was_first_read_stop_the_read_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    world.batch()
    world.stream.split(A)
    assert world.batch() == []
    world.stream.send(["2", "3", "4"])
    world.backdate(2 * DAY_MS)
    world.stream.arrange("trim", B, 2)
    with pytest.raises(ChannelError, match=r"orders.*shardId-.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["4"]
    assert world.told["gaps"] == [B, C]


def test_a_child_that_is_read_late_lacks_nothing_if_its_parent_was_open_until_lately(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    world.batch()
    world.backdate(2 * DAY_MS)
    world.stream.send(["2"])
    world.stream.split(A)
    world.stream.send(["3"])
    assert [world.batch(), world.batch()] == [["2"], ["3"]]
    assert world.told["gaps"] == []


def test_shards_whose_parents_nobody_has_read_are_a_gap(tmp_path: Path) -> None:
    """What was split came to its end, was split again, and went, while nobody read."""
    world = World(tmp_path)
    world.stream.send(["1"])
    world.batch()
    world.stream.split(A)
    assert world.batch() == []
    world.stream.send(["2"])
    world.stream.merge(B, C)
    world.stream.send(["3"])
    for shard in (A, B, C):
        world.stream.arrange("expire", shard)
    with pytest.raises(ChannelError, match=rf"orders.*{D}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [D]


def test_the_way_on_behind_parents_that_went_reads_what_came_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1"])
    world.batch()
    world.backdate(2 * DAY_MS)
    world.stream.merge(A, B)
    world.stream.send(["2"])
    for shard in (A, B):
        world.stream.arrange("expire", shard)
    with pytest.raises(SourceError, match="set-offset") as caught:
        world.batch()
    (world.committed,) = (word for word in shlex.split(str(caught.value).split("`")[1]) if word.startswith("{"))
    assert world.batch() == ["2"]
    assert world.told["gaps"] == []


@pytest.mark.parametrize("seed", [1, 3, 7, 8, 35])
def test_no_record_goes_unread_in_silence_however_long_nobody_reads(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    world = World(tmp_path, shards=2, max_records=choice.choice([1, 3, 100]), on_data_loss="record_gap")
    sent: list[str] = []
    read: list[str] = []
    lost: set[str] = set()
    gaps: list[str] = []

    def run() -> bool:
        found = world.batch()
        if found is not None:
            read.extend(found)
            gaps.extend(world.told["gaps"])
        return found is not None

    for _ in range(40):
        there, what = world.stream.open_shards(), choice.random()
        if what < 0.1:
            world.stream.split(choice.choice(there))
        elif what < 0.2 and len(there) > 1:
            world.stream.merge(*there[:2])
        elif what < 0.6:
            sent.append(str(len(sent)))
            world.stream.send([sent[-1]], at=choice.choice([0.1, 0.4, 0.6, 0.9]))
        elif what < 0.85 or world.committed is None:
            run()
        else:
            hours = choice.choice([6, 12, 23, 30, 72])
            world.backdate(hours * 3_600_000)
            world.stream.arrange("age", hours * 3_600_000)
            world.stream.arrange("retain")
            if choice.random() < 0.5:
                continue  # and then nobody reads for longer
            while run():
                pass
            gone = {*sent} - {*read} - lost
            assert gaps or not gone, f"{gone} are in no batch, and nobody was told"
            lost |= gone
            gaps.clear()
    while run():
        pass
    assert len(read) == len({*read})
    assert gaps or {*sent} == {*read} | lost


def test_that_the_last_record_is_gone_is_no_loss_if_nothing_had_come_by_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    assert world.batch() == ["1"]
    world.backdate(2 * DAY_MS, only=["came"])
    world.stream.arrange("trim", A, 1)
    world.stream.send(["2"])
    assert world.batch() == ["2"]
    assert world.told["gaps"] == []


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_what_came_after_a_position_and_went_is_told_whoever_may_have_read_it(
    tmp_path: Path, on_data_loss: str
) -> None:  # fmt: skip
    world = World(tmp_path, shards=2, on_data_loss=on_data_loss)
    assert "not on record" in str(world.open().gone_since(None))
    world.stream.send(["1"])
    world.batch()
    world.backdate(2 * DAY_MS, only=["came"])
    world.stream.send(["2", "3"])
    world.stream.arrange("trim", A, 1)
    assert world.open().gone_since(world.committed) is None, "no record is kept so shortly that a later one went too"
    world.backdate(2 * DAY_MS)
    backup = world.committed
    assert world.batch(on_data_loss="record_gap") == ["2", "3"]
    found = str(world.open().gone_since(backup))
    assert [shard in found for shard in (A, B)] == [True, True], "of one that was never read nothing else tells"
    assert world.open().gone_since(world.committed) is None


def test_that_a_shard_went_with_what_came_after_a_position_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, on_data_loss="record_gap")
    world.stream.send(["1"])
    world.batch()
    world.stream.merge(A, B)
    assert world.open().gone_since(world.committed) is None
    world.stream.arrange("expire", B)
    found = str(world.open().gone_since(world.committed))
    assert [shard in found for shard in (A, B)] == [False, True]


def test_a_range_is_read_again_exactly_or_not_at_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1", "2", "3"])
    world.batch()
    begins, end = world.open().initial_offset(), world.committed
    world.stream.send(["4"])
    assert world.read(begins, end) == ["1", "2", "3"]
    assert world.open().not_replayable(begins, end) is None
    world.stream.arrange("trim", A, 1)
    with pytest.raises(ChannelError, match=r"of 3 records up to \d+ there are 2"):
        world.read(begins, end)
    assert world.read(begins, end, on_data_loss="record_gap") == ["2", "3"]
    assert world.told["gaps"] == [A]
    world.stream.arrange("trim", A, 2)
    assert "gone" in (world.open().not_replayable(begins, end) or "")


def test_a_replay_that_would_lack_what_was_read_is_told_of(tmp_path: Path) -> None:
    world = World(tmp_path, on_data_loss="record_gap")
    world.stream.send(["1", "2"])
    world.batch()
    begins, end, before = world.open().initial_offset(), world.committed, world.told
    assert world.open().left_out(begins, end, told=before) is None
    world.stream.arrange("trim", A, 1)
    assert A in (world.open().left_out(begins, end, told=before) or "")
    world.stream.arrange("trim", A, 1)
    assert A in (world.open().left_out(begins, end) or "")


def executor(world: World, read: Read) -> Iterator[list[str]]:
    """What a task of Spark's reads, batch by batch."""
    numbers = [pa.record_batch({"id": list(range(len(read.arguments["groups"])))})]
    for batch in _read_groups(read.arguments, world.open().secrets(), own_token(), iter(numbers)):
        yield [value.decode() for value in batch.column("data").to_pylist()]


def test_a_task_that_runs_again_reads_what_the_first_one_read_though_more_has_come(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1"])
    read = world.open().read_late(None)
    assert [*executor(world, read)] == [["1"]]
    world.stream.send(["2"])
    assert [*executor(world, read)] == [["1"]]
    other_attempt = world.open().read_late(None)
    assert [*executor(world, other_attempt)] == [["1", "2"]]
    assert told(read.arguments, ends=channel_ends.all_of(read.arguments["ends"]))["ends"][A]["rows"] == 1


def test_of_two_tasks_that_read_at_once_the_one_that_comes_to_another_end_fails(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    read = world.open().read_late(None)
    slow = executor(world, read)
    assert next(slow) == ["1"]
    assert [*executor(world, read)] == [["1"]]
    world.stream.send(["2"])
    with pytest.raises(SourceReadError, match=r"orders.*by two tasks at once"):
        next(slow), next(slow)
    assert [*executor(world, read)] == [["1"]]


@pytest.mark.parametrize("what", ["refusals", "sparse"])
def test_a_stream_that_is_busy_or_thin_is_read_to_its_end(tmp_path: Path, what: str) -> None:
    world = World(tmp_path)
    world.stream.send(["1", "2"])
    world.stream.set(what, 2)
    assert world.batch() == ["1", "2"]
    assert world.batch() is None


def test_an_iterator_that_has_expired_is_taken_anew_where_it_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1", "2", "3"])
    source = world.open()
    source.latest_offset(None)
    arguments = source.read_late(source.initial_offset()).arguments
    pages = Shards(arguments, source.secrets()).pages(A, {"rows": 0}, most=lambda: 1)
    found = [next(pages).rows[0][1][1]]
    world.stream.set("iterators", 1)
    while len(found) < 3:
        found += [row[1] for _, row in next(pages).rows]
    assert found == [b"1", b"2", b"3"]
    assert world.open().has_new(None)


def test_a_sensor_costs_one_request_a_shard_and_an_expired_iterator_is_no_news(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, discover_seconds=60)
    world.stream.send(["1"])
    world.batch()
    assert not world.open().has_new(world.committed)
    before = world.stream.requests()
    for _ in range(3):
        assert not world.open().has_new(world.committed)
    asked = {name: count - before[name] for name, count in world.stream.requests().items()}
    assert {name: count for name, count in asked.items() if count} == {"GetRecords": 6}
    world.stream.set("iterators", 1)
    assert not world.open().has_new(world.committed)
    world.stream.send(["2"])
    assert world.open().has_new(world.committed)


@pytest.mark.parametrize("start", ["latest", "a moment"])
def test_a_source_that_begins_later_begins_where_that_was_at_its_first_plan(tmp_path: Path, start: str) -> None:
    world = World(tmp_path, start="latest" if start == "latest" else now_ms() - 60_000)
    world.stream.send(["1"])
    world.stream.split(A)
    world.stream.arrange("age", 2 * 3_600_000)
    source = world.open()
    assert source.has_new(None), "it takes a plan to know where it begins"
    world.committed = source.latest_offset(None) if start == "latest" else None  # type: ignore[assignment]
    world.stream.send(["2"], at=0.9)
    read = []
    while (found := world.batch()) is not None:
        read += found
    assert read == ["2"]


def test_the_latest_is_what_it_is_by_the_clock_that_stamps_records(tmp_path: Path) -> None:
    world = World(tmp_path, start="latest")
    world.ahead_ms = 600_000
    world.committed = world.open().latest_offset(None)  # type: ignore[assignment]
    world.stream.send(["1"])
    assert world.batch() == ["1"]


def test_lag_is_how_old_what_comes_next_is(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.stream.send(["1"])
    world.batch()
    world.stream.send(["2"], at=0.9)
    world.stream.arrange("age", 3_600_000)
    lag = world.open().lag_by_split(world.committed)
    assert lag[A] == 0
    assert lag[B] >= 3_600_000


@pytest.mark.parametrize(
    "position", ['{"orders":{"0":1}}', '{"x":{"rows":0}}', f'{{"{A}":{{"rows":1,"after":"1\' OR"}}}}']
)
def test_what_is_no_position_of_the_stream_is_refused(tmp_path: Path, position: str) -> None:
    with pytest.raises(SourceError, match="orders"):
        World(tmp_path).open().check_offset(position)


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
@pytest.mark.parametrize("how", ["made again", "another name"])
def test_another_stream_is_not_taken_for_the_one_that_was_read(tmp_path: Path, how: str, on_data_loss: str) -> None:
    """Shards have the same names in all streams, and numbers that grow with time."""
    world = World(tmp_path, on_data_loss=on_data_loss)
    other = kinesis.Stream()
    other.send(["a", "b"])
    world.stream.send(["1"])
    world.batch()
    begins = world.open().initial_offset()
    if how == "made again":
        world.stream.remove()
        world.stream.create(1)
    else:
        world.stream = other
    world.stream.send(["c"])
    source = world.open()
    asks: tuple[Callable[[], object], ...] = (
        lambda: source.has_new(world.committed),
        lambda: source.latest_offset(world.committed),
        lambda: source.read_late(world.committed),
        lambda: source.read(begins, world.committed),
    )
    for ask in asks:
        with pytest.raises(SourceChangedError, match=rf"orders.*{world.stream.name} is not what was.*add-source"):
            ask()
    assert isinstance(source, TellsMadeAgain)
    assert "it was arn:aws:kinesis:" in (source.made_again() or "")


def test_a_checkpoint_of_before_there_was_a_record_reads_on_what_its_next_plan_finds(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    world.batch()
    assert world.store.delete("state/identity")
    world.stream.send(["2"])
    assert world.batch() == ["2"]
    world.stream.remove()
    world.stream.create(1)
    with pytest.raises(SourceChangedError):
        world.batch()


def test_a_torn_record_of_what_is_read_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.batch()
    world.store.delete("state/identity")
    world.store.put_if_absent("state/identity", b"{")
    with pytest.raises(CorruptEntryError, match="state/identity"):
        world.open().has_new(None)


def test_a_stream_that_is_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.remove()
    for ask in (lambda: world.open().check(), lambda: world.open().has_new(None)):
        with pytest.raises(SourceError, match=rf"orders.*{world.stream.name}.*not found"):
            ask()


def test_no_secret_is_in_what_is_stored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stream.send(["1"])
    world.batch()
    source = world.open()
    for stored in (repr(source.read(None, world.committed)), repr(source.read_late(None)), world.committed or ""):
        assert kinesis.SECRET not in stored
    assert kinesis.SECRET in source.secrets().values()
    assert kinesis.SECRET not in repr(source._server._access)  # type: ignore[attr-defined]
