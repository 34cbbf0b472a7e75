"""Entries of offset log and commit log as bytes, in the format of Spark's ``OffsetSeqLog`` and ``CommitLog``.

The first line is the version, and the second the metadata as one JSON object. In the offset log, one line for each
source follows: in v1 the offset alone, by position, with ``-`` for a source that has none; in v2 ``name:offset``,
without a line for a source that has none. Spark accepts unknown keys in the metadata, and this package keeps all its
own under one key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, Offset, OffsetEntry
from airflow_provider_microbatch.checkpoint.identity import is_digest
from airflow_provider_microbatch.checkpoint.key import check_name, is_whole
from airflow_provider_microbatch.checkpoint.records import (
    check_progress,
    check_types,
    corrupt,
    masked,
    parse_object,
    run_from_dict,
    run_to_dict,
    split_entry,
    to_bytes,
    to_json,
)
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SourceCountError

OURS = "microbatch"
"""The only key of the metadata line that is this package's."""

FORMATS = ("v1", "v2")
STATE_IDS = "stateUniqueIds"
"""Key of a commit entry of Spark's v2, which Spark writes where state has checkpoint format 2: operator → partition →
ids of the files that the next batch goes on from."""

_VOID = "-"
_V2_CONF = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
"""Without this setting, Spark runs a planned v2 batch as an empty one and goes on."""


def encode_offsets(entry: OffsetEntry, *, version: str, names: Sequence[str] = ()) -> bytes:
    """An offset log entry as bytes.

    :param entry: the entry.
    :param version: ``v1`` or ``v2``.
    :param names: for v1, the sources in the order of the log; the order of the entry if empty.
    :raises SourceCountError: if a v1 entry does not have exactly the sources of the log.
    :raises CheckpointError: if an offset is not one line of JSON.
    """
    for name, offset in (*entry.ends.items(), *entry.starts.items()):
        check_name(name, what="source")
        if offset is not None:
            check_offset(name, offset)
    entry = replace(entry, ends={**entry.ends, **{name: entry.starts.get(name) for name in entry.late}})
    lines = [version, to_json(_offset_metadata(entry, version, names))]
    if version == "v1":
        order = list(names) or list(entry.ends)
        if sorted(order) != sorted(entry.ends):
            raise SourceCountError(_count_message(order, list(entry.ends)))
        lines += [_line_or_void(entry.ends[name]) for name in order]
    else:
        lines += [f"{name}:{offset}" for name, offset in entry.ends.items() if offset is not None]
    return to_bytes("\n".join(lines))


def decode_offsets(data: bytes, *, where: str, names: Sequence[str] = ()) -> OffsetEntry:
    """Decode an offset log entry that Spark or :func:`encode_offsets` wrote.

    :param data: the bytes.
    :param where: address of the entry, for messages.
    :param names: the sources in the order of a v1 log; an entry of this package carries its own names.
    :raises CorruptEntryError: if the entry is empty, torn, of an unknown version or nonsense.
    :raises SourceCountError: if a v1 entry holds another number of sources than ``names``.
    """
    version, (head, *lines) = split_entry(data, where=where, versions=FORMATS)
    metadata = parse_object(head, where=where)
    ours = _object(metadata.pop(OURS, {}), OURS, where)
    check_types(OffsetEntry, ours, where=where)
    own_names = ours.pop("sources", None)
    if own_names is not None and not _are_names(own_names):
        corrupt(where, f"not what it should be: its source names are {own_names!r}")
    without = ours.pop("without_offset", [])
    if not _are_names(without):
        corrupt(where, f"not what it should be: its sources without an offset are {without!r}")
    ends = _v1_ends(lines, own_names, names, where) if version == "v1" else _v2_ends(lines, own_names, where)
    if own_names is not None:
        lost = [name for name in own_names if ends[name] is None and name not in without]
        if lost:
            corrupt(where, f"torn: the offsets of {lost} are missing")
    starts = _object(ours.pop("starts", {}), "starts", where)
    for name, start in starts.items():
        if start is not None:
            check_read_offset(name, start, where)
    pipeline, run = ours.pop("pipeline", None), run_from_dict(ours.pop("run", None), where=where)
    stands_for = ours.pop("stands_for", None)
    if stands_for is not None and not is_digest(stands_for):
        corrupt(where, f"not what it should be: it stands for {stands_for!r:.80}, which is no digest")
    late = ours.pop("late", [])
    if not _are_names(late) or not set(late) <= set(starts) & set(ends):
        corrupt(where, f"not what it should be: its sources with a late end are {late!r}")
    read_as = _object(ours.pop("read_as", {}), "read_as", where)
    for name, settings in read_as.items():
        values = _object(settings, f"read_as of source {name!r}", where).values()
        if not all(isinstance(value, (str, type(None))) for value in values):
            corrupt(where, f"not what it should be: how source {name!r} is read is no texts")
    parallelism = _object(ours.pop("parallelism", {}), "parallelism", where)
    if not all(type(count) is int and count > 0 for count in parallelism.values()):
        corrupt(where, f"not what it should be: rows are divided into {parallelism!r:.80}")
    timestamp_ms = metadata.pop("batchTimestampMs", 0)
    if not is_whole(timestamp_ms):
        corrupt(
            where,
            f"not what it should be: batchTimestampMs is no whole number of a moment but {timestamp_ms!r:.40}",
        )
    return OffsetEntry(
        ends=ends,
        starts=starts,
        watermark_ms=_integer(metadata.pop("batchWatermarkMs", 0), "batchWatermarkMs", where),
        batch_timestamp_ms=timestamp_ms,
        conf=_object(metadata.pop("conf", {}), "conf", where),
        source_metadata=_object(metadata.pop("sourceMetadataInfo", {}), "sourceMetadataInfo", where),
        pipeline=pipeline,
        run=run,
        stands_for=stands_for,
        late=tuple(late),
        read_as=read_as,
        parallelism=parallelism,
        extra={**metadata, OURS: ours} if ours else metadata,
    )


