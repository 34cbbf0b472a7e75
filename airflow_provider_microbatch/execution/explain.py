"""The error that a person sees of an attempt that failed in Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    EngineError,
    MicroBatchError,
    ReadError,
    TransformError,
)
from airflow_provider_microbatch.execution.lost_state import lost_state
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import OpenSink

log = logging.getLogger(__name__)


def check_staged(
    pipeline: Pipeline, sink: OpenSink, attempt: Attempt, error: EngineError, *, checkpoint: Checkpoint
) -> None:
    """Return if the attempt was done before its engine failed: its manifest is the last thing that it writes, so a
    later failure (a JVM that is aborted while it ends, a client that loses its cluster) has cost no row.

    :raises TransformError: if the user's transform failed, with its traceback.
    :raises CheckpointError: if the state that the batch goes on from is not there, or is damaged.
    :raises EngineError: if anything else failed.
    """
    failure = sink.failure(attempt.batch, attempt.epoch)
    if failure is None and sink.manifest(attempt.batch, attempt.epoch) is not None:
        log.warning("Batch %s attempt %s is staged whole; after that: %s", attempt.key, attempt.epoch, error)
        return
    if failure is None:
        # Killed, maybe by a stop: that has to be on record within seconds, which a look for the state may take.
        raise error from None
    explained = _explain(failure, pipeline=pipeline, attempt=attempt)
    lost = _lost_state(checkpoint, sink, attempt.key, failure) if pipeline.stateful else None
    if lost is not None:
        raise lost from explained
    raise explained from None


def _lost_state(
    checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, failure: Mapping[str, Any]
) -> CheckpointError | None:
    """See :func:`lost_state`. None where nobody can tell: then the batch's own failure is told, which may count for
    setting the batch aside, and not that the look has failed."""
    try:
        return lost_state(checkpoint, sink, key, told=f"{failure.get('error')} {failure.get('traceback')}")
    except (MicroBatchError, OSError) as unknown:
        log.warning("Whether the state that batch %s goes on from is there cannot be told: %s", key, unknown)
        return None


def _explain(failure: Mapping[str, Any], *, pipeline: Pipeline, attempt: Attempt) -> Exception:
    """The error that the runtime wrote about its failure."""
    if failure.get("origin") == "transform":
        return TransformError(
            f"batch {attempt.key} attempt {attempt.epoch}: transform '{pipeline.transform}' failed. The batch "
            f"stays planned; mend the transform and run again.\n{failure.get('traceback') or failure.get('error')}"
        )
    if failure.get("origin") == "result":
        returned = f"transform '{pipeline.transform}' returned" if pipeline.transform else "was read"
        return TransformError(
            f"batch {attempt.key} attempt {attempt.epoch}: what {returned} cannot be written: {failure.get('error')}. "
            f"The batch stays planned; mend it, or the sink, and run again.\n{failure.get('traceback') or ''}"
        )
    kind = ReadError if failure.get("origin") in ("read", "data") else EngineError
    return kind(
        f"batch {attempt.key} attempt {attempt.epoch} failed in Spark ({failure.get('origin')}): "
        f"{failure.get('error')}. The batch stays planned.\n{failure.get('traceback') or ''}"
    )
