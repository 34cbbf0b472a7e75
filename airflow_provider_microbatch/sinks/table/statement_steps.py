"""Statements that change a catalog, as steps: a handle is on record before each, so that whoever comes after a process
that died over one ends it first. Without that a statement goes on without its process, or arrives late, and names files
that the next one has dropped."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.table.marks import put_mark, read_mark, remove_mark
from airflow_provider_microbatch.sinks.table.statements import Rows, Statements


class StatementSteps:
    """Steps that change one table. Only the holder of the table's lock may use them.

    :param statements: runs them.
    :param folder: where handles of steps that have not ended lie.
    """

    def __init__(self, statements: Statements, folder: Path) -> None:
        self._statements = statements
        self._folder = folder

    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Run statements as one step; see :meth:`Statements.run`. The record stays if nobody knows how it ended."""
        handle = self._statements.handle()
        record = self._folder / f"{uuid.uuid4()}.json"
        put_mark(record, {**handle, "version": 1, "statements": list(statements)})
        try:
            rows = self._statements.run(statements, handle=handle)
        except SinkError:
            # Spark refused it, or did not answer: then it may run there still.
            self._end(record)
            raise
        remove_mark(record)
        return rows

    def end_all(self) -> None:
        """End the steps of those who held the lock before, and died.

        :raises SinkError: if one may still run: nothing may be published or dropped then.
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
