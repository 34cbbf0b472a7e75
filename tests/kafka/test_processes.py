"""Publishers that die, sleep and race, as processes of their own; a consumer that looks all the time."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import AttemptFencedError
from tests.kafka.topic import World, of
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY
from tests.support import kafka, kafka_stages
from tests.support.kafka_stages import write_stage

pytestmark = pytest.mark.slow

SECONDS = 2.0
"""After which the broker ends the transaction of a publisher that is gone."""

POINTS = ("others are fenced", "records sent", "mark sent", "committed")
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.make(tmp_path)


def expected_values(epoch: int, rows: int) -> list[str]:
    return [json.dumps({"id": row, "epoch": epoch}) for row in range(rows)]


@pytest.mark.parametrize("point", POINTS)
def test_a_publisher_that_is_killed_leaves_all_or_nothing_and_the_next_attempt_ends_it(
    world: World, point: str
) -> None:
    sink = world.sink(transaction_seconds=SECONDS)
    write_stage(sink, 1, rows=3)
    with world.process("publish", 1, point=point, number=KILL, transaction_seconds=SECONDS) as killed:
        assert killed.was_killed()
    write_stage(sink, 2, rows=3)
    found = sink.publish(EXPECTED, 2)
    assert found.epoch == (1 if point == "committed" else 2)
    assert world.values() == expected_values(found.epoch, 3)
    assert sink.publish(EXPECTED, 2) == found
    for epoch in (1, 2):
        sink.drop_stage(BATCH, epoch)
    assert sink.stages(CHECKPOINT) == []
    assert len(world.records()) == 3


@pytest.mark.parametrize("point", POINTS)
def test_a_replay_that_is_killed_has_appended_once_when_it_is_over(world: World, point: str) -> None:
    given = {"on_replay": "append", "transaction_seconds": SECONDS}
    sink = world.sink(**given)
    write_stage(sink, 1, rows=2)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 2, rows=3)
    with world.process("replace", 2, point=point, number=KILL, **given) as killed:
        assert killed.was_killed()
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert sink.replace(EXPECTED, 2).epoch == 2
    records = world.records()
    assert Counter(of(records, "microbatch-attempt")) == {"1": 2, "2": 3}
    replaces = {(one.headers["microbatch-attempt"], one.headers.get("microbatch-replaces")) for one in records}
    assert replaces == {("1", None), ("2", "1")}


@pytest.mark.parametrize("point", ["others are fenced", "records sent"])
def test_a_publisher_that_sleeps_while_another_attempt_publishes_brings_nothing_in(world: World, point: str) -> None:
    sink = world.sink()
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=3)
    with world.process("publish", 1, point=point, number=STOP) as asleep:
        asleep.wait_until_stopped()
        assert sink.publish(EXPECTED, 2).epoch == 2
        assert asleep.goes_on() == "2"
    assert world.values() == expected_values(2, 3)


def test_who_sleeps_with_a_mark_that_is_sent_holds_others_up_until_its_transaction_ends(world: World) -> None:
    sink = world.sink(transaction_seconds=SECONDS)
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=3)
    with world.process("publish", 1, point="mark sent", number=STOP, transaction_seconds=SECONDS) as asleep:
        asleep.wait_until_stopped()
        assert sink.publish(EXPECTED, 2).epoch == 2
        assert asleep.goes_on() == "2"
    assert world.values() == expected_values(2, 3)


def test_who_slept_for_longer_than_its_transaction_lasts_says_so(world: World) -> None:
    sink = world.sink(transaction_seconds=SECONDS)
    write_stage(sink, 1, rows=3)
    with world.process("publish", 1, point="mark sent", number=STOP, transaction_seconds=SECONDS) as asleep:
        asleep.wait_until_stopped()
        assert sink.contains(EXPECTED) is None, "it waits until the brokers have ended the transaction"
        assert "it took longer than transaction_seconds=2" in asleep.goes_on()
    assert world.records() == []


def test_a_publisher_that_sleeps_behind_its_commit_has_published(world: World) -> None:
    sink = world.sink()
    for epoch in (1, 2):
        write_stage(sink, epoch, rows=3)
    with world.process("publish", 1, point="committed", number=STOP) as asleep:
        asleep.wait_until_stopped()
        assert sink.publish(EXPECTED, 2).epoch == 1
        assert asleep.goes_on() == "1"
    assert world.values() == expected_values(1, 3)


def test_a_stage_that_is_dropped_is_not_published_by_who_slept(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1)
    with world.process("publish", 1, point="records sent", number=STOP) as asleep:
        asleep.wait_until_stopped()
        assert sink.drop_stage(BATCH, 1)
        assert "AttemptFencedError: the stage of batch live/7 attempt 1 was dropped" in asleep.goes_on()
    assert world.records() == []
    assert sink.contains(EXPECTED) is None


def test_a_drop_that_is_killed_before_it_has_fenced_is_done_again(world: World) -> None:
    sink = world.sink()
    write_stage(sink, 1)
    with world.process("publish", 1, point="records sent", number=STOP) as asleep:
        asleep.wait_until_stopped()
        with world.process("drop_stage", 1, point="about to fence", number=KILL) as killed:
            assert killed.was_killed()
        assert sink.stages(CHECKPOINT) == [(KEY, 1)]
        assert sink.drop_stage(BATCH, 1)
        assert "AttemptFencedError" in asleep.goes_on()
    assert world.records() == []


def test_of_attempts_that_publish_at_once_one_is_in(world: World) -> None:
    sink = world.sink()
    for epoch in range(1, 5):
        write_stage(sink, epoch, rows=200)
    barrier, results = threading.Barrier(4), list[int]()

    def publish(epoch: int) -> None:
        own = world.sink()
        barrier.wait()
        try:
            results.append(own.publish(EXPECTED, epoch).epoch)
        except AttemptFencedError:
            results.append(0)

    threads = [threading.Thread(target=publish, args=(epoch,)) for epoch in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = set(results) - {0}
    assert Counter(of(world.records(), "microbatch-attempt")) == {str(winner): 200}
    assert sink.publish(EXPECTED, 4).epoch == winner


def test_an_older_replay_that_slept_finds_the_newer_one(world: World) -> None:
    sink = world.sink(on_replay="append")
    write_stage(sink, 1, rows=1)
    sink.publish(EXPECTED, 1)
    for epoch in (2, 3):
        write_stage(sink, epoch, rows=1)
    with world.process("replace", 2, point="records sent", number=STOP, on_replay="append") as asleep:
        asleep.wait_until_stopped()
        assert sink.replace(EXPECTED, 3).epoch == 3
        assert "PublishConflictError: batch live/7: attempt 3 is published" in asleep.goes_on()
    assert sorted(of(world.records(), "microbatch-attempt")) == ["1", "3"]


def test_a_consumer_of_committed_records_has_nothing_of_a_batch_that_was_not_committed(world: World) -> None:
    stop, seen = threading.Event(), list[str]()

    def consume() -> None:
        with kafka_stages.consuming(world.topic) as consumer:
            while not stop.is_set() or len(seen) < 400:
                for message in consumer.consume(100, timeout=0.1):
                    if message.error() is None:
                        seen.append(dict(message.headers())["microbatch-attempt"].decode())

    reader = threading.Thread(target=consume)
    reader.start()
    try:
        sink = world.sink(transaction_seconds=SECONDS)
        for epoch in (1, 2):
            write_stage(sink, epoch, rows=400)
        with world.process("publish", 1, point="mark sent", number=KILL, transaction_seconds=SECONDS) as killed:
            assert killed.was_killed()
        assert sink.publish(EXPECTED, 2).epoch == 2
    finally:
        stop.set()
        reader.join()
    assert Counter(seen) == {"2": 400}
    assert kafka.running().is_settled(sink.definition.marks_topic)
