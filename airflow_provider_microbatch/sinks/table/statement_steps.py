"""Statements that change a catalog, as steps: before each step its handle is recorded, so that the next process can end
the step of a process that died. Otherwise such a statement could run on without its process, or arrive late, and name
files that the next process has dropped."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.table.marks import put_mark, read_mark, remove_mark
from airflow_provider_microbatch.sinks.table.statements import Rows, Statements

ON_CONDITION = "onCondition"
"""Key in the record of a call that nobody can end."""

Answer = TypeVar("Answer")


class StatementSteps:
    """Steps that change one table. Only the holder of the table's lock may use them.

    :param statements: runs the statements.
    :param folder: the folder with the handles of steps that have not ended.
    :param disarm: has each call of :meth:`run_on_condition` that may still be made do nothing, by a step.
    """

    def __init__(self, statements: Statements, folder: Path, *, disarm: Callable[[], None] | None = None) -> None:
        self._statements = statements
        self._folder = folder
        self._disarm = disarm

    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Run statements as one step; see :meth:`Statements.run`. The record stays if the step's end is unknown."""
        handle = self._statements.handle()
        record = {**handle, "version": 1, "statements": list(statements)}
        return self._on_record(record, lambda: self._statements.run(statements, handle=handle))

    def run_on_condition(self, call: Callable[[], Answer]) -> Answer:
        """Make a call that nobody can end, and that does nothing if the table has another version by then. The record
        stays if it is unknown whether it may still be made."""
        return self._on_record({"version": 1, ON_CONDITION: True}, call)

    def _on_record(self, told: Mapping[str, Any], do: Callable[[], Answer]) -> Answer:
        record = self._folder / f"{uuid.uuid4()}.json"
        put_mark(record, told)
        try:
            answer = do()
        except SinkError:
            # The step was refused, or there was no answer: then it may still be running.
            self._end(record)
            raise
        remove_mark(record)
        return answer

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
            if handle.get(ON_CONDITION) is True and self._disarm is not None:
                self._disarm()
            else:
                self._statements.end(handle)
        except SinkError as error:
            raise SinkError(
                f"a statement may still run, and change the table later: {error}. It is on record in {record}. Nothing "
                "is published or dropped before it has ended; if it is sure that it has, remove that file."
            ) from error
        remove_mark(record)
