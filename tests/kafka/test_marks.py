"""Marks of batches: what a record of one says comes out of it, whatever else lies in their topic, and a look for a
batch reads no more of them than it has to."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster
from airflow_provider_microbatch.sinks.kafka import marks as module
from airflow_provider_microbatch.sinks.kafka.mark import Mark, decode, encode, key_of, place_of
from airflow_provider_microbatch.sinks.kafka.mark_index import Found, MarkIndex
from airflow_provider_microbatch.sinks.kafka.marks import Marks
from airflow_provider_microbatch.sinks.kafka.records import OURS, headers_of
from airflow_provider_microbatch.sinks.manifest import Manifest
from tests.execution.maintaining import filled
from tests.kafka.pipeline import TopicWorld
from tests.kafka.topic import World
from tests.sinks.stages import EXPECTED, KEY, batch_of
from tests.support import kafka
from tests.support.kafka_stages import make_ready, write_stage
from tests.support.waiting import wait_until

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.integers(0, 2**40)
VALUES = st.recursive(NUMBERS | TEXTS, st.lists).map(lambda found: json.dumps(found).encode())
LANES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
KEYS = st.builds(BatchKey, LANES, NUMBERS)


@st.composite
def made_marks(draw: st.DrawFn) -> Mark:
    key = draw(KEYS)
    identity = draw(st.none() | st.builds(batch_of, st.just(key), pipeline=TEXTS, digest=st.just("d1")))
    manifest = Manifest(
        key=key,
        epoch=draw(NUMBERS),
        identity=identity,
        files=draw(st.dictionaries(TEXTS, NUMBERS, max_size=3)),
        result=draw(st.dictionaries(TEXTS, TEXTS | NUMBERS | st.none(), max_size=3)),
    )
    between = st.dictionaries(st.integers(0, 1000), st.tuples(NUMBERS, NUMBERS), max_size=3)
    return Mark(
        manifest=manifest,
        top=draw(NUMBERS),
        topic_id=draw(TEXTS),
        offsets=draw(between),
        behind=draw(NUMBERS),
        marks_id=draw(st.none() | TEXTS),
    )


@given(mark=made_marks())
def test_a_mark_comes_out_as_it_went_in(mark: Mark) -> None:
    found = decode(encode(mark), mark.manifest.key, where="offset 1 of marks")
    assert found == mark
    assert str(found.manifest.identity) == str(mark.manifest.identity)


@given(topic=TEXTS, key=KEYS)
def test_the_key_of_a_mark_names_topic_and_batch(topic: str, key: BatchKey) -> None:
    assert place_of(key_of(topic, key)) == (topic, key)


@given(
    data=st.binary() | st.none() | st.recursive(NUMBERS | TEXTS, st.lists).map(lambda found: json.dumps(found).encode())
)
def test_what_is_no_key_of_a_mark_is_somebody_elses_record(data: bytes | None) -> None:
    found = place_of(data)
    assert found is None or key_of(*found) == data or json.loads(data or b"") == json.loads(key_of(*found))


@given(mark=made_marks(), replaces=NUMBERS | st.none())
def test_headers_name_the_batch_and_each_is_there_once(mark: Mark, replaces: int | None) -> None:
    manifest, found = mark.manifest, headers_of(mark.manifest, replaces=replaces)
    told = {name: (value or b"").decode() for name, value in found}
    assert len(told) == len(found)
    assert all(name.startswith(OURS) for name in told)
    assert (told["microbatch-batch"], told["microbatch-attempt"]) == (str(manifest.key), str(manifest.epoch))
    assert told.get("microbatch-replaces") == (None if replaces is None else str(replaces))
    if manifest.identity is not None:
        assert told["microbatch-pipeline"] == manifest.identity.pipeline
        assert told["microbatch-checkpoint"] == manifest.identity.checkpoint


WRONG: Mapping[str, Any] = {
    "version": 2, "epoch": "1", "identity": "x", "files": [], "result": 7, "top": None, "offsets": {"0": [1]},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_mark_is_an_error_that_says_where_it_lies(name: str) -> None:
    values = json.loads(encode(Mark(manifest=Manifest(key=KEY, epoch=1), top=7, topic_id="a")))
    for data in (json.dumps({**values, name: WRONG[name]}).encode(), b"[" * 100_000, None, b"\xff"):
        with pytest.raises(
            SinkError, match=r"offset 5 of marks is no mark of batch live/7 .*Somebody else writes there"
        ):
            decode(data, KEY, where="offset 5 of marks")


def test_the_mark_of_another_batch_is_not_taken_for_the_batchs() -> None:
    mark = Mark(manifest=Manifest(key=KEY, epoch=1, identity=batch_of()), top=7, topic_id="a")
    with pytest.raises(SinkError, match="it is batch live/7's"):
        decode(encode(mark), BatchKey("live", 8), where="here")


def test_a_list_of_files_that_is_too_long_for_a_record_is_left_out() -> None:
    files = {f"part-{number:05}.parquet": number for number in range(50_000)}
    mark = Mark(manifest=Manifest(key=KEY, epoch=1, files=files), top=7, topic_id="a")
    assert decode(encode(mark), KEY, where="here") == dataclasses.replace(
        mark, manifest=dataclasses.replace(mark.manifest, files={})
    )


@pytest.mark.slow
def test_a_batch_whose_mark_has_no_files_is_committed_with_their_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sinks.kafka.mark._LARGEST", 1)
    world = filled(TopicWorld(tmp_path), 1)
    entry = world.checkpoint.commit_log.get(0)
    assert entry is not None
    assert entry.progress["numOutputFiles"] == 1
    assert world.ids() == [0]


def test_what_is_read_further_back_says_nothing_of_a_batch_that_has_a_newer_record() -> None:
    index = MarkIndex("marks", id=None, end=9)
    before = Mark(manifest=Manifest(key=KEY, epoch=1), top=7, topic_id="a")
    now = dataclasses.replace(before, top=9, topic_id="b")
    index.add(KEY, encode(now), offset=8)
    index.add(KEY, encode(before), offset=3)
    index.add(KEY, b"no mark", offset=2)
    assert index.find(KEY) == Found(offset=8, mark=now)
    assert index.newest("live") == (9, "b")
    index.add(KEY, None, offset=10)
    assert index.ids("live", above=-1) == []


@dataclasses.dataclass
class Topic:
    """A topic of marks that is written by hand."""

    name: str

    @classmethod
    def make(cls) -> Topic:
        return cls(kafka.running().topic(config=module.SETTINGS))

    def put(self, *batches: tuple[str, int], topic: str = "orders", is_settled: bool = True) -> None:
        """Marks of these batches, each in its place, in one transaction."""
        tops: dict[str, int] = {}
        cluster = self.cluster()
        end, id = cluster.latest([(self.name, 0)])[self.name, 0], cluster.topics([self.name])[self.name].id
        producer = kafka.running().producer({"transactional.id": f"{self.name}-{topic}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for behind, (lane, number) in enumerate(batches, end):
            tops[lane] = max(tops.get(lane, -1), number)
            manifest = Manifest(key=BatchKey(lane, number), epoch=1)
            mark = Mark(manifest=manifest, top=tops[lane], topic_id="a", behind=behind, marks_id=id)
            producer.produce(self.name, encode(mark), key=key_of(topic, manifest.key), partition=0)
        producer.commit_transaction(30)
        wait_until(lambda: not is_settled or kafka.running().is_settled(self.name))

    def marks(self, *, wait_seconds: float = 30.0) -> Counted:
        return Counted(
            self.cluster(), self.access(), topic="orders", name=self.name, timeout=30, wait_seconds=wait_seconds
        )

    def access(self) -> Access:
        return Access.of_servers(kafka.running().address, failed=SinkError)

    def cluster(self) -> Cluster:
        return Cluster(self.access(), timeout=30, committed_only=True)


class Counted(Marks):
    """Counts the offsets that it reads."""

    read = 0

    def _read(self, lower: int, upper: int) -> Any:
        self.read += upper - lower
        return super()._read(lower, upper)


def found_in(marks: Marks, lane: str, number: int) -> tuple[Mark | None, int, str | None]:
    seen = marks.look(BatchKey(lane, number))
    return seen.mark, seen.top, seen.topic_id


@pytest.fixture
def topic() -> Topic:
    return Topic.make()


slow = pytest.mark.slow


@slow
def test_the_newest_batches_are_found_and_missed_by_one_read(topic: Topic) -> None:
    topic.put(*(("live", number) for number in range(3000)))
    marks = topic.marks()
    for number, is_in in ((2999, True), (2990, True), (3000, False), (5000, False)):
        before = marks.read
        found = marks.look(BatchKey("live", number))
        assert (found.mark is not None, found.top) == (is_in, 2999)
        assert marks.read - before <= 64
    assert marks.ids("live", above=2997) == [2998, 2999]


@slow
def test_an_old_batch_and_one_of_another_lane_are_found_too(topic: Topic) -> None:
    topic.put(("backfill", 0), *(("live", number) for number in range(1000)), ("backfill", 1))
    marks = topic.marks()
    assert marks.look(BatchKey("live", 3)).mark is not None
    assert marks.look(BatchKey("backfill", 0)).mark is not None
    assert found_in(marks, "backfill", 2) == (None, 1, "a")
    assert found_in(marks, "elsewhere", 0) == (None, -1, None)
    assert marks.ids("backfill") == [0, 1]
    assert len(marks.ids("live")) == 1000


@slow
def test_who_asks_for_one_batch_after_the_other_reads_no_mark_twice(topic: Topic) -> None:
    topic.put(*((f"interval-{number % 3}", number) for number in range(900)))
    marks = topic.marks()
    for number in reversed(range(900)):
        assert marks.look(BatchKey(f"interval-{number % 3}", number)).mark is not None
    for lane in ("interval-0", "interval-9", "interval-10"):
        assert marks.look(BatchKey(lane, 0)).mark is None or lane == "interval-0"
        assert len(marks.ids(lane)) == (300 if lane == "interval-0" else 0)
    assert marks.read <= 901, "with the end of the transaction"
    topic.put(("interval-0", 900))
    assert marks.ids("interval-0", above=890) == [891, 894, 897, 900]
    assert marks.read <= 903


@slow
def test_marks_that_are_too_many_to_be_kept_are_read_again_one_by_one(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sinks.kafka.mark_index._KEPT_BYTES", 1000)
    topic.put(*(("live", number) for number in range(100)), ("live", 5))
    marks = topic.marks()
    for number in range(100):
        mark = marks.look(BatchKey("live", number)).mark
        assert mark is not None
        assert mark.manifest.key.id == number
    assert found_in(marks, "live", 100) == (None, 99, "a")


@slow
def test_an_old_batch_that_was_published_again_hides_no_newer_one(topic: Topic) -> None:
    topic.put(*(("live", number) for number in range(9)), ("live", 2))
    marks = topic.marks()
    for number in range(9):
        assert marks.look(BatchKey("live", number)).mark is not None
    assert found_in(marks, "live", 9) == (None, 8, "a")
    assert marks.ids("live", above=6) == [7, 8]


@slow
def test_marks_of_other_topics_and_records_of_others_are_passed_over(topic: Topic) -> None:
    topic.put(("live", 1))
    topic.put(("live", 2), topic="returns")
    kafka.running().send(topic.name, ["hello"])
    marks = topic.marks()
    assert marks.look(BatchKey("live", 1)).mark is not None
    assert found_in(marks, "live", 2) == (None, 1, "a")


@slow
def test_what_lies_behind_an_open_transaction_is_waited_for(topic: Topic) -> None:
    producer = kafka.running().producer({"transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"x", key=b"x", partition=0)
    producer.flush()
    topic.put(("live", 1), is_settled=False)
    with pytest.raises(SinkError, match=r"a transaction is open in .* try again then"):
        topic.marks(wait_seconds=0.2).look(BatchKey("live", 1))
    found: list[Any] = []
    looking = threading.Thread(target=lambda: found.append(topic.marks().look(BatchKey("live", 1))))
    looking.start()
    producer.abort_transaction(30)
    looking.join()
    assert found[0].mark is not None


@slow
def test_marks_that_would_age_out_or_are_gone_stop_a_publish(tmp_path: Path) -> None:
    world = World.make(tmp_path)
    ageing = kafka.running().topic(config={"cleanup.policy": "compact,delete"})
    with pytest.raises(SinkError, match=r"cleanup\.policy=compact,delete: marks would age out.*Set cleanup"):
        make_ready(world.sink(marks=ageing))
    sink = world.sink()
    write_stage(sink, 1)
    kafka.running().remove(sink.definition.marks_topic)
    with pytest.raises(SinkError, match=r"-microbatch is gone, which has a mark of each batch.*Bring the marks back"):
        world.sink().publish(EXPECTED, 1)
    assert world.records() == []
