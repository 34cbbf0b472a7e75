"""A pipeline into a table of Spark's catalog, and what a reader of the table finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_microbatch.engines.spark_connect.session import MAX_RETRIES
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.job import Job, Transform
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements, StatementError
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine


class ConnectEngine(InlineEngine):
    """Runs the real runtime, in a session on the server."""

    def __init__(self, server: ConnectStatements) -> None:
        super().__init__()
        self._url = server.url

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
            spark: Any = SparkSession.builder.remote(self._url).create()
            # PySpark's own asks a server that is gone for ten minutes, also when the session is forgotten.
            spark.client.set_retry_policies([DefaultPolicy(max_retries=MAX_RETRIES)])
            try:
                run_job(spark, job)
            finally:
                spark.stop()


@dataclass
class Shop:
    world: World
    server: ConnectStatements
    name: str

    def rows(self) -> list[dict[str, Any]] | None:
        """What a reader finds; None if there is no table."""
        try:
            (rows,) = self.server.run([f"SELECT * FROM {self.name}"])
        except StatementError as error:
            if error.condition == "TABLE_OR_VIEW_NOT_FOUND":
                return None
            raise
        return sorted(rows, key=lambda row: row["id"])

    def ids(self) -> list[int] | None:
        rows = self.rows()
        return None if rows is None else [row["id"] for row in rows]

    def ids_where(self, condition: str) -> list[int]:
        (rows,) = self.server.run([f"SELECT id FROM {self.name} WHERE {condition}"])
        return sorted(row["id"] for row in rows)

    def partitions(self) -> list[str]:
        (rows,) = self.server.run([f"SHOW PARTITIONS {self.name}"])
        return [row["partition"] for row in rows]

    def somebody_else_makes_it(self, columns: str = "id BIGINT", values: str = "7L") -> None:
        self.server.run(
            [f"CREATE TABLE {self.name} ({columns}) USING json", f"INSERT INTO {self.name} VALUES ({values})"]
        )

    def tables(self) -> list[str]:
        """Base names of all tables that begin with this one's."""
        return Metastore(self.server, "sales").named(self.name.partition(".")[2] + "_")

    def run(self, number: int, *, function: str | None = None, **clear: int) -> None:
        transform = Transform(module="tests.tables.shop", function=function) if function else None
        self.world.execution.run(
            run=run_identity(number, **clear), engine=ConnectEngine(self.server), code=CODE, transform=transform
        )


Make = Callable[..., Shop]
