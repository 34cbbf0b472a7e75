"""The records of a stage: read from Parquet a piece at a time, in the order of files and rows, with the headers that
say whose they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.reading import open_regular
from airflow_provider_microbatch.sinks.manifest import Manifest

OURS = "microbatch-"
"""The beginning of the names of headers that this package writes. A record that came out of another topic of this
package loses those that it had there."""

_ROW = f"{OURS}row"

_ROWS = 1000
"""How many rows are in memory at once, beside a row group of their file."""

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """A tuple, since one is made for each row.

    :param row: number of the row in the batch, from 0; None for a record that is no row.
    :param partition: -1: by the key.
    """

    row: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int = -1


def headers_of(manifest: Manifest, *, replaces: int | None) -> list[Header]:
    """The headers of each record of a batch, but for its row.

    :param replaces: the attempt whose records are in the topic already; None if none are.
    """
    whose = manifest.identity
    told = {
        "pipeline": "" if whose is None else whose.pipeline,
        "checkpoint": "" if whose is None else whose.checkpoint,
        "batch": str(manifest.key),
        "attempt": str(manifest.epoch),
        **({} if replaces is None else {"replaces": str(replaces)}),
    }
    return [(f"{OURS}{name}", text.encode()) for name, text in told.items()]


def count(files: Sequence[Path]) -> int:
    """How many rows the files have."""
    from pyarrow import parquet

    total = 0
    for path in files:
        with _opened(path) as file:
            total += parquet.ParquetFile(file).metadata.num_rows
    return total


def records(files: Sequence[Path], manifest: Manifest, *, replaces: int | None) -> Iterator[Record]:
    """The records of a stage. The same stage has the same records in the same order.

    :param replaces: as for :func:`headers_of`.
    """
    from pyarrow import parquet

    ours, whose, row = headers_of(manifest, replaces=replaces), manifest.identity, 0
    place = f"{'' if whose is None else whose.pipeline}/{manifest.key}/".encode()
    for path in files:
        with _opened(path) as file:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=_ROWS):
                columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
                nothing = [None] * batch.num_rows
                places = [str(number).encode() for number in range(row, row + batch.num_rows)]
                keys = columns["key"] if "key" in columns else [place + one for one in places]
                theirs = columns.get("headers", nothing)
                partitions = columns.get("partition", nothing)
                for value, key, given, partition, at in zip(
                    columns["value"], keys, theirs, partitions, places, strict=True
                ):
                    headers = [*ours, (_ROW, at)]
                    if given:
                        headers[:0] = _theirs(given, row)
                    yield Record(row, key, value, headers, -1 if partition is None else partition)
                    row += 1


def _theirs(given: Sequence[Mapping[str, Any] | None], row: int) -> Iterator[Header]:
    """The headers that the user's frame has for a record."""
    for header in given:
        if header is None or header["key"] is None:
            raise SinkError(f"row {row:,} has a header without a key. Nothing was published; mend the column headers.")
        if not header["key"].startswith(OURS):
            yield header["key"], header["value"]


def _opened(path: Path) -> BinaryIO:
    """Open a stage's file. A link may have taken its place since the check, and consumers would see its rows."""
    try:
        return open_regular(path)
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {error}. Nothing was published; run the batch again.") from error
