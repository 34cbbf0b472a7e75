"""Everything comes to rest: troubles end, sleepers wake up, Airflow runs until there is nothing new, then a janitor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import AttemptFencedError, DefinitionError, MicroBatchError
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.retention import held
from airflow_provider_microbatch.execution.set_aside import is_aside
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.upkeep.janitor import Janitor
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport
from tests.simulator.airflow import FAILED, OVER, RETRY, RUNNING, SKIPPED, SUCCESS, DagRun
from tests.simulator.moves import MOVES
from tests.simulator.moves_of_letters import finish_letters
from tests.simulator.moves_of_people import nobody_has_read, put_right
from tests.simulator.moves_of_state import follow_what_state_says, has_been_gone_on_from
from tests.simulator.moves_of_topics import bring_marks_back, put_topics_right
from tests.simulator.processes import FROZEN, RUNS, Process
from tests.simulator.promises import CALLS, look
from tests.simulator.subject import LEASE_SECONDS, Subject
from tests.simulator.world import BEGINS_MS, Broken

if TYPE_CHECKING:
    from tests.simulator.world import World

OPERATIONS = 300_000
"""More than any world needs to come to rest."""
TRIES = 12
INTERVAL_MS = 600_000
DAY_MS = 24 * 60 * 60 * 1000


def intervals(until_ms: int) -> list[Interval]:
    """All data intervals of the world that are over."""
    starts = range(BEGINS_MS, until_ms - INTERVAL_MS + 1, INTERVAL_MS)
    return [Interval(start_ms=start, end_ms=start + INTERVAL_MS) for start in starts]


def come_to_rest(world: World) -> None:
    """:raises Broken: if it does not."""
    world.say("the troubles are over")
    heal(world)
    for process in world.processes.living():
        if process.state == FROZEN:
            process.state = RUNS
    finish(world)
    for subject in world.subjects.values():
        if subject.intrudes_on is None:
            _finish_command(world, subject)
            _finish_copy(world, subject)
            subject.removed = None
            _finish_rename(world, subject)
            _finish_restore(world, subject)
            _put_right_what_has_grown(world, subject)
            _run_all(world, subject)
            finish_letters(world, subject, tries=TRIES)
            _withdraw_what_nobody_answers(world, subject)
            if world.keeps_state:  # what slept until now may have left files, which go with the next commit
                subject.land(subject.landings[0], 1)
                _run_all(world, subject)
                subject.state_is_older = False
    finish(world)
    for _ in range(CALLS if world.deaf_hooks else 0):
        world.now_ms += DAY_MS
        for subject in list(world.subjects.values()):
            janitor(world, subject)
        finish(world)
    # Later than the longest pause before a hook that has failed is called again.
    world.now_ms += DAY_MS
    for subject in list(world.subjects.values()):
        report = janitor(world, subject)
        finish(world)
        failed = report[0].of("failed") if report else ["it did not end"]
        if failed:
            raise Broken("the janitor fails", f"{failed}")


def heal(world: World) -> None:
    """End all troubles that are not somebody's death."""
    world.disk.trouble, world.lost_answer, world.hooks_fail = None, None, False
    world.cluster.unreachable = False
    world.cluster.poison.clear()
    world.cluster.next.clear()
    for _, found in world.cluster.alive():
        found.hangs = found.lies_dead = False
    MOVES["the table is back"].happen(world)
    for subject in world.subjects.values():
        if subject.kept is not None:
            MOVES["the checkpoint is put back"].happen(world)
        for unit in subject.units:
            if unit.shown_ms is None:
                subject.show(unit)
            if unit.changed and not unit.grown:
                put_right(subject, unit)
    put_topics_right(world)


def finish(world: World) -> None:
    """Let everybody go on until they have ended."""
    processes, begun = world.processes, world.processes.operations
    while living := [process for process in processes.living() if process.state == RUNS]:
        went = False
        for process in living:
            for thread in processes.ready(process):
                if process.state == RUNS:
                    processes.go_on(thread)
                    went = True
        look(world)
        if processes.operations - begun > OPERATIONS:
            raise Broken("it does not come to rest", f"{[f'{one.name} before {one.at}' for one in living]}")
        if not went:
            deadlines = [at for at in processes.deadlines() if at > world.now_ms]
            if not deadlines:
                raise Broken("a process waits for ever", f"{[f'{one.name} for {one.at}' for one in living]}")
            world.now_ms = min(deadlines)


def janitor(world: World, subject: Subject) -> list[JanitorReport]:
    """Start a janitor; its report is in the list when it has ended."""
    reports: list[JanitorReport] = []

    def body() -> None:
        made = Janitor(
            checkpoint=subject.named_checkpoint(), engine_of=world.airflow.engine_of, clock_ms=world.machine_ms
        )  # fmt: skip
        try:
            reports.append(made.run())
        except MicroBatchError as error:
            world.say(f"the janitor of {subject.name} gives up: {error}")

    world.processes.spawn(f"janitor of {subject.name}", body, machine=world.any_machine())
    return reports


