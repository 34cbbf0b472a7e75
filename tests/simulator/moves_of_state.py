"""Moves of a person whose pipeline keeps state: what its errors say is done, and the state is restored by itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from tests.simulator.commands import SET_OFFSET, command, rewind, withdraw
from tests.simulator.moves import move
from tests.simulator.moves_of_restores import RESTORES, forget_clears, put_sources_right, stop_everybody, whole
from tests.simulator.subject import LEASE_SECONDS, Subject

if TYPE_CHECKING:
    from tests.simulator.airflow import DagRun
    from tests.simulator.world import World

REFUSED_WITH_STATE = {SET_OFFSET, "start-behind", "adopt", "the checkpoint is to move"}
"""Commands that do nothing where batches keep state, as tests of their own say."""

_GONE_ON = re.compile(r"gone on: run again by itself it would contradict them\.")
_BACK = re.compile(rf"{_GONE_ON.pattern} .*?rewind \S+ --to (-?\d+)")
_LOST = re.compile(r"of which files are not in \S+ any more.*?rewind \S+ --to (-?\d+) --drop-output")
_WAITS = re.compile(r"withdraw-clear \S+ live/(\d+)")


def has_been_gone_on_from(run: DagRun) -> bool:
    """Whether the clear of the run was refused, since later batches have gone on from its batch."""
    return _GONE_ON.search(run.error) is not None


def waits_for_a_clear(error: str) -> bool:
    """Whether no batch is planned, since a clear of the one before waits, which nobody seems to answer."""
    return _WAITS.search(error) is not None


def follow_what_state_says(world: World, run: DagRun) -> None:
    """Type the command that the run's error names, if it is one of state."""
    from tests.simulator.rest import finish

    back, waits = _BACK.search(run.error) or _LOST.search(run.error), _WAITS.search(run.error)
    if back is None and waits is None:
        return
    world.now_ms += round(2 * LEASE_SECONDS * 1000)
    if back is not None:
        command(world, run.subject, rewind(int(back[1])))
    elif waits is not None:
        _withdraw(world, run.subject, BatchKey(LIVE, int(waits[1])))
    finish(world)


def _withdraw(world: World, subject: Subject, key: BatchKey) -> None:
    """Nobody makes the batch again any more: what its clears wanted is not asked for."""
    asked = [request.run for request in subject.checkpoint().replays.pending(key)]
    for run in world.airflow.runs:
        if run.subject is subject and any(one is not None and run.identity().is_of(one) for one in asked):
            run.wanted = 0
    command(world, subject, withdraw(key))


@move("the state is restored alone", weight=10, kit=RESTORES, state=True)
def state_restored(world: World) -> str | None:
    """Its folder is as it was when a backup was made. The next batch finds no state to go on from, and says how far
    back there is some."""
    subject = whole(world)
    if subject is None or subject.saved is None or subject.options.retained is not None:
        return None
    ids = subject.checkpoint().commit_log.ids()
    # No log goes on from a batch that retention has removed.
    if not ids or ids[0] != 0:
        return None
    there = {path for path in world.disk.below(subject.folder) if _is_state(subject, path)}
    saved = {path: entry for path, entry in subject.saved.checkpoint.items() if _is_state(subject, path)}
    if there <= saved.keys():
        return None
    stop_everybody(world)
    for path in there:
        world.disk.remove(path)
    for path, entry in saved.items():
        world.disk.put(path, entry)
    put_sources_right(subject)
    forget_clears(world, subject)
    subject.state_is_older, world.touched = True, True
    return f"the state of {subject.name} is restored alone, with {len(saved)} files of {len(there)}"


def _is_state(subject: Subject, path: str) -> bool:
    return path.startswith(f"{subject.folder}{STATE}/")
