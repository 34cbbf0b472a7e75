"""A stage, and streaming its files into a stage table: bytes go to the server as they are, a piece at a time."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file.reading import open_regular
from airflow_provider_microbatch.sinks.postgres.columns import Column
from airflow_provider_microbatch.sinks.postgres.database import Row, client
from airflow_provider_microbatch.sinks.postgres.names import TableName, listed
from airflow_provider_microbatch.sinks.postgres.types import StagedColumn

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

PIECE = 1 << 20
"""How many bytes are in memory at once."""
_SAY_SECONDS = 10.0
_JSON_NUL = re.compile(rb"(?<!\\)(?:\\\\\\\\)*\\\\u0000")
"""A backslash of JSON is two in COPY's text; an even number before the escape is text of its own."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A stage that is whole.

    :param files: data files of the stage, in order.
    :param columns: columns of the files; None for a batch that had no frame, and so has no row.
    """

    manifest: Manifest
    files: Sequence[Path]
    columns: Sequence[StagedColumn] | None


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A stage table.

    :param columns: its columns; None if there is no stage table, because there was no frame.
    :param rows: number of rows that were loaded.
    """

    table: TableName
    columns: Sequence[Column] | None
    rows: int = 0


def load(
    connection: psycopg.Connection[Row],
    stage: TableName,
    columns: Sequence[Column],
    files: Sequence[Path],
    *,
    staged: Sequence[StagedColumn],
    what: str,
) -> int:
    """Load the files into the stage table.

    :param columns: columns of the stage table, in the files' order.
    :param staged: the same columns with Spark's types.
    :param what: name of the load, for the log.
    :return: number of rows.
    :raises SinkError: if a text has the character NUL.
    """
    total, done, began = sum(path.stat().st_size for path in files), 0, time.monotonic()
    said = began
    # The only statement without parameters, so a percent sign must not be doubled here.
    statement = f"COPY {stage.sql} ({listed(column.name for column in columns)}) FROM STDIN (ENCODING 'UTF8')".replace(
        "%%", "%"
    )
    with connection.cursor() as cursor:
        try:
            with cursor.copy(statement.encode()) as copy:
                for piece in _pieces(files):
                    if b"\0" in piece:
                        raise _Nul
                    copy.write(piece)
                    done += len(piece)
                    if time.monotonic() - said >= _SAY_SECONDS:
                        said = time.monotonic()
                        rate = _mb(done / (said - began))
                        log.info("%s: %s of %s loaded, %s a second", what, _mb(done), _mb(total), rate)
        except _Nul:
            raise _told(files, staged, what) or SinkError(f"{what}: its files have changed. Run it again.") from None
        except client().errors.UntranslatableCharacter:
            told = _told(files, staged, what)  # the server distinguishes escapes in JSON from text that looks alike
            if told is None:
                raise
            raise told from None
        rows = cursor.rowcount
    seconds = time.monotonic() - began
    rate = f", {rows / seconds:,.0f} rows a second" if seconds else ""
    log.info("%s: %s rows (%s) loaded in %.1f s%s", what, f"{rows:,}", _mb(total), seconds, rate)
    return rows


class _Nul(Exception):
    """A text has the character NUL."""


def _pieces(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        with _opened(path) as file:
            while piece := file.read(PIECE):
                yield piece


def _opened(path: Path) -> BinaryIO:
    """Open a stage's file. A link may have taken its place since the check, and readers would see its rows."""
    try:
        return open_regular(path)
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {error}. Nothing was published; run the batch again.") from error


def _told(files: Sequence[Path], staged: Sequence[StagedColumn], what: str) -> SinkError | None:
    """An error that names the columns with the character NUL; None if no file has one."""
    found = Counter[str]()
    for path in files:
        with _opened(path) as file:
            for line in file:
                for one, cell in zip(staged, line.rstrip(b"\n").split(b"\t"), strict=False):
                    found[one.name] += bool(b"\0" in cell or (one.is_json and _JSON_NUL.search(cell)))
    columns = ", ".join(f"{name!r} in {count:,} row{'s' * (count > 1)}" for name, count in found.items() if count)
    if not columns:
        return None
    return SinkError(
        f"{what}: the character NUL (\\0), which PostgreSQL's text cannot have, is in column {columns}. Nothing was "
        "published; take it out in the transform, or have nul_characters='remove' do it."
    )


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
