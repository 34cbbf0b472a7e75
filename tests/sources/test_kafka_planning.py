"""Ranges of a real broker's topics, planned without a JVM of ours."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import lifetime as lifetimes
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.kafka.cluster import Cluster
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources import ReadLimit
from tests.sources.kafka_world import World, offsets
from tests.support.kafka import LOGIN, PASSWORD
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_new_partitions_are_read_from_their_first_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(2)
    world.plan()
    world.broker.grow(world.topic, 3)
    position = world.live[-1].end
    assert not world.open().has_new(position)
    world.send(3, partition=2)
    assert world.open().has_new(position)
    start, end = world.plan()
    assert end == world.at(2, 0, 3)
    assert offsets(world.open().read(start, end)) == {(world.topic, 2): [0, 1, 2]}


def test_a_topic_that_is_named_later_begins_at_what_it_has_then_for_good(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(2)
    world.plan()
    other = world.broker.topic()
    world.send(5, topic=other)
    world.broker.delete_before(other, 0, 3)
    both: dict[str, Any] = {"topics": [world.topic, other], "on_data_loss": "record_gap"}
    start, end = world.plan(**both)
    assert offsets(world.open(**both).read(start, end)) == {(other, 0): [3, 4]}
    world.broker.delete_before(other, 0, 4)
    assert world.open(**both).left_out(start, end) is not None, "where it began is on record"
    # Out of the list and in again: it goes on where it was.
    world.send(1, topic=other)
    assert world.plan() == (end, end)
    assert offsets(world.open(**both).read(*world.plan(**both))) == {(other, 0): [5]}


def test_topics_that_come_to_match_a_pattern_are_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send()
    pattern = world.topic + "(-.*)?"
    assert world.open(pattern="nobody-.*").latest_offset(None) is None
    assert world.open(pattern="nobody-.*").has_new(None) is False
    first = world.plan(pattern=pattern)
    more = world.broker.topic(name=f"{world.topic}-more")
    world.broker.topic(name=f"not-{world.topic}-more")
    assert not world.open(pattern=pattern).has_new(first[1])
    world.send(2, topic=more)
    assert world.open(pattern=pattern).has_new(first[1])
    assert offsets(world.open(pattern=pattern).read(*world.plan(pattern=pattern))) == {(more, 0): [0, 1]}
    position = world.live[-1].end
    world.broker.remove(more)
    with pytest.raises(SourceError, match=more):
        world.open(pattern=pattern).latest_offset(position)
    assert world.open(pattern=pattern, on_data_loss="record_gap").latest_offset(position) == position


def test_only_the_partitions_that_are_assigned_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3)
    assigned: dict[str, Any] = {"partitions": {world.topic: [2, 0]}}
    for partition in range(3):
        world.send(partition=partition)
    start, end = world.plan(**assigned)
    assert offsets(world.open(**assigned).read(start, end)) == {(world.topic, 0): [0], (world.topic, 2): [0]}
    world.send(partition=1)
    assert not world.open(**assigned).has_new(end)
    with pytest.raises(SourceError, match="no partition 7"):
        world.open(partitions={world.topic: [7]}).check()


@pytest.mark.parametrize("start", ["latest", 1_795_000_002_000, "2026-11-18T12:06:42+01:00", None])
def test_the_first_batch_begins_where_it_was_said_and_stays_there(tmp_path: Path, start: Any) -> None:
    world = World(tmp_path, partitions=2)
    for at in range(4):
        world.send(at_ms=1_795_000_000_000 + at * 1000)
    world.send(3, partition=1)
    how: dict[str, Any] = {"start": {world.topic: {"0": 1, "1": -1}} if start is None else start}
    begins = {"latest": (4, 3), None: (1, 3)}.get(start, (2, 0))
    assert world.open(**how).has_new(None), "it begins as of the first plan, so there has to be one"
    lag = world.open(**how).lag(None).splits
    assert lag == (4 - begins[0]) + (3 - begins[1])
    first = world.plan(**how)
    assert world.open(**how).initial_offset() == world.at(*begins)
    world.send(2)
    read = offsets(world.open(**how).read(None, first[1]))
    assert read == {} if start == "latest" else read[world.topic, 0] == list(range(begins[0], 4))
    second = world.plan(**how)
    assert offsets(world.open(**how).read(*second)) == {(world.topic, 0): [4, 5]}
    # Whatever the definition says by now: it is on record.
    assert offsets(world.open(start="earliest").read(None, first[1])) == read
    assert world.open(**how).read(None, first[1]) == world.open(**how).read(*first)


def test_a_start_that_is_not_there_or_not_said_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(2)
    for start, says in (
        ({"0": 1}, "does not name"),
        ({"0": 1, "1": 0, "5": 0}, "not there"),
        ({"0": 3, "1": 0}, "offset 3"),
    ):
        with pytest.raises(SourceError, match=says):
            world.open(start={world.topic: start}).latest_offset(None)
        assert world.open().initial_offset() is None


def test_a_limit_is_shared_by_partitions_and_all_is_read_in_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3)
    for partition, count in enumerate((80, 9, 1)):
        world.send(count, partition=partition)
    seen: dict[tuple[str, int], list[int]] = {}
    position, sizes = None, []
    while (end := world.open(max_rows=10).latest_offset(position)) != position:
        read = offsets(world.open().read(position, end))
        sizes.append(sum(map(len, read.values())))
        for one, found in read.items():
            seen.setdefault(one, []).extend(found)
        position = end
    assert seen == {(world.topic, 0): list(range(80)), (world.topic, 1): list(range(9)), (world.topic, 2): [0]}
    assert max(sizes) <= 10
    assert len(sizes) <= 11
    whole = world.open(max_rows=10).latest_offset(None, ReadLimit(rows=4))
    assert sum(map(len, offsets(world.open().read(None, whole)).values())) == 4


def test_a_topic_that_was_made_again_is_named_and_nothing_is_read_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(2)
    start, end = world.plan()
    read = world.open().read(start, end)
    world.broker.remove(world.topic)
    gap = world.open(on_data_loss="record_gap")
    assert "2 offsets" in str(gap.left_out(start, end))
    for ask in (lambda: world.open().read(start, end), lambda: world.open().verify(start, end, read.arguments)):
        with pytest.raises(SourceError, match=world.topic):
            ask()
    world.broker.topic(name=world.topic)
    world.send(5)
    for question in (
        lambda: world.open().latest_offset(end),
        lambda: world.open().read(start, end),
        lambda: world.open().verify(start, end, read.arguments),
        world.open().check,
    ):
        with pytest.raises(SourceError, match="made again"):
            question()
    assert "made again" in str(world.open().not_replayable(start, end))


def test_a_topic_that_goes_after_the_plan_is_left_out_where_records_may_be(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = world.broker.topic()
    both: dict[str, Any] = {"topics": [world.topic, other], "on_data_loss": "record_gap"}
    world.send(2)
    world.send(3, topic=other)
    start, end = world.plan(**both)
    world.broker.remove(other)
    for is_there_again in (False, True):
        if is_there_again:
            world.broker.topic(name=other)
            world.send(5, topic=other)
        read = world.open(**both).read(start, end)
        assert offsets(read) == {(world.topic, 0): [0, 1]}, "another topic of its name has other records"
        told = {key: read.arguments[key] for key in ("layers", "left_out")}
        world.open(**both).verify(start, end, told)
        assert f"{other}-0 0 to 2" in str(world.open(**both).left_out(start, end))


def test_a_position_behind_the_end_of_a_partition_is_an_error_that_names_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(2)
    with pytest.raises(SourceError, match=f"{world.topic}-0 ends at 2, and was planned up to 9"):
        world.open().has_new(world.at(9))
    with pytest.raises(SourceError, match=f"{world.topic}-0 ends at 2, and was planned up to 9"):
        world.open().latest_offset(world.at(9))


def test_records_that_retention_ate_fail_by_name_or_are_recorded(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(4)
    world.send(4, partition=1)
    start, end = world.plan()
    world.send(4)
    world.broker.delete_before(world.topic, 0, 6)
    named = f"{world.topic}-0 0 to 3"
    for ask in (lambda: world.open().read(start, end), lambda: world.open().latest_offset(end)):
        with pytest.raises(SourceChangedError, match=f"{world.topic}-0 "):
            ask()
    with pytest.raises(SourceChangedError, match=named):
        world.open().read(start, end)
    assert named in str(world.open().not_replayable(start, end))
    gap: dict[str, Any] = {"on_data_loss": "record_gap"}
    read = world.open(**gap).read(start, end)
    assert offsets(read) == {(world.topic, 1): [0, 1, 2, 3]}
    assert named in str(world.open(**gap).left_out(start, end))
    told = {key: read.arguments[key] for key in ("layers", "left_out")}
    assert world.open(**gap).left_out(start, end, told=told) is None, "what was read before lacked the same"
    world.open(**gap).verify(start, end, told)
    second = world.plan(**gap)
    assert offsets(world.open(**gap).read(*second)) == {(world.topic, 0): [6, 7]}
    assert f"{world.topic}-0 4 to 5" in str(world.open(**gap).left_out(*second))
    for source in (world.open(), world.open(**gap)):
        assert [f"{world.topic}-0 {at}" in str(source.gone_since(it)) for at, it in ((0, None), (4, end))] == [True] * 2
        assert source.gone_since(world.at(6, 0)) is source.gone_since(world.at(8, 4)) is None


@pytest.mark.parametrize("how", ["fail", "record_gap"])
def test_what_is_gone_is_told_of_partitions_and_topics_that_came_later_too(tmp_path: Path, how: str) -> None:
    """The next plan puts on record that such a topic begins at what it has then: nobody would miss what it had."""
    world = World(tmp_path)
    pattern = world.topic + "(-.*)?"
    some: dict[str, Any] = {"pattern": pattern, "on_data_loss": how}
    assert "not on record" in str(world.open(start="latest", **some).gone_since(None))
    world.send(2)
    backup = world.plan(**some)[1]
    more = world.broker.topic(name=f"{world.topic}-more")
    world.send(3, topic=more)
    world.broker.grow(world.topic, 2)
    world.send(3, partition=1)
    assert world.open(**some).gone_since(backup) is None
    world.broker.delete_before(more, 0, 2)
    assert f"2 offsets ({more}-0 0 to 1)" in str(world.open(**some).gone_since(backup))
    world.broker.delete_before(world.topic, 1, 1)
    assert f"1 offsets ({world.topic}-1 0 to 0)" in str(world.open(topics=[world.topic]).gone_since(backup))
    after = world.open(pattern=pattern, on_data_loss="record_gap").latest_offset(backup)
    assert world.open(**some).gone_since(after) is None
    world.broker.remove(more)
    assert f"topic {more}, " in str(world.open(**some).gone_since(after))


def test_a_topic_that_was_away_for_a_moment_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.send(4)
    gap: dict[str, Any] = {"on_data_loss": "record_gap"}
    start, end = world.plan(**gap)
    with monkeypatch.context() as away:
        away.setattr(Cluster, "topics", lambda *_: {})
        read = world.open(**gap).read(start, end)
    told = {key: read.arguments[key] for key in ("layers", "left_out")}
    assert told["left_out"] == {world.topic: {"0": [[0, 4]]}}
    with pytest.raises(SourceChangedError, match=rf"{world.topic}-0 0 to 3\).*are there again"):
        world.open(**gap).verify(start, end, told)


def test_a_read_of_anything_but_the_range_is_not_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(4)
    start, end = world.plan()
    told = {"layers": [{world.topic: {"0": [0, 3]}}], "left_out": {}}
    with pytest.raises(SourceChangedError, match="not what was planned"):
        world.open().verify(start, end, told)


def test_a_person_gives_whole_positions_that_exist(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(4)
    world.broker.delete_before(world.topic, 0, 1)
    world.open().check_offset(world.at(4, 0))
    for wrong in (world.at(0, 0), world.at(5, 0), world.at(1), "{}", "nonsense", '{"logOffset":1}'):
        with pytest.raises(SourceError, match="orders"):
            world.open().check_offset(wrong)
    assert world.open().is_after(world.at(2, 0), world.at(1, 1)) is None
    assert world.open().is_after(world.at(2, 1), world.at(1, 1)) is True
    assert world.open().is_after(world.at(1, 1), world.at(1, 1)) is False


def test_before_the_moment_at_which_it_begins_nothing_is_planned(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send(2)
    later = now_ms() + 3_600_000
    assert world.open(start=later).has_new(None) is False
    assert world.plan(start=later) == (None, None)
    assert world.open(start=later).initial_offset() is None
    world.send(at_ms=later)
    due = world.open(start=later, clock_ms=lambda: later)
    assert due.has_new(None)
    assert (due.latest_offset(None), due.initial_offset()) == (world.at(3), world.at(2))


def test_lag_is_told_by_partition(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.send(4)
    world.send(1, partition=1)
    assert world.open().lag_by_split(world.at(1, 0)) == {f"{world.topic}-0": 3, f"{world.topic}-1": 1}
    assert world.open().lag(world.at(1, 0)).splits == 4


def test_the_consumer_group_stands_where_the_pipeline_does_and_is_never_read(tmp_path: Path) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    world = World(tmp_path)
    world.send(3)
    group: dict[str, Any] = {"group_id": f"{world.topic}-readers"}
    _, end = world.plan(**group)
    assert end is not None

    def stands() -> list[int]:
        asked = ConsumerGroupTopicPartitions(group["group_id"])
        (told,) = world.broker.admin().list_consumer_group_offsets([asked]).values()
        return [one.offset for one in told.result().topic_partitions]

    def can_be_asked() -> bool:
        try:
            return stands() == []
        except KafkaException:
            return (
                False  # the broker has not loaded what groups there are, of which this is the first that is asked for
            )

    wait_until(can_be_asked)
    world.open(**group, lane="interval-x").commit(end)
    assert stands() == []
    for _ in range(2):
        world.open(**group).commit(end)
        assert stands() == [3]
    gone = json.dumps({**json.loads(world.at(3)), f"{world.topic}-gone": {"0": 7}})
    world.open(**group).commit(gone)
    assert stands() == [3], "a topic that is gone is in no group's way"
    world.open().commit(world.at(1))
    assert stands() == [3], "without a group nobody is told"
    assert world.open(**group).latest_offset(None) == end


def test_a_question_costs_milliseconds_one_client_and_no_write(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=4)
    world.send(2)
    _, end = world.plan()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with lifetime():
        world.open().has_new(end)
        opened = dict(lifetimes._open)
        began = time.perf_counter()
        for _ in range(50):
            with lifetime():
                assert not world.open().has_new(end)
        each = (time.perf_counter() - began) / 50
        assert lifetimes._open == opened
        assert len(opened) == 1
    assert lifetimes._open == {}
    assert each < 0.25, "two requests to a broker beside, and none to make a connection"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_brokers_that_are_away_are_an_error_that_says_where(tmp_path: Path) -> None:
    world = World(tmp_path)
    away = world.open(bootstrap_servers="127.0.0.1:1", timeout=1)
    with pytest.raises(SourceError, match=r"'orders'.*127\.0\.0\.1:1.*Connection refused"):
        away.has_new(None)
    with pytest.raises(SourceError, match="nowhere-at-all"):
        world.open(topics=["nowhere-at-all"]).check()


def test_brokers_that_give_topics_no_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import Uuid

    world = World(tmp_path)
    world.send()
    found = Cluster._result

    def without_id(cluster: Cluster, future: Any) -> Any:
        told = found(cluster, future)
        if hasattr(told, "topic_id"):
            told.topic_id = Uuid(0, 0)
        return told

    monkeypatch.setattr(Cluster, "_result", without_id)
    for ask in (world.open().check, lambda: world.open().latest_offset(None)):
        with pytest.raises(SourceError, match=f"'orders': .*gives topic '{world.topic}' no id"):
            ask()


def test_a_login_and_tls_come_from_the_connection(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.send()

    def connection(password: str) -> Connection:
        extra = {
            "bootstrap.servers": world.broker.secured,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "ssl.ca.location": world.broker.ca,
        }
        return Connection(conn_id="kafka", conn_type="kafka", login=LOGIN, password=password, extra=extra)

    source = world.open(conn_id="kafka", connect=lambda _: connection(PASSWORD))
    assert source.has_new(None)
    read = source.read(None, source.latest_offset(None))
    assert read.arguments["secrets"] == ["kafka.sasl.jaas.config"]
    assert PASSWORD not in json.dumps(read.arguments)
    assert json.dumps(PASSWORD)[1:-1] not in json.dumps(read.arguments)
    with pytest.raises(SourceError, match=r"orders.*Authentication failed") as refused:
        world.open(conn_id="kafka", connect=lambda _: connection("wrong"), timeout=2).has_new(None)
    assert "wrong" not in str(refused.value)


def test_ranges_tile_the_topic_while_writers_write_and_partitions_come(tmp_path: Path) -> None:
    import threading

    world = World(tmp_path, partitions=2)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            world.broker.send(world.topic, ["x"] * 3, partition=0)
            world.broker.send(world.topic, ["y"], partition=1)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(12):
            world.plan(max_rows=17)
            if number == 5:
                world.broker.grow(world.topic, 3)
                world.send(4, partition=2)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    while world.plan()[0] != world.live[-1].end:
        pass
    seen: dict[tuple[str, int], list[int]] = {}
    for one in world.live:
        read = offsets(world.open().read(one.start, one.end))
        assert read == offsets(world.open().read(one.start, one.end))
        for partition, found in read.items():
            seen.setdefault(partition, []).extend(found)
    last = json.loads(world.live[-1].end or "")[world.topic]
    assert seen == {(world.topic, n): list(range(last[str(n)])) for n in range(3)}
    assert all(before.end == after.start for before, after in pairwise(world.live))
