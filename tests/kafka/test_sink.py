"""What consumers find in a topic, and what a publish refuses. (tests/contract/test_sink.py has what the sink shares
with all others.)"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError, UntrustedError
from airflow_provider_microbatch.sinks import Sink, SinkContext
from airflow_provider_microbatch.sinks.kafka import KafkaSink, marks
from airflow_provider_microbatch.sinks.kafka.mark import Mark
from airflow_provider_microbatch.sinks.kafka.marks import Marks
from airflow_provider_microbatch.sinks.kafka.transaction import Transaction
from airflow_provider_microbatch.sinks.manifest import Manifest
from tests.kafka.topic import World, of
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, NOTHING_KNOWN, batch_of, expect
from tests.support import kafka
from tests.support.kafka import PASSWORD
from tests.support.kafka_stages import read, write_records, write_stage

slow = pytest.mark.slow

OF_ANOTHER_TOPIC = ("microbatch-batch", b"live/3")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


def refused(
    world: World, rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...] = ("value",), **given: Any
) -> str:
    """Why a batch of these records is not published; nothing of it is there."""
    sink = world.sink(**given)
    write_records(sink, 1, [rows], columns=columns)
    with pytest.raises(SinkError) as error:
        sink.publish(EXPECTED, 1)
    assert world.records() == []
    assert world.sink().contains(EXPECTED) is None
    return str(error.value)


@slow
def test_records_have_their_columns_and_say_whose_they_are(world: World) -> None:
    sink = world.sink()
    parts: list[list[dict[str, Any]]] = [
        [
            {
                "key": b"k1",
                "value": b"v1",
                "headers": [("kind", b"order"), OF_ANOTHER_TOPIC],
                "partition": 1,
            },
            {"key": None, "value": b"v2", "headers": None, "partition": 1},
        ],
        [{"key": b"k3", "value": None, "headers": [], "partition": 1}],
    ]
    write_records(sink, 3, parts, columns=("key", "value", "headers", "partition"))
    sink.publish(EXPECTED, 3)
    records = world.records()
    assert [(one.key, one.value, one.partition) for one in records] == [
        (b"k1", b"v1", 1),
        (None, b"v2", 1),
        (b"k3", None, 1),
    ]
    assert records[0].headers == {
        "kind": "order",
        "microbatch-pipeline": "orders",
        "microbatch-checkpoint": CHECKPOINT,
        "microbatch-batch": "live/7",
        "microbatch-attempt": "3",
        "microbatch-row": "0",
    }
    assert of(records, "microbatch-row") == ["0", "1", "2"]


@slow
def test_without_a_key_a_record_has_its_place_for_one(world: World) -> None:
    sink = world.sink()
    write_records(sink, 1, [[{"value": b"a"}, {"value": b"b"}], [{"value": b"c"}]])
    sink.publish(EXPECTED, 1)
    assert {one.key: one.value for one in world.records()} == {
        b"orders/live/7/0": b"a",
        b"orders/live/7/1": b"b",
        b"orders/live/7/2": b"c",
    }


@slow
def test_a_key_leads_to_the_partition_that_it_leads_to_from_java(tmp_path: Path) -> None:
    """Kafka's own murmur2, as its tests have it: of "foobar" it is -790332482."""
    world = World(tmp_path, kafka.running().topic(partitions=7))
    sink = world.sink()
    write_records(sink, 1, [[{"key": b"foobar", "value": b"x"}]], columns=("key", "value"))
    sink.publish(EXPECTED, 1)

    (one,) = read(world.topic, partitions=7)
    assert one.partition == (-790332482 & 0x7FFFFFFF) % 7


@slow
def test_a_batch_without_rows_is_in(world: World) -> None:
    sink = world.sink()
    write_records(sink, 1, [])
    sink.publish(EXPECTED, 1)
    found = world.sink().contains(EXPECTED)
    assert found is not None
    assert found.epoch == 1
    assert world.records() == []


