"""Looks whether the state that the next batch goes on from is there, and whether each has gone on from what it pins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.execution.kept_states import CannotTell, KeptStates
from airflow_provider_microbatch.execution.lost_state import gone, way_on
from airflow_provider_microbatch.execution.pinned_watermark import told_of_other_watermark, way_to_right_watermark
from airflow_provider_microbatch.execution.told_state import published_result, state_of
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_state(checkpoint: Checkpoint, recorded: Recorded) -> Iterator[Finding]:
    """A finding if files are gone, by their names, of the state that the newest committed batch of the live lane has
    left, or cannot be read. Of what a query has left nobody can tell before the first attempt of this package has
    looked."""
    with suppress(CheckpointError, SinkError, OSError):  # of logs and tables that cannot be read others tell
        number = checkpoint.commit_log.latest_id()
        commit = None if number is None else checkpoint.commit_log.get(number)
        if number is None or commit is None or commit.progress.get("state") is None:
            return
        sinks = recorded.wrote_last(LIVE)
        kept = KeptStates(checkpoint=checkpoint, sinks=sinks)
        key, where = BatchKey(LIVE, number), f"{checkpoint.location}/{STATE}"
        try:
            what = gone(kept, number)
        except CannotTell as error:
            message = f"of the state that batch {key} has left, and that the next batch goes on from, {error}."
            repair = (
                "See that the disk is there, and that the users of this command and of Spark may read all of it; then "
                "check again."
            )
            yield Finding(kind="state", where=where, message=message, repair=repair)
            return
        if what is not None and sinks:
            message = f"files of the state that batch {key} has left, and that the next batch goes on from, {what}."
            repair = "Bring the files back."
            # Of an earlier batch, to which one may go back, or of a log on the way: this is told all the same.
            with suppress(CannotTell, CheckpointError, SinkError, OSError):
                repair += f" If nobody has them: {way_on(kept, sinks[0], number=number, is_gone=True)}."
            yield Finding(kind="state", where=where, message=message, repair=repair)


def check_watermarks(checkpoint: Checkpoint, recorded: Recorded) -> Iterator[Finding]:
    """A finding for each batch of the live lane that pins the watermark of an attempt which a clear has replaced."""
    numbers: Sequence[int] = ()
    with suppress(CheckpointError, OSError):
        numbers = checkpoint.replays.epochs.ids(LIVE)
    for number in numbers:
        with suppress(CheckpointError, SinkError, OSError):  # of an entry or a table that cannot be read others tell
            yield from _watermark(checkpoint, recorded, number)


def _watermark(checkpoint: Checkpoint, recorded: Recorded, number: int) -> Iterator[Finding]:
    key, behind = BatchKey(LIVE, number), BatchKey(LIVE, number + 1)
    entry = checkpoint.offset_log.get(behind.id)
    commit = None if entry is None else checkpoint.commit_log.get(number)
    if entry is None or commit is None or commit.progress.get("state") is None:
        return
    sinks = recorded.wrote_last(LIVE)
    state = state_of(published_result(checkpoint, key, sinks), where=f"batch {key}")
    told = None if state is None else told_of_other_watermark(checkpoint, behind, entry, state)
    if told is not None and sinks:
        where = f"{checkpoint.offset_log.location}/{behind.id}"
        repair = way_to_right_watermark(checkpoint, behind, sinks[0])
        yield Finding(kind="state", where=where, message=told, repair=repair[:1].upper() + repair[1:])
