"""Checkpoints of pipelines that have read all that their source has."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connection, find_by
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime.channels import read_here
from airflow_provider_microbatch.sources import Late, Source, SourceContext
from airflow_provider_microbatch.sources.intervals import CommittedRange
from airflow_provider_microbatch.stores.location import open_store


def read_to_the_end(checkpoint: str, source: Source, *, connection: Connection | None = None) -> None:
    """Make a checkpoint with one committed batch, of all that there is, which the source has heard of.

    :param checkpoint: its address.
    :param source: the pipeline's only source, named ``orders``.
    :param connection: what each id finds.
    """
    made = Checkpoint(open_store(checkpoint))
    made.claim(pipeline="bench", sources=["orders"], format="v1")
    if connection is not None:
        found = connection
        find_by(lambda _: found)
    batches = list[CommittedRange]()
    with lifetime():
        opened = source.open(
            SourceContext(
                name="orders",
                log=made.source_log("orders"),
                state=made.source_state("orders"),
                clock_ms=now_ms,
                checkpoint=checkpoint,
                committed=lambda _: batches,
            )
        )
        start = opened.initial_offset()
        end = opened.latest_offset(start)
        if isinstance(end, Late):
            start = opened.initial_offset()
            end = opened.resolve(start, read_here(opened.read_late(start).arguments, opened.secrets())[1])
        made.offset_log.add(0, OffsetEntry(ends={"orders": end}, starts={"orders": start}, batch_timestamp_ms=0))
        made.commit_log.add(0, CommitEntry())
        batches.append(CommittedRange(start=start, end=end, is_read=True))
        if end is not None:
            opened.commit(end)