def _finish_command(world: World, subject: Subject) -> None:
    """A command that was killed half way is finished when it is typed again."""
    from tests.simulator.commands import again, command

    if subject.checkpoint().maintenance.unfinished() is not None:
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        command(world, subject, again(subject))
        finish(world)


def _finish_rename(world: World, subject: Subject) -> None:
    """Whoever has begun to rename a source, in one of the two places, does it in the other."""
    from tests.simulator.commands import REPAIR, command, is_half_renamed, is_renamed, rename

    for _ in range(TRIES):
        if subject.renamed is None or is_renamed(subject):
            break
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        said = command(world, subject, REPAIR if is_half_renamed(subject) else rename(subject))
        finish(world)
    else:
        raise Broken("a source cannot be renamed", f"{said.result}")
    subject.dag_lags, subject.renamed = False, None


def _put_right_what_has_grown(world: World, subject: Subject) -> None:
    """Whoever wrote more takes it out, as soon as nobody has a stage of it."""
    grown = [unit for unit in subject.units if unit.grown]
    for _ in range(TRIES):
        if not grown or nobody_has_read(world, subject):
            break
        # What is in a topic for good is followed by the tables behind it when its own run is tried again.
        failed = [run for run in world.airflow.runs if run.subject is subject and run.interval and run.state == FAILED]
        for run in [*world.airflow.active(subject), *failed, world.airflow.new_run(subject)]:
            world.airflow.begin_try(run)
            finish(world)
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        janitor(world, subject)
        finish(world)
    else:
        raise Broken("a stage stays of what has grown", subject.name)
    for unit in grown:
        put_right(subject, unit)


def _finish_restore(world: World, subject: Subject) -> None:
    """Whoever has restored something does what he was told of what is missing since."""
    from tests.simulator.moves_of_restores import bring_back, run_again

    bring_back(world, subject)
    for _ in range(TRIES):
        if not subject.table_is_older:
            return
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        said = run_again(world, subject)
        finish(world)
        _remove_if_told_so(world, subject, said)
        _restore_if_told_so(world, subject, said)
    raise Broken("a table cannot be made whole", subject.name)


def _finish_copy(world: World, subject: Subject) -> None:
    """A copy that was killed half way is typed again, and the DAG file names the new place."""
    from tests.simulator.commands import command, copy_of

    for _ in range(TRIES):
        if subject.moves_to is None or subject.has_arrived():
            break
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        said = command(world, subject, copy_of(subject))
        finish(world)
    else:
        raise Broken("a checkpoint cannot be moved", f"{said.result}")
    subject.arrive()


def _run_all(world: World, subject: Subject) -> None:
    for run in world.airflow.active(subject):
        if run.state == RUNNING:
            run.state = RETRY  # its process died, and Airflow has not noticed
    for run in world.airflow.runs:
        # What a lane took no other lane reads: a backfill that has failed, or was rewound, is its user's to clear.
        if run.subject is subject and run.interval is not None and not run.aside and _has_to_run(run):
            world.airflow.clear(run)
        elif run.subject is subject and run.wanted and run.state == FAILED and not run.aside:
            run.state = RETRY  # who clears a run sees to it that it succeeds
        elif run.subject is subject and run.state in OVER and not run.aside and _has_asked(run):
            world.airflow.clear(run)  # its answer is of after the backup that was restored, so it is cleared once more
    for run in world.airflow.active(subject):
        if not world.airflow.skips(run):
            _until_over(world, run)
    if subject.options.plan == "interval":
        world.now_ms += 2 * INTERVAL_MS
        for interval in intervals(world.now_ms):
            if (subject.name, interval) in world.airflow.passed:
                continue
            _all_until_over(world, world.airflow.new_run(subject, interval=interval))
    else:
        idle = 0
        for _ in range(len(subject.units) + 4 * TRIES):
            run = world.airflow.new_run(subject)
            _all_until_over(world, run)
            if run.error:
                world.now_ms += round(2 * LEASE_SECONDS * 1000)  # somebody dead is in its way
            idle = idle + 1 if run.state == SKIPPED and not run.error else 0
            if idle == 2:
                break
        else:
            raise Broken("it does not come to rest", f"{subject.name}: {run.state} {run.error}")
    for run in _of_set_aside(world, subject):
        world.airflow.clear(run)
        _until_over(world, run)
    if subject.options.plan != "interval":
        _rewind_what_nobody_can_clear(world, subject)


def _has_to_run(run: DagRun) -> bool:
    if run.state != SUCCESS or run.interval is None:
        return run.state == FAILED
    key = batch_of(run.interval)
    return run.subject.checkpoint().lane(key.lane).offset_log.get(key.id) is None


def _has_asked(run: DagRun) -> bool:
    """Whether a clear of the run has no answer on record."""
    replays = run.subject.checkpoint().replays
    keys = [BatchKey(lane, number) for lane in replays.epochs.lanes() for number in replays.epochs.ids(lane)]
    asked = [request.run for key in keys for request in replays.pending(key)]
    return any(one is not None and run.identity().is_of(one) for one in asked)


