"""A checkpoint in a table of a database: ``sql://conn_id/schema[/prefix]``.

| module | what |
| --- | --- |
| ``address`` | what a user writes |
| ``keys`` | paths as bytes that sort as folders do |
| ``database`` | the sessions of this process; answers that are lost |
| ``migrations`` | the tables and their versions |
| ``kind``, ``postgres``, ``sqlite`` | what differs from one database to another |
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from airflow_provider_microbatch.stores import PAGE, Store, Versioned, check_path
from airflow_provider_microbatch.stores.sql.address import Address
from airflow_provider_microbatch.stores.sql.database import Database, Done, database_of
from airflow_provider_microbatch.stores.sql.keys import end_of, folder_of, key_of, names_of, past

_AT_ONCE = 5_000
"""The largest number of keys in one statement."""

_ENTRIES = "{schema}.microbatch_entries"
_GET = f"SELECT data, token, modified_ms FROM {_ENTRIES} WHERE key = :key"
_MODIFIED = f"SELECT modified_ms FROM {_ENTRIES} WHERE key = :key"
_TOKEN = f"SELECT token FROM {_ENTRIES} WHERE key = :key"
_PART = f"SELECT substr(data, :start, :size) FROM {_ENTRIES} WHERE key = :key"
_PRESENT = f"SELECT key FROM {_ENTRIES} WHERE key IN :keys"
_PUT = (
    f"INSERT INTO {_ENTRIES} (key, data, token, modified_ms) VALUES (:key, :data, :token, {{clock}})"
    " ON CONFLICT (key) DO NOTHING"
)
_REPLACE = (
    f"UPDATE {_ENTRIES} SET data = :data, token = :token, modified_ms = {{clock}} WHERE key = :key AND token = :version"
)
_DELETE = f"DELETE FROM {_ENTRIES} WHERE key = :key"
_DELETE_IF = f"DELETE FROM {_ENTRIES} WHERE key = :key AND data = :data"
_DELETE_MANY = f"DELETE FROM {_ENTRIES} WHERE key IN :keys"

_FROM = f"(SELECT {{name}} FROM {_ENTRIES} WHERE key >= {{low}} AND key < :high ORDER BY key LIMIT 1)"
_LIST = (
    "WITH RECURSIVE found(name) AS (SELECT " + _FROM.replace("{low}", ":low") + " UNION ALL"
    " SELECT " + _FROM.replace("{low}", "{past}") + " FROM found WHERE name IS NOT NULL)"
    " SELECT name FROM found WHERE name IS NOT NULL"
)
"""Finds each name by one look into the index, which skips everything below the name: as many looks as there are names,
however many entries there are."""
_LIMITED = " LIMIT :limit"
_FOLDERS = f" AND EXISTS (SELECT 1 FROM {_ENTRIES} WHERE key >= {{below}} AND key < {{past}})"


class SqlStore(Store):
    """The entries of one folder of a table.

    Each put has a token of its own. The next put uses the token to state which entry it replaces; and a writer that got
    no answer to its put learns from the token whether the entry is its own, or another writer's with equal bytes.

    :param address: the database, and the folder.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._folder = folder_of(address.prefix)

    @classmethod
    def at(cls, location: str) -> Self:
        """Return the store at ``sql://conn_id/schema[/prefix]``. The connection is looked up at the first use."""
        return cls(Address.parse(location))

    @property
    def location(self) -> str:
        """The address, with the connection's id in place of host and credentials."""
        return str(self._address)

    @property
    def place(self) -> str:
        """Schema and prefix."""
        return str(replace(self._address, conn_id=""))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Insert the entry; see :meth:`Store.put_if_absent`."""
        return self._put(_PUT, path, {"data": data}) is not None

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None."""
        found = self._one(_GET, path)
        return None if found is None else bytes(found[0])

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, or None; the other bytes are not read."""
        found = self._one(_PART, path, start=start + 1, size=size)
        return None if found is None else bytes(found[0])

    def get_versioned(self, path: str) -> Versioned | None:
        """The entry at ``path`` with the token of its put, or None."""
        found = self._one(_GET, path)
        return None if found is None else Versioned(data=bytes(found[0]), version=found[1])

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Update the entry that has that token; see :meth:`Store.compare_and_put`."""
        return self._put(_REPLACE, path, {"data": data, "version": version})

    def list(self, folder: str) -> list[str]:
        """Names directly in ``folder``, by one statement."""
        return [*self._names(_LIST, folder)]

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> Sequence[str]:
        """A page of names, by one statement that reads no other names."""
        return self._names(_LIST + _LIMITED, folder, after=after, limit=limit)

    def folders(self, folder: str) -> Sequence[str]:
        """Names of the folders directly in ``folder`` that have entries below them."""
        return self._names(_LIST + _FOLDERS, folder)

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        """Those of ``names`` that are entries in ``folder``, by one statement for some thousand names."""
        keys = {self._key(f"{folder}/{name}" if folder else name): name for name in names}
        found = (self._rows(_PRESENT, f"look for entries in {folder}", keys=some) for some in _in_pieces([*keys]))
        return {keys[bytes(key)] for rows in found for (key,) in rows}

    def delete(self, path: str) -> bool:
        """Remove the entry at ``path``; a folder is not an entry."""
        return self._delete(_DELETE, path)

    def delete_if(self, path: str, data: bytes) -> bool:
        """Remove the entry at ``path`` if it is ``data``, in one step."""
        return self._delete(_DELETE_IF, path, data=data)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove entries, some thousand by one statement, which removes all of them or none."""
        for some in _in_pieces([self._key(path) for path in paths]):
            self._change(_DELETE_MANY, f"delete {len(some)} entries", keys=some)

    def now_ms(self) -> int:
        """The database's clock."""
        return self._database.clock_ms(self._address, doing="ask the clock")

    def modified_ms(self, path: str) -> int | None:
        """When the entry was put, by the database's clock at the time of the statement; None if nothing is there."""
        found = self._one(_MODIFIED, path)
        return None if found is None else int(found[0])

    def unfit(self) -> str | None:
        """The reason why no checkpoint should be created in this database; see :meth:`Store.unfit`."""
        return self._database.kind.unfit()

    def scoped(self, folder: str) -> SqlStore:
        """The same store seen from ``folder``."""
        above, address = self._address.prefix, self._address
        prefix = f"{above}/{check_path(folder)}" if above else folder
        return SqlStore(Address(conn_id=address.conn_id, schema=address.schema, prefix=check_path(prefix)))

    @property
    def _database(self) -> Database:
        return database_of(self._address.conn_id)

    def _key(self, path: str) -> bytes:
        return self._folder + key_of(path)

    def _put(self, statement: str, path: str, values: dict[str, Any]) -> str | None:
        """The token of the new entry; None if the put was refused, since another entry, or none, is there."""
        token, key = uuid.uuid4().hex, self._key(path)
        done = self._change(statement, f"write {path}", makes=statement is _PUT, key=key, token=token, **values)
        if done.rows == 1:
            return token
        # Refused, maybe by this process itself: an earlier statement may have been done, and only its answer lost.
        if done.was_lost and (found := self._one(_TOKEN, path)) is not None and found[0] == token:
            return token
        return None

    def _delete(self, statement: str, path: str, **values: Any) -> bool:
        """Whether the entry was there and is gone. Where an answer was lost, most likely this process removed the
        entry; in any case it is gone."""
        done = self._change(statement, f"delete {path}", key=self._key(path), **values)
        return done.rows == 1 or (done.was_lost and self._one(_TOKEN, path) is None)

    def _names(self, statement: str, folder: str, *, after: str = "", **values: Any) -> Sequence[str]:
        begin, kind = self._folder + folder_of(folder), self._database.kind
        words = {"{name}": kind.name_in_key, "{past}": kind.past_name, "{below}": kind.below_name}
        for word, expression in words.items():
            statement = statement.replace(word, expression)
        bounds = {"folder": begin, "length": len(begin), "low": past(begin, after), "high": end_of(begin)}
        return names_of(name for (name,) in self._rows(statement, f"list {folder or 'the top'}", **bounds, **values))

    def _one(self, statement: str, path: str, **values: Any) -> Any:
        return next(iter(self._rows(statement, f"read {path}", key=self._key(path), **values)), None)

    def _rows(self, statement: str, doing: str, **values: Any) -> Sequence[Any]:
        return self._database.rows(self._address, statement, values, doing=doing)

    def _change(self, statement: str, doing: str, *, makes: bool = False, **values: Any) -> Done:
        statement = statement.replace("{clock}", self._database.kind.clock_ms)
        return self._database.change(self._address, statement, values, doing=doing, makes=makes)


def _in_pieces(keys: list[bytes]) -> Iterator[list[bytes]]:
    return (keys[first : first + _AT_ONCE] for first in range(0, len(keys), _AT_ONCE))
