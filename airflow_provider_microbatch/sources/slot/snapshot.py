"""Makes a slot, and a copy of the rows that the table has at the moment at which the slot begins.

PostgreSQL exports that moment for as long as the session lives that makes the slot. So the rows are copied to files
before the first batch is planned: then the batch can be read as often as any other.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.runtime.slot import NO_LIMITS, lsn_of
from airflow_provider_microbatch.sources.jdbc.cluster import cluster_now
from airflow_provider_microbatch.sources.jdbc.session import connected, quoted
from airflow_provider_microbatch.sources.slot.copying import copied, part_of
from airflow_provider_microbatch.sources.slot.offset import Place
from airflow_provider_microbatch.sources.slot.server import PLUGIN, Server, libpq
from airflow_provider_microbatch.stores import Store

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

_SLOTS, _MADE = "snapshot_slots", "snapshot"
_NOTE = re.compile("[0-9a-f]{16}-[0-9a-f]{32}")
_FILE = re.compile(r"rows-\d{5,}\.json", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Rows of before the slot, on record.

    :param place: where the slot begins, as the end of the first batch.
    :param folder: the folder of the files; None if the definition names none any more.
    :param files: the name of each, and its number of rows.
    :param columns: what is in a row, in this order.
    :param lacking: columns of the schema that the table had, and that were not copied.
    """

    place: Place
    folder: Path | None
    files: Sequence[tuple[str, int]]
    columns: Sequence[str]
    lacking: Sequence[str]

    def missing(self) -> str | None:
        """The reason why it cannot be read; None if it can."""
        if self.folder is None:
            return "the definition names no folder of the snapshot any more: name it again."
        if self.lacking:
            return (
                f"the snapshot was copied without {', '.join(self.lacking)}, as the schema lacked them then. Take them "
                "out of it; or begin anew, with another slot, checkpoint and table."
            )
        gone = [name for name, _ in self.files if not (self.folder / name).is_file()]
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
            place, note = Place.of(found["place"]), str(found["note"])
            files = [(str(name), int(rows)) for name, rows in found["files"]]
            # A checkpoint never says by itself which files are opened.
            if not _is_of(note, place.lsn) or not all(_FILE.fullmatch(name) for name, _ in files):
                raise ValueError(f"{note!r:.100} is no copy of this slot, or has files of other names")
            left_out = set(map(str, found["left_out"]))
            return Snapshot(
                place=place,
                folder=None if self._source.snapshot is None else self._folder(note),
                files=files,
                columns=list(map(str, found["columns"])),
                lacking=[name for name, _ in self._source.columns() if name in left_out],
            )
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
            # It waits for the copy: with no lock of the table, and no snapshot that holds back VACUUM.
            session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            session.execute(NO_LIMITS)
            (is_mine,) = session.execute(
                "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"microbatch slot {slot}"]
            ).fetchone()
            if not is_mine:
                raise SourceError(f"another process is making slot {slot}, and a copy of {table}: look again later")
            if self.get() is None:
                self._make_room(session)
                self._make(session)
        found = self.get()
        assert found is not None, "it was put there, and nobody removes it"
        return found

    def _make(self, session: Any) -> None:
        oid, cluster = Server(session, self._source).table(), cluster_now(session)
        with self._new_slot() as (lsn, moment):
            note = f"{lsn:016x}-{uuid.uuid4().hex}"
            try:
                self._state.put_if_absent(f"{_SLOTS}/{note}", b"")
                found = copied(self._source, self._connection, moment=moment, folder=self._folder(note))
                # Who has lost its session, and the lock with it, may find the slot of another process there.
                if self._stands_at(session) != lsn:
                    raise SourceError(f"slot {self._source.slot} is not as it was made here any more: look again")
            except BaseException:
                self._undo(session, note)
                raise
        changes = sum(rows for _, rows in found.files)
        place = Place(lsn=lsn, changes=changes, table=oid, cluster=cluster, snapshot=True)
        written = {"place": place.text(), "note": note, **vars(found)}
        data = json.dumps(written).encode()
        self._state.put_if_absent(_MADE, data)
        if self._state.get(_MADE) != data:
            self._undo(session, note)
            raise SourceError(
                f"another process has put its own copy on record, and slot {self._source.slot} is not of that one: "
                "begin anew, with another slot and checkpoint"
            )

    def _make_room(self, session: Any) -> None:
        """Drop a slot that an earlier process of this checkpoint has made and has not come to an end with."""
        slot, notes = self._source.slot, [name for name in self._state.list(_SLOTS) if _NOTE.fullmatch(name)]
        if session.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone() is not None:
            stands_at = self._stands_at(session)
            if stands_at is None or not any(_is_of(note, stands_at) for note in notes):
                raise SourceError(
                    f"there is a slot {slot} already, and what the table had when it was made cannot be known. With a "
                    "snapshot the source makes its slot: leave out the snapshot, and the slot goes on where it stands; "
                    "or load anew, into another table (in one that was loaded before, rows that were deleted "
                    "since would stay): give the slot another name, or, if nobody has it, drop it: "
                    f"SELECT pg_drop_replication_slot('{slot}')"
                )
            session.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        for note in notes:
            self._remove_files(note)
            self._state.delete(f"{_SLOTS}/{note}")

    def _undo(self, session: Any, note: str) -> None:
        """Nobody may come back: the slot would hold back the database's log, and the files have the table's rows."""
        import psycopg

        with suppress(psycopg.Error):  # the next one does it
            if (stands_at := self._stands_at(session)) is not None and _is_of(note, stands_at):
                session.execute("SELECT pg_drop_replication_slot(%s)", [self._source.slot])
        self._remove_files(note)

    def _remove_files(self, note: str) -> None:
        for folder in (self._folder(note), part_of(self._folder(note))):
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, note: str) -> Path:
        return Path(str(self._source.snapshot)) / f"{self._source.slot}-{note}"

    def _stands_at(self, session: Any) -> int | None:
        found = session.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            [self._source.slot],
        ).fetchone()
        return None if found is None or found[0] is None else lsn_of(found[0])

    @contextmanager
    def _new_slot(self) -> Iterator[tuple[int, str]]:
        """Make the slot; yield where it begins, and the name of the moment, which lives as long as the block."""
        import psycopg

        arguments, password = libpq(self._connection), self._connection.password
        with psycopg.connect(**arguments, password=password, replication="database", autocommit=True) as session:
            # By libpq itself: such a session does not know the protocol that psycopg speaks otherwise.
            session.pgconn.exec_(NO_LIMITS.encode())
            statement = f'CREATE_REPLICATION_SLOT "{self._source.slot}" LOGICAL {PLUGIN} EXPORT_SNAPSHOT'
            result = session.pgconn.exec_(statement.encode())
            if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
                raise SourceError(f"slot {self._source.slot} cannot be made: {result.get_error_message()}")
            lsn, name = (result.get_value(0, column) or b"" for column in (1, 2))
            yield lsn_of(lsn.decode()), name.decode()


def reading(name: str, source: SlotSource, found: Snapshot) -> Mapping[str, Any]:
    """Arguments of the runtime's reader.

    :param name: of the source.
    """
    return {
        "name": name,
        "columns": [list(column) for column in source.columns()],
        "copied": list(found.columns),
        "folder": str(found.folder),
        "files": [list(file) for file in found.files],
        "lsn": found.place.lsn,
    }


def _is_of(note: str, lsn: int) -> bool:
    """Whether a note is of a slot that begins at a place."""
    return _NOTE.fullmatch(note) is not None and note.startswith(f"{lsn:016x}-")