def _rewind_what_nobody_can_clear(world: World, subject: Subject) -> None:
    """A batch that was set aside, and its run deleted, has no task to clear: the way back is a rewind."""
    from tests.simulator.commands import command, rewind

    checkpoint = subject.checkpoint()
    log = checkpoint.commit_log
    aside = [number for number in log.ids() if is_aside(checkpoint, BatchKey(LIVE, number), log.get(number))]
    if not aside:
        return
    for _ in range(2):
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        said = command(world, subject, rewind(aside[0] - 1))
        finish(world)
        if not _remove_if_told_so(world, subject, said):
            break
    for _ in range(len(subject.units) + 4 * TRIES):
        run = world.airflow.new_run(subject)
        _all_until_over(world, run)
        if run.state == SKIPPED and not run.error:
            return


def _remove_if_told_so(world: World, subject: Subject, said: Process | None) -> bool:
    """A definition that nobody can load, and that an attempt names: the command says whose file it is, and a person
    removes the file."""
    if said is None or "remove the file" not in str(said.result):
        return False
    definitions = subject.checkpoint().definitions
    for name in definitions.names():
        try:
            Sink.from_dict(definitions.sink(name) or {})
        except DefinitionError:
            definitions.forget(name)
            world.deaf_hooks.add(name)  # nobody can tell the hooks of its attempt, whatever they are
            world.say(f"the definition {name} of {subject.name} is removed: nobody wrote it")
    return True


def _restore_if_told_so(world: World, subject: Subject, said: Process | None) -> None:
    """What was changed after it was planned: whoever wrote more takes it out."""
    if said is not None and "Restore what was planned" in str(said.result) and nobody_has_read(world, subject):
        for unit in [unit for unit in subject.units if unit.grown]:
            put_right(subject, unit)


def _withdraw_what_nobody_answers(world: World, subject: Subject) -> None:
    """The clears of runs that were deleted, where retention waits for them."""
    from tests.simulator.commands import command, withdraw

    checkpoint = subject.checkpoint()
    for key in [key for lane in checkpoint.lanes() for key in held(checkpoint, lane)]:
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        command(world, subject, withdraw(key))
        finish(world)


def _all_until_over(world: World, run: DagRun) -> None:
    for slot in world.airflow.slots_of(run):
        if not world.airflow.skips(slot):
            _until_over(world, slot)


def _until_over(world: World, run: DagRun) -> None:
    for _ in range(TRIES):
        process: Process = world.airflow.begin_try(run)
        finish(world)
        assert process.gone
        if run.state in (SUCCESS, SKIPPED) or run.aside:
            return
        if _is_told_to_leave(world, run):
            return
        follow_what_state_says(world, run)
        if "Bring the mark back" in run.error:
            bring_marks_back(world)
        # Whatever died at the batch counts as alive until its lease is over.
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        run.retries = TRIES
    if run.error.startswith(AttemptFencedError.__name__) and world.airflow.has_twin(run):
        # A clear of the one counts as one of the other: nothing tells them apart. It loses nothing, and says so.
        world.airflow.runs.remove(run)
        world.say(f"{run.name} is deleted: another Airflow has a run of its name, which was cleared")
        return
    raise Broken("a run does not succeed", f"{run.name}: {run.error}")


def _is_told_to_leave(world: World, run: DagRun) -> bool:
    """A topic takes back nothing: who cleared a batch that has to stay as it is marks its task as succeeded."""
    from tests.simulator.commands import command, withdraw

    if "With on_overlap='skip' this run leaves it so" in run.error:
        run.subject.options.on_overlap = "skip"  # as it says
        return False
    if has_been_gone_on_from(run) and world.random.random() < 0.5:
        run.state, run.wanted = SUCCESS, 0
        return True
    if not re.search(r"take back records.*mark the task as succeeded|leave the batch as it is, and mark", run.error):
        return False
    run.state, run.wanted = SUCCESS, 0
    world.say(f"{run.name} is marked as succeeded: {run.error[:60]}")
    replays = run.subject.checkpoint().replays
    keys = [BatchKey(lane, number) for lane in replays.epochs.lanes() for number in replays.epochs.ids(lane)]
    for key in [key for key in keys if any(one.run and run.identity().is_of(one.run) for one in replays.pending(key))]:
        world.now_ms += round(2 * LEASE_SECONDS * 1000)
        command(world, run.subject, withdraw(key))
        finish(world)
    return True


def _of_set_aside(world: World, subject: Subject) -> list[DagRun]:
    """Who has to be cleared for the batches that were set aside."""
    checkpoint, found = subject.checkpoint(), []
    for lane in checkpoint.lanes():
        log = checkpoint.lane(lane).commit_log
        for number in log.ids():
            commit = log.get(number)
            if commit is not None and is_aside(checkpoint, BatchKey(lane, number), commit):
                planned = checkpoint.lane(lane).offset_log.get(number)
                by = [(one.run.run_id, one.run.map_index) for one in (commit, planned) if one is not None and one.run]
                found += [run for run in world.airflow.runs if (run.run_id, run.slot) in by]
    return found