def encode_commit(entry: CommitEntry) -> bytes:
    """A commit log entry as bytes. An entry without values of this package has exactly Spark's bytes; an entry that
    names state files is in Spark's v2."""
    plain = CommitEntry()
    ours = dict(entry.extra.get(OURS, {}))
    for name in (
        "epoch",
        "requires_another_batch",
        "complete",
        "set_aside",
        "failure",
        "progress",
        "committed_ms",
        "plan",
    ):
        if getattr(entry, name) != getattr(plain, name):
            ours[name] = getattr(entry, name)
    if entry.failure:
        ours["failure"] = masked(entry.failure)
    if entry.run is not None:
        ours["run"] = run_to_dict(entry.run)
    metadata = {"nextBatchWatermarkMs": entry.next_watermark_ms, **entry.extra}
    version = "v2" if STATE_IDS in metadata else "v1"
    return to_bytes(f"{version}\n{to_json(_with_ours(metadata, ours))}")


def decode_commit(data: bytes, *, where: str) -> CommitEntry:
    """Decode a commit log entry that Spark or :func:`encode_commit` wrote.

    :raises CorruptEntryError: if the entry is empty, torn, of an unknown version or nonsense.
    """
    version, lines = split_entry(data, where=where, versions=FORMATS)
    if len(lines) != 1:
        corrupt(where, f"not what it should be: {len(lines)} lines after the version, not one")
    metadata = parse_object(lines[0], where=where)
    if version == "v2" and "nextBatchWatermarkMs" not in metadata:
        corrupt(where, "not what it should be: of Spark's v2, and without nextBatchWatermarkMs")
    if metadata.get(STATE_IDS) is not None:
        _object(metadata[STATE_IDS], STATE_IDS, where)
    ours = _object(metadata.pop(OURS, {}), OURS, where)
    check_types(CommitEntry, ours, where=where)
    progress = _object(ours.pop("progress", {}), "progress", where)
    check_progress(progress, where=where)
    return CommitEntry(
        next_watermark_ms=_integer(metadata.pop("nextBatchWatermarkMs", 0), "nextBatchWatermarkMs", where),
        epoch=ours.pop("epoch", None),
        requires_another_batch=ours.pop("requires_another_batch", False),
        complete=ours.pop("complete", False),
        set_aside=ours.pop("set_aside", False),
        failure=_object(ours.pop("failure", {}), "failure", where),
        progress=progress,
        run=run_from_dict(ours.pop("run", None), where=where),
        committed_ms=ours.pop("committed_ms", None),
        plan=ours.pop("plan", None),
        extra={**metadata, OURS: ours} if ours else metadata,
    )


def version_of(data: bytes, *, where: str) -> str:
    """The format, ``v1`` or ``v2``, of an offset log entry.

    :raises CorruptEntryError: if the format is neither.
    """
    return split_entry(data, where=where, versions=FORMATS)[0]


