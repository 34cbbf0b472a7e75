"""Merging: each row is a change, and the table has the newest state of each key, or all that it has had."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError


@dataclass(frozen=True, kw_only=True)
class Merge(Definition):
    """Each row is a change of the row with its keys; the table has the newest state of each key (SCD type 1), or every
    state that it has been in (SCD type 2).

    In whatever order and however often changes come, the table ends as if each had come once, in the order of
    ``sequence_by``: of the changes of a key the one with the highest sequence wins. Of two with the same sequence a
    deletion wins, then the change whose text sorts last, by the text that the table's system has of all columns: the
    result depends on the changes alone, not on when or in which batch they came.

    With ``scd_type=2`` each state is a row, a *version*, which holds from one value of the first column of
    ``sequence_by`` up to, and not including, another. Of the changes of a key with the same value there the last one
    counts, by the rest of the order. A deletion ends a version and begins none. A change that alters no column of the
    table begins none either: a sequence that ``leave_out`` does not name is such a column.

    :param keys: columns that say which row is changed; never null.
    :param sequence_by: columns by which the changes of a key are ordered, the most significant first; never null.
    :param delete_when: SQL of Spark over the columns of the result; a change for which it is true deletes its key.
    :param leave_out: columns of the result that the table does not get, such as the one that ``delete_when`` asks.
    :param scd_type: 1: the table has the newest state of each key; 2: it has all of its versions.
    :param valid_from: the column of the table, with ``scd_type=2``, that says where a version begins.
    :param valid_to: the one that says where it ends; null for the version of now.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    delete_when: str | None = None
    leave_out: tuple[str, ...] = ()
    scd_type: int = 1
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"

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
        if type(self.scd_type) is not int or self.scd_type not in (1, 2):
            raise DefinitionError(f"Merge: scd_type must be 1 or 2, not {self.scd_type!r:.100}.")
        self._check_bounds()

    def _check_bounds(self) -> None:
        for name, default in (("valid_from", "valid_from"), ("valid_to", "valid_to")):
            value: object = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise DefinitionError(f"Merge: {name} must be the name of a column, not {value!r:.100}.")
            if self.scd_type == 1 and value != default:
                raise DefinitionError(f"Merge: {name} is a column of scd_type=2, and scd_type is 1.")
        if self.scd_type == 1:
            return
        if self.valid_from.casefold() == self.valid_to.casefold():
            raise DefinitionError(f"Merge: valid_from and valid_to are one column, {self.valid_from!r}.")
        bounds = [name.casefold() for name in self.bounds]
        taken = [name for name in (*self.keys, *self.sequence_by, *self.leave_out) if name.casefold() in bounds]
        if taken:
            raise DefinitionError(
                f"Merge: {taken[0]!r} is a column of the changes, and would be one of the versions' bounds too: give "
                "those other names (valid_from=…, valid_to=…)."
            )
        if self.sequence_by[0] in self.keys:
            raise DefinitionError(
                f"Merge: sequence_by begins with {self.sequence_by[0]!r}, which is one of the keys: no version would "
                "ever end."
            )

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns that say from where to where a version holds; none if the table has the newest states alone."""
        return (self.valid_from, self.valid_to) if self.scd_type == 2 else ()

    @property
    def distinct_by(self) -> tuple[str, ...]:
        """Of the changes with the same values in these columns one counts, and no other can ever matter."""
        return (*self.keys, self.sequence_by[0]) if self.scd_type == 2 else self.keys


def check_bounds(merge: Merge | None, *, beside: Collection[str], where: str) -> None:
    """Check that the versions of a table have bounds of their own.

    :param beside: columns that the sink adds to its table.
    :raises DefinitionError: if a bound is one of them.
    """
    taken = [name for name in (() if merge is None else merge.bounds) if name.casefold() in beside]
    if taken:
        raise DefinitionError(f"{where}: merge: {taken[0]!r} is added by this package, and no bound of versions.")


def other_batches(before: Merge | None, now: Merge | None) -> str | None:
    """Why a table cannot have the batches of both, in words that go on from the table; None if it can."""
    had, has = _kind(before), _kind(now)
    return None if had == has else f"has batches of {had}, and this sink writes {has} (merge=…)."


def _kind(merge: Merge | None) -> str:
    if merge is None:
        return "rows"
    return "changes" if merge.scd_type == 1 else "changes with their history (scd_type=2)"
