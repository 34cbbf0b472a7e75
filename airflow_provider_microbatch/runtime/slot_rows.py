"""Makes rows of the changes of one table: its columns, then which change it was, and its place in the order of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from airflow_provider_microbatch.runtime.pg_texts import reader_of, takes
from airflow_provider_microbatch.runtime.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Value,
    Values,
    decode,
)

ADDED: Mapping[str, str] = {"_op": "string", "_lsn": "long", "_number": "long", "_committed_at": "timestamp"}
"""Columns beside the table's: ``insert``, ``update``, ``delete``, ``truncate`` or ``snapshot``; where the transaction
was committed, and the number of the row in it, which order all rows; and the moment of the commit."""

FAIL, ROW, IGNORE = "fail", "row", "ignore"

_FROM_THEN_ON = (
    "ALTER TABLE … REPLICA IDENTITY FULL has it there from then on; what was changed before that has to be passed over "
    "by `microbatch set-offset`, and be read from the table. What is passed over holds the slot, and the server's log "
    "with it, until pg_replication_slot_advance moves it on"
)

Row = tuple[Any, ...]


class SlotError(ValueError):
    """Changes cannot be read as their range requires."""


class ChangedRows:
    """Rows of a range of transactions, in the order of their commits.

    :param arguments: ``name`` of the source; ``table`` and its ``oid``; ``columns``, pairs of a name and a type of
        Spark's; ``key``, names of the columns that tell rows apart; ``on_truncate`` and ``on_schema_change``; ``start``
        and ``end``: of the commit records from ``start`` up to ``end``, which does not belong to it. ``start`` may be
        None.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._name: str = arguments["name"]
        self._table: str = arguments["table"]
        self._oid: int = arguments["oid"]
        self._columns: Sequence[tuple[str, str]] = [(name, type) for name, type in arguments["columns"]]
        self._key: Sequence[str] = arguments["key"]
        self._on_truncate: str = arguments["on_truncate"]
        self._on_schema_change: str = arguments["on_schema_change"]
        self._start: int = arguments["start"] or 0
        self._end: int = arguments["end"]
        self._relation: Relation | None = None
        self._parts: dict[int, Relation] = {}
        self._tells_key = False
        self._learned: list[Relation] = []  # since the last change
        self._form: Form | None = None
        self.changes = 0
        """Number of changes so far; one that moves a row to another key is one change, and two rows."""

    def of(self, messages: Iterable[bytes]) -> Iterator[Row]:
        """Yield the rows.

        :param messages: of the slot, from its position on; what lies outside of the range is passed over.
        :raises SlotError: if a change cannot be a row; it names the column, and what to do.
        """
        begun: Begin | None = None
        numbers = count()
        for data in messages:
            message = decode(data)
            if isinstance(message, Begin):
                begun, numbers = (message if self._start <= message.lsn < self._end else None), count()
            elif isinstance(message, Commit):
                begun = None
            elif isinstance(message, Relation):
                # Also of a transaction that is passed over: the plugin tells a form once.
                self._learn(message)
            elif message is not None:
                if self._learned:
                    self._take_in(message)
                if begun is not None and self._is_ours(message):
                    self.changes += 1
                    for operation, values in self._rows(message):
                        yield (*values, operation, begun.lsn, next(numbers), begun.committed)

    def _learn(self, form: Relation) -> None:
        if form.id == self._oid:
            self._relation, self._form = form, None
        self._learned.append(form)

    def _take_in(self, change: Change) -> None:
        """Take in the forms that were told since the change before, and whether one that leaves out the old row leaves
        the key as it was. A form behind that of the table, before a change of the table's, is that of the partition
        which has the row. Of a TRUNCATE, which tells the forms of all that it empties, it is that of another table."""
        is_of_row = not isinstance(change, Truncate) and change.relation == self._oid
        if is_of_row and [form.id == self._oid for form in self._learned] == [True, False]:
            self._parts[self._learned[1].id] = self._learned[1]
        self._learned.clear()
        # Changes of partitions come under the name of their table, whose own replica identity says nothing of theirs.
        told = self._parts.values() or [self._relation]
        self._tells_key = all(one is not None and one.tells(self._key) for one in told)

    def _is_ours(self, change: Change) -> bool:
        return self._oid in (change.relations if isinstance(change, Truncate) else (change.relation,))

    def _rows(self, change: Change) -> Iterator[tuple[str, Sequence[Any]]]:
        if isinstance(change, Truncate):
            if self._on_truncate == FAIL:
                raise self._error(
                    "was emptied by TRUNCATE, which is no change of any row: on_truncate='row' hands it to the "
                    "transform as a row of its own, whose _op is 'truncate' and whose columns are null. A table that "
                    "changes are merged into cannot be emptied by that: begin anew, with another slot (and its "
                    "snapshot), another checkpoint and another table"
                )
            yield "truncate", [None] * len(self._columns)
            return
        form = self._form = self._form or self._new_form()
        if isinstance(change, Insert):
            yield "insert", form.values(change.new)
        elif isinstance(change, Delete):
            self._check_key(form, change.old)
            yield "delete", form.values(change.old)
        else:
            new = _filled(change)
            old = change.old
            self._check_key(form, old)
            if old is not None and form.key(old) != form.key(new):
                # Whoever knows rows by their keys would keep the old one for ever.
                yield "delete", form.values(old)
                yield "insert", form.values(new)
            else:
                yield "update", form.values(new)

    def _check_key(self, form: Form, old: Values | None) -> None:
        """Check that a change tells the key of the row that was there. A plan looks at the replica identity of its own
        time: one that was another for a while told of a row that moved to another key as of an update of a new one.

        :param old: of a change; None: what it tells of the old row is as in the new one.
        """
        if not self._tells_key if old is None else None in form.key(old):
            raise self._error(
                f"was changed while its replica identity had not the whole key ({', '.join(self._key)}), so that the "
                f"log does not tell which row it was. {_FROM_THEN_ON}"
            )

    def _new_form(self) -> Form:
        relation = self._relation
        if relation is None:
            raise self._error("has a change before its form was told: the slot gives something else than pgoutput's")
        there = {column.name: (at, column.type) for at, column in enumerate(relation.columns)}
        more = [name for name in there if name not in dict(self._columns)]
        if more and self._on_schema_change == FAIL:
            raise self._error(
                f"has columns that the schema lacks: {', '.join(more)}. Add them to the schema, in which they are null "
                "for changes of before; or leave them out by on_schema_change='ignore'"
            )
        wrong = [f"{name} {type}" for name, type in self._columns if name in there and not takes(type, there[name][1])]
        if wrong:
            raise self._error(
                f"had other types when this was changed than the schema has: {', '.join(wrong)}. A string takes each"
            )
        lacking = [name for name in self._key if name not in there]
        if lacking:
            raise self._error(f"had no column {', '.join(lacking)} when this was changed, which is its key here")
        places = [(name, there[name][0] if name in there else None, reader_of(type)) for name, type in self._columns]
        return Form(places, key=[there[name][0] for name in self._key], error=self._error)

    def _error(self, text: str) -> SlotError:
        return SlotError(f"source {self._name!r}: {self._table} {text}.")


