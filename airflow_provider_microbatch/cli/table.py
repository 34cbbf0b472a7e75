"""Formats batches as text for people. The demo prints its table with the same functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from airflow_provider_microbatch.checkpoint.entries import Offset, RunIdentity
from airflow_provider_microbatch.checkpoint.key import LIVE, is_whole
from airflow_provider_microbatch.execution.summary import BatchSummary

HEADERS = ("batch", "state", "attempt", "offsets", "read", "rows", "seconds", "run")
"""The columns of :func:`batch_table`. ``read`` counts splits by each source's own word for them; ``rows`` shows the
rows that were read, an arrow, and the rows that were published."""

_NUMBERS = frozenset({"batch", "attempt", "seconds"})
_LONGEST_OFFSET = 40


def text_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[str] = frozenset()) -> str:
    """A table of text: columns as wide as their widest cell, a line a row, without trailing blanks.

    :param headers: names of the columns.
    :param rows: a cell for each header.
    :param right: headers whose column is aligned to the right.
    """
    lines = [[" ".join(cell.split()) for cell in row] for row in (headers, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]

    def line_of(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if header in right else cell.ljust(width)
            for header, cell, width in zip(headers, cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line_of(lines[0]), rule, *(line_of(cells) for cells in lines[1:])])


def batch_table(batches: Iterable[BatchSummary], *, run_header: str = "run") -> str:
    """A table with a line for each batch.

    :param batches: in the order of the lines.
    :param run_header: header of the last column.
    """
    headers = (*HEADERS[:-1], run_header)
    return text_table(headers, [batch_cells(batch) for batch in batches], right=_NUMBERS)


def batch_cells(batch: BatchSummary) -> tuple[str, ...]:
    """One cell for each of :data:`HEADERS`."""
    rows_in = [rows for rows in batch.rows_in.values() if rows is not None]
    return (
        str(batch.key.id if batch.key.lane == LIVE else batch.key),
        f"{batch.state}, complete" if batch.complete else batch.state,
        str(batch.epoch) if batch.epoch else "-",
        "; ".join(f"{name} {show_range(ends)}" for name, ends in batch.offsets.items()) or "-",
        show_splits(batch.read),
        flow(sum(rows_in) if rows_in else None, batch.rows_out) + left_out(batch),
        "-" if batch.seconds is None else f"{batch.seconds:.1f}",
        show_run(batch.run),
    )


def flow(read: int | None, written: int | None) -> str:
    """Rows that were read and rows that were written, as ``12 → 12``; ``-`` for an unknown number."""
    if read is None and written is None:
        return "-"
    return f"{'-' if read is None else format(read, ',')} → {'-' if written is None else format(written, ',')}"


def left_out(batch: BatchSummary) -> str:
    """Rows that a batch read and did not write, as ``, 3 dead letters, 1 dropped, 2 late``; empty if there are none."""
    told = {"dead letters": batch.dead_letters, "dropped": batch.rows_dropped, "late": batch.late_rows}
    return "".join(f", {count:,} {what}" for what, count in told.items() if count)


def show_splits(read: Mapping[str, Mapping[str, int]]) -> str:
    """Number of splits that were read of all sources, in the sources' words: ``3 files, 2 shards``; ``-`` if
    unknown."""
    counts: dict[str, int] = {}
    for figures in read.values():
        for word, count in figures.items():
            if word not in ("rows", "bytes") and type(count) is int:
                counts[word] = counts.get(word, 0) + count
    return ", ".join(f"{count:,} {word}" for word, count in sorted(counts.items())) or "-"


def show_lag(lag: Mapping[str, Mapping[str, int]]) -> str:
    """How much data lay behind a batch, by source: ``orders 12 rows; payments 3 files, 40 bytes``; ``-`` if unknown."""
    told = (
        f"{name} " + ", ".join(f"{count:,} {word}" for word, count in words.items())
        for name, words in lag.items()
        if words
    )
    return "; ".join(told) or "-"


def show_range(ends: Mapping[str, Offset | None]) -> str:
    """A range as ``3 → 7``."""
    return f"{show_offset(ends['start'])} → {show_offset(ends['end'])}"


def show_offset(offset: Offset | None) -> str:
    """An offset in few characters: a JSON object with one key is shown as its value. ``-`` stands for before
    anything."""
    if offset is None:
        return "-"
    try:
        value = json.loads(offset)
    except ValueError:
        value = offset
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _LONGEST_OFFSET else text[: _LONGEST_OFFSET - 1] + "…"


def show_run(run: RunIdentity | None) -> str:
    """The run's id, with the map index of a mapped task; ``-`` for a batch or attempt that Airflow did not run."""
    if run is None:
        return "-"
    return run.run_id if run.map_index < 0 else f"{run.run_id} [{run.map_index}]"


def show_time(milliseconds: int | None) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC, ``-`` for None. A watermark that lies beyond the calendar,
    because of the data, is shown as its number."""
    if milliseconds is None:
        return "-"
    if not is_whole(milliseconds):
        return str(milliseconds)
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).isoformat(timespec="milliseconds")
