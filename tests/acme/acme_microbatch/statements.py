"""Statements in a process of their own: a step is one plain Python process with a Spark of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.engines import processes
from airflow_provider_microbatch.exceptions import HandleError, SinkError
from airflow_provider_microbatch.runtime.statements import StatementFailure, run
from airflow_provider_microbatch.sinks.table.statements import Rows, StatementError, Statements

_GRACE_SECONDS = 2.0
_REFUSED = 3


@dataclass(frozen=True)
class ProcessStatements(Statements):
    """Runs the statements of each step in a process on this host.

    :param conf: Spark settings, such as those that lead to the catalog.
    """

    conf: Mapping[str, str] = field(default_factory=dict)

    def handle(self) -> Mapping[str, Any]:
        return {"tag": processes.new_tag()}

    def run(self, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        tag = processes.check_tag((handle or self.handle()).get("tag"))
        ended = subprocess.run(
            [sys.executable, "-m", __name__, tag],
            input=json.dumps({"statements": list(statements), "conf": dict(self.conf)}),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ended.returncode == _REFUSED:
            raise StatementError(*json.loads(ended.stdout))
        if ended.returncode != 0:
            raise SinkError(f"the process of the statements ended with exit status {ended.returncode}")
        found: list[Rows] = json.loads(ended.stdout)
        return found

    def end(self, handle: Mapping[str, Any]) -> None:
        try:
            processes.end_all(processes.check_tag(handle.get("tag")), grace=_GRACE_SECONDS)
        except (HandleError, TimeoutError) as error:
            raise SinkError(str(error)) from error


def main() -> int:
    """Run the step in its process: read the statements from standard input, and print the rows."""
    from pyspark.sql import SparkSession

    given = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config(map=given["conf"]).getOrCreate()
    try:
        print(json.dumps(run(spark, given["statements"])))
    except StatementFailure as failure:
        print(json.dumps([failure.condition, failure.error]))
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
