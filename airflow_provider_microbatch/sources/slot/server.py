"""Questions to PostgreSQL about a slot, its publication and its table."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.pgoutput import (
    OF_NO_ROWS,
    Begin,
    Commit,
    Truncate,
    decode,
    kind_of,
    relation_of,
)
from airflow_provider_microbatch.runtime.slot import WAIT_SECONDS, lsn_of, lsn_text, peek
from airflow_provider_microbatch.sources.jdbc.cluster import Cluster, cluster_now
from airflow_provider_microbatch.sources.jdbc.session import KEEPALIVES, quoted, tls
from airflow_provider_microbatch.sources.slot.table import check_table

if TYPE_CHECKING:
    from airflow_provider_microbatch.sources.slot import SlotSource

PLUGIN = "pgoutput"
_AT_ONCE = 2_000  # messages of a fetch, of which only the beginnings are asked for
_PAUSE = 0.2
_MORE = 16
_MOST = 2**31 - 1  # an int of PostgreSQL's
_SETTLE_SECONDS = 5.0  # PostgreSQL's own writer takes less than one, if nobody commits
_OF_PREPARED = "bPKr"
_BEGINNINGS = "CASE WHEN get_byte(data, 0) IN (66, 67, 84) THEN data ELSE substring(data FOR 5) END"
"""All of begins, commits and TRUNCATEs, and of a change which table it is of."""


@dataclass(frozen=True, kw_only=True)
class State:
    """A slot that can be read, at this moment.

    :param moved_to: what is committed before it cannot be read any more.
    :param kept_from: PostgreSQL keeps its log from there on, which transactions that ran then may lie in.
    :param written_to: how far the log is on disk.
    :param table: oid of the table.
    :param is_two_phase: whether it gives what is prepared apart from what is committed.
    """

    moved_to: int
    kept_from: int
    written_to: int
    table: int
    cluster: Cluster
    is_two_phase: bool


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A transaction of the slot.

    :param lsn: where its commit record lies: a range has those that lie in it.
    :param end: the place behind the commit record.
    :param changes: how many changes of the table it has.
    :param messages: how many messages it is told by, of whatever tables.
    """

    lsn: int
    end: int
    changes: int
    messages: int