@slow
def test_its_mark_says_between_which_offsets_a_batch_lies(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1, rows=4)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 1, batch=expect(BatchKey("live", 8)).identity, rows=3)
    sink.publish(expect(BatchKey("live", 8)), 1)
    mark = world.sink()._marks.look(BatchKey("live", 8)).mark
    assert mark is not None
    between = mark.offsets
    lying = [one for one in world.records() if between[one.partition][0] <= one.offset < between[one.partition][1]]
    assert of(lying, "microbatch-batch") == ["live/8"] * 3
    (*_, record) = read(sink.definition.marks_topic, partitions=1)
    assert mark.behind == record.offset, "where the marks ended before it"


@slow
def test_a_batch_that_is_in_is_not_published_again_unless_the_sink_says_so(world: World) -> None:
    sink = world.sink()
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=1)
    sink.publish(EXPECTED, 1)
    with pytest.raises(SinkError, match=r"is in, by attempt 1, and .* cannot take back .*on_replay='append'"):
        sink.replace(EXPECTED, 2)
    assert of(world.records(), "microbatch-attempt") == ["1"]
    assert sink.replace(EXPECTED, 1).epoch == 1, "the rest of a replay that was published is done"
    assert world.sink(on_replay="append").replace(EXPECTED, 2).epoch == 2
    assert sorted(of(world.records(), "microbatch-attempt")) == ["1", "2"]


@slow
def test_a_replay_of_an_old_batch_hides_no_newer_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # A look goes backwards one record at a time.
    monkeypatch.setattr(marks, "_FIRST_WINDOW", 1)
    monkeypatch.setattr(marks, "_GROWTH", 1)
    sink, newer = world.sink(on_replay="append"), expect(BatchKey("live", 8))
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 1, batch=newer.identity)
    sink.publish(newer, 1)
    write_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert world.sink().contains(newer) is not None
    assert list(world.sink().batches_after("live", 7, NOTHING_KNOWN)) == [8]


@slow
def test_a_batch_that_is_not_in_is_published_by_a_replay(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1, rows=1)
    assert sink.replace(EXPECTED, 1).epoch == 1


def losing_the_answer_of_the_commit(monkeypatch: pytest.MonkeyPatch, code: str, *, is_late: bool = False) -> None:
    """The first commit is done, and the client hears of an error; when the transaction would be too old by now."""
    import confluent_kafka

    real, calls = Transaction._again, itertools.count()

    def again(self: Transaction, call: Callable[[], object], *, seconds: float) -> None:
        real(self, call, seconds=seconds)
        if next(calls) == 1:
            monkeypatch.setattr(Transaction, "_is_late", is_late)
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, code)))

    monkeypatch.setattr(Transaction, "_again", again)


@slow
def test_a_commit_without_an_answer_is_found_by_the_next_try(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = world.sink()
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=2)
    losing_the_answer_of_the_commit(monkeypatch, "_TIMED_OUT")
    with pytest.raises(SinkError, match=r"it is not known whether it was committed .*the next try finds out"):
        sink.publish(EXPECTED, 1)
    assert world.sink().publish(EXPECTED, 2).epoch == 1
    assert of(world.records(), "microbatch-attempt") == ["1", "1"]


