"""What a sink has of one checkpoint, asked as the package asks it."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.identity import expected, planned_identity
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, Sink, SinkContext


def expected_batch(checkpoint: Checkpoint, key: BatchKey) -> ExpectedBatch:
    """A planned batch, as its sink is asked for it."""
    batch = planned_identity(checkpoint, key)
    assert batch is not None, f"{key} is not planned"
    return expected(checkpoint, batch)


def published(sink: Sink, checkpoint: Checkpoint, key: BatchKey) -> Manifest | None:
    """What the sink has of a planned batch."""
    return sink.open(SinkContext()).contains(expected_batch(checkpoint, key))


def stages_of(sink: Sink, checkpoint: Checkpoint) -> list[tuple[BatchKey, int]]:
    """All stages of the checkpoint's attempts."""
    identity = checkpoint.identity()
    owners = {"", identity.query_id} if identity else {""}
    opened = sink.open(SinkContext())
    return sorted(stage for owner in owners for stage in opened.stages(owner))
