"""The databases of this process, by their connections; and what it means to get no answer from one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.lifetime import at_end
from airflow_provider_microbatch.runtime.masking import HIDDEN, mask
from airflow_provider_microbatch.stores.sql.address import Address
from airflow_provider_microbatch.stores.sql.kind import PATIENCE_SECONDS, Kind, kind_of
from airflow_provider_microbatch.stores.sql.migrations import are_there, in_schema, migrate

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection as Session
    from sqlalchemy.engine import Engine

_FIRST_SECONDS = 5.0
"""The time for which this process tries to reach a database for the first time: the address may be wrong."""
_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0

T = TypeVar("T")
Values = Mapping[str, Any]

_databases: dict[tuple[int, str], Database] = {}
"""By process: a child of a fork (Airflow forks its tasks) must neither use nor close a connection of its parent. The
entries that a child inherits stay here, untouched."""


class Done(NamedTuple):
    """The outcome of a statement that changes entries.

    :param rows: number of changed rows.
    :param was_lost: whether the statement was sent before without an answer: the present rows may be its doing.
    """

    rows: int
    was_lost: bool


class _Opened(NamedTuple):
    kind: Kind
    engine: Engine
    ready: set[str]
    """Schemas whose tables have the current version."""


def database_of(conn_id: str) -> Database:
    """Return this process's database of a connection. Touches nothing."""
    # If two threads create one at once, one of them stays. A lock might be held by a thread that a fork has left
    # behind.
    return _databases.setdefault((os.getpid(), conn_id), Database(conn_id))


class Database:
    """The database that an Airflow connection leads to. The connection is looked up when it is needed, and the sessions
    are closed when the task, look or command ends: the next one looks the connection up again, since secrets change.

    :param conn_id: id of the connection.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._opened: _Opened | None = None
        self._opening = threading.Lock()

    @property
    def kind(self) -> Kind:
        """The kind of the database. Asks Airflow, not the database. :raises CheckpointError: if there is none."""
        return self._open().kind

    def close(self) -> None:
        """Close all sessions. A statement of another thread runs to its end; the next statement opens a new session."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.engine.dispose()

    def rows(self, address: Address, statement: str, values: Values, *, doing: str) -> list[Any]:
        """Return the rows of a statement that changes nothing. Empty where no entry was ever written; creates no
        tables.

        :param statement: its ``{schema}`` is replaced by the schema of the address.
        :param doing: the action in words, for messages.
        :raises CheckpointError: if the database cannot be asked.
        """

        def ask(opened: _Opened, session: Session) -> list[Any]:
            if not _is_ready(opened, session, address):
                return []
            return list(session.execute(_bound(session, statement, address, values), values))

        if not self.kind.exists():
            return []
        return self._answered(address, ask, doing=doing)[0]

    def change(self, address: Address, statement: str, values: Values, *, doing: str, makes: bool) -> Done:
        """Run a statement; its changes are durable on return. A statement without an answer is repeated, so running it
        twice must have the same effect as running it once.

        :param makes: create the tables if they are missing; otherwise missing tables mean that there is nothing to
            change.
        :raises CheckpointError: if the database cannot be reached, or refuses.
        """

        def do(opened: _Opened, session: Session) -> int:
            if not _is_ready(opened, session, address, make=makes):
                return 0
            rows: int = session.execute(_bound(session, statement, address, values), values).rowcount
            return rows

        if not makes and not self.kind.exists():
            return Done(0, False)
        return Done(*self._answered(address, do, doing=doing))

    def clock_ms(self, address: Address, *, doing: str) -> int:
        """The database's clock, milliseconds since the epoch. :raises CheckpointError: if it cannot be asked."""
        kind = self.kind
        if not kind.exists():
            return time.time_ns() // 1_000_000  # the clock of a file is that of this machine
        asked = f"SELECT {kind.clock_ms}"
        return self._answered(
            address,
            lambda _, session: int(session.execute(in_schema(session, asked, address)).scalar_one()),
            doing=doing,
        )[0]

    def _answered(self, address: Address, ask: Callable[[_Opened, Session], T], *, doing: str) -> tuple[T, bool]:
        """Return the database's answer, and whether the question was asked before without an answer."""
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        self.kind.check(address)
        began, pause, was_lost, was_reached = time.monotonic(), _PAUSE_SECONDS, False, False
        while True:
            opened, is_reached = self._open(), False
            try:
                with opened.engine.connect() as session:
                    is_reached = was_reached = True
                    try:
                        opened.kind.before(session)
                        answer = ask(opened, session)
                        session.commit()
                    except BaseException:
                        # Everything that is open in the session ends with it: no transaction of this process waits in
                        # the pool.
                        session.invalidate()
                        raise
                return answer, was_lost
            except DBAPIError as error:
                is_lost = not is_reached or opened.kind.is_lost(error)
                patience = PATIENCE_SECONDS if was_reached or opened.ready else _FIRST_SECONDS
                if not is_lost or time.monotonic() - began + pause > patience:
                    raise self._explained(opened.kind, error.orig or error, address, doing) from error.orig
                was_lost = was_lost or is_reached
            except SQLAlchemyError as error:
                raise self._explained(opened.kind, error, address, doing) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _open(self) -> _Opened:
        at_end(self.close)
        with self._opening:
            if self._opened is None:
                try:
                    kind = kind_of(connections.connect(self._conn_id))
                except DefinitionError as error:
                    raise CheckpointError(str(error)) from error
                self._opened = _Opened(kind, kind.engine(), set())
            return self._opened

    def _explained(self, kind: Kind, error: BaseException, address: Address, doing: str) -> CheckpointError:
        said = " ".join(str(error).split()) or type(error).__name__
        for secret in kind.secrets:
            said = said.replace(secret, HIDDEN)
        remedy = kind.remedy(error) or f"See that connection {self._conn_id!r} is right and the database answers."
        return CheckpointError(
            f"cannot {doing} of checkpoint {address} (connection {self._conn_id!r}, {kind.name} at {kind.place}): "
            f"{mask(said)}. {remedy}"
        )


def _is_ready(opened: _Opened, session: Session, address: Address, *, make: bool = False) -> bool:
    """Whether the tables are there; looked up once for each schema."""
    if address.schema not in opened.ready:
        if make:
            migrate(session, opened.kind, address)
        elif not are_there(session, opened.kind, address):
            return False
        opened.ready.add(address.schema)
    return True


def _bound(session: Session, statement: str, address: Address, values: Values) -> Any:
    import sqlalchemy

    lists = [name for name, value in values.items() if isinstance(value, list)]
    text = in_schema(session, statement, address)
    return text.bindparams(*(sqlalchemy.bindparam(name, expanding=True) for name in lists)) if lists else text
