"""Sources that users write in Python, by the engines: their modules, and what these stand on, travel with the batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs.orders_api import OrdersApi
from parted_numbers import PartedNumbers

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sources.python import PythonSource
from tests.airflow_face.support import context
from tests.engines.conftest import CONNECTION
from tests.execution.world import World
from tests.support.orders_api import OrdersServer, serving
from tests.support.warm import warm_server

pytestmark = pytest.mark.spark

SUBMIT = "submit"

UNION = """
def transform(batch):
    api, parted, stream = (batch.sources[name].select("id") for name in ("api", "parted", "stream"))
    return api.union(parted).union(stream)
"""


@pytest.fixture(params=["spark-submit", "spark-connect"])
def conn_id(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "spark-submit":
        monkeypatch.setenv(f"AIRFLOW_CONN_{SUBMIT.upper()}", CONNECTION)
        yield SUBMIT
        return
    with warm_server(tmp_path_factory.mktemp("engine")) as running:
        monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(running.connection))
        yield "warm"


def test_batches_of_all_kinds_one_after_the_other(conn_id: str, tmp_path: Path) -> None:
    (tmp_path / "bundle" / "jobs").mkdir(parents=True)
    (tmp_path / "bundle" / "jobs" / "union.py").write_text(UNION)
    head = tmp_path / "head"
    world = World(tmp_path, transform="jobs/union.py:transform")

    def execute(number: int) -> dict[str, Any]:
        operator = MicroBatchOperator(task_id="micro_batch", pipeline=world.pipeline, conn_id=conn_id)
        return operator.execute(context(tmp_path / "bundle", number=number))

    with serving(OrdersServer()) as server:
        world.sources = {
            "api": OrdersApi(server.url),
            "parted": PartedNumbers(str(head)),
            "stream": PythonSource("number_streams:Numbers", options={"path": str(head)}),
        }
        server.add(100, 101)
        head.write_text("12")
        assert execute(1)["rows_out"] == 2 + 12 + 12
        if conn_id == SUBMIT:
            assert world.table() == {0: sorted([100, 101, *range(12), *range(1, 13)])}
            return
        server.add(102)
        head.write_text("14")
        assert execute(2)["rows_out"] == 1 + 2 + 2
    assert world.table() == {
        0: sorted([100, 101, *range(12), *range(1, 13)]),
        1: [12, 13, 13, 14, 102],
    }
    first = world.checkpoint.offset_log.get(0)
    assert first is not None
    assert first.starts == {"api": "0", "parted": "0", "stream": '{"n": 0}'}
    # What is committed is said to the user's source.
    assert (tmp_path / "head.committed").read_text() == "14"
