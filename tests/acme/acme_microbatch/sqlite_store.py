"""A checkpoint in one SQLite file: ``sqlite:///path/to/file.db``. Its hosts share a disk, and so a clock."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import quote

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import PAGE, Store, Versioned, check_path

_SCHEME = "sqlite://"
_MADE = "CREATE TABLE IF NOT EXISTS entries (path TEXT PRIMARY KEY, data BLOB NOT NULL, written_ms INTEGER NOT NULL)"
_PATIENCE_SECONDS = 60.0


class SqliteStore(Store):
    """The entries below a folder, in a table of entries.

    :param file: the database, made by the first write.
    :param folder: the folder, with a slash at its end; empty for all entries.
    """

    def __init__(self, file: Path, *, folder: str = "") -> None:
        self._file = file
        self._folder = folder

    @classmethod
    def at(cls, location: str) -> Self:
        path = location.removeprefix(_SCHEME)
        if path == location or not path.startswith("/"):
            raise CheckpointError(f"{location!r} is not of the form sqlite:///path/to/file.db.")
        return cls(Path(path))

    @property
    def location(self) -> str:
        return f"{_SCHEME}{self._file}/{self._folder}".rstrip("/")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._writing("write", path) as entries:
            put = "INSERT OR IGNORE INTO entries VALUES (?, ?, ?)"
            return entries.execute(put, (self._full(path), data, self.now_ms())).rowcount == 1

    def get(self, path: str) -> bytes | None:
        found = self._read("SELECT data FROM entries WHERE path = ?", self._full(path))
        return bytes(found[0][0]) if found else None

    def get_versioned(self, path: str) -> Versioned | None:
        data = self.get(path)
        return None if data is None else Versioned(data=data, version=_version(data))

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        part = "SELECT substr(data, ?, ?) FROM entries WHERE path = ?"
        found = self._read(part, start + 1, size, self._full(path))
        return bytes(found[0][0]) if found else None

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        full = self._full(path)
        if not self._file.exists():
            return None
        with self._writing("write", path) as entries:
            there = entries.execute("SELECT data FROM entries WHERE path = ?", (full,)).fetchone()
            if there is None or _version(bytes(there[0])) != version:
                return None
            put = "UPDATE entries SET data = ?, written_ms = ? WHERE path = ?"
            entries.execute(put, (data, self.now_ms(), full))
        return _version(data)

    def list(self, folder: str) -> list[str]:
        return self.list_after(folder, limit=-1)

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> list[str]:
        above = self._full(folder) + "/" if folder else self._folder
        # Not LIKE: '_' and '%' stand in names. '0' is the character after '/', U+10FFFF the last one of all.
        names = (
            "SELECT DISTINCT substr(rest, 1, instr(rest || '/', '/') - 1) AS name FROM"
            " (SELECT substr(path, ?) AS rest FROM entries WHERE path > ? AND path < ?)"
            " WHERE name > ? ORDER BY name LIMIT ?"
        )
        end = f"{above[:-1]}0" if above else "\U0010ffff"
        return [str(name) for (name,) in self._read(names, len(above) + 1, above + after, end, after, limit)]

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        full = {self._full(f"{folder}/{name}" if folder else name): name for name in names}
        found = self._read(f"SELECT path FROM entries WHERE path IN ({', '.join('?' * len(full))})", *full)
        return {full[str(path)] for (path,) in found}

    def delete(self, path: str) -> bool:
        return self._delete("DELETE FROM entries WHERE path = ?", path)

    def delete_if(self, path: str, data: bytes) -> bool:
        return self._delete("DELETE FROM entries WHERE path = ? AND data = ?", path, data)

    def delete_many(self, paths: Iterable[str]) -> None:
        named = [(self._full(path),) for path in paths]
        if named and self._file.exists():
            with self._writing("delete from", self._folder) as entries:
                entries.executemany("DELETE FROM entries WHERE path = ?", named)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def modified_ms(self, path: str) -> int | None:
        found = self._read("SELECT written_ms FROM entries WHERE path = ?", self._full(path))
        return int(found[0][0]) if found else None

    def scoped(self, folder: str) -> SqliteStore:
        return SqliteStore(self._file, folder=f"{self._full(folder)}/")

    def _full(self, path: str) -> str:
        return self._folder + check_path(path)

    def _delete(self, statement: str, path: str, *more: bytes) -> bool:
        full = self._full(path)
        if not self._file.exists():
            return False
        with self._writing("delete", path) as entries:
            return entries.execute(statement, (full, *more)).rowcount == 1

    def _read(self, statement: str, *values: str | int) -> list[tuple[object, ...]]:
        if not self._file.exists():
            return []
        with self._explained("read", self._folder), contextlib.closing(self._open("rw")) as entries:
            # Opened for writing: a reader rolls back what a killed writer has left. The process that made the file may
            # be about to make the table, or may have died before.
            is_made = entries.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone()
            return entries.execute(statement, values).fetchall() if is_made else []

    @contextlib.contextmanager
    def _writing(self, doing: str, path: str) -> Iterator[sqlite3.Connection]:
        """A transaction of its own: when the block ends, either all of the transaction is on the disk or nothing is."""
        with self._explained(doing, path):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(self._open("rwc")) as entries:
                entries.execute("PRAGMA synchronous = FULL")
                entries.execute("BEGIN IMMEDIATE")
                entries.execute(_MADE)
                yield entries
                entries.commit()

    def _open(self, mode: str) -> sqlite3.Connection:
        address = f"file:{quote(str(self._file))}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)

    @contextlib.contextmanager
    def _explained(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"cannot {doing} {path} of {self._file}: {error}") from error


def _version(data: bytes) -> str:
    return sha256(data).hexdigest()
