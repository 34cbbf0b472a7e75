"""Finds the range that the next batch would read of one source, without leaving a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.position import read_position
from airflow_provider_microbatch.pipeline import sql_settings
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.site import Recorded


@dataclass(frozen=True, kw_only=True)
class NextRead:
    """A range of one source that is planned, or would be planned by a run now.

    :param batch: the batch.
    :param is_planned: whether the batch is in the offset log.
    :param start: where the range begins; None before the source's first position.
    :param end: where the range ends; equal to ``start`` if nothing is new.
    :param read: how the runtime reads the range; None if there is nothing to read.
    :param absent: why there is nothing to read; None if nothing is new.
    :param conf: the settings that the batch pins, or the next batch would pin.
    :param secrets: secrets that the reader needs beside the job, by ``<source>/<name>``.
    """

    batch: BatchKey
    is_planned: bool
    start: Offset | None
    end: Offset | None
    read: Read | None = None
    absent: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


def next_read(store: Store, name: str | None, *, lane: str, names: tuple[str, ...] = ()) -> NextRead:
    """The range of a source in the planned and uncommitted batch, or else in the next batch. Sources may write when
    they plan: a draft takes these writes, and the store is only read.

    :param store: store of the checkpoint.
    :param name: name of the source; None: the only source.
    :param lane: the lane of the batch.
    :param names: names of the sources, for a v1 log that Spark alone has written.
    :raises MaintenanceError: if no such source is on record, or if the end of its range is known only after reading,
        which only an attempt may do.
    :raises SourceError: if the source cannot be asked.
    :raises BrokenLogError: if the logs contradict each other.
    """
    checkpoint = Checkpoint(Draft(store), sources=names)
    arguments = Recorded(checkpoint).arguments()
    recorded = {checkpoint.names.of(old): {old: found} for old, found in arguments.get("sources", {}).items()}
    name = _chosen(name, list(recorded), where=store.location)
    # The other sources are not asked: an unavailable source does no harm here.
    source = OpenedSources.on_record({"sources": recorded[name]}, checkpoint=checkpoint, lane=lane, clock_ms=now_ms)
    position = read_position(checkpoint.lane(lane))
    key = BatchKey(lane, position.batch_id)
    if position.planned is not None:
        planned = load_batch(checkpoint, key)
        ranges, conf = planned.ranges, sql_settings(planned.entry.conf)
    else:
        ranges = source.next_ranges(position.committed, {})
        conf = sql_settings({**(position.latest.conf if position.latest else {}), **arguments.get("conf", {})})
    if name in ranges.late:
        raise MaintenanceError(
            f"where the next range of source {name!r} ends is known only after an attempt has read it, and that leaves "
            "traces. Nothing was read."
        )
    start, end = ranges.of(name)
    reads, absent = source.reads(Ranges({name: start}, {name: end}))
    has_rows = name in reads and start != end
    return NextRead(
        batch=key,
        is_planned=position.planned is not None,
        start=start,
        end=end,
        read=reads[name] if has_rows else None,
        absent=absent.get(name),
        conf=conf,
        secrets=source.secrets() if has_rows else {},
    )


def _chosen(name: str | None, known: list[str], *, where: str) -> str:
    if not known:
        raise MaintenanceError(
            f"{where} has no pipeline on record: none of this package has run an attempt here, so nobody knows its "
            "sources."
        )
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        asked = "Say which source, by --source" if name is None else f"The pipeline has no source {name!r}"
        raise MaintenanceError(f"{asked}: it reads {', '.join(map(repr, known))}.")
    return name