class Server:
    """:param session: of psycopg, in a transaction.
    :param source: what the user wrote.
    """

    def __init__(self, session: Any, source: SlotSource) -> None:
        self._session = session
        self._source = source

    def state(self) -> State:
        """How the slot is.

        :raises SourceError: if it is not there, or not one to be read.
        """
        slot = self._source.slot
        found = self._row(
            "SELECT s.plugin::text, s.database::text = current_database(), s.wal_status, s.confirmed_flush_lsn::text, "
            "s.restart_lsn::text, pg_current_wal_flush_lsn()::text, to_jsonb(s) ->> 'two_phase' = 'true' FROM "
            "pg_catalog.pg_replication_slots AS s WHERE s.slot_name = %s",
            slot,
        )
        if found is None:
            raise SourceError(
                f"there is no slot {slot}. If it was there before, what was changed since the last batch is lost to "
                f"it. Make it: SELECT pg_create_logical_replication_slot('{slot}', '{PLUGIN}')"
            )
        plugin, is_here, status, moved_to, kept_from, written_to, is_two_phase = found
        if plugin != PLUGIN or not is_here:
            raise SourceError(
                f"slot {slot} is one of plugin {plugin}, {'in' if is_here else 'not of'} this database. It takes a "
                f"logical slot of {PLUGIN} in the connection's database"
            )
        if status == "lost" or None in (moved_to, kept_from):
            raise SourceError(
                f"slot {slot} was invalidated: PostgreSQL has removed log that it had yet to give, since that had "
                "become more than max_slot_wal_keep_size. What was changed since the last batch is lost to it. Drop it "
                "and make it anew (pg_drop_replication_slot, pg_create_logical_replication_slot). Then load the table "
                "anew, into a new checkpoint and a new table; or look again, for the command that passes over what is "
                "lost"
            )
        return State(
            moved_to=lsn_of(moved_to),
            kept_from=lsn_of(kept_from),
            written_to=lsn_of(written_to),
            table=self.table(),
            cluster=cluster_now(self._session),
            is_two_phase=bool(is_two_phase),  # since PostgreSQL 14
        )

    def table(self) -> int:
        """The table's oid.

        :raises SourceError: if there is no such table.
        """
        (found,) = self._row("SELECT to_regclass(%s)::oid::bigint", quoted(self._source.table))
        if found is None:
            raise SourceError(f"there is no table {self._source.table}")
        return int(found)

    def check_table(self) -> None:
        """:raises SourceError: if the table's changes cannot be read as the definition says."""
        check_table(self._session, self._source, oid=self.table())

    def settled_to(self, least: int) -> int | None:
        """A place that no record of the log lies across, and up to which the log is on disk: every commit before it can
        be seen. None if there is none from ``least`` on.

        :param least: a place.
        """
        inserted, deadline = self._place("pg_current_wal_insert_lsn()"), time.monotonic() + _SETTLE_SECONDS
        while inserted >= least and time.monotonic() < deadline:
            if self._place("pg_current_wal_flush_lsn()") >= inserted:
                return inserted
            time.sleep(_PAUSE)
        return None

    def _place(self, what: str) -> int:
        (found,) = self._row(f"SELECT {what}::text")
        return lsn_of(found)

    def transactions(self, *, table: int, first: int | None) -> Generator[Transaction, None, None]:
        """Transactions of the slot, from its position on.

        :param table: oid of the table whose changes are counted.
        :param first: so many messages are decoded at first, and more if these are not enough; None for all at once.
        """
        most, passed = first if first is None else min(first, _MOST), 0
        while True:
            messages = 0
            for one in self._decoded(table=table, most=most):
                messages += one.messages
                if one.end > passed:
                    passed = one.end
                    yield one
            if most is None or messages < most:
                return
            # Of other tables' transactions there may be any number before the next one of this table.
            most = min(most * _MORE, _MOST)

    def _decoded(self, *, table: int, most: int | None) -> Iterator[Transaction]:
        lsn = changes = messages = 0
        slot, publication = self._source.slot, self._source.publication
        found = peek(self._session, slot=slot, publication=publication, most=most, what=_BEGINNINGS, at_once=_AT_ONCE)
        for (data,) in found:
            messages += 1
            kind = kind_of(data)
            if kind in "BCT":
                message = decode(bytes(data))
                if isinstance(message, Begin):
                    lsn, changes, messages = message.lsn, 0, 1
                elif isinstance(message, Commit):
                    yield Transaction(lsn=lsn, end=message.end, changes=changes, messages=messages)
                elif isinstance(message, Truncate):
                    changes += table in message.relations
            elif kind in "IUD":
                changes += relation_of(data) == table
            elif kind not in OF_NO_ROWS:
                # The reader refuses it, and what the planner passes over the slot is moved on over.
                prepared = (
                    ": something was prepared (PREPARE TRANSACTION), and the slot was made with two_phase. Make it "
                    "anew without, and load the table anew, into a new checkpoint and a new table"
                )
                raise SourceError(
                    f"slot {slot} gives a message of the kind {kind!r}, of which nobody knows what it changes"
                    f"{prepared if kind in _OF_PREPARED else ''}"
                )

    def move_on(self, lsn: int) -> None:
        """Let PostgreSQL remove what is committed before a place. There is no way back."""
        import psycopg

        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with self._session.transaction():
                    self._row(
                        "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)::text", self._source.slot, lsn_text(lsn)
                    )
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _row(self, statement: str, *values: Any) -> Any:
        return self._session.execute(statement, values or None).fetchone()


def libpq(connection: Connection) -> dict[str, Any]:
    """The arguments by which libpq connects, without the password.

    :raises SourceError: if Spark could not connect by them.
    """
    if connection.extra.get("sslpassword"):
        # Only the login's password reaches Spark apart from the job: such a batch could be planned, and never read.
        raise SourceError(
            f"connection {connection.conn_id!r} has sslpassword in its extra, which does not reach Spark's executors. "
            "Give it a key without a password, in a file that only its reader may open"
        )
    return {
        "host": connection.host,
        "port": connection.port or 5432,
        "dbname": connection.schema,
        "user": connection.login,
        "client_encoding": "utf8",
        **KEEPALIVES,
        **tls(connection),
    }
