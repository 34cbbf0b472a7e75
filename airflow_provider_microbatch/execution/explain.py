"""What a person should see of an attempt that failed in Spark."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.exceptions import EngineError, ReadError, TransformError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import OpenSink


def explain(pipeline: Pipeline, sink: OpenSink, attempt: Attempt, error: Exception) -> Exception:
    """What the runtime wrote about its failure, where it wrote anything; else the engine's own error."""
    failure = sink.failure(attempt.batch, attempt.epoch)
    if failure is None:
        return error
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
