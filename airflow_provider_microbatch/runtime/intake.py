"""What a table takes of a row, as its sink knows it when an attempt begins. The job has it, so that all queries of the
attempt judge the rows by the same columns, whatever becomes of the table meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VALUE = "$value"
"""Stands for the value in the condition of a :class:`Limit`."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A condition that some values of a column do not meet.

    :param condition: a Spark SQL expression about :data:`VALUE`, which is not null.
    :param problem: the problem of a value that does not meet the condition, in a few words.
    :param kinds: kinds of Spark's types of which the condition can be computed; it is not asked of other values.
    """

    condition: str
    problem: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of the table.

    :param name: its name.
    :param told: its type, as the table's system writes it.
    :param type: the type of Spark that has the column's values, such as ``decimal(18,4)``; None if Spark has no such
        type, or if the values of the result are not held against it.
    :param is_needed: whether the column takes no null.
    :param needed_unless: a Spark SQL condition over the result's columns; rows that meet it may be null all the same.
    :param limits: what a value has to meet besides.
    :param is_narrow: whether no type of Spark has just the column's values: whoever publishes values of a type that has
        more needs to know that these were held against :attr:`limits`.
    """

    name: str
    told: str
    type: str | None = None
    is_needed: bool = False
    needed_unless: str | None = None
    limits: tuple[Limit, ...] = ()
    is_narrow: bool = False


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What a table takes of a row.

    :param columns: its columns; columns that this package adds to each row are not among them.
    :param constraints: Spark SQL conditions over the columns, by name, that have to be true for each row: a null is a
        refusal.
    :param is_exact: whether a value is written in exactly its column's type; if False, a number of a narrower type goes
        in as it is.
    """

    columns: tuple[TableColumn, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = True

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Intake:
        """Restore what ``dataclasses.asdict`` made, by way of JSON."""
        return cls(**{**values, "columns": tuple(map(_column, values["columns"]))})

    @property
    def rules(self) -> tuple[str, ...]:
        """The table's rules for rows that the types of a stage do not tell: whoever publishes the rows compares these
        with the rules that the table has then."""
        needed = tuple(needs(column.name) for column in self.columns if column.is_needed)
        narrow = tuple(narrows(column.name, column.told) for column in self.columns if column.is_narrow)
        return (*needed, *narrow, *(constrains(name, condition) for name, condition in self.constraints.items()))


def needs(column: str) -> str:
    """The rule that a column takes no null."""
    return f"NOT NULL {column}"


def narrows(column: str, told: str) -> str:
    """The rule that a column has only values of a type that Spark does not have."""
    return f"TYPE {column}: {told}"


def constrains(name: str, condition: str) -> str:
    """The rule that a condition is true for each row."""
    return f"CHECK {name}: {condition}"


def _column(values: Mapping[str, Any]) -> TableColumn:
    limits = tuple(Limit(**{**limit, "kinds": tuple(limit["kinds"])}) for limit in values["limits"])
    return TableColumn(**{**values, "limits": limits})
