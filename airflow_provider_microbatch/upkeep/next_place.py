"""Looks at the places of the batches that come next, for ``microbatch check``: whatever is there is in their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError, ForeignBatchError, SinkError, UnconnectedError
from airflow_provider_microbatch.execution.identity import expected, expected_next, planned_identity
from airflow_provider_microbatch.execution.unknown_batches import check_letters_known, check_none_unknown
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.upkeep.gone_tables import GoneTables


def look_at_next(checkpoint: Checkpoint, sinks: Sequence[OpenSink], gone: GoneTables) -> Iterator[Finding]:
    """Look in today's sinks at the places of planned batches and of the live lane's next batch, and behind that
    place; and for dead letters that were run again by a batch that no log knows."""
    newest = checkpoint.offset_log.latest_id()
    following = BatchKey(LIVE, 0 if newest is None else newest + 1)
    for sink in sinks:
        looks: list[Callable[[], object]] = [
            partial(_ask_planned, checkpoint, sink, key) for key in _uncommitted(checkpoint)
        ]
        looks.append(partial(sink.contains, expected_next(checkpoint, following)))
        looks.append(partial(check_none_unknown, checkpoint, sink, following))
        looks.append(partial(check_letters_known, checkpoint, sink))
        for look in looks:
            try:
                look()
            except ForeignBatchError as error:
                yield Finding(
                    kind="table",
                    where=sink.location(),
                    message=str(error),
                    repair="Choose one of the ways on; until then the pipeline plans nothing, or no clear is accepted.",
                )
                break  # further findings would have the same cause
            except SinkError as error:
                if sink.seems_away(checkpoint.tables) is not None:
                    continue  # the look at its batches reports that
                if any(gone.has(table, checkpoint.tables) for table in sink.tables):
                    continue  # what else the sink has other sinks on record tell
                if isinstance(error, UnconnectedError):
                    yield unconnected(sink, error)
                    break
                # Such as a batch's folder that was moved or copied to a number that no batch has: no look at a batch of
                # the log meets it, and its rows are in the table twice once the batch is run again.
                yield Finding(
                    kind="table",
                    where=sink.location(),
                    message=str(error),
                    repair="Mend that, then check again; until then the pipeline plans nothing.",
                )
                break
            except CheckpointError:
                continue  # the logs' own findings report the error


def _uncommitted(checkpoint: Checkpoint) -> Iterator[BatchKey]:
    """Batches that are planned and not committed."""
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        newest = lane.offset_log.latest_id()
        if newest is not None and not lane.commit_log.has(newest):
            yield BatchKey(name, newest)


def _ask_planned(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    batch = planned_identity(checkpoint, key)
    if batch is not None:
        sink.contains(expected(checkpoint, batch))


def unconnected(sink: OpenSink, error: UnconnectedError) -> Finding:
    """The finding about a table whose connection is gone; the same one for each of its batches."""
    return Finding(
        kind="table",
        where=sink.location(),
        message=str(error),
        repair="Have that connection again, under this id too, then check again: until then nobody can tell what is "
        "there.",
    )
