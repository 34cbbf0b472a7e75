"""A topic that the pipeline publishes to no more, and whose connection or brokers are gone, or named otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError, UnconnectedError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, rewind
from tests.execution.sleepers import killed
from tests.execution.two_tables import coded
from tests.execution.world import Killed
from tests.kafka.pipeline import TopicWorld, beside_a_table
from tests.support import kafka

pytestmark = pytest.mark.slow


@pytest.fixture
def gone() -> Iterator[Callable[[], None]]:
    """From here on there is no connection ``kafka``; any other leads to the broker of the tests."""

    def find(conn_id: str) -> Connection:
        if conn_id == "kafka":
            raise UnconnectedError("connection 'kafka' does not exist")
        return kafka.connection(conn_id)

    yield lambda: connections.find_by(find)
    connections.find_by(kafka.connection)


def test_a_batch_of_which_an_attempt_died_there_is_rewound_at_the_users_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: Callable[[], None]
) -> None:
    """A topic tells no lanes: asked for these alone it passed for one that answers."""
    world = TopicWorld(tmp_path)
    world.options["sink"] = beside_a_table(world, first="topic")
    world.land(0)
    world.run(0, coded())
    world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "commit", killed)
        with pytest.raises(Killed):
            world.run(1, coded())
    world.expire_leases()
    gone()
    other, files = (FileSink(str(path), format="json") for path in (tmp_path / "other", world.lake))
    world.options["sink"] = Sinks({"other": other, "files": files})
    with pytest.raises(SinkError, match=r"live/1 was made for kafka://.* good, `microbatch rewind .* --allow-skip`\."):
        world.run(2, coded())
    with pytest.raises(MaintenanceError, match=r"Nothing was done\. kafka://\S+ cannot be asked"):
        applied(world, rewind(0))
    assert not world.janitor().problems
    applied(world, rewind(0, allow_skip=True))
    world.run(3, coded())
    assert sorted(path.name for path in (tmp_path / "other/lane=live").iterdir()) == ["batch_id=1"]
    assert world.table() == {0: [0], 1: [1]}
    assert not world.janitor().problems
    with pytest.raises(SinkError, match=r"live/0 was made for kafka://.* good, `microbatch rewind .* --allow-skip`\."):
        world.run(0, coded(), clear_number=1)


def test_a_topic_whose_connection_was_renamed_is_asked_by_the_new_one_alone(
    tmp_path: Path, gone: Callable[[], None]
) -> None:
    world = TopicWorld(tmp_path)
    world.land(0)
    world.run(0, coded())
    gone()
    world.name_sink(conn_id="renamed")
    assert world.run(1, coded()) is None, "nothing is new, and the run has named it"
    assert not check_table(world.checkpoint, everything=True).findings
    with pytest.raises(MaintenanceError, match=r"batch 0 is in kafka://renamed/\S+, which no batch can be"):
        applied(world, rewind(-1))
