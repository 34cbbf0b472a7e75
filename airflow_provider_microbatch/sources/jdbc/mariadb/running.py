"""Determines since when the transactions run that may still commit rows."""

from __future__ import annotations

import math
import time

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb.session import Session

_PATIENCE_SECONDS = 5.0
_AGAIN_SECONDS = 0.105
"""InnoDB makes its list of transactions anew when nobody has looked for a tenth of a second."""

# InnoDB writes the local time of its process. In the hour that an autumn has twice the earlier one is taken, for a
# transaction that seems younger than it is would not be waited for. Of one that a start of the server has found it says
# that it began with the server: it is of no session, as every one whose session has ended, and taken for the oldest.
_LISTED = (
    "SELECT trx_mysql_thread_id = connection_id(), trx_id <> 0, if(trx_mysql_thread_id = 0, 0, "
    "least(unix_timestamp(trx_started), unix_timestamp(trx_started - INTERVAL 1 HOUR) + 3600)) "
    "FROM information_schema.innodb_trx"
)


_READS = (
    r"(?is)^(\s|\(|/\*(?!M?!).*?\*/|(--\s|#)[^\n]*\n)*"
    r"((SELECT|WITH\b(?!.*\b(INSERT|REPLACE|UPDATE|DELETE)\b))\b(?!.*\bINTO\b(?!\s+(OUT|DUMP)FILE\b))"
    r"|CREATE\b(?!.*\bTEMPORARY\b)|SHOW\b(?!.*\bWHERE\b)|ALTER|DROP|OPTIMIZE|CHECK|REPAIR|FLUSH|BACKUP)\b"
)
"""Statements that add no row to a table that is there; any other may. Of one whose trigger or function runs the server
shows what that does: a query ``INTO`` a variable, or one that a temporary table is made of, may be a program's, and
what called it may add rows; and so may a function in the condition of a ``SHOW``."""

_STATEMENTS = (
    "SELECT coalesce(max(time_ms), 0) FROM information_schema.processlist WHERE id <> connection_id() "
    "AND (command IN ('Query', 'Execute') OR info IS NOT NULL) AND NOT coalesce(info REGEXP %s, 0)"
)


def now(session: Session) -> int:
    """Return the time of the server's clock, milliseconds since the epoch."""
    (seconds,) = session.row("SELECT unix_timestamp(sysdate(6))")
    return int(1000 * seconds)


def statements_since(session: Session) -> int:
    """Return since when the oldest statement runs that may still add rows with the time of its start; the present time
    if there is none; milliseconds since the epoch. InnoDB does not list a statement as a transaction that has written
    while it reads, as ``INSERT … SELECT`` may for long, or while it waits for a lock of the server's own. Called before
    :func:`running_since`: what is not listed here has ended, has written by then, or begins later than that time.
    """
    now_ms = now(session)
    (ran_ms,) = session.row(_STATEMENTS, _READS)
    return now_ms - math.ceil(float(ran_ms))


def running_since(session: Session) -> int:
    """Return since when the oldest transaction runs that has written something, rounded down to a second; the present
    time if there is none, and 0 if that is not known of one: it began in a server before this one, or by a clock that
    was put back since; milliseconds since the epoch. Called before the snapshot begins: what is not listed has
    committed before it, or begins later than that time.

    :raises SourceError: if that cannot be known.
    """
    session.rows("SET SESSION time_zone = 'SYSTEM'")
    now_ms = now(session)
    session.begin()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        listed = session.rows(_LISTED)
        # The list is an old one as long as this transaction is not on it.
        if any(is_own for is_own, _, _ in listed):
            break
        if time.monotonic() > deadline:
            raise SourceError(
                "MariaDB's list of running transactions (information_schema.INNODB_TRX) stays as it was, since it is "
                "looked at more often than ten times a second. Let fewer sensors and monitors look at it."
            )
        time.sleep(_AGAIN_SECONDS)
    session.rows("SET SESSION time_zone = '+00:00'")
    listed_ms = now(session)
    began = [int(1000 * since) for is_own, wrote, since in listed if wrote and not is_own]
    return min([now_ms, *(since_ms if since_ms <= listed_ms else 0 for since_ms in began)])
