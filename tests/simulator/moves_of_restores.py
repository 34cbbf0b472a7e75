"""Moves of a person who brings back what was lost: checkpoint and table, or the table alone, as they were once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.execution.came_back import check_none_came_back
from airflow_provider_microbatch.execution.identity import expected_on_record, found_in
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.sinks import SinkContext
from tests.simulator.commands import COMMANDS, command, rewind, typed_until_it_ends
from tests.simulator.moves import MOVES, move
from tests.simulator.moves_of_people import put_right
from tests.simulator.processes import Process
from tests.simulator.promises import TRAP, look
from tests.simulator.subject import LEASE_SECONDS, Saved, Subject

if TYPE_CHECKING:
    from tests.simulator.world import World

RESTORES = "restores"
_HOUR_MS = 3_600_000
_OPERATIONS = 6000


def whole(world: World, *, without: bool = False) -> Subject | None:
    """The pipeline, if what it has can be saved and restored as a whole.

    :param without: also if its DAG file names a source no more.
    """
    subject = next(iter(world.subjects.values()))
    may_be = (
        len(world.subjects) == 1
        and subject.kept is None
        and not subject.is_away
        and not subject.table_is_older
        and subject.moves_to is None
        and subject.options.plan == "live"
        and subject.renamed is None
        and (without or subject.removed is None)
        and not any(run.interval for run in world.airflow.runs)
        and subject.checkpoint().maintenance.unfinished() is None
        and not any(process.name.startswith(COMMANDS) for process in world.processes.living())
    )
    return subject if may_be else None


def names_a_trap(world: World, subject: Subject) -> bool:
    """What a stranger has written is for a person to remove: until then no table of the checkpoint is asked."""
    return any(TRAP.encode() in entry.data for entry in world.disk.below(subject.folder).values())


def stop_everybody(world: World) -> None:
    """Nobody is at work any more, and whoever was counts as dead. What was to befall the next job befalls none: a run
    that a move waits for has to end."""
    for process in world.processes.living():
        world.processes.kill(process)
    world.cluster.next.clear()
    world.now_ms += 2 * round(LEASE_SECONDS * 1000)


@move("all go on for an hour", weight=24, kit=RESTORES)
def an_hour(world: World) -> str | None:
    """Nothing happens but that data lands and is looked for: else there is seldom anything to save, and seldom anything
    newer than what was saved."""
    processes, until, left = world.processes, world.now_ms + _HOUR_MS, _OPERATIONS
    for happens in ("data lands", "the scheduler looks") * 2:
        world.say(f"meanwhile: {MOVES[happens].happen(world)}")
        while left > 0:
            ready = [thread for process in processes.living() for thread in processes.ready(process)]
            for thread in ready[:left]:
                if thread in processes.ready(thread.process):
                    processes.go_on(thread)
            left -= len(ready)
            look(world)
            if not ready:
                deadlines = [at for at in processes.deadlines() if world.now_ms < at <= until]
                if not deadlines:
                    break
                world.now_ms = min(deadlines)
    return "all go on for an hour"


@move("checkpoint and table are saved", weight=24, kit=RESTORES)
def saved(world: World) -> str | None:
    subject = whole(world)
    if subject is None or not subject.checkpoint().commit_log.ids() or not subject.system.save_table():
        return None
    stop_everybody(world)
    subject.system.save_table()
    subject.saved = Saved(
        checkpoint=world.disk.below(subject.folder),
        names={landing: tuple(names) for landing, names in subject.names.items()},
        told={attempt: tuple(told) for attempt, told in world.told.items()},
        newest=subject.checkpoint().commit_log.latest_id(),
        jumps=dict(subject.jumps),
        commanded_ms=subject.checkpoint().maintenance.changed_ms(),
    )
    return f"checkpoint and table of {subject.name} are saved, up to {subject.saved.newest}"


@move("checkpoint and table are restored", weight=16, kit=RESTORES)
def restored(world: World) -> str | None:
    """Both to the same older moment: what was read since is read again, also what ``clean_source`` has archived, once
    a person has brought that back as the refusal says. Sources are called what they were called then."""
    subject = whole(world)
    if subject is None or subject.saved is None:
        return None
    if world.disk.below(subject.folder) == subject.saved.checkpoint:
        return None
    before = subject.checkpoint().commit_log.latest_id()
    stop_everybody(world)
    # Whoever copies a backup over what is there leaves the state of later batches.
    stays = f"{subject.folder}{STATE}/" if world.keeps_state and world.random.random() < 0.5 else None
    for path in world.disk.below(subject.folder):
        if stays is None or not path.startswith(stays):
            world.disk.remove(path)
    for path, entry in subject.saved.checkpoint.items():
        world.disk.put(path, entry)
    subject.system.restore_table()
    subject.backup, subject.jumps, subject.state_is_older = {}, dict(subject.saved.jumps), False
    world.told = {attempt: list(told) for attempt, told in subject.saved.told.items()}
    dag = _call_by_names_of_then(world, subject, subject.saved)
    put_sources_right(subject)
    forget_clears(world, subject)
    world.touched = True
    after = subject.checkpoint().commit_log.latest_id()
    return f"checkpoint and table of {subject.name} are restored, to {after} from {before}{dag}"


def _call_by_names_of_then(world: World, subject: Subject, saved: Saved) -> str:
    """The checkpoint knows no rename of after the backup. The DAG file is rolled back too; or it is not, and waits for
    the rename to be said once more.

    :return: which of these, for the story.
    """
    since = [landing for landing, names in subject.names.items() if len(names) > len(saved.names.get(landing, names))]
    if not since:
        return ""
    once = sum(len(subject.names[landing]) - len(saved.names[landing]) for landing in since) == 1
    # What had read nothing then is a new source under any name.
    had_read = any(subject.is_planned(unit) for unit in subject.units if unit.source == since[0])
    if once and had_read and world.random.random() < 0.5:
        (subject.renamed,), subject.dag_lags = since, False
        return f", its DAG file still calls a source {subject.named(since[0])}"
    subject.names |= {landing: list(names) for landing, names in saved.names.items()}
    return f", and its DAG file, which calls the sources {', '.join(subject.sources)}"


def put_sources_right(subject: Subject) -> None:
    """What was changed after it was planned is to be read again: as it is, if it is not put right first."""
    for unit in subject.units:
        if unit.changed:
            put_right(subject, unit)


def forget_clears(world: World, subject: Subject) -> None:
    """What runs have made since is not there any more; whoever wants it again clears them again."""
    for run in world.airflow.runs:
        if run.subject is subject:
            run.wanted = 0


@move("an older checkpoint goes on, and the newer one is put back", weight=8, kit=RESTORES)
def gone_on_elsewhere(world: World) -> str | None:
    """Two copies of one checkpoint, both used: the older one goes on by the command that its error names, and makes
    batches of what the newer one has read. That one may not go on behind them, until its own error is followed."""
    from tests.simulator.rest import finish

    subject = whole(world)
    if subject is None or subject.options.cleans or subject.options.retained is not None or subject.sets_offsets:
        return None  # the command is refused then; or both read once more what somebody has allowed to come twice
    ids = subject.checkpoint().commit_log.ids()
    if not ids or ids[0] != 0 or subject.before:
        return None
    stop_everybody(world)
    older, told_then = world.disk.below(subject.folder), told_of(world)
    an_hour(world)
    stop_everybody(world)
    if subject.checkpoint().commit_log.latest_id() == ids[-1]:
        return "an hour passes, and nothing new is read"
    put_sources_right(subject)
    told, runs = told_of(world), list(world.airflow.runs)
    world.told = told_then
    subject.put_in_place(older)
    said = command(world, subject, rewind(ids[-1]))
    finish(world)
    made = world.airflow.new_run(subject)
    world.airflow.begin_try(made)
    finish(world)
    subject.put_in_place(None)
    world.airflow.runs[:], world.told = runs, told
    forget_clears(world, subject)
    stop_everybody(world)
    subject.table_is_older, world.touched = True, True
    return f"a copy of {subject.name} has gone on from {ids[-1]} ({said.result}, {made.state})"


def told_of(world: World) -> dict[Any, list[str]]:
    """What hooks were told so far."""
    return {attempt: list(told) for attempt, told in world.told.items()}


@move("what was archived is brought back", weight=24, kit=RESTORES)
def brought_back(world: World) -> str | None:
    subject = next(iter(world.subjects.values()))
    if subject.kept is not None or not bring_back(world, subject):
        return None
    return f"what was archived of {subject.name} and no batch has read is brought back"


def bring_back(world: World, subject: Subject) -> bool:
    """Where a source says that files were archived for batches that the checkpoint does not know, a person does what it
    says. False if none does."""
    found = list(forgotten(subject))
    for landing in found:
        subject.system.bring_back_what_was_given_up(landing)
    return bool(found)


def forgotten(subject: Subject) -> Iterator[str]:
    """Landing places of which more was given up than the checkpoint knows."""
    if subject.renamed is not None or subject.moves_to is not None:
        return  # nobody can ask yet
    sources = subject.execution().planner.sources
    for landing in subject.landings:
        if landing != subject.removed and sources.open(subject.named(landing)).forgotten() is not None:
            yield landing


@move("the table is restored alone", weight=8, kit=RESTORES)
def table_restored(world: World) -> str | None:
    """``check`` names what is missing, and a rewind runs it again."""
    subject = whole(world)
    if subject is None or subject.saved is None or subject.options.retained is not None:
        return None
    checkpoint = subject.checkpoint()
    ids = checkpoint.commit_log.ids()
    # What a command has taken out since would be in the table again: refused until a person takes that out once more.
    if not ids or ids[0] != 0 or checkpoint.maintenance.changed_ms() != subject.saved.commanded_ms:
        return None
    stop_everybody(world)
    subject.system.restore_table()
    put_sources_right(subject)
    forget_clears(world, subject)
    subject.table_is_older, world.touched = True, True
    run_again(world, subject)
    return f"the table of {subject.name} is restored alone"


@move("a RESTORE brings back what a rewind takes out", weight=8, only_in=("delta",))
def restored_over_a_rewind(world: World) -> str | None:
    """In the table alone, whose log has these batches as taken out. Nothing comes on top of rows that are read again,
    before a person has typed the rewind that the error names."""
    from tests.simulator.rest import finish

    subject = whole(world)
    if subject is None or subject.options.retained is not None or names_a_trap(world, subject):
        return None
    ids = subject.checkpoint().commit_log.ids()
    if len(ids) < 2 or ids[0] != 0:
        return None
    stop_everybody(world)
    put_sources_right(subject)
    sink = subject.system.sink()
    before = DeltaTable(sink.location()).version()
    said = typed_until_it_ends(world, subject, rewind(world.random.choice(ids[:-1])))
    after = DeltaTable(sink.location()).version()
    if after == before or subject.checkpoint().maintenance.unfinished() is not None:
        return f"nothing of {subject.name} is taken out: {said.result}"
    DeltaTable(sink.location()).restore(before)
    world.touched = True
    made = world.airflow.new_run(subject)
    world.airflow.begin_try(made)
    finish(world)
    look(world)
    stop_everybody(world)
    told = "nothing is in the way"
    try:
        check_none_came_back(subject.checkpoint(), sink.open(SinkContext()), LIVE)
    except SinkError as error:
        told = str(error)
        (to,) = re.findall(r"--to (-?\d+) --drop-output` takes them out", told)
        typed_until_it_ends(world, subject, rewind(int(to)))
    world.touched = True
    return f"what was taken out of {subject.name} is there again, {made.state}: {told}"


def run_again(world: World, subject: Subject) -> Process | None:
    """Somebody has what is missing in the table run again.

    :returns: the command that does so; None if nothing is missing, or another command has to be finished first.
    """
    from tests.simulator.moves_of_topics import is_well, put_topics_right

    if not is_well(world, subject):
        put_topics_right(world)  # nobody could tell what is missing
    missing = missing_in_table(subject)
    if missing:
        is_cut_off = getattr(subject.system, "is_cut_off", False)
        return command(world, subject, rewind(missing[0] - 1, drop_output=not is_cut_off))
    if subject.checkpoint().maintenance.unfinished() is None:
        subject.table_is_older = False
    return None


def missing_in_table(subject: Subject) -> list[int]:
    """Batches that are committed, and not in the table as they were planned."""
    checkpoint = subject.checkpoint()
    log, sink = checkpoint.commit_log, subject.execution().planner.sink
    return [
        number
        for number in log.ids()
        if (commit := log.get(number)) is not None
        and not commit.set_aside
        and not found_in(sink, expected_on_record(checkpoint, BatchKey(LIVE, number), tables=checkpoint.tables))
    ]


@move("what is missing in the table is run again", weight=6, always=True)
def runs_again(world: World) -> str | None:
    subject = next(iter(world.subjects.values()))
    if not subject.table_is_older or subject.kept is not None or subject.is_away:
        return None
    run_again(world, subject)
    return f"what is missing in the table of {subject.name} is to run again"
