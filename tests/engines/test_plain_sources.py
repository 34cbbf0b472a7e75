"""Sources that users write in Python, by the engines: their modules, and what these stand on, travel with the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.orders_api import OrdersApi
from parted_numbers import PartedNumbers

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sources.python import PythonSource
from tests.airflow_face.support import context
from tests.execution.world import World
from tests.support.orders_api import OrdersServer, serving

pytestmark = pytest.mark.spark

UNION = """
def transform(batch):
    api, parted, stream = (batch.sources[name].select("id") for name in ("api", "parted", "stream"))
    return api.union(parted).union(stream)
"""


def test_a_batch_of_all_kinds(spark_default: None, tmp_path: Path) -> None:
    """The driver has nothing but what travels; `test_connect.py` has batches one after the other."""
    (tmp_path / "bundle" / "jobs").mkdir(parents=True)
    (tmp_path / "bundle" / "jobs" / "union.py").write_text(UNION)
    head = tmp_path / "head"
    world = World(tmp_path, transform="jobs/union.py:transform")
    with serving(OrdersServer()) as server:
        world.sources = {
            "api": OrdersApi(server.url),
            "parted": PartedNumbers(str(head)),
            "stream": PythonSource("number_streams:Numbers", options={"path": str(head)}),
        }
        server.add(100, 101)
        head.write_text("12")
        operator = MicroBatchOperator(task_id="micro_batch", pipeline=world.pipeline)
        assert operator.execute(context(tmp_path / "bundle"))["rows_out"] == 2 + 12 + 12
    assert world.table() == {0: sorted([100, 101, *range(12), *range(1, 13)])}