def _offset_metadata(entry: OffsetEntry, version: str, names: Sequence[str]) -> dict[str, Any]:
    ours = dict(entry.extra.get(OURS, {}))
    without = [name for name, offset in entry.ends.items() if offset is None]
    if entry.pipeline is not None or entry.run is not None or entry.starts or (version == "v2" and without):
        ours |= {"pipeline": entry.pipeline, "run": run_to_dict(entry.run), "starts": dict(entry.starts)}
        ours["sources"] = (list(names) if version == "v1" else []) or list(entry.ends)
        ours["without_offset"] = without
    if entry.late:
        ours["late"] = list(entry.late)
    if entry.read_as:
        ours["read_as"] = {name: dict(settings) for name, settings in entry.read_as.items()}
    if entry.parallelism:
        ours["parallelism"] = dict(entry.parallelism)
    if entry.stands_for is not None:
        ours["stands_for"] = entry.stands_for
    metadata: dict[str, Any] = {
        "batchWatermarkMs": entry.watermark_ms,
        "batchTimestampMs": entry.batch_timestamp_ms,
        "conf": {**entry.conf, **_V2_CONF} if version == "v2" else dict(entry.conf),
    }
    if version == "v2" or entry.source_metadata:
        metadata["sourceMetadataInfo"] = dict(entry.source_metadata)
    return _with_ours({**metadata, **entry.extra}, ours)


def _with_ours(metadata: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    theirs = {name: value for name, value in metadata.items() if name != OURS}
    return {**theirs, OURS: ours} if ours else theirs


def _v1_ends(
    lines: Sequence[str], own_names: list[str] | None, names: Sequence[str], where: str
) -> dict[str, Offset | None]:
    if own_names is not None and len(own_names) != len(lines):
        corrupt(where, f"torn: it names {len(own_names)} sources {own_names} and holds {len(lines)} offsets")
    order = own_names if own_names is not None else list(names)
    if len(order) != len(lines):
        raise SourceCountError(
            f"There are [{len(lines)}] sources in the checkpoint offsets and now there are [{len(order)}] sources "
            f"requested by the query. Cannot continue. {where} keeps offsets by position, without names: name exactly "
            f"{len(lines)} sources, in the order in which the streaming query made them; now named: {order}."
        )
    for name, line in zip(order, lines, strict=True):
        if line != _VOID:
            check_read_offset(name, line, where)
    return {name: None if line == _VOID else line for name, line in zip(order, lines, strict=True)}


def _v2_ends(lines: Sequence[str], own_names: list[str] | None, where: str) -> dict[str, Offset | None]:
    found: dict[str, Offset | None] = {}
    for line in lines:
        name, colon, offset = line.partition(":")
        try:
            check_name(name, what="source")
        except DefinitionError as error:
            corrupt(where, f"not what it should be: {error}")
        if not colon or name in found:
            corrupt(where, f"torn or nonsense at the line {line[:60]!r} (expected one 'source:offset' a source)")
        check_read_offset(name, offset, where)
        found[name] = offset
    if own_names is None:
        return found
    ends = {name: found.pop(name, None) for name in own_names}
    return {**ends, **found}


def check_offset(name: str, offset: Any) -> None:
    """Check that an offset from a source can be a line of the log. :raises CheckpointError: if it cannot."""
    problem = _offset_problem(offset) if isinstance(offset, str) else "it is no text"
    if problem is not None:
        raise CheckpointError(
            f"source {name!r} gave the offset {offset!r:.80}: {problem}. An offset is one line of JSON text; this is "
            "a bug of the source. Nothing was written."
        )


def check_read_offset(name: str, offset: Any, where: str) -> None:
    """Check that the value that an entry has for a source can be an offset. :raises CorruptEntryError: if it cannot."""
    problem = _offset_problem(offset) if isinstance(offset, str) else "it is no text"
    if problem is not None:
        corrupt(where, f"torn or nonsense: the offset {offset!r:.60} of source {name!r} is unreadable, {problem}")


def _offset_problem(offset: Offset) -> str | None:
    """Why the text cannot be a line of the log, or None. Spark's reader ends a line at CR as well as at LF."""
    if "\n" in offset or "\r" in offset:
        return "it has a line break"
    try:
        offset.encode("utf-8")
        json.loads(offset)
    except UnicodeEncodeError:
        return "it is no UTF-8 text"
    except (ValueError, RecursionError) as error:
        return f"it is no JSON ({error})"
    return None


def _line_or_void(offset: Offset | None) -> str:
    return _VOID if offset is None else offset


def _count_message(log: list[str], requested: list[str]) -> str:
    return (
        f"There are [{len(log)}] sources in the checkpoint offsets and now there are [{len(requested)}] sources "
        f"requested by the query. Cannot continue. A v1 log keeps offsets by position; this one is of {log}, and the "
        f"pipeline names {requested}. Name the same sources, or start a v2 checkpoint."
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _object(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        corrupt(where, f"not what it should be: {name} is no JSON object but {value!r}")
    return dict(value)


def _integer(value: Any, name: str, where: str) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        corrupt(where, f"not what it should be: {name} is no whole number of 64 bits but {value!r:.40}")
    return value
