"""Conditions of rows that users asked to erase; every computed batch leaves these rows out.

The conditions name people, so no log and no error shows them; entries are as private as the rest of a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from airflow_provider_microbatch.checkpoint.key import is_whole
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.stores import Store

_MARK = re.compile("[0-9]{1,18}-[0-9a-f]{16}")


def is_mark(text: object) -> bool:
    """Whether a text can be the mark of an entry."""
    return isinstance(text, str) and bool(_MARK.fullmatch(text))


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """A request to leave rows out, or to lift such a request.

    :param number: of the entry; entries are in order.
    :param mark: the text by which outputs say that they have left the rows out: the entry's number, and a digest of it.
        A checkpoint that is restored from a backup gives numbers again, to other conditions.
    :param condition: Spark SQL; a row for which it is true is left out. Empty for an entry that lifts another.
    :param sinks: names of the sinks whose rows the condition is about; empty for all.
    :param tables: by these names, the plain form of the sink that had it when the user asked: the table may have
        another name in the pipeline that makes a batch, of then or of now. Empty if an older version wrote it.
    :param lifts: the number of the entry that no longer counts from now on; or the mark of one that this checkpoint
        does not have, and that outputs bear; None for a condition.
    :param by: the user that asked.
    :param at_ms: when the user asked; milliseconds since the epoch, UTC.
    """

    number: int
    mark: str
    condition: str
    sinks: tuple[str, ...]
    tables: Mapping[str, Any]
    lifts: int | str | None
    by: str
    at_ms: int


class ForgottenRows:
    """Files ``<n>``, put if absent, never changed and never removed.

    :param store: scoped to ``microbatch/forgotten``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Forgetting]:
        """All entries, in order.

        :raises CorruptEntryError: if one cannot be read, since the rows to leave out are unknown then.
        """
        return [self._entry(number) for number in sorted(numbers(self._store.list("")))]

    def active(self) -> list[Forgetting]:
        """The conditions that count: those that no later entry lifts. Raises as :meth:`all` does."""
        found = self.all()
        lifted = {one.lifts for one in found if one.lifts is not None}
        return [one for one in found if one.lifts is None and one.number not in lifted]

    def add(
        self,
        condition: str,
        *,
        sinks: tuple[str, ...],
        tables: Mapping[str, Any] | None = None,
        by: str,
        at_ms: int,
    ) -> Forgetting:
        """Record a condition. Durable on return. See :class:`Forgetting`."""
        values = {"condition": condition, "sinks": list(sinks), "tables": tables or {}}
        return self._add({**values, "lifts": None, "by": by, "at_ms": at_ms})

    def lost(self, marks: Iterable[str]) -> list[str]:
        """Those of the marks, which outputs bear, that are of no entry here, and were not lifted: nobody here knows
        what they stand for. Raises as :meth:`all` does."""
        borne = set(filter(is_mark, marks))
        known = {mark for one in self.all() for mark in (one.mark, one.lifts)} if borne else set()
        return sorted(borne - known)

    def lift(self, entry: int | str, *, by: str, at_ms: int) -> Forgetting:
        """Record that an entry no longer counts.

        :param entry: its number; or its mark, if it is none of this checkpoint's.
        :raises MaintenanceError: if the entry of that number does not count now, or that of the mark is here.
        """
        is_lost = isinstance(entry, str) and entry not in {one.mark for one in self.all()}
        if not is_lost and entry not in {one.number for one in self.active()}:
            counting = ", ".join(str(one.number) for one in self.active()) or "none"
            raise MaintenanceError(
                f"{self._store.location} has no entry {entry} that counts; those that do: {counting}. Nothing was "
                "lifted."
            )
        return self._add({"condition": "", "sinks": [], "lifts": entry, "by": by, "at_ms": at_ms})

    def _add(self, values: dict[str, Any]) -> Forgetting:
        data = encode_record(values)
        number = max(numbers(self._store.list("")), default=-1) + 1
        while not self._store.put_if_absent(str(number), data):
            number += 1
        return self._entry(number)

    def _entry(self, number: int) -> Forgetting:
        where = f"{self._store.location}/{number}"
        data = self._store.get(str(number)) or b""
        values = decode_record(data, where=where)
        condition, sinks, lifts, by, at_ms = (
            values.get(name) for name in ("condition", "sinks", "lifts", "by", "at_ms")
        )
        is_sound = isinstance(condition, str) and isinstance(by, str) and is_whole(at_ms) and isinstance(sinks, list)
        tables = values.get("tables", {})
        if (
            not is_sound
            or not (isinstance(tables, dict) and all(isinstance(form, dict) for form in tables.values()))
            or not (lifts is None or type(lifts) is int or is_mark(lifts))
            or bool(condition) == (lifts is not None)
        ):
            corrupt(where, "not what it should be: it says neither what to forget nor what to lift")
        return Forgetting(
            number=number,
            mark=f"{number}-{sha256(data).hexdigest()[:16]}",
            condition=str(condition),
            sinks=tuple(map(str, sinks or ())),
            tables=tables,
            lifts=lifts,
            by=str(by),
            at_ms=int(at_ms or 0),
        )
