"""A topic that was removed and made again: what the error and ``check`` name leads on, wherever the pipeline stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.kafka import KafkaSource
from tests.execution.maintaining import expire
from tests.sources.test_set_offset_commands import Refused, Topic, pasted

pytestmark = pytest.mark.slow


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refused]:
    monkeypatch.setattr(connections, "_found_by", [*connections._found_by])  # a command sets its own
    with ExitStack() as stack:
        yield Refused(tmp_path / "of Joe's", stack, monkeypatch)


def made_again(topic: Topic) -> None:
    topic.broker.remove(topic.name)
    topic.broker.topic(name=topic.name, partitions=2)
    topic.send(3)


def checked(case: Refused, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    expire(case.world)
    capsys.readouterr()
    return main(["check", case.world.pipeline.checkpoint]), capsys.readouterr().out


def commands(text: str) -> list[str]:
    return re.findall(r"`(microbatch (?:rewind|add-source|set-offset) [^`]+)`", text)


def go_on(case: Refused, topic: Topic, ways: list[str]) -> None:
    """Paste them; the last one says which name the source gets."""
    for way in ways:
        assert pasted(way) == 0, way
    case.world.sources = {shlex.split(ways[-1])[-1]: case.world.sources["orders"]}
    case.plan(9)
    (end,) = (end for name, end in newest(case)[1].items() if name != "orders")
    assert end == topic.at(3, 0)


def newest(case: Refused) -> tuple[int, dict[str, str | None]]:
    found = case.world.checkpoint.offset_log.latest()
    assert found is not None
    return found[0], dict(found[1].ends)


def test_where_a_batch_is_planned_it_is_given_up_first(case: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    topic.send(2)
    case.plan(5)
    planned = newest(case)[0]
    made_again(topic)
    with pytest.raises(SourceError, match="was removed and made again") as told:
        case.world.run(6)
    status, found = checked(case, capsys)
    assert status == 1
    assert f"batch {BatchKey('live', planned)} is planned" in found
    ways = commands(str(told.value))
    assert [way.split()[1] for way in ways] == ["rewind", "add-source"]
    assert commands(found) == ways
    go_on(case, topic, ways)


def test_where_none_is_planned_check_says_how_to_go_on(case: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    topic.send(2)
    case.plan(5)
    made_again(topic)
    with pytest.raises(SourceError):
        case.world.run(6)
    expire(case.world)
    assert main(["rewind", case.world.pipeline.checkpoint, "--to", str(newest(case)[0] - 1)]) == 0
    with pytest.raises(SourceError, match="was removed and made again") as told:
        case.plan(7)
    status, found = checked(case, capsys)
    assert status == 1
    (way,) = commands(str(told.value))
    assert commands(found) == [way]
    go_on(case, topic, [way])


def test_check_says_nothing_of_it_where_the_topic_is_as_it_was(
    case: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    topic.send(2)
    case.plan(5)
    assert "made again" not in checked(case, capsys)[1]


def test_a_topic_that_the_source_no_longer_reads_is_no_matter(case: Refused) -> None:
    topic = Topic(case)
    case.read_up_to_now()
    made_again(topic)
    assert "was removed and made again" in str(case.open().made_again())
    now = topic.broker.topic(partitions=1)
    reads = case.world.sources["orders"]
    assert isinstance(reads, KafkaSource)
    case.reads(replace(reads, topics=[now]))
    assert case.open().made_again() is None


def test_of_several_topics_the_others_stay_where_they_are(case: Refused) -> None:
    """A source of a new name would read the topics that stay once more."""
    topic = Topic(case)
    reads = case.world.sources["orders"]
    assert isinstance(reads, KafkaSource)
    other = topic.broker.topic(partitions=1)
    case.reads(replace(reads, topics=[*reads.topics, other]))
    case.read_up_to_now()
    made_again(topic)
    told = str(case.open().made_again())
    assert "Leave it out of 'orders', which goes on with its other topics, and read the new one, alone, as" in told
    case.reads(replace(reads, topics=[other]))
    topic.broker.send(other, ["1"])
    before = newest(case)[0]
    case.plan(6)
    assert newest(case)[0] == before + 1
