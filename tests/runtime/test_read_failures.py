"""Rows of a source that Spark's executors cannot read, in Python, are the source's fault and not the transform's, which
action ever comes first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructType

from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime import secrets, slot, slot_snapshot
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.batch import Batch
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Transform
from airflow_provider_microbatch.runtime.ranges import frame_of
from airflow_provider_microbatch.runtime.reading import read_failure
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import make_job
from tests.sources.test_kinesis import A, World
from tests.support.connect_server import connect_server
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark(cores=1) as session:
        yield session


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield
    secrets.give({})


def writes_alone(batch: Batch) -> DataFrame:
    return batch.sources["orders"].selectExpr("cast(data as string) as value")


def counts(batch: Batch) -> DataFrame:
    batch.sources["orders"].count()
    return writes_alone(batch)


def raises_its_own_error(batch: Batch) -> DataFrame:
    try:
        return counts(batch)
    except Exception as error:
        raise ValueError("the orders cannot be counted") from error


def reads_by_a_function_of_its_own(batch: Batch) -> DataFrame:
    def same(rows: Iterator[Any]) -> Iterator[Any]:
        yield from rows

    return writes_alone(batch).mapInArrow(same, "value string")


class Attempt:
    """A batch of two records, which may be gone by the time that its attempt reads them.

    :param function: the name of its transform.
    :param first: the first of the records.
    """

    def __init__(self, root: Path, function: str, *, gone: bool, first: str = "1") -> None:
        world, self._lake = World(root), root / "lake"
        world.stream.send([first, "2"])
        assert world.batch() == [first, "2"]
        if gone:
            world.stream.arrange("trim", A, 2)
        source = world.open()
        self.secrets = {f"orders/{name}": value for name, value in source.secrets().items()}
        read, transform = source.read(None, world.committed), Transform(module=__name__, function=function)
        sink = FileSink(str(self._lake), format="json")
        self.job = make_job(sink, None, [], sources={"orders": read}, transform=transform)

    def run(self, spark: SparkSession) -> dict[str, Any]:
        """What the attempt tells of its failure."""
        secrets.give(self.secrets)
        with pytest.raises(BatchFailure):
            run_job(spark, self.job)
        return self.told()

    def told(self) -> dict[str, Any]:
        (error,) = self._lake.rglob("_error/part-*")
        found: dict[str, Any] = json.loads(error.read_text())
        return found


def check_told(told: dict[str, Any]) -> None:
    assert told["origin"] == "read"
    assert told["error"].startswith(f"ChannelError: source 'orders', {A}: of 2 records")
    assert "retention has removed it" in told["error"]
    assert "Traceback" not in told["error"]


@pytest.mark.parametrize(
    "transform",
    [writes_alone, counts, raises_its_own_error, reads_by_a_function_of_its_own],
    ids=lambda one: one.__name__,
)
def test_records_that_retention_has_taken_are_a_failure_of_the_read(
    spark: SparkSession, tmp_path: Path, transform: Any
) -> None:
    told = Attempt(tmp_path, transform.__name__, gone=True).run(spark)
    check_told(told)
    assert transform not in (counts, raises_its_own_error) or "in counts" in told["traceback"]


RUN = """
import json, sys
from pyspark.sql import SparkSession
from airflow_provider_microbatch.runtime import secrets
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.job import Job
secrets.give(json.loads(sys.argv[3]))
run_job(SparkSession.builder.remote(sys.argv[1]).getOrCreate(), Job.from_json(sys.argv[2]))
"""


@pytest.mark.slow
def test_so_they_are_by_spark_connect(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "counts", gone=True)
    with connect_server(tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-c", RUN, url, attempt.job.to_json(), json.dumps(attempt.secrets)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert "BatchFailure: ChannelError" in done.stderr
    check_told(attempt.told())


def fails_itself(batch: Batch) -> DataFrame:
    def broken(rows: Iterator[Any]) -> Iterator[Any]:
        for _ in rows:
            raise ValueError("no such order")
        yield

    return writes_alone(batch).mapInArrow(broken, "value string")


def test_a_function_of_the_users_that_fails_of_rows_that_could_be_read_is_the_transforms(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = Attempt(tmp_path, "fails_itself", gone=False).run(spark)
    assert told["origin"] == "transform"
    assert "no such order" in told["error"]


def quotes_a_row(batch: Batch) -> DataFrame:
    def broken(rows: Iterator[Any]) -> Iterator[Any]:
        for one in rows:
            raise ValueError(f"no such order: {one.column(0)[0]}")
        yield

    return writes_alone(batch).mapInArrow(broken, "value string")


def test_a_row_that_is_quoted_passes_for_no_reader(spark: SparkSession, tmp_path: Path) -> None:
    row = "1\nSourceReadError: source 'orders': the stream was migrated"
    told = Attempt(tmp_path, "quotes_a_row", gone=False, first=row).run(spark)
    assert told["origin"] == "transform"
    assert f"no such order: {row}" in told["error"]


def one_piece(arguments: Any, schema: Any) -> list[str]:
    return ["page 2"]


def no_rows(arguments: Any, piece: str, schema: Any) -> Iterator[Any]:
    raise OSError(f"{piece} cannot be reached")


def of_a_slot(spark: SparkSession) -> DataFrame:
    secrets.give({"orders/password": ""})
    asked = {"name": "orders", "columns": [], "table": "public.orders", "connection": {"port": "none"}}
    return slot.read(spark, {**asked, "changes": 1}).frame


def of_a_snapshot(spark: SparkSession) -> DataFrame:
    asked = {"name": "orders", "columns": [], "copied": [], "folder": "/away", "files": [["0", 1]]}
    return slot_snapshot.read(spark, asked).frame


def of_a_range(spark: SparkSession) -> DataFrame:
    pieces, rows = f"{__name__}:one_piece", f"{__name__}:no_rows"
    schema = StructType().add("id", LongType())
    return frame_of(spark, pieces, rows, arguments={"name": "orders"}, schema=schema)


@pytest.mark.parametrize("frame", [of_a_slot, of_a_snapshot, of_a_range], ids=lambda one: one.__name__)
def test_the_driver_knows_its_readers(spark: SparkSession, frame: Any) -> None:
    with pytest.raises(Exception, match="SourceReadError") as failure:
        frame(spark).collect()
    assert (read_failure(str(failure.value)) or "").startswith("source 'orders': ")
