"""Hand a checkpoint back to a streaming query: complete the files that Spark needs.

Offset log and commit log are Spark's already. The file source of this package writes a plain file for each of its
offsets, in Spark's lines; Spark itself looks for ``9.compact``, ``19.compact`` and so on, each with all entries up to
its number, and derives the rest from the newest of them.

Spark infers the interval of these files from those that it finds: of two or more it takes the difference of the newest
two, of a single file a divisor of its number that is not below the configured interval. ``9.compact`` beside
``29.compact`` would make Spark look for a ``19.compact`` that never was. So there is only one, the newest, with all
entries of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import decode_offsets
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import corrupt, split_entry, to_bytes
from airflow_provider_microbatch.exceptions import BrokenLogError, CheckpointError
from airflow_provider_microbatch.stores import Store

COMPACT_INTERVAL = 10
"""Spark's ``spark.sql.streaming.fileSource.log.compactInterval``."""

INDEX = "index"
"""Folder of the file source's index in the source's state."""

_SUFFIX = ".compact"
_SPARK_NAME = re.compile(r"\w+", re.ASCII)


def hand_over(checkpoint: Checkpoint) -> list[str]:
    """Write the files that Spark needs to go on from here. Stop the DAG first. May be called again, also after more
    batches.

    A v1 checkpoint goes to a query that makes its sources in the order of ``identity().sources``; a v2 checkpoint to
    Spark 4.2 or newer, with ``spark.sql.streaming.queryEvolution.enableSourceEvolution=true`` and sources named as
    here. Spark first runs a batch that is planned and not committed.

    :return: addresses of the files that were written; empty if every file was there.
    :raises CheckpointError: if the logs are broken, a source log has a gap, Spark does not take the source names, or
        Spark would read again what a data interval has read.
    """
    identity = checkpoint.identity()
    lane = checkpoint.lane(LIVE)
    tail = lane.tail()
    if identity is None or tail.offset_id is None:
        raise CheckpointError(f"{checkpoint.location} has no batch yet: there is nothing to hand over.")
    entry = lane.offset_log.get(tail.offset_id)
    assert entry is not None, "tail() has read this entry"
    committed = entry if tail.commit_id is None else lane.offset_log.get(tail.commit_id)
    late = {*entry.late, *(committed.late if committed is not None else ())}
    if late:
        raise CheckpointError(
            f"the newest batch of {checkpoint.location} was planned without an end in source "
            f"{', '.join(sorted(late))}. Its entry tells Spark where the batch began, and Spark would read it again: "
            "such a source cannot be handed to a streaming query."
        )
    refused = [name for name in entry.ends if not _SPARK_NAME.fullmatch(name)]
    if identity.format == "v2" and refused:
        raise CheckpointError(
            f"Spark takes source names of letters, digits and '_' only, so {checkpoint.location} with its sources "
            f"{refused} cannot be handed to a streaming query."
        )
    if identity.format == "v2":
        # Spark begins where the newest committed entry ends, by the source names in the entry's bytes.
        for number in {tail.offset_id, tail.offset_id if tail.commit_id is None else tail.commit_id}:
            _check_written_names(checkpoint, number)
    # The batch that Spark runs next begins where the newest committed batch ended.
    begins = entry.ends
    if tail.offset_id != tail.commit_id:
        before = lane.offset_log.get(tail.offset_id - 1) if tail.offset_id > 0 and not entry.starts else None
        begins = entry.starts or (before.ends if before else {})
    for name, end in entry.ends.items():
        if end is None or _log_offset(end) is not None:
            _check_lanes(checkpoint.source_log(name), name, after=_log_offset(begins.get(name)))
        else:
            _check_no_lanes(checkpoint, name)
    written = []
    for name, end in entry.ends.items():
        newest = _log_offset(end)
        if newest is not None:
            written += _complete(checkpoint.source_log(name), newest)
            _drop_index(checkpoint.source_state(name))
    # Spark sees only its own files, and keeps a hundred: entries that lie in segments would become a gap.
    lane.offset_log.expand()
    lane.commit_log.expand()
    return written


