"""Whether a table stays one table: a pipeline may write it in another form from now on than before."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.execution.newest import newest_published
from airflow_provider_microbatch.sinks import Sink


def check_shape(checkpoint: Checkpoint, sink: Sink) -> None:
    """See that readers can read the next batch together with the newest one that was published.

    :raises SinkError: if they could not.
    """
    for lane in reversed(checkpoint.lanes()):
        newest = newest_published(checkpoint, lane)
        if newest is None:
            continue
        attempt = checkpoint.attempts.get(*newest)
        name = attempt.definition if attempt is not None else None
        recorded = checkpoint.definitions.sink(name) if name is not None else None
        if recorded is None or recorded == sink.to_dict():
            return
        try:
            why = sink.unlike(Sink.from_dict(recorded))
        except DefinitionError:
            return  # a sink that cannot be loaded here is another table
        if why is not None:
            rewind = command(checkpoint.lane(lane), "rewind --to -1 --drop-output")
            raise SinkError(
                f"{why} Readers of {sink.location()} could not read both. Go on as before; or write to another table; "
                f"or have {rewind} take all batches out, to run them again in the new form."
            )
        return
