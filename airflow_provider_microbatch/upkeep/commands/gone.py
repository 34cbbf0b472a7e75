"""Tables of before that cannot be asked, and need not be: what is known of them tells enough."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.came_back import is_left
from airflow_provider_microbatch.sinks import OpenSink


def never_had(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, wrote: Sequence[OpenSink]) -> bool:
    """Whether no attempt of a batch wrote to one of the sink's tables, and the pipeline does not name that (it was
    taken away, or only plans that were refused have named it): then the sink does not have the batch in all of its
    tables, whatever these would say. Not of a table that is named, into which somebody may have copied what another
    one had.

    :param wrote: all tables that attempts of the batch wrote to.
    """
    others = [one for one in sink.tables if not any(one.definition.is_same_place(other.definition) for other in wrote)]
    return any(is_left(checkpoint, one, key.lane) for one in others)
