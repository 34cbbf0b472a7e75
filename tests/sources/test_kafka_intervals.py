"""What one lane takes of a topic no other lane reads, in either direction, however the two meet."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch import settings as given_settings
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CorruptEntryError, IntervalError, SourceChangedError
from airflow_provider_microbatch.execution import intervals
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.execution.unread import find_unread
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sources.intervals import HeldRange, Interval, Unread
from airflow_provider_microbatch.sources.kafka import KafkaSource
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.taken import Taken
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.intervals import DAY_MS, HOUR_MS, IntervalWorld, hour
from tests.sources.kafka_world import World, offsets
from tests.support.inline_engine import InlineEngine
from tests.support.kafka import running
from tests.support.waiting import wait_until

A = ("a", 0)
T0 = 1_790_000_000_000


def interval(start: int, end: int, *, late: tuple[tuple[int, int], ...] = (), whole: bool = False) -> Interval:
    """Between seconds since T0."""
    spans = tuple((T0 + 1000 * begin, T0 + 1000 * over) for begin, over in late)
    return Interval(start_ms=T0 + 1000 * start, end_ms=T0 + 1000 * end, late=spans, whole=whole)


def pieces(*found: tuple[int, int]) -> Pieces:
    return Pieces.made((A, one) for one in found)


def test_while_no_interval_was_planned_the_live_lane_writes_nothing(tmp_path: Path) -> None:
    taken = Taken(PosixStore(tmp_path / "state"))
    assert taken.live_claims(pieces((0, 9))) == pieces((0, 9))
    assert taken.by_lane("interval-a") is None
    assert not (tmp_path / "state").exists()


def test_an_interval_takes_what_nobody_has_and_the_live_lane_leaves_it_out_for_good(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "state")
    assert Taken(store).take("interval-a", pieces((3, 8)), live=lambda: pieces((0, 5))) == pieces((5, 8))
    assert Taken(store).take("interval-a", pieces((0, 99)), live=Pieces) == pieces((5, 8)), (
        "said again it is what it was"
    )
    assert Taken(store).take("interval-b", pieces((4, 10)), live=Pieces) == pieces((8, 10))
    assert Taken(store).by_lane("interval-a") == pieces((5, 8))
    assert Taken(store).live_claims(pieces((5, 20))) == pieces((10, 20))
    assert Taken(store).take("interval-c", pieces((15, 25)), live=Pieces) == pieces((20, 25))
    assert Taken(store).live_claims(pieces((5, 20))) == pieces((10, 20))


def test_a_lane_that_died_before_its_own_entry_was_there_has_what_it_took(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "state")
    Taken(store).take("interval-a", pieces((0, 4)), live=Pieces)
    (tmp_path / "state" / "lanes" / "interval-a").unlink()
    assert Taken(store).by_lane("interval-a") == pieces((0, 4))
    assert Taken(store).take("interval-b", pieces((0, 6)), live=Pieces) == pieces((4, 6))
    assert Taken(store).by_lane("interval-a") == pieces((0, 4)), "whoever came next wrote it down"


def test_what_is_torn_is_named(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "state")
    store.put_if_absent("taken", b'{"live":')
    with pytest.raises(CorruptEntryError, match="state/taken"):
        Taken(store).by_intervals()


@settings(max_examples=20)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4),
    ends=st.lists(st.integers(1, 15), min_size=1, max_size=4),
)
def test_lanes_at_once_have_each_offset_once(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int]], ends: list[int]
) -> None:
    """Each live batch is in its log before it is read, as the planner has it; an interval looks there when it may."""
    store = PosixStore(tmp_path_factory.mktemp("lanes") / "state")
    live: list[Pieces] = []
    had: dict[str, Pieces] = {}
    begin = threading.Barrier(len(wanted) + 1)

    def read_live() -> None:
        begin.wait()
        start = 0
        for size in ends:
            live.append(pieces((start, start + size)))
            had[f"live {start}"] = Taken(store).live_claims(live[-1])
            start += size

    def held() -> Pieces:
        found = Pieces()
        for one in list(live):
            found |= one
        return found

    def take(number: int, start: int, size: int) -> None:
        begin.wait()
        had[f"interval-{number}"] = Taken(store).take(f"interval-{number}", pieces((start, start + size)), live=held)

    threads = [threading.Thread(target=take, args=(number, *one)) for number, one in enumerate(wanted)]
    for thread in (*threads, live_thread := threading.Thread(target=read_live)):
        thread.start()
    for thread in (*threads, live_thread):
        thread.join()
    seen = [offset for one in had.values() for _, (start, end) in one for offset in range(start, end)]
    assert sorted(seen) == sorted(set(seen)), had
    everything = held()
    for start, size in wanted:
        everything |= pieces((start, start + size))
    assert set(seen) == {offset for _, (start, end) in everything for offset in range(start, end)}
    # Read once more, as a replay does, each is what it was.
    assert all(Taken(store).live_claims(one) == had[f"live {one.of[A][0][0]}"] for one in live)


class Racing(dict[str, Sequence[HeldRange]]):
    """Logs into which the live lane puts a batch, and reads it, at the moment they are looked at."""

    def __init__(self, world: World, *, before: bool) -> None:
        super().__init__(world.held)
        self._world = world
        self._before = before
        self.read: dict[tuple[str, int], list[int]] = {}

    def get(self, lane: str, default: Sequence[HeldRange] = ()) -> Sequence[HeldRange]:  # type: ignore[override]
        then = list(self._world.live)
        planned = self._world.plan()
        self.read = offsets(self._world.open().read(*planned))
        return list(self._world.live) if self._before else then


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_live_batch_that_comes_while_an_interval_is_planned_is_read_once(tmp_path: Path, before: bool) -> None:
    world = World(tmp_path)
    for at in range(6):
        world.send(at_ms=T0 + 1000 * at)
    logs = Racing(world, before=before)
    lane = world.open(lane="interval-a")
    start, end = lane.plan_interval(interval(2, 4), logs)
    own = offsets(world.open(lane="interval-a").read(start, end)) if start != end else {}
    assert own == {}
    assert logs.read == {(world.topic, 0): list(range(6))}
    assert offsets(world.open().read(None, world.live[0].end)) == logs.read


@pytest.mark.slow
def test_an_interval_is_surveyed_and_planned_by_the_times_of_records(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    for at in range(10):
        world.send(at_ms=T0 + 1000 * at, partition=at % 2)
    first, other = interval(2, 5), interval(4, 8)
    lane = "interval-a"
    assert world.open(lane=lane).survey_interval(first, world.held).unread
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    world.open(lane=lane).survey_interval(first, world.held)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    start, end = world.open(lane=lane).plan_interval(first, world.held)
    assert offsets(world.open(lane=lane).read(start, end)) == {(world.topic, 0): [1, 2], (world.topic, 1): [1]}
    assert world.open(lane=lane).plan_interval(other, world.held) == (start, end), "a retry has what was taken"
    assert world.open(lane=lane).describe(start, end).splits == 3
    world.lanes[lane] = [HeldRange(key=BatchKey(lane, 0), start=start, end=end)]

    survey = world.open(lane="interval-b").survey_interval(other, world.held)
    assert (survey.unread, survey.holders, survey.elsewhere) == (True, {BatchKey(lane, 0)}, 0)
    del world.lanes[lane]
    lost = world.open(lane="interval-b").survey_interval(other, world.held)
    assert (lost.holders, lost.elsewhere, lost.splits) == (frozenset(), 1, "offsets")

    live = world.plan()
    assert offsets(world.open().read(*live)) == {(world.topic, 0): [0, 3, 4], (world.topic, 1): [0, 2, 3, 4]}
    assert world.open().describe(*live).splits == 7
    assert world.open().left_out(*live) is None
    taken = world.open(lane="interval-b").survey_interval(other, world.held)
    assert (taken.unread, taken.holders) == (False, {BatchKey(LIVE, 0)})
    begin, same = world.open(lane="interval-b").plan_interval(other, world.held)
    assert begin == same


@pytest.mark.slow
def test_what_is_late_for_an_interval_is_taken_and_what_live_had_before_its_log_begins_is_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    for at in (0, 1000, 2000, 1500, 3000):
        world.send(at_ms=T0 + at)
    world.plan(max_rows=1)
    world.plan(max_rows=1)
    world.live.pop(0)  # as retention does
    late = interval(3, 4, late=((0, 2),))
    lane = world.open(lane="interval-a")
    start, end = lane.plan_interval(late, world.held)
    assert offsets(lane.read(start, end)) == {(world.topic, 0): [4]}
    rest = interval(2, 3)
    start, end = world.open(lane="interval-b").plan_interval(rest, world.held)
    # Where it lies is when it came: 1500 is behind 2000.
    assert offsets(world.open(lane="interval-b").read(start, end)) == {(world.topic, 0): [2, 3]}


@pytest.mark.slow
def test_a_record_of_the_future_stops_the_intervals_that_it_would_empty(tmp_path: Path) -> None:
    world = World(tmp_path, config={"message.timestamp.after.max.ms": str(2**62)})
    world.send(at_ms=T0)
    world.send(at_ms=T0 + 10 * 365 * 86_400_000)
    world.send(at_ms=T0 + 2000)
    source = world.open(lane="interval-a")
    for ask in (source.survey_interval, source.plan_interval):
        with pytest.raises(IntervalError, match=f"'orders'.*offset 1 of {world.topic}-0.*2036"):
            ask(interval(2, 3), world.held)
    assert offsets(world.open().read(*world.plan())) == {(world.topic, 0): [0, 1, 2]}


@pytest.mark.slow
def test_an_interval_has_its_batch_once_no_transaction_is_open_over_its_records(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(2, at_ms=T0)
    world.send(at_ms=T0, partition=1)
    producer = world.broker.producer({"transactional.id": world.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(world.topic, "held", partition=0, timestamp=T0 + 1000)
    producer.flush(60)
    lane = "interval-a"
    told = world.open(lane=lane).survey_interval(interval(0, 5, whole=True), world.held)
    assert f"{world.topic}-0" in str(told.waits)
    assert f"{world.topic}-1" not in str(told.waits)
    with pytest.raises(IntervalError, match=f"'orders'.*{world.topic}-0 .*transaction"):
        world.open(lane=lane).plan_interval(interval(0, 5, whole=True), world.held)
    # What lies behind the interval is nothing to wait for; nor is what a live lane reads, nor what is read uncommitted.
    producer.produce(world.topic, "of the next", partition=0, timestamp=T0 + 6000)
    producer.flush(60)
    before = world.open(lane=lane).survey_interval(interval(-9, -5, whole=True), world.held)
    all_of_it = world.open(lane=lane, isolation="read_uncommitted").survey_interval(interval(0, 5), world.held)
    assert (before.waits, all_of_it.waits) == (None, None)
    producer.commit_transaction(60)
    wait_until(lambda: world.broker.is_settled(world.topic))
    assert world.open(lane=lane).survey_interval(interval(0, 5, whole=True), world.held).waits is None
    planned = world.open(lane=lane).plan_interval(interval(0, 5, whole=True), world.held)
    assert offsets(world.open(lane=lane).read(*planned)) == {(world.topic, 0): [0, 1, 2], (world.topic, 1): [0]}


def lane_of(start: int, end: int) -> str:
    """As a run has it."""
    return intervals.lane_of(interval(start, end))


@pytest.mark.slow
def test_a_record_that_comes_after_its_intervals_run_is_told_and_is_late_for_the_next(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(at_ms=T0 - 9000)
    world.send(at_ms=T0)
    world.send(at_ms=T0, partition=1)
    first, second = lane_of(0, 60), lane_of(120, 180)
    assert world.open(lane=first).survey_interval(interval(0, 60, whole=True), world.held).passed is None, (
        "of before any run"
    )
    world.open(lane=first).plan_interval(interval(0, 60, whole=True), world.held)
    world.send(2, at_ms=T0 + 59_000)
    world.send(at_ms=T0 + 121_000)
    world.send(at_ms=T0 + 61_000, partition=1)
    next_one = interval(120, 180, whole=True)
    passed = world.open(lane=second).survey_interval(next_one, world.held).passed
    assert passed == Unread(count=3, splits="offsets", first_ms=T0, last_ms=T0 + 119_999), "within the second minute"
    # The lookback that is told reads them: the interval in between is over, by this span.
    span = interval(120, 180, late=((0, 120),), whole=True)
    survey = world.open(lane=second).survey_interval(span, world.held)
    assert (survey.unread, survey.passed) == (True, None)
    planned = world.open(lane=second).plan_interval(span, world.held)
    read = offsets(world.open(lane=second).read(*planned))
    assert read == {(world.topic, 0): [2, 3, 4], (world.topic, 1): [1]}
    then = interval(180, 240, whole=True)
    assert world.open(lane=lane_of(180, 240)).survey_interval(then, world.held).passed is None


@pytest.mark.slow
def test_what_retention_ate_of_an_interval_is_an_error_or_a_gap_that_its_batch_tells(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3)
    world.send(2, at_ms=T0)
    world.send(3, at_ms=T0, partition=2)
    # Of the second partition nothing was ever read: what was gone there before is no loss.
    world.send(3, at_ms=T0 - 1000, partition=1)
    world.broker.delete_before(world.topic, 1, 3)
    world.open(lane="interval-a").plan_interval(interval(0, 5), world.held)
    for at in (6, 7, 8):
        world.send(at_ms=T0 + 1000 * at)
        world.send(at_ms=T0 + 1000 * at, partition=1)
        world.send(at_ms=T0 + 1000 * at, partition=2)
    world.broker.delete_before(world.topic, 0, 3)
    world.broker.delete_before(world.topic, 2, 2)
    gap: dict[str, Any] = {"on_data_loss": "record_gap", "lane": "interval-b"}
    assert world.open(lane="interval-b").survey_interval(interval(5, 10), world.held).unread
    with pytest.raises(SourceChangedError, match=rf"1 offsets \({world.topic}-0 2 to 2\).*record_gap"):
        world.open(lane="interval-b").plan_interval(interval(5, 10), world.held)
    # The first record that is left lies before this one, so nothing of it is gone.
    start, end = world.open(lane="interval-c").plan_interval(interval(8, 9), world.held)
    assert offsets(world.open(lane="interval-c").read(start, end))[world.topic, 0] == [4]
    start, end = world.open(**gap).plan_interval(interval(5, 10), world.held)
    assert offsets(world.open(**gap).read(start, end)) == {
        (world.topic, 0): [3],
        (world.topic, 1): [3, 4],
        (world.topic, 2): [3, 4],
    }
    assert f"1 offsets ({world.topic}-0 2 to 2)" in str(world.open(**gap).left_out(start, end))
    assert world.open(lane="interval-b").plan_interval(interval(5, 10), world.held) == (start, end)
    nothing = world.open(lane="interval-d").survey_interval(interval(6, 7), world.held)
    assert not nothing.unread, "one batch has told of it"


@pytest.mark.slow
def test_what_is_gone_behind_what_an_interval_has_is_told_of_the_live_lane(tmp_path: Path) -> None:
    world = World(tmp_path)
    for day in range(3):
        world.send(2, at_ms=T0 + 1000 * day)
    world.open(lane=lane_of(0, 1)).plan_interval(interval(0, 1), world.held)
    world.broker.delete_before(world.topic, 0, 2)
    assert world.open().gone_since(None) is None, "what is gone was the interval's"
    world.broker.delete_before(world.topic, 0, 3)
    assert f"1 offsets ({world.topic}-0 2 to 2)" in str(world.open().gone_since(None))


@pytest.mark.slow
def test_what_retention_ate_behind_a_later_interval_is_told_where_it_may_belong_and_not_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    for day in range(10):
        world.send(2, at_ms=T0 + 1000 * day)
    begin, end = world.open(lane=lane_of(3, 4)).plan_interval(interval(3, 4), world.held)
    assert begin != end
    world.broker.delete_before(world.topic, 0, 12)
    left = f"4 offsets \\({world.topic}-0 8 to 11\\)"
    for how in ("fail", "record_gap"):
        before = {"lane": lane_of(1, 2), "on_data_loss": how}
        assert not world.open(**before).survey_interval(interval(1, 2), world.held).unread
        begin, end = world.open(**before).plan_interval(interval(1, 2), world.held)
        assert begin == end, "what is gone lies behind what a later interval has taken"
    with pytest.raises(SourceChangedError, match=left):
        world.open(lane=lane_of(4, 5)).plan_interval(interval(4, 5), world.held)
    with pytest.raises(SourceChangedError, match=left):  # as one of a longer schedule
        world.open(lane=lane_of(1, 5)).plan_interval(interval(1, 5), world.held)
    gap: dict[str, Any] = {"lane": lane_of(4, 5), "on_data_loss": "record_gap"}
    planned = world.open(**gap).plan_interval(interval(4, 5), world.held)
    assert re.search(left, str(world.open(**gap).left_out(*planned)))


@pytest.mark.slow
def test_what_retention_ate_between_two_intervals_is_of_those_between_them(tmp_path: Path) -> None:
    """A run that failed is cleared when retention has gone past a later one that had run."""
    world = World(tmp_path)
    for day in range(10):
        world.send(2, at_ms=T0 + 1000 * day)
    for day in (1, 5):
        world.open(lane=lane_of(day, day + 1)).plan_interval(interval(day, day + 1), world.held)
    left = f"6 offsets \\({world.topic}-0 4 to 9\\)"
    for upto in (12, 14):
        world.broker.delete_before(world.topic, 0, upto)
        for day in (2, 4):
            with pytest.raises(SourceChangedError, match=left):
                world.open(lane=lane_of(day, day + 1)).plan_interval(interval(day, day + 1), world.held)
        assert not world.open(lane=lane_of(0, 1)).survey_interval(interval(0, 1), world.held).unread
        begin, end = world.open(lane=lane_of(6, 7)).plan_interval(interval(6, 7), world.held)
        assert begin != end, "what is gone before another interval is none of its own"


@pytest.mark.slow
def test_what_retention_ate_behind_what_was_late_for_a_later_interval_may_be_of_one_before_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    for day in (1, 2, 2, 3):
        world.send(at_ms=T0 + 1000 * day)
    world.open(lane=lane_of(3, 4)).plan_interval(interval(3, 4, late=((1, 2),)), world.held)
    world.broker.delete_before(world.topic, 0, 2)
    with pytest.raises(SourceChangedError, match=f"1 offsets \\({world.topic}-0 1 to 1\\)"):
        world.open(lane=lane_of(2, 3)).plan_interval(interval(2, 3), world.held)
    later = interval(8, 9, late=((4, 5),))
    world.send(at_ms=T0 + 4000)
    world.send(2, at_ms=T0 + 6000)
    world.open(lane=lane_of(8, 9)).plan_interval(later, world.held)
    world.broker.delete_before(world.topic, 0, 6)
    with pytest.raises(SourceChangedError, match=f"1 offsets \\({world.topic}-0 5 to 5\\)"):
        world.open(lane=lane_of(6, 7)).plan_interval(interval(6, 7), world.held)


@pytest.mark.slow
def test_where_a_live_lane_reads_on_a_look_lists_no_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands, and a sensor looks each few seconds."""
    world = World(tmp_path)
    for at in range(3):
        world.send(at_ms=T0 + 1000 * at)
    looks = list[str]()
    found = PosixStore.list
    monkeypatch.setattr(PosixStore, "list", lambda store, path="": looks.append(path) or found(store, path))
    survey = world.open(lane=lane_of(2, 3)).survey_interval(interval(2, 3), world.held)
    assert (survey.unread, survey.passed, looks) == (True, None, [])
    survey = world.open(lane=lane_of(0, 1)).survey_interval(interval(0, 1, whole=True), world.held)
    assert (survey.unread, survey.passed, looks) == (True, None, []), "nothing lies before it"


