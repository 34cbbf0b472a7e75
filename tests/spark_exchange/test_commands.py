"""``microbatch import`` and ``microbatch export``, with a real Structured Streaming query on the other side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix.litter import find_litter
from tests.execution.world import CODE, run_identity
from tests.spark_exchange.lake import SOURCES, Lake, Spark, running
from tests.support.inline_engine import InlineEngine

pytestmark = [pytest.mark.spark, pytest.mark.exchange]


def run(root: Path, number: int) -> list[int] | None:
    """One run of the pipeline on the imported checkpoint; the ids that it read, None if there was nothing new."""
    pipeline = Pipeline(
        "orders",
        checkpoint=str(root / "ours"),
        sources={name: FileSource(str(root / name), format="json", schema="id long") for name in SOURCES},
        sink=FileSink(str(root / "table"), format="json"),
        transform="jobs/orders.py:transform",
    )
    checkpoint = Checkpoint(open_store(pipeline.checkpoint))
    read: list[int] = []
    engine = InlineEngine(
        transform=lambda sources: read.extend(row["id"] for rows in sources.values() for row in rows) or []
    )
    execution = Execution(pipeline=pipeline, checkpoint=checkpoint)
    done = execution.run(run=run_identity(number), engine=engine, code=CODE, transform=None)
    assert verify_all(checkpoint) == []
    return sorted(read) if done is not None else None


@pytest.fixture
def spark() -> Iterator[Spark]:
    with running("v1") as found:
        yield found


def test_a_query_then_a_pipeline_then_a_query_and_every_row_once(
    tmp_path: Path, spark: Spark, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path, spark)
    lake.land("orders", "a.json", 1)
    lake.land("refunds", "b.json", 2)
    assert lake.stream() == {0: [1, 2]}
    assert list((tmp_path / "checkpoint").rglob(".*.crc"))
    assert find_litter(tmp_path / "checkpoint", now_ms=0) == []
    arguments = [str(tmp_path / "checkpoint"), str(tmp_path / "ours"), "--pipeline", "orders"]
    assert main(["import", *arguments, "--sources", ",".join(SOURCES)]) == 0
    assert "pipeline 'orders' has to name its sources: orders, refunds." in capsys.readouterr().out

    assert run(tmp_path, 0) is None, "what the query has read is not read again"
    for number in range(1, 11):
        lake.land("orders", f"{number:02d} ü.json", 10 + number)
        assert run(tmp_path, number) == [10 + number]
    (tmp_path / "checkpoint").rename(tmp_path / "was")
    lake.land("refunds", "c.json", 3)
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "checkpoint")]) == 0
    assert "the query has to make its sources in this order: orders, refunds." in capsys.readouterr().out

    assert lake.stream() == {11: [3]}
    assert verify_all(lake.checkpoint) == []
