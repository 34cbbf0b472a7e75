"""Whether a table stays one table: a pipeline may write it in another form from now on than before."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import Sink


def check_shape(checkpoint: Checkpoint, sink: Sink) -> None:
    """See that readers can read the next batch together with the newest one that is committed.

    :raises SinkError: if they could not.
    """
    for lane in reversed(checkpoint.lanes()):
        log = checkpoint.lane(lane).commit_log
        newest = log.latest_id()
        commit = None if newest is None else log.get(newest)
        if newest is None or commit is None or commit.epoch is None:
            continue
        attempt = checkpoint.attempts.get(BatchKey(lane, newest), commit.epoch)
        name = attempt.definition if attempt is not None else None
        recorded = checkpoint.definitions.sink(name) if name is not None else None
        if recorded is None or recorded == sink.to_dict():
            return
        try:
            why = sink.unlike(Sink.from_dict(recorded))
        except DefinitionError:
            return  # a sink that cannot be loaded here is another table
        if why is not None:
            raise SinkError(
                f"{why} Readers of {sink.location()} could not read both. Go on as before; or write to another table; "
                f"or have `microbatch rewind {checkpoint.location} --to -1 --drop-output` "
                "take all batches out, to run them again in the new form."
            )
        return
