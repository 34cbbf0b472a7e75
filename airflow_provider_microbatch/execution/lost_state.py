"""State that is not there any more, as behind a restore of its folder: which batch a pipeline can go on from."""

from __future__ import annotations

import re

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.kept_states import ANEW, KeptStates
from airflow_provider_microbatch.execution.rewind_named import way_back
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import OpenSink

_DAMAGE = re.compile(
    r"(?:CANNOT_LOAD_STATE_STORE|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED)"
    r"(?!\.(?:\w+_OUT_OF_MEMORY|UNRELEASED_THREAD_ERROR|INVALID_CHANGE_LOG_\w+_VERSION|\w+_ROW_FORMAT_VALIDATION_FAILURE"
    r"|FAILED_TO_GET_CHANGELOG_WRITER))[\w.]*"
)
"""The conditions of Spark that tell of a file of state that it cannot read. An executor without memory, a lock, a newer
Spark's files or another schema are none: nobody is to rewind a pipeline whose files are whole."""


def lost_state(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, told: str) -> CheckpointError | None:
    """The error of a batch that has failed since the state that it goes on from is not there, or is damaged; None if
    all of it is there, as far as the names of its files and Spark tell.

    :param key: the batch, of a pipeline that keeps state.
    :param told: what Spark says of the failure.
    """
    if key.lane != LIVE or key.id == 0:
        return None
    kept = KeptStates(checkpoint=checkpoint, sinks=[sink])
    missing, damage = kept.missing(key.id - 1), _DAMAGE.search(told)
    if missing:
        what = (
            f"are not in {checkpoint.location}/{STATE} any more, such as {missing}: they were removed, or the folder "
            "was restored from a backup of another moment than the logs"
        )
    elif damage is not None:
        what = (
            f"in {checkpoint.location}/{STATE} Spark cannot load ({damage[0].rstrip('.')}): unless their store was "
            "away just now, they are damaged, as when a machine loses power"
        )
    else:
        return None
    back = _way_back(kept, sink, before=key.id - 1)
    stays = "planned" if checkpoint.lane(LIVE).commit_of(key.id) is None else "as it is"
    return CheckpointError(
        f"batch {key} goes on from the state of batch {LIVE}/{key.id - 1}, of which files {what}. The batch stays "
        f"{stays}. Bring the files back, and run this task again. If nobody has them: {back}."
    )


def _way_back(kept: KeptStates, sink: OpenSink, *, before: int) -> str:
    way = way_back(kept, sink, to=before - 1)
    if way is None:
        return ANEW
    if way.to < 0:
        return (
            f"{way.rewind} takes all batches back, since the state of none is there, and the next runs read all again"
        )
    return (
        f"{way.rewind} goes back to batch {way.to}, the newest whose state is there, and the next runs make the later "
        "ones"
    )