class OneRecord(InlineEngine):
    """Reads the first record of the topic."""

    def __init__(self, topic: str, file: Path) -> None:
        super().__init__(told={"read": {"orders": {"layers": [{topic: {"0": [0, 1]}}], "left_out": {}}}})
        self._file = file

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        self._file.write_text('{"id": 1}\n')
        read = replace(job.sources["orders"], arguments={"groups": [{"paths": [str(self._file)]}]})
        super().start(handle, replace(job, sources={"orders": read}), code)


@pytest.mark.slow
def test_check_tells_of_records_that_came_after_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = running()
    topic = broker.topic()
    monkeypatch.setattr(given_settings, "_given", lambda: Settings(trusted_servers=(broker.address,)))
    world = IntervalWorld(tmp_path, plan="interval")
    source = KafkaSource(bootstrap_servers=broker.address, topics=[topic], timeout=60, packages=[])
    world.sources = {"orders": source}  # type: ignore[dict-item]
    broker.send(topic, ["1"], partition=0, at_ms=DAY_MS + HOUR_MS)
    world.backfill(hour(1), 1, OneRecord(topic, tmp_path / "rows.json"))
    assert find_unread(world.checkpoint) == []
    broker.send(topic, ["2"], partition=0, at_ms=DAY_MS + HOUR_MS + 1)
    (unread,) = find_unread(world.checkpoint)
    assert "1 offsets of source 'orders'" in unread.message