def _check_written_names(checkpoint: Checkpoint, number: int) -> None:
    log = checkpoint.offset_log
    found = log.read(number)
    if found is None:
        return
    entry, data = found
    before = sorted(set(decode_offsets(data, where=log.where(number)).ends) - set(entry.ends))
    if before:
        raise CheckpointError(
            f"{log.where(number)} has the source {', '.join(before)} by its name before the rename, which is all that "
            "a streaming query sees. Let the pipeline commit one more batch, then hand over."
        )


def _log_offset(offset: Offset | None) -> int | None:
    """The number of a file source's offset; None for another kind of source."""
    value = None if offset is None else json.loads(offset)
    number = value.get("logOffset") if isinstance(value, dict) else None
    return number if isinstance(number, int) and number >= 0 else None


def _drop_index(state: Store) -> None:
    """Remove the file source's index. Spark will append to the source log and remove the entries that it compacts,
    which an index that goes on from its own last entry could miss. Without it, the next plan reads the whole log."""
    for name in state.list(INDEX):
        state.delete(f"{INDEX}/{name}")


def _check_lanes(log: Store, source: str, *, after: int | None) -> None:
    """Raise if Spark would read an entry of another lane: Spark knows one lane, and takes every entry of its range."""
    for number in sorted(numbers(log.list(""))):
        if after is not None and number <= after:
            continue
        first = next(_entries(log, str(number)), None)
        lane = json.loads(first).get("lane") if first else None
        if lane is not None:
            raise CheckpointError(
                f"{log.location}/{number} belongs to lane {lane}: a streaming query that goes on from here would read "
                f"these files of source {source!r} again. Let the pipeline commit one more batch with new data of this "
                "source, then hand over."
            )


def _check_no_lanes(checkpoint: Checkpoint, source: str) -> None:
    """Raise as :func:`_check_lanes`, for a source whose log does not tell lanes apart: any may have the next rows."""
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in () if name == LIVE else lane.offset_log.ids():
            entry = lane.offset_log.get(number)
            if entry is not None and entry.ends.get(source) != entry.starts.get(source):
                raise CheckpointError(
                    f"lane {name} of {checkpoint.location} has taken records of source {source!r}: a streaming query "
                    "knows one lane, and would read them again where it comes to them. A checkpoint with backfilled "
                    "intervals of such a source cannot be handed to a query."
                )


def _complete(log: Store, newest: int) -> list[str]:
    names = log.list("")
    plain = set(numbers(names))
    compacted = set(numbers([name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]))
    # A source may have planned ahead of the offset log; Spark starts from the end of the source log.
    newest = max(newest, *plain, *compacted)
    wanted = _wanted(newest, compacted)
    base = max((number for number in compacted if number <= wanted), default=-1)
    missing = [number for number in range(base + 1, newest + 1) if number not in plain]
    if missing:
        raise BrokenLogError(
            f"{log.location} lacks {missing}, which the offset log refers to: Spark could not tell which files these "
            "batches read. Restore them from a backup."
        )
    written = []
    if wanted > base:
        lines: list[str] = [] if base < 0 else list(_entries(log, f"{base}{_SUFFIX}"))
        for number in range(base + 1, wanted + 1):
            lines += _entries(log, str(number))
        path = f"{wanted}{_SUFFIX}"
        log.put_if_absent(path, to_bytes("\n".join(["v1", *lines])))
        written.append(f"{log.location}/{path}")
    for number in sorted(compacted - {wanted}):
        log.delete(f"{number}{_SUFFIX}")
    return written


def _wanted(newest: int, compacted: Collection[int]) -> int:
    """The number of the only entry to compact; -1 if none has to be. Spark starts from that entry, with any configured
    interval of :data:`COMPACT_INTERVAL` or more. The log of a query with another interval is compacted to its end,
    which fits every interval."""
    if any((number + 1) % COMPACT_INTERVAL for number in compacted):
        return newest
    return (newest + 1) // COMPACT_INTERVAL * COMPACT_INTERVAL - 1


def _entries(log: Store, path: str) -> Iterator[str]:
    where = f"{log.location}/{path}"
    data = log.get(path)
    if data is None:
        raise BrokenLogError(f"{where} vanished while it was read. Stop the DAG, then hand over again.")
    if data.rstrip(b"\n") == b"v1":
        return
    _, lines = split_entry(data, where=where, versions=("v1",))
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            corrupt(where, f"torn at the line {line[:60]!r}")
        yield line
