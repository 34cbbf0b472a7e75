"""Makes a slot, and a copy of the rows that the table has at the moment at which the slot begins.

PostgreSQL exports that moment for as long as the session lives that makes the slot. So the rows are copied to files
before the first batch is planned: then the batch can be read as often as any other.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.runtime.slot import connect, lsn_of, lsn_text
from airflow_provider_microbatch.sources.jdbc.cluster import cluster_now
from airflow_provider_microbatch.sources.jdbc.session import connected, quoted, quoted_column
from airflow_provider_microbatch.sources.slot.offset import Place
from airflow_provider_microbatch.sources.slot.server import PLUGIN, Server, libpq
from airflow_provider_microbatch.stores import Store

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

ROWS_OF_A_FILE = 250_000
_FOR_LONG = "SET idle_in_transaction_session_timeout = 0"
"""Of sessions that wait in a transaction for as long as the copy takes."""

_MAKING, _MADE = "snapshot_begun", "snapshot"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Rows of before the slot, on record.

    :param place: where the slot begins, as the end of the first batch.
    :param folder: the folder of the files.
    :param files: the name of each, and its number of rows.
    """

    place: Place
    folder: str
    files: Sequence[tuple[str, int]]

    def missing(self) -> str | None:
        """The reason why it cannot be read; None if all files are there."""
        gone = [name for name, _ in self.files if not (Path(self.folder) / name).is_file()]
        return f"the snapshot in {self.folder} lacks {', '.join(gone[:5])}." if gone else None


class Snapshots:
    """:param source: its definition has the folder.
    :param state: the source's own state.
    :param connection: to the database.
    """

    def __init__(self, source: SlotSource, *, state: Store, connection: Connection) -> None:
        self._source = source
        self._state = state
        self._connection = connection

    def get(self) -> Snapshot | None:
        """The snapshot that is on record. Writes nothing."""
        data = self._state.get(_MADE)
        if data is None:
            return None
        try:
            found = json.loads(data)
            files = [(str(name), int(rows)) for name, rows in found["files"]]
            return Snapshot(place=Place.of(found["place"]), folder=str(found["folder"]), files=files)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptEntryError(f"{self._state.location}/{_MADE} cannot be read: {error}") from error

    def make(self) -> Snapshot:
        """Make slot and snapshot, unless they are on record, and put them there.

        A process that dies before leaves a slot that nobody knows the rows of before; the next one drops it.

        :raises SourceError: if there is a slot by this name already, or another process is making it.
        """
        slot, table = self._source.slot, quoted(self._source.table)
        if self._state.is_draft and self.get() is None:
            raise SourceError(
                f"the plan of the first batch makes slot {slot} and copies {table}, and who only looks makes none: it "
                "would hold back the database's log for nobody. Let a run plan it"
            )
        with connected(self._connection) as session:
            (is_mine,) = session.execute(
                "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"microbatch slot {slot}"]
            ).fetchone()
            if not is_mine:
                raise SourceError(f"another process is making slot {slot}, and a copy of {table}: look again later")
            if (made := self.get()) is not None:
                return made
            session.execute(_FOR_LONG)
            # A form that changes meanwhile, and a table that is written anew, would hide rows from the snapshot.
            session.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            self._make_room(session)
            with self._new_slot() as (lsn, name):
                folder = f"{self._source.snapshot}/{slot}-{lsn_text(lsn).replace('/', '-')}"
                files = self._copied(name, Path(folder))
            place = Place(
                lsn=lsn,
                changes=sum(rows for _, rows in files),
                table=Server(session, self._source).table(),
                cluster=cluster_now(session),
                snapshot=True,
            )
        written = {"place": place.text(), "folder": folder, "files": files}
        self._state.put_if_absent(_MADE, json.dumps(written).encode())
        found = self.get()
        assert found is not None, "it was put there, and nobody removes it"
        return found

    def _make_room(self, session: Any) -> None:
        """Drop a slot that an earlier process of this checkpoint has made and has not come to an end with."""
        slot, begun = self._source.slot, self._state.get(_MAKING) is not None
        exists = session.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
        if exists is not None and not begun:
            raise SourceError(
                f"there is a slot {slot} already, and what the table had when it was made cannot be known. With a "
                "snapshot the source makes its slot: give it another name, or drop the slot; or leave out the snapshot"
            )
        self._state.put_if_absent(_MAKING, slot.encode())
        if exists is not None:
            session.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        for litter in Path(str(self._source.snapshot)).glob(f"_{slot}-*"):
            shutil.rmtree(litter, ignore_errors=True)

    @contextmanager
    def _new_slot(self) -> Iterator[tuple[int, str]]:
        """Make the slot; yield where it begins, and the name of the snapshot, which lives as long as the block."""
        import psycopg

        arguments, password = libpq(self._connection), self._connection.password
        with psycopg.connect(**arguments, password=password, replication="database", autocommit=True) as session:
            # By libpq itself: such a session does not know the protocol that psycopg speaks otherwise.
            session.pgconn.exec_(_FOR_LONG.encode())
            statement = f'CREATE_REPLICATION_SLOT "{self._source.slot}" LOGICAL {PLUGIN} EXPORT_SNAPSHOT'
            result = session.pgconn.exec_(statement.encode())
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise SourceError(f"slot {self._source.slot} cannot be made: {result.get_error_message()}")
            lsn, name = (result.get_value(0, column) or b"" for column in (1, 2))
            yield lsn_of(lsn.decode()), name.decode()

    def _copied(self, snapshot: str, folder: Path) -> list[tuple[str, int]]:
        """Copy the rows to files of a folder, which is there as a whole or not at all."""
        part, files = folder.with_name(f"_{folder.name}"), list[tuple[str, int]]()
        part.mkdir(parents=True)
        with connect(libpq(self._connection), self._connection.password or "") as session, session.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            with cursor.copy(
                f"COPY (SELECT {self._columns(cursor)} FROM {quoted(self._source.table)}) TO STDOUT"
            ) as copy:
                rows = copy.rows()
                while written := _written(part / f"rows-{len(files):05}.json", islice(rows, ROWS_OF_A_FILE)):
                    files.append((f"rows-{len(files):05}.json", written))
        part.rename(folder)
        _sync(folder.parent)
        return files

    def _columns(self, cursor: Any) -> str:
        cursor.execute(f"SELECT * FROM {quoted(self._source.table)} LIMIT 0")
        there = {column.name for column in cursor.description}
        return ", ".join(quoted_column(name) if name in there else "NULL" for name, _ in self._source.columns())


def reading(name: str, source: SlotSource, found: Snapshot) -> Mapping[str, Any]:
    """Arguments of the runtime's reader.

    :param name: of the source.
    """
    return {
        "name": name,
        "columns": [list(column) for column in source.columns()],
        "folder": found.folder,
        "files": [list(file) for file in found.files],
        "lsn": found.place.lsn,
    }


def _written(path: Path, rows: Iterator[Sequence[str | None]]) -> int:
    """Write rows to a file, and have it on disk; return how many. No file if there are none."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    if not count:
        path.unlink()
    return count


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
