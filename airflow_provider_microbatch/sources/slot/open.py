"""A slot, opened for its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.slot import lsn_text, rows_of
from airflow_provider_microbatch.runtime.slot_rows import ADDED, Row, SlotError
from airflow_provider_microbatch.runtime.slot_snapshot import rows_of as rows_of_file
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.jdbc.session import connected
from airflow_provider_microbatch.sources.slot.letting_go import LettingGo
from airflow_provider_microbatch.sources.slot.offset import Place
from airflow_provider_microbatch.sources.slot.server import PLUGIN, Server, State, libpq
from airflow_provider_microbatch.sources.slot.snapshot import Snapshot, Snapshots, reading

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

log = logging.getLogger(__name__)

_READER = "airflow_provider_microbatch.runtime.slot:read"
_SNAPSHOT_READER = "airflow_provider_microbatch.runtime.slot_snapshot:read"
_LAG_SECONDS = 5.0
_MESSAGES = 4
"""So many messages a transaction of one change has at most, unless the table's form is told for other tables too."""

_ANEW = "Load the table anew, into a new checkpoint and a new table"

IDLE_BYTES = 16 * 1024**2
"""So much log that has nothing for the slot gets a batch without rows, by which the slot is moved on."""


class OpenSlot(OpenSource):
    """Offsets are places between transactions. The slot itself stays behind them: it is moved on after the commit
    entry, and never beyond a range that no batch has read."""

    may_move_alone = True

    def __init__(self, source: SlotSource, context: SourceContext) -> None:
        self._source = source
        self._context = context
        self._name = context.name
        self._notes = LettingGo(context.state)

    @property
    def splits(self) -> str:
        return "changes"

    def check(self) -> None:
        with self._named():
            libpq(self._context.connect(self._source.conn_id))
        makes_slot = self._source.snapshot is not None and self._snapshots().get() is None
        with self._server() as server:
            if not makes_slot:
                server.state()
            server.check_table()

    def has_new(self, position: Offset | None) -> bool:
        """Decode the slot up to the first transaction that is new; a snapshot is new."""
        if position is None and self._source.snapshot is not None:
            return True
        return self._next(position, most=1) is not None

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Return the place behind the last transaction; with a limit, behind the last that is within it. With a
        snapshot, the first call makes the slot and copies the table, however large it is."""
        if start is None and self._source.snapshot is not None:
            with self._named():
                return self._snapshots().make().place.text()
        limits = [one for one in (self._source.max_changes, limit.rows, limit.splits) if one is not None]
        found = self._next(start, most=min(limits, default=None), warns=True)
        return start if found is None else found.text()

    def _next(self, position: Offset | None, *, most: int | None, warns: bool = False) -> Place | None:
        start = self._place(position)
        begin = 0 if start is None else start.lsn
        with self._server() as server:
            state = self._checked(server, start)
            if state.is_two_phase:
                self._check_two_phase(is_read=start is not None, warns=warns)
            # Before the slot is looked at, which then has all that is committed before this place.
            idle_to = server.settled_to(max(begin, state.moved_to) + IDLE_BYTES) if self._context.moves_alone else None
            # What was read before may come first: with a limit of the server's it would be decoded several times.
            first = _MESSAGES * most if most is not None and state.moved_to >= begin else None
            end, changes, is_known = None, 0, not _ends_with_change(start) or state.moved_to >= begin
            with closing(server.transactions(table=state.table, first=first)) as found:
                for one in found:
                    is_known = is_known or one.end == begin
                    # By the reader's rule, since a position by hand may lie inside of a commit record. And a batch for
                    # each transaction of other tables would be a job without rows.
                    if one.lsn < begin or not one.changes:
                        continue
                    if most is not None and changes and changes + one.changes > most:
                        break
                    end, changes = one.end, changes + one.changes
                    if most is not None and changes >= most:
                        break
            # Once more: what somebody else has let go of meanwhile was not among the transactions.
            self._checked(server, start)
        if not is_known:
            raise SourceError(f"source {self._name!r}: {self._is_restored(begin)}")
        end = idle_to if end is None else end
        if end is None:
            return None
        return Place(lsn=end, changes=changes, table=state.table, cluster=state.cluster)

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        begin, to = self._place(start), self._place(end)
        gone = self.not_replayable(start, end)
        if gone is not None:
            raise SourceChangedError(f"source {self._name!r}: {gone}")
        source = self._source
        if begin is None and (snapshot := self._snapshot_of(to)) is not None:
            return Read(reader=_SNAPSHOT_READER, arguments=reading(self._name, source, snapshot))
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "connection": libpq(self._context.connect(source.conn_id)),
                "slot": source.slot,
                "publication": source.publication,
                "table": source.table,
                "oid": 0 if to is None else to.table,
                "columns": [list(column) for column in source.columns()],
                "key": list(source.key),
                "on_truncate": source.on_truncate,
                "on_schema_change": source.on_schema_change,
                "start": None if begin is None else begin.lsn,
                "end": 0 if to is None else to.lsn,
                "changes": _changes(begin, to),
            },
        )

    def rows(self, start: Offset | None, end: Offset | None) -> Iterator[Mapping[str, Any]]:
        found = self.read(start, end)
        arguments = found.arguments
        names = [*(name for name, _ in self._source.columns()), *ADDED]
        rows: Iterator[Row] = iter(())
        if found.reader == _SNAPSHOT_READER:
            rows = (row for number in range(len(arguments["files"])) for row in rows_of_file(arguments, number))
        elif arguments["changes"]:
            rows = rows_of(arguments, self.secrets()["password"])
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the slot, the table and both places. A first batch begins where the slot stood, of which
        the number of its changes tells as much as is known."""
        begin, to = self._place(start), self._place(end)
        if to is None or begin == to:
            return digest_of_range(self._source.location(), [])
        parts = (to.cluster.system, to.table, self._lsn(start), to.lsn, to.changes, to.snapshot)
        return digest_of_range(self._source.location(), *parts)

    def secrets(self) -> Mapping[str, str]:
        return {"password": self._context.connect(self._source.conn_id).password or ""}

    def commit(self, end: Offset) -> None:
        """Move the slot on, up to what the logs have as read: not beyond a batch that is set aside or skipped, nor one
        that an attempt reads, or was asked to read again."""
        with self._server() as server:
            state = server.state()
            moved_to = state.moved_to
            to = self._let_go(moved_to)
            if to <= moved_to:
                return
            note = self._notes.say(to, state.cluster)
            if self._let_go(moved_to) < to:
                self._notes.take_back(note)
                return
            server.move_on(to)
            notes = self._notes.notes()
            state = server.state()
            for one in notes:
                if one.lsn <= state.moved_to or not one.is_of(state.cluster, written_to=state.written_to):
                    self._notes.take_back(one)

    def _let_go(self, moved_to: int) -> int:
        """The place up to which the logs need the slot no more. While a command is at them, they tell of none."""
        to: int | None = None
        for one in self._context.committed(LIVE):
            # A first batch begins where the slot stood.
            begin, end = moved_to if one.start is None else self._lsn(one.start), self._lsn(one.end)
            to = end if to is None else to
            if end <= moved_to:
                break
            if not one.is_read and begin >= moved_to:
                to = min(to, begin)
        # After the logs: whoever reads a range again has said so before it looks at the slot.
        held = [self._lsn(one.start) for one in self._context.being_read() if self._lsn(one.end) > moved_to]
        return 0 if to is None else min([to, *held])

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.not_replayable`. A plan that has counted no changes leaves nothing to read, so no log
        is asked for them: a batch of other sources, with which the slot has moved on, could not be cleared else."""
        begin, to = self._place(start), self._place(end)
        if to is not None and to.table and not to.changes and not to.snapshot:
            return None
        return self._gone(begin, to)

    def why_not_again(self, start: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.why_not_again`. Whoever asks goes on from the start, where plans need the slot, though
        the range may have nothing to read."""
        try:
            return self._gone(self._place(start), self._place(end))
        except SourceError as error:
            return str(error)

    def _gone(self, begin: Place | None, end: Place | None) -> str | None:
        """The reason why the log of a range, or its snapshot, is not there any more; None if it is."""
        if end is None or begin == end:
            return None
        if begin is None and (snapshot := self._snapshot_of(end)) is not None:
            return snapshot.missing()
        notes = self._notes.notes()  # before the slot is asked, which tells of its place once a note is gone
        with self._server() as server:
            state = server.state()
        said = (one.lsn for one in notes if one.is_of(state.cluster, written_to=state.written_to))
        state = replace(state, moved_to=max([state.moved_to, *said]))
        # Where the slot stood when the first batch was planned is not on record; its changes are counted.
        if state.moved_to > (begin.lsn if begin is not None else end.lsn - 1):
            return (
                f"slot {self._source.slot} has moved on to {lsn_text(state.moved_to)}, and what was committed before "
                "cannot be read any more. It moves on after each commit, so no committed batch is read again; what is "
                "in the table stays as it is. If the batch was not committed, somebody else reads the slot: one slot "
                "is for one pipeline."
            )
        return self._why_not_from(replace(end, lsn=state.moved_to) if begin is None else begin, state)

    def check_offset(self, offset: Offset) -> None:
        with self._server() as server:
            self._checked(server, self._place(offset))

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool:
        return self._lsn(offset) > self._lsn(other)

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        return Figures(splits=_changes(self._place(start), self._place(end)))

    def between_in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        """Bytes of the log: an end has the number of its own batch's changes, and nobody has counted what lies before
        one that a person wrote. Where the log begins for the source is not known."""
        return {} if start is None else {"bytes of the log": max(0, self._lsn(end) - self._lsn(start))}

    def lag_in_words(self, position: Offset | None) -> dict[str, int]:
        """Bytes of the log behind the position, whatever they are of; and how many the slot has PostgreSQL keep, which
        are more where a batch that is set aside or skipped holds it."""
        with self._server(seconds=_LAG_SECONDS) as server:
            state = server.state()
        behind = state.written_to - max(state.moved_to, self._lsn(position))
        return {"bytes": max(0, behind), "kept_bytes": state.written_to - state.kept_from}

    def _checked(self, server: Server, position: Place | None) -> State:
        state = server.state()
        why = None if position is None else self._why_not_from(position, state)
        if why is not None:
            raise SourceError(f"source {self._name!r}: {why}")
        return state

    def _check_two_phase(self, *, is_read: bool, warns: bool) -> None:
        """Refuse a slot that gives what is prepared apart before anything is read of it. One that is read has given
        nothing so yet, or the plan stops there; made anew at once it would lose what is not read."""
        slot = self._source.slot
        made = f"slot {slot} was made with two_phase: it gives what is prepared (PREPARE TRANSACTION) before it is "
        made += "committed, and neither with its commit."
        anew = f"(pg_drop_replication_slot, pg_create_logical_replication_slot('{slot}', '{PLUGIN}'))"
        if not is_read:
            raise SourceError(f"{made} Drop it, and make it anew without {anew}")
        if warns:
            log.warning(
                "Source %r: %s As soon as something is prepared, nothing more can be planned. Before that, stop the "
                "writers, let the pipeline run until nothing is new, and make it anew without %s; the next plan names "
                "the set-offset that goes on.",
                self._name,
                made,
                anew,
            )

    def _is_restored(self, at: int) -> str:
        return (
            f"slot {self._source.slot} has no transaction that ends at {lsn_text(at)}, and the last one that was read "
            "did: the database was restored from a backup, or failed over to a standby that lagged, and was written to "
            "since; or the publication is another one. What was committed before that place and not read cannot be "
            f"told from what was. {_ANEW}."
        )

    def _why_not_from(self, position: Place, state: State) -> str | None:
        here = Place(lsn=state.moved_to).text()
        slot, at = self._source.slot, lsn_text(position.lsn)
        anew = (
            f"What lies between is lost to it. {_ANEW}; or pass over it: "
            f"`{self._context.set_offset(here, skip=True, reread=True)}`."
        )
        # A merge by ``_lsn`` takes what comes then for older than what it has, and drops it, deletes too.
        lower = (
            "Changes of this log have a smaller _lsn than those that were read, and a merge that goes by it would drop "
            f"them. {_ANEW}."
        )
        if (differs := position.cluster.differs(state.cluster)) is not None:
            way_on = lower if state.moved_to < position.lsn else anew
            return f"slot {slot} is not the one that was read up to {at}: {differs}. {way_on}"
        if position.lsn > state.written_to:
            return (
                f"the database's log ends at {lsn_text(state.written_to)}, and was read up to {at}: the database was "
                f"restored from a backup, or is another one. {lower}"
            )
        if position.lsn < state.moved_to:
            return (
                f"slot {slot} has moved on to {lsn_text(state.moved_to)}, and its changes after {at} cannot be read "
                "any more: somebody else reads the slot, which is for one pipeline; or it was dropped and made anew; "
                f"or the checkpoint was restored from an older backup. {anew}"
            )
        if position.table and position.table != state.table:
            return (
                f"table {self._source.table} was made anew: its oid is {state.table}, and was {position.table} at "
                f"{at}. {anew}"
            )
        return None

    def _snapshots(self) -> Snapshots:
        connection = self._context.connect(self._source.conn_id)
        return Snapshots(self._source, state=self._context.state, connection=connection)

    def _snapshot_of(self, end: Place | None) -> Snapshot | None:
        """The rows of before the slot, if these are what a first batch that ends there has."""
        if end is None or not end.snapshot:
            return None
        found = self._snapshots().get()
        if found is None or found.place != end:
            raise SourceError(f"source {self._name!r}: the snapshot that ends at {lsn_text(end.lsn)} is not on record.")
        return found

    def _lsn(self, offset: Offset | None) -> int:
        place = self._place(offset)
        return 0 if place is None else place.lsn

    def _place(self, offset: Offset | None) -> Place | None:
        try:
            return None if offset is None else Place.of(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    @contextmanager
    def _server(self, *, seconds: float | None = None) -> Iterator[Server]:
        with self._named(), connected(self._context.connect(self._source.conn_id), seconds=seconds) as session:
            yield Server(session, self._source)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the source's name to errors."""
        try:
            yield
        except (SourceError, SlotError) as error:
            if isinstance(error, SourceError) and repr(self._name) in str(error):
                raise
            raise SourceError(f"source {self._name!r}: {error}") from error


def _ends_with_change(place: Place | None) -> bool:
    """Whether a transaction ends at the place, as far as is known: a batch without changes ends at any, as does what a
    user writes; a slot never stands before the end of its snapshot."""
    return place is not None and place.changes > 0 and not place.snapshot


def _changes(begin: Place | None, end: Place | None) -> int:
    """The number of changes of a range."""
    return 0 if end is None or begin == end else end.changes
