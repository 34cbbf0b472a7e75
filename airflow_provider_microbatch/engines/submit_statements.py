"""Statements of a catalog by spark-submit: for those who run no Spark Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from airflow_provider_microbatch.engines import class_archive, packaging
from airflow_provider_microbatch.engines.environment import SPARK_SUBMIT, launch_environment, spark_defaults
from airflow_provider_microbatch.engines.masters import target_of
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.staging.statements import Rows, StatementError, Statements


@dataclass(frozen=True)
class SubmitStatements(Statements):
    """One spark-submit a call, in client mode. A publish makes several calls, and each starts a JVM.

    :param conn_id: Airflow connection of type ``spark``, whose Spark has the metastore as its session catalog.
    :param conf: further Spark settings. They are written to the checkpoint, so they must not hold secrets.
    :raises DefinitionError: for a wrong type.
    """

    conn_id: str = "spark_default"
    _: KW_ONLY
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.conn_id, str) or not self.conn_id:
            raise DefinitionError(f"SubmitStatements: conn_id must name a connection, not {self.conn_id!r}.")
        for key, value in self.conf.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise DefinitionError(f"SubmitStatements: conf {key!r}: {value!r} must be text on both sides.")

    def run(self, statements: Sequence[str]) -> list[Rows]:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
        from airflow.sdk.exceptions import AirflowException

        try:
            connection = SparkSubmitHook.get_connection(self.conn_id)
        except AirflowException as error:
            raise StatementError("", f"the connection {self.conn_id!r} cannot be used: {error}") from error
        target = target_of(connection, deploy_mode="client")  # the answer is a file on this host
        binary = connection.extra_dejson.get("spark-binary") or SPARK_SUBMIT
        environment = launch_environment(os.environ, extra={}, binary=binary, is_local=target.is_local)
        base = spark_defaults(environment, binary=binary)
        if archive := connection.extra_dejson.get(class_archive.EXTRA):
            environment = class_archive.with_archive(archive, environment, binary=binary)
        tag = f"microbatch-{uuid.uuid4()}"
        settings = {"spark.log.level": "WARN", "spark.ui.enabled": "false", **self.conf}
        try:
            shipment, answer = packaging.pack_statements(tag=tag, statements=statements, conf=settings, base=base)
            hook = SparkSubmitHook(
                conn_id=self.conn_id,
                properties_file=str(shipment.properties),
                py_files=",".join(str(path) for path in shipment.py_files),
                application_args=[str(shipment.job), str(answer)],
                name="microbatch statements",
                deploy_mode="client",
                spark_binary=binary,
            )
            # A task's stdin is its supervisor's socket, which an orphaned JVM would hold open.
            hook.submit(str(shipment.application), stdin=subprocess.DEVNULL, env=environment)
            told: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except (AirflowException, OSError, ValueError) as error:
            raise StatementError("", f"spark-submit of {len(statements)} statements failed: {error}") from error
        finally:
            packaging.unpack(tag)
        if "error" in told:
            raise StatementError(told["condition"], told["error"])
        rows: list[Rows] = told["rows"]
        return rows
