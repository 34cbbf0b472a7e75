"""What a command that would leave state behind, or make a batch without any, checks first."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_no_state(checkpoint: Checkpoint) -> None:
    """Check that the checkpoint keeps no state, which a command would leave behind.

    :raises MaintenanceError: if it keeps state: the pipeline that goes on would begin without any.
    """
    if checkpoint.keeps_state:
        raise MaintenanceError(
            f"{checkpoint.location} keeps state of its batches (stateful=True), which cannot be taken along. Nothing "
            "was done. Begin a checkpoint and a table of their own there, which read from the beginning."
        )


def check_stateless(checkpoint: Checkpoint, recorded: Recorded) -> None:
    """Check that the pipeline keeps no state, before a batch is counted that no run makes: such a batch would keep no
    state, and the next batch could not continue.

    :raises MaintenanceError: if batches keep state, or are to keep it.
    """
    if checkpoint.keeps_state or recorded.arguments().get("stateful"):
        raise MaintenanceError(
            f"the pipeline of {checkpoint.location} keeps state (stateful=True): a batch that no run has made keeps "
            "none, and the next one would have nothing to go on from. Nothing was done. `microbatch rewind` goes back "
            "with the state; to read from elsewhere, begin a checkpoint and a table of their own."
        )
