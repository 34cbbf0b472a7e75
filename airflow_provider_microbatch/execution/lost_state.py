"""State that is not there any more, as behind a restore of its folder: which batch a pipeline can go on from."""

from __future__ import annotations

import re

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.execution.kept_states import ANEW, KeptStates
from airflow_provider_microbatch.execution.rewind_named import rewind_named, way_back
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
    what, damage = gone(kept, key.id - 1), _DAMAGE.search(told)
    is_gone = what is not None
    if what is None and damage is not None:
        what = (
            f"in {checkpoint.location}/{STATE} Spark cannot load ({damage[0].rstrip('.')}): unless their store was "
            "away just now, they are damaged, as when a machine loses power"
        )
    if what is None:
        return None
    back = way_on(kept, sink, number=key.id - 1, is_gone=is_gone)
    stays = "planned" if checkpoint.lane(LIVE).commit_of(key.id) is None else "as it is"
    return CheckpointError(
        f"batch {key} goes on from the state of batch {LIVE}/{key.id - 1}, of which files {what}. The batch stays "
        f"{stays}. Bring the files back, and run this task again. If nobody has them: {back}."
    )


def gone(kept: KeptStates, number: int) -> str | None:
    """That files of the state after the batch are gone, in words; None if all are there."""
    missing = kept.missing(number)
    if missing is None:
        return None
    return (
        f"are not in {kept.checkpoint.location}/{STATE} any more, or are none of Spark's, such as {missing}: they were "
        "removed, the folder was restored from a backup of another moment than the logs, or a machine lost power"
    )


def way_on(kept: KeptStates, sink: OpenSink, *, number: int, is_gone: bool) -> str:
    """What is left to a pipeline that does not get the state after the batch back, in words.

    :param is_gone: whether files of it are missing, and not only damaged: then no rewind stops at the batch.
    """
    way = way_back(kept, sink, to=number - 1)
    if way is None:
        return ANEW if is_gone else _made_again(kept, sink, number=number)
    if way.to < 0:
        return (
            f"{way.rewind} takes all batches back, since the state of none is there, and the next runs read all again"
        )
    return (
        f"{way.rewind} goes back to batch {way.to}, the newest whose state is there, and the next runs make the later "
        "ones"
    )


def _made_again(kept: KeptStates, sink: OpenSink, *, number: int) -> str:
    """Where retention has left no batch before it to go back to, but its state: the batch alone is made again."""
    checkpoint = kept.checkpoint
    rewind = rewind_named(checkpoint, sink, LIVE, number) if kept.has(number - 1) else None
    entry = checkpoint.lane(LIVE).offset_log.get(number)
    if rewind is None or entry is None or entry.run is None:
        return ANEW
    return (
        f"{rewind} takes back what was planned after batch {LIVE}/{number}; then clear {entry.run.in_words}, which "
        f"makes that batch and its state again. That serves if its own files alone are damaged; else {ANEW}"
    )
