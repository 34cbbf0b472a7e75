"""The ids by which a checkpoint recognises its tables.

A folder whose file system is not mounted looks like an empty table. Emptiness tells nothing, since this package makes
folders there itself. So a table has an id, and its checkpoint has that id on record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property

from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

TABLE_ID = "_table_id"
"""A folder in a table's folder; the name of the only file in it is the table's id."""

TABLE_MARK = "_table.json"
"""A file in the folder of a table that a catalog of folders has made."""

TABLE_BATCHES = "_batches"
"""A folder in the folder of a table of objects: all output of attempts lies below it, published or not."""

_ID = re.compile(r"[0-9a-f]{32}")


def is_table_id(text: object) -> bool:
    """Whether the text can be the id of a table. Such an id becomes the name of a file, so it must not be a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


class KnownTables:
    """Files ``<sha256 of the table's address>``. An entry is never changed, so it is read once.

    :param store: scoped to ``microbatch/tables``.
    :param follows_moves: see :attr:`following_moves`.
    """

    def __init__(self, store: Store, *, follows_moves: bool = False) -> None:
        self._store = store
        self._follows_moves = follows_moves
        self._read: dict[str, str] = {}

    def get(self, location: str) -> str | None:
        """The id of the table at that address; None if no id is on record: the table was never demonstrably there.

        :raises CorruptEntryError: if the entry cannot be read.
        """
        if location not in self._read:
            found = self._entry(_name(location))
            if found is None:
                return None
            self._read[location] = found[1]
        return self._read[location]

    def put(self, location: str, table_id: str) -> None:
        """Record the table's id, unless an id is on record: then that id stays."""
        self._store.put_if_absent(_name(location), encode_record({"location": location, "id": table_id}))

    def was_at(self, location: str, table_id: str) -> bool:
        """Whether this checkpoint has written to the table of that id at that address, where another one may be now."""
        return self.get(_place(location, table_id)) is not None

    def put_at(self, location: str, table_id: str) -> None:
        """Record that the table of that id is written to at that address; for a table that tells its id itself."""
        if not self.was_at(location, table_id):
            self.put(_place(location, table_id), table_id)

    @cached_property
    def following_moves(self) -> KnownTables:
        """The same records for a caller that reads at former addresses: of a table that was moved it is known that
        nothing is at its old address any more. Callers must not write by them: a table at two addresses would be taken
        for moved while one of the two is away."""
        return KnownTables(self._store, follows_moves=True)

    def moved_to(self, table_id: str) -> list[str]:
        """Addresses to look for a table that is not at its own: all on record with its id, if moves are followed."""
        if not self._follows_moves:
            return []
        found = [self._entry(name) for name in sorted(self._store.list(""))]
        return [entry[0] for entry in found if entry is not None and entry[1] == table_id]

    def unreadable(self) -> Iterator[tuple[str, CorruptEntryError]]:
        """Entries that cannot be read, by the name of their file."""
        for name in sorted(self._store.list("")):
            try:
                self._entry(name)
            except CorruptEntryError as error:
                yield name, error

    def where(self, name: str) -> str:
        """Address of an entry, for messages."""
        return f"{self._store.location}/{name}"

    def where_of(self, location: str) -> str:
        """Address of the entry of the table at that address, for messages."""
        return self.where(_name(location))

    def _entry(self, name: str) -> tuple[str, str] | None:
        data = self._store.get(name)
        if data is None:
            return None
        where = self.where(name)
        values = decode_record(data, where=where)
        location, table_id = values.get("location"), values.get("id")
        if not isinstance(location, str) or not is_table_id(table_id):
            corrupt(where, "not what it should be: it lacks location or id")
        return location, str(table_id)


def _place(location: str, table_id: str) -> str:
    return f"{location}#{table_id}"


def _name(location: str) -> str:
    return hashlib.sha256(location.encode("utf-8", "surrogatepass")).hexdigest()
