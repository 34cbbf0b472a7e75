"""Positions that errors of a Kafka source name: pasted as they are, they forget nothing and lead on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.kafka import KafkaSource
from tests.sources.test_set_offset_commands import Refused, Topic, pasted

pytestmark = pytest.mark.slow


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refused]:
    monkeypatch.setattr(connections, "_found_by", [*connections._found_by])  # a command sets its own
    with ExitStack() as stack:
        yield Refused(tmp_path, stack, monkeypatch)


def reads(case: Refused, **selected: Any) -> None:
    source = case.world.sources["orders"]
    assert isinstance(source, KafkaSource)
    case.reads(replace(source, **{"topics": (), "pattern": None, "partitions": {}, **selected}))


def position(case: Refused) -> dict[str, dict[str, int]]:
    found = case.world.checkpoint.offset_log.latest()
    assert found is not None
    end = found[1].ends["orders"]
    assert end is not None
    return dict(json.loads(end))


def told(case: Refused) -> list[str]:
    with pytest.raises(SourceError) as refused:
        case.plan(5)
    return re.findall(r"`(microbatch set-offset [^`]+)`", str(refused.value))


def retention(case: Refused, topic: Topic) -> None:
    topic.send(4)
    topic.broker.delete_before(topic.name, 0, 6)


def an_unclean_election(case: Refused, topic: Topic) -> None:
    at = position(case)
    at[topic.name]["0"] = 9
    case.committed(json.dumps(at))


@pytest.mark.parametrize("loses", [retention, an_unclean_election])
def test_what_is_not_selected_today_stays_where_it_was(case: Refused, loses: Callable[[Refused, Topic], None]) -> None:
    topic = Topic(case)
    other = topic.broker.topic()
    topic.broker.send(topic.name, ["1"], partition=1)
    topic.broker.send(other, ["1", "2", "3"])
    reads(case, topics=[topic.name, other])
    case.read_up_to_now()
    reads(case, partitions={topic.name: [0]})
    loses(case, topic)
    way = told(case)[-1]
    assert pasted(way) == 0, way
    assert (position(case)[topic.name]["1"], position(case)[other]) == (1, {"0": 3})
    reads(case, topics=[topic.name, other])
    topic.broker.send(other, ["4"])
    case.plan(6)
    assert (position(case)[topic.name]["1"], position(case)[other]) == (1, {"0": 4})
    source = case.open()
    start = json.dumps({**position(case), other: {"0": 3}})
    assert source.describe(start, json.dumps(position(case))).splits == 1
    # A partition that there is not is no place, and a topic that was never read neither.
    for stranger in ({topic.name: {"0": 4, "1": 1, "2": 0}, other: {"0": 4}}, {**position(case), "nowhere": {"0": 4}}):
        with pytest.raises(SourceError, match="There is no"):
            source.check_offset(json.dumps(stranger))


def test_a_pattern_goes_on_without_a_topic_that_is_gone_once_somebody_says_so(case: Refused) -> None:
    topic = Topic(case)
    other = topic.broker.topic(name=f"{topic.name}-old")
    topic.broker.send(other, ["1", "2"])
    reads(case, pattern=f"{topic.name}(-.*)?")
    case.read_up_to_now()
    topic.broker.remove(other)
    with pytest.raises(SourceError, match="is gone"):
        case.open().has_new(json.dumps(position(case)))
    (way,) = told(case)
    assert pasted(way) == 0, way
    assert position(case) == {topic.name: {"0": 4, "1": 0}}
    topic.send(1)
    case.plan(6)
    assert position(case) == {topic.name: {"0": 5, "1": 0}}


def test_a_batch_that_is_set_aside_does_not_keep_a_pattern_to_a_topic_that_is_gone(case: Refused) -> None:
    topic = Topic(case)
    other = topic.broker.topic(name=f"{topic.name}-old")
    topic.broker.send(other, ["1", "2"])
    reads(case, pattern=f"{topic.name}(-.*)?")
    start = case.read_up_to_now()
    topic.send(2)
    topic.broker.send(other, ["3"])
    end = case.open().latest_offset(start)
    assert isinstance(end, str)
    logs = case.world.checkpoint
    entry = OffsetEntry(starts={"orders": start}, ends={"orders": end}, batch_timestamp_ms=2, pipeline="orders")
    logs.offset_log.add(2, entry)
    logs.commit_log.add(2, CommitEntry(set_aside=True, failure={"error": "it failed", "attempts": 1}))
    topic.send(2)
    end = case.open().latest_offset(end)
    assert isinstance(end, str)
    case.committed(end)
    topic.broker.remove(other)
    (way,) = told(case)
    # Before the end of what is set aside is another matter: what is read again from there on would come twice.
    back = json.dumps({topic.name: {"0": 5, "1": 0}})
    again = shlex.join([*shlex.split(way)[:-3], back, *shlex.split(way)[-2:]])
    assert pasted(again) != 0, again
    assert pasted(way) == 0, way
    assert position(case) == {topic.name: {"0": 8, "1": 0}}


def test_what_retention_took_beside_a_topic_that_is_gone_is_named_with_it(case: Refused) -> None:
    topic = Topic(case)
    other = topic.broker.topic(name=f"{topic.name}-old")
    topic.broker.send(other, ["1", "2"])
    reads(case, pattern=f"{topic.name}(-.*)?")
    case.read_up_to_now()
    topic.broker.remove(other)
    with pytest.raises(SourceError, match=r"is gone") as alone:
        case.plan(5)
    assert "gives up" not in str(alone.value)
    retention(case, topic)
    lost = rf"{other}.* is gone .*gives up 2 offsets \({topic.name}-0 4 to 5\) too"
    with pytest.raises(SourceError, match=lost):
        case.open().has_new(json.dumps(position(case)))
    with pytest.raises(SourceError, match=lost):
        case.plan(5)
    (way,) = told(case)
    assert pasted(way) == 0, way
    assert position(case) == {topic.name: {"0": 6, "1": 0}}