class Form:
    """Where the columns of the schema are in a table's tuples, since the table was altered last.

    :param places: name, place, and reader of each; a place of None: the table did not have the column then.
    :param key: places of the key.
    """

    def __init__(
        self,
        places: Sequence[tuple[str, int | None, Callable[[str], Any]]],
        *,
        key: Sequence[int],
        error: Callable[[str], SlotError],
    ) -> None:
        self._places = places
        self._key = key
        self._error = error

    def key(self, values: Values) -> list[Value]:
        return [values[place] for place in self._key]

    def values(self, values: Values) -> list[Any]:
        return [self._value(name, None if at is None else values[at], read) for name, at, read in self._places]

    def _value(self, name: str, value: Value, read: Callable[[str], Any]) -> Any:
        if value is None:
            return None
        if isinstance(value, Unchanged):
            raise self._error(
                f"has a large value in {name} that an update left as it was, and such a value is not in the log. "
                f"{_FROM_THEN_ON}"
            )
        try:
            return read(value)
        except (ValueError, KeyError, ArithmeticError) as error:
            raise self._error(
                f"has a value in {name} that the schema's type cannot hold: {error}. Have it read as string, or "
                "correct the schema"
            ) from error


def _filled(change: Update) -> Values:
    """The new row, with what the update left as it was from the old one, where that has it."""
    if change.old is None or UNCHANGED not in change.new:
        return change.new
    return tuple(
        old if isinstance(value, Unchanged) and old is not None else value
        for value, old in zip(change.new, change.old, strict=True)
    )
