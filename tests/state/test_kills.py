"""The driver is killed at named points; the next attempt makes the batch, and the table is that of an uninterrupted
run. Who dies in an interval is in ``test_intervals.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import EngineError
from tests.execution.world import Killed
from tests.state.stateful import StatefulWorld

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COUNTS_OF_A_BUNDLE = """
import os, signal
from pathlib import Path
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

FLAG = Path({flag!r})

class Counts(StatefulProcessor):
    def init(self, handle):
        self.rows = handle.getValueState("rows", "rows long")
    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.rows.get() or (0,)
        count += len([*rows])
        self.rows.update((count,))
        yield Row(id=key[0], count=count)

def transform(batch):
    from airflow_provider_microbatch.runtime import streaming
    read_commit = streaming.read_commit
    def killed_read(folder, batch_id):
        if not FLAG.exists():
            FLAG.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return read_commit(folder, batch_id)
    streaming.read_commit = killed_read
    by_id = batch.sources["orders"].groupBy("id")
    return by_id.transformWithState(Counts(), "id long, count long", "Update", "None")
"""
"""A processor of a file that travels with the job, which Spark asks beside the driver too. The first driver is killed
after the state's commit."""


def test_a_task_that_dies_between_publish_and_commit_goes_on_from_what_it_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one whose driver is killed, which leaves the table of an uninterrupted run. Other points are those of
    ``make chaos SYSTEM=state``, and of a topic's pipeline beside it."""
    world = StatefulWorld(tmp_path, COUNTS_OF_A_BUNDLE.format(flag=str(tmp_path / "killed")))
    world.land("a", 1)
    with pytest.raises(EngineError):
        world.run(0)
    assert (tmp_path / "killed").exists()
    assert world.table() == {}

    def killed(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_microbatch.execution.execution.add_commit", killed)
        with pytest.raises(Killed):
            world.run(0, try_number=2)
    world.run(0, try_number=3)
    world.land("b", 1)
    world.run(1)

    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())
