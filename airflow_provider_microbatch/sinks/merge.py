"""Merging: each row is a change, and the table has the newest state of each key."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError


@dataclass(frozen=True, kw_only=True)
class Merge(Definition):
    """Each row is a change of the row with its keys; the table has the newest state of each key (SCD type 1).

    In whatever order and however often changes come, the table ends as if each had come once, in the order of
    ``sequence_by``: of the changes of a key the one with the highest sequence wins. Of two with the same sequence a
    deletion wins, then the change whose text sorts last, by the text that the table's system has of all columns: the
    result depends on the changes alone, not on when or in which batch they came.

    :param keys: columns that say which row is changed; never null.
    :param sequence_by: columns by which the changes of a key are ordered, the most significant first; never null.
    :param delete_when: SQL of Spark over the columns of the result; a change for which it is true deletes its key.
    :param leave_out: columns of the result that the table does not get, such as the one that ``delete_when`` asks.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    delete_when: str | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("keys", "sequence_by", "leave_out"):
            given: object = getattr(self, name)
            columns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else None
            if columns is None or not all(isinstance(column, str) and column for column in columns):
                raise DefinitionError(f"Merge: {name} must be names of columns, not {given!r:.100}.")
            if not columns and name != "leave_out":
                raise DefinitionError(f"Merge: {name} names no column.")
            if len(set(columns)) < len(columns):
                raise DefinitionError(f"Merge: {name} names a column twice: {', '.join(columns)}.")
            object.__setattr__(self, name, columns)
        if self.delete_when is not None and (not isinstance(self.delete_when, str) or not self.delete_when.strip()):
            raise DefinitionError(f"Merge: delete_when must be a condition in SQL, not {self.delete_when!r:.100}.")
        kept_out = [key for key in self.keys if key in self.leave_out]
        if kept_out:
            raise DefinitionError(f"Merge: leave_out names {', '.join(kept_out)}, by which the table's rows are known.")


def other_batches(before: Merge | None, now: Merge | None) -> str | None:
    """Why a table cannot have the batches of both, in words that go on from the table; None if it can."""
    if (before is None) == (now is None):
        return None
    had, has = ("rows", "changes") if before is None else ("changes", "rows")
    return f"has batches of {had}, and this sink writes {has} (merge=…)."
