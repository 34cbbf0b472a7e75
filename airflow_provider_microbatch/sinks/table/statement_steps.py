"""Statements that change a catalog, as steps: before each step its handle is recorded, so that the next process can end
the step of a process that died. Otherwise such a statement could run on without its process, or arrive late, and name
files that the next process has dropped."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.table.marks import put_mark, read_mark, remove_mark
from airflow_provider_microbatch.sinks.table.statements import Rows, Statements


class StatementSteps:
    """Steps that change one table. Only the holder of the table's lock may use them.

    :param statements: runs the statements.
    :param folder: the folder with the handles of steps that have not ended.
    """

    def __init__(self, statements: Statements, folder: Path) -> None:
        self._statements = statements
        self._folder = folder

    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Run statements as one step; see :meth:`Statements.run`. The record stays if the step's end is unknown."""
        handle = self._statements.handle()
        record = self._folder / f"{uuid.uuid4()}.json"
        put_mark(record, {**handle, "version": 1, "statements": list(statements)})
        try:
            rows = self._statements.run(statements, handle=handle)
        except SinkError:
            # Spark refused the step, or did not answer: then the step may still be running.
            self._end(record)
            raise
        remove_mark(record)
        return rows

    def end_all(self) -> None:
        """End the steps of earlier holders of the lock that died.

        :raises SinkError: if a step may still run: nothing may be published or dropped then.
        """
        for record in sorted(self._folder.glob("*.json")):
            self._end(record)

    def _end(self, record: Path) -> None:
        handle = read_mark(record)
        try:
            if handle is None:
                raise SinkError("the record cannot be read")
            self._statements.end(handle)
        except SinkError as error:
            raise SinkError(
                f"a statement may still run, and change the table later: {error}. It is on record in {record}. Nothing "
                "is published or dropped before it has ended; if it is sure that it has, remove that file."
            ) from error
        remove_mark(record)
