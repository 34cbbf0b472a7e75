"""Checkpoints of pipelines that have read all that their source has."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connection, find_by
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources import Source, SourceContext
from airflow_provider_microbatch.stores.location import open_store


def read_to_the_end(checkpoint: str, source: Source, *, connection: Connection | None = None) -> None:
    """Make a checkpoint with one committed batch, of all that there is.

    :param checkpoint: its address.
    :param source: the pipeline's only source, named ``orders``.
    :param connection: what each id finds.
    """
    made = Checkpoint(open_store(checkpoint))
    made.claim(pipeline="bench", sources=["orders"], format="v1")
    if connection is not None:
        found = connection
        find_by(lambda _: found)
    with lifetime():
        opened = source.open(
            SourceContext(
                name="orders",
                log=made.source_log("orders"),
                state=made.source_state("orders"),
                clock_ms=now_ms,
                checkpoint=checkpoint,
            )
        )
        start = opened.initial_offset()
        end = opened.latest_offset(start)
    assert end is None or isinstance(end, str)
    made.offset_log.add(0, OffsetEntry(ends={"orders": end}, starts={"orders": start}, batch_timestamp_ms=0))
    made.commit_log.add(0, CommitEntry())
