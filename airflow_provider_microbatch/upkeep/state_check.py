"""Looks whether the state that the next batch goes on from is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.execution.kept_states import CannotTell, KeptStates
from airflow_provider_microbatch.execution.lost_state import gone, way_on
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
        sinks = [sink for sink in recorded.today(LIVE) if not recorded.is_gone(sink)]
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
