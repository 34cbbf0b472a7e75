"""What a rewind checks of state: that the batch which it goes back to has left some for the next one to go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.execution.kept_states import ANEW, KeptStates, kept_states
from airflow_provider_microbatch.execution.told_state import folder_of
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.state_away import check_can_be_moved

T = TypeVar("T")


def check_state_behind(checkpoint: Checkpoint, recorded: Recorded, *, lane: str, to: int) -> None:
    """Check that a pipeline which keeps state can go on behind the batch. It would stand otherwise, and what a rewind
    had taken out of its table would not come back.

    :param to: the batch that is to be the newest; -1 for none, behind which state begins anew.
    :raises MaintenanceError: if it cannot, naming the batches behind which it can.
    """
    if lane == LIVE and to >= 0:
        _asking(recorded, lambda sinks: _check(kept_states(checkpoint, sinks), to=to))


def put_state_away(drafting: Drafting, *, lane: str, to: int) -> None:
    """Plan to put all state away, where no batch is left that has any.

    :raises MaintenanceError: if this user may not move it.
    """
    checkpoint = drafting.checkpoint
    if lane != LIVE or to >= 0 or not checkpoint.keeps_state:
        return
    folder = folder_of(Checkpoint(open_store(checkpoint.location)))
    if folder is not None:
        check_can_be_moved(folder)
        drafting.put_state_away("the first batch begins with none")


def goes_on_behind(checkpoint: Checkpoint, recorded: Recorded, *, lane: str, to: int) -> bool:
    """Whether :func:`check_state_behind` lets a rewind go back to the batch.

    :raises CheckpointError: if nobody can tell.
    """
    if lane != LIVE or to < 0:
        return True
    return newest_to_go_back_to(checkpoint, recorded, to=to) == to


def newest_to_go_back_to(checkpoint: Checkpoint, recorded: Recorded, *, to: int) -> int:
    """The batch if the pipeline can go on behind it, else the newest one before it behind which it can; -1 for none.

    :raises CheckpointError: if nobody can tell.
    """

    def look(sinks: Sequence[OpenSink]) -> int:
        kept = kept_states(checkpoint, sinks)
        if to < 0 or kept is None or kept.has(to):
            return to
        newest = kept.newest(before=to)
        return -1 if newest is None else newest

    return _asking(recorded, look)


def _asking(recorded: Recorded, look: Callable[[Sequence[OpenSink]], T]) -> T:
    """The answer of the sinks that the pipeline writes to. Where one cannot be asked, that of what is on record: it is
    another one only behind a replay that died before its answer."""
    try:
        sinks = recorded.wrote_last(LIVE)
    except MaintenanceError:
        sinks = []  # none is on record: a query made the batches
    try:
        return look(sinks)
    except SinkError:
        return look([])


def _check(kept: KeptStates | None, *, to: int) -> None:
    if kept is None or kept.has(to):
        return
    where, missing = kept.checkpoint.location, kept.missing(to)
    what = f"has state of which files are not in {where}/{STATE}, such as {missing}" if missing else "has kept none"
    raise MaintenanceError(
        f"the batches of {where} keep state, and batch {BatchKey(LIVE, to)} {what}: what came after it would be taken "
        f"out, and no batch could go on from there. Nothing was done. {_ways(kept, to=to)}"
    )


def _ways(kept: KeptStates, *, to: int) -> str:
    lane = kept.checkpoint.lane(LIVE)
    earlier, later = kept.newest(before=to), kept.oldest(after=to)
    there = [f"batch {earlier} is the newest before it"] if earlier is not None else []
    if later is not None and later != lane.offset_log.latest_id():  # else nothing is behind it
        there.append(f"batch {later} the oldest after it")
    ways = [f"Of those whose state is there {' and '.join(there)}: rewind to one of these"] if there else []
    if lane.can_be_rewound_to(-1):
        ways.append(
            f"{command(lane, 'rewind --to -1 --drop-output')} has all read again, as far as the sources have it"
        )
    return f"{'; or '.join([*ways, ANEW])}." if ways else f"No other one has: {ANEW}."