@slow
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_a_publisher_that_is_fenced_behind_its_commit_finds_that_it_has_published(
    world: World, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    sink = world.sink()
    write_stage(sink, 1, rows=2)
    losing_the_answer_of_the_commit(monkeypatch, "_FENCED", is_late=is_late)
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert of(world.records(), "microbatch-attempt") == ["1", "1"]


@slow
def test_a_topic_that_is_missing_or_was_made_again_is_named(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    kafka.running().remove(world.topic)
    with pytest.raises(SinkError, match=f"there is no topic {world.topic}"):
        world.sink().check()
    kafka.running().topic(name=world.topic, partitions=2)
    with pytest.raises(SinkError, match=r"was published to another topic .*made again, without what it had") as told:
        world.sink().contains(EXPECTED)
    assert "`microbatch rewind /checkpoints/orders --to -1` has the batches run again" in str(told.value)
    in_lane = dataclasses.replace(EXPECTED, identity=batch_of(BatchKey("interval-a", 0), location="/two words"))
    lane_mark = Mark(manifest=Manifest(key=in_lane.key, epoch=1, identity=in_lane.identity), top=0, topic_id="another")
    with pytest.raises(SinkError, match="`microbatch rewind '/two words' --to -1 --lane interval-a`"):
        world.sink()._own(in_lane, lane_mark)


@slow
def test_a_partition_that_there_is_not_is_named_with_its_row(world: World) -> None:
    rows = [{"value": b"a", "partition": 1}, {"value": b"b", "partition": 2}]
    told = refused(world, rows, ("value", "partition"))
    assert "row 1 of batch live/7 attempt 1 goes to partition 2" in told
    assert "has 2, counted from 0" in told


@slow
def test_a_header_without_a_key_is_named_with_its_row(world: World) -> None:
    rows = [{"value": b"a", "headers": [("kind", b"x")]}, {"value": b"b", "headers": [(None, b"x")]}]
    assert "row 1 has a header without a key" in refused(world, rows, ("value", "headers"))


@slow
def test_a_record_that_is_too_large_for_the_client_is_named_by_its_row(world: World) -> None:
    told = refused(world, [{"value": b"a"}, {"value": b"x" * 3_000_000}])
    assert "row 1 of batch live/7 attempt 1" in told
    assert "Raise max.message.bytes of the topic and message.max.bytes in the sink's options" in told


@slow
def test_a_record_that_is_too_large_for_the_topic_fails_the_whole_batch(tmp_path: Path) -> None:
    world = World(tmp_path, kafka.running().topic(partitions=2, config={"max.message.bytes": "2000"}))
    told = refused(world, [{"value": b"a"}, {"value": bytes(range(256)) * 50}])
    assert "it may be larger than max.message.bytes of the topic" in told


@slow
def test_a_transaction_that_may_last_longer_than_the_brokers_allow_is_refused(world: World) -> None:
    told = refused(world, [{"value": b"a"}], transaction_seconds=3600)
    assert "Lower transaction_seconds, or raise transaction.max.timeout.ms" in told


@slow
def test_a_publish_that_takes_too_long_says_so_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_microbatch.sinks.kafka import transaction

    class Clock:
        """An hour passes between any two looks at it."""

        now = 0.0

        def monotonic(self) -> float:
            self.now += 3600
            return self.now

    monkeypatch.setattr(transaction, "time", Clock())
    told = refused(world, [{"value": b"a"}] * 1000)
    assert "it took longer than transaction_seconds=300" in told
    assert kafka.running().is_settled(world.topic), "consumers wait for nothing"


@slow
def test_brokers_that_do_not_answer_are_an_error_of_the_sink(tmp_path: Path) -> None:
    sink = KafkaSink("orders", bootstrap_servers="127.0.0.1:1", stages=str(tmp_path), timeout=1)
    with pytest.raises(SinkError, match=r"Kafka at 127\.0\.0\.1:1 did not answer"):
        sink.open(SinkContext()).check()


@slow
def test_a_login_and_tls_come_from_the_connection_and_are_told_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.make(tmp_path)

    def connect(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, conn_type="kafka", extra=kafka.running().login)

    definition = KafkaSink(world.topic, conn_id="kafka", stages=str(tmp_path / "stages"))
    sink = definition.open(SinkContext(connect=connect))
    with caplog.at_level(logging.DEBUG):
        write_stage(sink, 1, rows=2)
        sink.publish(EXPECTED, 1)
    assert len(world.records()) == 2
    told = [caplog.text, json.dumps(definition.to_dict()), repr(sink.stage(BATCH, 1)), sink.location()]
    assert not any(PASSWORD in text for text in told)


@slow
def test_how_a_publish_goes_on_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    sink = world.sink()
    write_stage(sink, 1, rows=5)
    with caplog.at_level(logging.INFO):
        sink.publish(EXPECTED, 1)
    assert "batch live/7 attempt 1: 5 records sent, " in caplog.text
    assert " a second" in caplog.text


@slow
def test_the_next_batch_is_found_missing_by_a_look_that_reads_the_end_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, looks = world.sink(), list[tuple[int, int]]()
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    real = Marks._read

    def read(self: Marks, lower: int, upper: int) -> Any:
        looks.append((lower, upper))
        return real(self, lower, upper)

    monkeypatch.setattr(Marks, "_read", read)
    assert world.sink().contains(expect(BatchKey("live", 8))) is None
    assert list(world.sink().batches_after("live", 6, NOTHING_KNOWN)) == [7]
    assert len(looks) == 2


def test_a_definition_is_plain_data_and_loads_no_client() -> None:
    made = KafkaSink("orders", conn_id="kafka", stages="/data/stages", options={"linger.ms": 20})
    assert Sink.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert (made.location(), made.marks_topic) == ("kafka://kafka/orders", "orders-microbatch")
    assert made.remembers_batches
    assert not made.can_withdraw
    script = "import sys, airflow_provider_microbatch.sinks.kafka; assert 'confluent_kafka' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["plugin.library.paths", "ssl.engine.location", "bootstrap.servers", "debug"])
def test_a_stored_definition_can_neither_load_a_library_nor_name_a_server_by_its_options(name: str) -> None:
    stored = KafkaSink("orders", conn_id="kafka", stages="/data/stages").to_dict()
    stored["arguments"]["options"] = {name: "/tmp/own.so"}
    with pytest.raises(DefinitionError, match=f"'{name}' is none of"):
        Sink.from_dict(stored)


def test_a_server_that_only_a_checkpoint_names_is_not_spoken_to() -> None:
    made = KafkaSink("orders", bootstrap_servers="b:1", stages="/data/stages")
    assert made.servers() == {"b:1"}
    with pytest.raises(UntrustedError, match=r"speaks to 'b:1', which only a checkpoint names"):
        Sink.from_dict(made.to_dict())


def test_two_topics_and_two_clusters_have_stages_of_their_own() -> None:
    one = KafkaSink("orders", conn_id="kafka", stages="/data/stages")
    others = [dataclasses.replace(one, topic="returns"), dataclasses.replace(one, conn_id="other")]
    assert len({str(sink.files.root) for sink in (one, *others)}) == 3


GIVEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no topic": ({"topic": "a b"}, "'a b' is no name of a topic"),
    "a topic of dots": ({"topic": ".."}, "is no name of a topic"),
    "marks among the records": ({"marks": "orders"}, "marks must be another topic"),
    "a long name": ({"topic": "o" * 245}, "give another by marks="),
    "two clusters": ({"bootstrap_servers": "b:1"}, "either bootstrap_servers or conn_id"),
    "no cluster": ({"conn_id": None}, "either bootstrap_servers or conn_id"),
    "another value": ({"value": "avro"}, "value must be one of 'column', 'json'"),
    "another replay": ({"on_replay": "skip"}, "on_replay must be one of 'fail', 'append'"),
    "no time": ({"transaction_seconds": 0}, "transaction_seconds must be seconds"),
    "a stage elsewhere": ({"stages": "s3a://bucket/stages"}, "stages: "),
    "a password": ({"options": {"sasl.password": "x"}}, "is said by the connection conn_id"),
    "a library": ({"options": {"plugin.library.paths": "/tmp/own.so"}}, "'plugin.library.paths' is none of batch.num"),
    "another transaction": ({"options": {"transactional.id": "x"}}, "'transactional.id' is none of"),
    "no idempotence": ({"options": {"enable.idempotence": False}}, "'enable.idempotence' is none of"),
    "a token": ({"options": {"client.id": "token=abcdefgh12345678"}}, "holds what looks like a credential"),
}


@pytest.mark.parametrize(("given", "match"), list(GIVEN.values()), ids=list(GIVEN))
def test_what_is_wrong_in_a_definition_is_named(given: Mapping[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        KafkaSink(**{"topic": "orders", "conn_id": "kafka", "stages": "/data/stages", **given})


def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sinks.kafka.find_spec", lambda _: None)
    with pytest.raises(DefinitionError, match=r"needs confluent-kafka.*microbatch\[kafka\]"):
        KafkaSink("orders", conn_id="kafka", stages="/data/stages").open(SinkContext())
