"""Reads a planned range of a PostgreSQL logical replication slot, by one task of Spark's, and by psycopg.

It peeks: the slot stays where it is, so the range can be read again until the slot is moved on. One session at a time
may be at a slot; another one waits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.pg_texts import SETTINGS
from airflow_provider_microbatch.runtime.reading import own_token, reading
from airflow_provider_microbatch.runtime.secrets import secret
from airflow_provider_microbatch.runtime.slot_rows import ADDED, ChangedRows, Row, SlotError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 60.0
"""How long a slot is waited for that another session is at."""

NO_LIMITS = (
    "SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'idle_session_timeout', 'lock_timeout', 'statement_timeout', "
    "'transaction_timeout')"
)
"""For sessions that last as long as a copy, or as a batch is read, however the role is limited."""

_CONNECT_SECONDS = 10
_AT_ONCE = 2_000  # rows of a batch of Arrow's
_BYTES_AT_ONCE = 32 * 1024**2
_FETCHED = 100
"""So many messages are in memory at once: a row has up to 1 GB, and a message twice that, as it was and as it is."""
_PAUSE = 0.2


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range.

    :param arguments: ``connection`` (host, port, dbname, user, and libpq's settings of TLS), ``slot``, ``publication``,
        ``changes`` (how many the range has), and those of :class:`~.slot_rows.ChangedRows`.
    """
    columns = ddl_of(arguments)
    if not arguments["changes"]:
        return ReadResult(frame=spark.createDataFrame([], columns))
    password = secret(f"{arguments['name']}/password")
    # One task, since one session at a time may be at the slot; Spark never pushes a filter below ``mapInArrow``.
    frame = spark.range(0, 1, 1, 1).mapInArrow(partial(_batches, dict(arguments), password, own_token()), columns)
    return ReadResult(frame=frame)


def rows_of(arguments: Mapping[str, Any], password: str) -> Iterator[Row]:
    """Yield the rows of a range that has changes.

    :raises SlotError: if the slot does not give as many changes as were planned, or one that cannot be a row.
    """
    found = ChangedRows(arguments)
    with connect(arguments["connection"], password) as session:
        slot, publication = arguments["slot"], arguments["publication"]
        messages = peek(session, slot=slot, publication=publication, upto=arguments["end"])
        yield from found.of(bytes(data) for (data,) in messages)
    if found.changes != arguments["changes"]:
        raise SlotError(
            f"source {arguments['name']!r}: slot {arguments['slot']} gives {found.changes:,} changes of "
            f"{arguments['table']}, and {arguments['changes']:,} were planned: somebody else has moved the slot on, or "
            "it is another one by the same name."
        )


def connect(connection: Mapping[str, Any], password: str) -> Any:
    """A session whose values are written as :mod:`.pg_texts` reads them.

    :raises ModuleNotFoundError: if psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ModuleNotFoundError(
            f"a replication slot is read by psycopg, which is not installed here ({error}). It is needed where Airflow "
            "runs and where Spark's executors do. Run: pip install 'airflow-provider-microbatch[postgres]'"
        ) from error
    opened = psycopg.connect(
        **connection, password=password or None, connect_timeout=_CONNECT_SECONDS, application_name="microbatch"
    )
    # It decodes all log behind the slot, and waits in a transaction for whoever takes the rows.
    opened.execute(NO_LIMITS)
    for name, value in SETTINGS.items():
        opened.execute("SELECT set_config(%s, %s, false)", [name, value])
    opened.commit()
    return opened


def peek(
    session: Any,
    *,
    slot: str,
    publication: str,
    upto: int | None = None,
    most: int | None = None,
    what: str = "data",
    at_once: int = _FETCHED,
) -> Iterator[tuple[Any, ...]]:
    """Yield the messages of a slot, from its position on. The slot stays where it is.

    :param session: of psycopg, in a transaction that has written nothing, or in none.
    :param upto: only of transactions that are committed up to there, or of all.
    :param most: the transaction in which there are so many messages is the last one; None for no limit.
    :param what: SQL over ``lsn`` and ``data``.
    :param at_once: so many messages are fetched at once.
    :raises SlotError: if the publication was not there at a change that the slot has.
    :raises psycopg.errors.ObjectInUse: if another session stays at the slot for longer than :data:`WAIT_SECONDS`.
    """
    import psycopg

    name = '"' + publication.replace('"', '""') + '"'  # the option is a list of identifiers
    statement = (
        f"SELECT {what} FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s::int, "
        "'proto_version', '1', 'publication_names', %s)"
    )
    values = [slot, None if upto is None else lsn_text(upto), most, name]
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        began = False
        try:
            # The server keeps what it has decoded on its disk: a transaction may be larger than the memory here.
            with session.transaction(), session.cursor(name="microbatch_peek") as cursor:
                cursor.execute(statement, values)
                while rows := cursor.fetchmany(at_once):
                    began = True
                    yield from rows
                return
        except psycopg.errors.ObjectInUse:
            if began or time.monotonic() > deadline:
                raise
        except psycopg.errors.UndefinedObject as error:
            if "output plugin" not in (error.diag.context or ""):
                raise  # of the slot itself
            raise SlotError(
                f"slot {slot} cannot be decoded by publication {publication}, which was not there when something "
                f"behind the slot was changed ({error.diag.message_primary}): it was dropped and made again, or is "
                "another one than before. These changes are lost to the slot. Begin a new slot, a new checkpoint and a "
                "new table; or pass over all that was changed so far: "
                f"`SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())`, and look again, for the "
                "command that goes on from there."
            ) from error
        time.sleep(_PAUSE)


def lsn_of(text: str) -> int:
    """A place in the log, as PostgreSQL writes it (``16/B374D848``), as a number.

    :raises ValueError: if it is none.
    """
    high, _, low = text.partition("/")
    if not re.fullmatch("[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}", text):
        raise ValueError(f"{text!r:.100} is no place in PostgreSQL's log, such as 16/B374D848")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(lsn: int) -> str:
    """The inverse of :func:`lsn_of`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def ddl_of(arguments: Mapping[str, Any]) -> str:
    """All columns of the frame, as Spark's DDL."""
    return ", ".join(f"`{name.replace('`', '``')}` {type}" for name, type in columns_of(arguments))


def columns_of(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All columns of the frame, with types of Spark's."""
    return [*((name, type) for name, type in arguments["columns"]), *ADDED.items()]


def _batches(arguments: Mapping[str, Any], password: str, token: str, _: Iterator[Any]) -> Iterator[Any]:
    """Runs on an executor: the rows, as batches of Arrow's."""
    with reading(arguments["name"], token):
        yield from in_batches(rows_of(arguments, password), columns_of(arguments))


def in_batches(rows: Iterator[Row], columns: Sequence[tuple[str, str]]) -> Iterator[Any]:
    """The rows as batches of Arrow's, in which an array of texts has less than its 2 GiB."""
    import pyarrow as pa

    names, types = [name for name, _ in columns], [_arrow(type) for _, type in columns]
    for chunk in _chunks(rows):
        arrays = [pa.array(values, type) for values, type in zip(zip(*chunk, strict=True), types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    chunk, size = list[Row](), 0
    for row in rows:
        chunk.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(chunk) >= _AT_ONCE or size >= _BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _arrow(spark: str) -> Any:
    import pyarrow as pa

    if spark.startswith("decimal"):
        precision, scale = spark.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return {
        "boolean": pa.bool_(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[spark]
