"""An engine that reads the rows of a table of a database, as they were planned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.job import Job
from tests.support.inline_engine import InlineEngine


class OverTable(InlineEngine):
    """Reads the planned rows of ``orders``, as Spark's JDBC source does.

    :param select: what one statement returns.
    """

    def __init__(self, select: Callable[[str], Iterable[Any]], folder: Path) -> None:
        super().__init__(told={"read": {"orders": {"left_out": 0}}})
        self._select, self._file = select, folder / "rows.json"

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        read = job.sources["orders"]
        found = [
            id
            for predicate in read.arguments["predicates"]
            for (id,) in self._select(f"SELECT id FROM orders WHERE {predicate}")
        ]
        self._file.write_text("".join(json.dumps({"id": id}) + "\n" for id in found))
        arguments = {"groups": [{"paths": [str(self._file)]}]}
        super().start(handle, replace(job, sources={"orders": replace(read, arguments=arguments)}), code)
