"""How the stage of an attempt that will not publish is dropped, and where the rest of it stays: behind a table that has
the attempt's output for good."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.execution.identity import expected_on_record, found_in
from airflow_provider_microbatch.execution.status import is_committed
from airflow_provider_microbatch.execution.subtasks import keep_finished
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What became of a stage.

    :param any: whether there was one, and it is gone.
    :param behind: address of the table that has the attempt's output for good, and behind which other tables lack it:
        their stages stay, since no other attempt's output could follow there. None if nothing stays, as of an attempt
        that is committed.
    """

    any: bool
    behind: str | None = None


def drop_stage(checkpoint: Checkpoint, sink: OpenSink, attempt: Attempt) -> Dropped:
    """Drop the stage of an attempt that will not publish. Of a split-wise attempt the finished subtasks are kept, on
    record, for the next attempt."""
    keep_finished(checkpoint, sink, attempt)
    dropped = list[bool]()
    # What is committed is in all tables of the pipeline: if it lacks in another one, nobody waits for a stage of that.
    if sink.definition.keeps_replaced and len(sink.tables) > 1 and not is_committed(checkpoint, attempt):
        batch = expected_on_record(checkpoint, attempt.key, tables=checkpoint.tables.following_moves)
        for table in sink.tables:
            if table.definition.keeps_replaced:
                # Before the look: who has passed the fence publishes there until the table's own stage is dropped. What
                # is not in after that never will be, and nobody waits for the stages behind it.
                dropped.append(table.drop_stage(attempt.batch, attempt.epoch))
                if _has(table, batch, attempt) and not _has(sink, batch, attempt):
                    return Dropped(any=False, behind=table.location())
    return Dropped(any=sink.drop_stage(attempt.batch, attempt.epoch) or any(dropped))


def _has(sink: OpenSink, batch: ExpectedBatch, attempt: Attempt) -> bool:
    found = found_in(sink, batch)
    return found is not None and found.epoch == attempt.epoch
