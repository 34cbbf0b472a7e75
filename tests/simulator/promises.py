"""What is promised, looked at from outside: by what has landed, what the table has, and who runs."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, Relation, RunIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.retention import retained
from airflow_provider_microbatch.execution.set_aside import is_aside
from airflow_provider_microbatch.execution.unread import find_unread
from tests.simulator.airflow import SUCCESS
from tests.simulator.commands import is_half_renamed
from tests.simulator.expected import most, note_jumps, wanted
from tests.simulator.hooks import Told
from tests.simulator.promises_of_stages import look_at_stages
from tests.simulator.promises_of_state import look_at_state, look_at_state_at_rest
from tests.simulator.promises_of_topics import look_at_topic
from tests.simulator.subject import HOOKS, Subject
from tests.simulator.world import Broken
from tests.support.system import Row
from tests.support.whose import stages_of

if TYPE_CHECKING:
    from tests.simulator.world import World

Table = Mapping[BatchKey, Sequence[Row]]

TRAP = "tests.simulator.trap"
"""The module that a hostile checkpoint names."""
HOSTILE = "/"
"""The host in its handles."""

CALLS = 9
"""After so many a hook that fails is given up."""

_STATUS = {"succeeded": "finished", "canceled": "canceled", "failed": "failed", "superseded": "failed"}


def look(world: World) -> None:
    """After every step: who broke down, and, if anything was changed, what readers of the tables find."""
    for process in world.processes.broken_down():
        if not isinstance(process.error, EngineError):
            raise Broken("a process broke down", f"{process.name}: {process.error!r}") from process.error
    if TRAP in sys.modules:
        raise Broken("a checkpoint's text became code", f"{TRAP} is imported")
    if not world.touched:
        return
    world.touched = False
    for subject in world.subjects.values():
        note_jumps(subject)
        for table in subject.tables():
            _look_at_table(world, subject, table)
            if subject.kept is None and subject.intrudes_on is None:
                _look_at_commits(subject, table)
        if subject.intrudes_on is None:
            look_at_topic(world, subject)
            look_at_state(subject)
        if subject.kept is None:
            look_at_stages(world, subject)
    _look_at_processes(world, ever=True)


def _look_at_table(world: World, subject: Subject, table: Table) -> None:
    seen = Counter(row["id"] for rows in table.values() for row in rows)
    foreign = sorted(seen.keys() - subject.landed())
    if foreign:
        raise Broken("rows of somebody else", f"{foreign[:10]} in the table of {subject.name}")
    twice = {row: count for row, count in seen.items() if count > 1}
    if twice and (is_half_renamed(subject) or _is_moving(world)):
        return  # a source's log is in two places, and nobody can tell what was planned twice by hand: looked at later
    allowed = {row: most(subject, unit) for unit in subject.units if twice.keys() & set(unit.ids) for row in unit.ids}
    doubled = sorted(row for row, count in twice.items() if count > allowed.get(row, 1))
    if doubled:
        raise Broken("rows doubled", f"{doubled[:10]} of {subject.name}: {_where(table, set(doubled))}")


def _is_moving(world: World) -> bool:
    """Whether a process moves a source's log, or slept while it did, and puts back what it removes then."""
    return any(process.name.startswith(("rename-source", "repair")) for process in world.processes.living())


def _look_at_commits(subject: Subject, table: Table) -> None:
    """What is committed is in the table, but for what was set aside, or what a command takes out at this moment."""
    checkpoint = subject.checkpoint()
    if checkpoint.maintenance.unfinished() is not None or subject.table_is_older:
        return
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in lane.commit_log.ids():
            commit = lane.commit_log.get(number)
            if commit is not None and not commit.set_aside and BatchKey(name, number) not in table:
                raise Broken("rows lost", f"batch {name}/{number} of {subject.name} is committed and not in the table")


def _look_at_processes(world: World, *, ever: bool) -> None:
    """Every job that runs is on record with its handle, so that anybody can stop it.

    :param ever: whether a record counts that was there once: retention may have removed it while whoever launches the
        job slept. He stops the job when he learns so. Or a person has put another checkpoint in the place of the one
        that has it, and killed the job's task, not the job: nobody can stop that one any more, and it ends by itself.
    """
    alive = {tag for tag, _ in world.cluster.alive()}
    recorded = set()
    for subject in world.subjects.values():
        attempts = subject.checkpoint().attempts
        for lane in attempts.epochs.lanes():
            for number in attempts.epochs.ids(lane):
                recorded |= {attempt.handle.get("tag") for attempt in attempts.all(BatchKey(lane, number))}
    world.recorded |= recorded
    unknown = alive - (world.recorded if ever else recorded)
    if unknown:
        raise Broken("a process without a record", f"{sorted(unknown)}")


def look_at_rest(world: World) -> None:
    """When nobody is at work any more, and one janitor has run."""
    world.touched = True
    look(world)
    _look_at_processes(world, ever=False)
    for subject in world.subjects.values():
        if subject.intrudes_on is not None:
            _look_at_leftovers(world, subject)
            continue
        _look_at_rows(world, subject)
        _look_at_unread(world, subject)
        _look_at_logs(subject)
        look_at_state_at_rest(subject)
        _look_at_retention(subject)
        _look_at_requests(world, subject)
        _look_at_leftovers(world, subject)
        look_at_replays(world, subject)
        _look_at_hooks(world, subject)
    alive = [found.process.name for _, found in world.cluster.alive()]
    if alive:
        raise Broken("a process is left", f"{alive}")


def _look_at_rows(world: World, subject: Subject) -> None:
    for table in subject.tables():
        _look_at_rows_of(world, subject, table)


def _look_at_rows_of(world: World, subject: Subject, table: Table) -> None:
    have = Counter(row["id"] for rows in table.values() for row in rows)
    for unit in subject.units:
        least, top = wanted(world, subject, unit)
        found = {have[row] for row in unit.ids}
        told = f"{unit.source} {unit.ids} of {subject.name} is there {sorted(found)} times, not {least} to {top}"
        if min(found) < least:
            raise Broken("rows lost", f"{told}; {subject.planned_in(unit)}, {list(subject.jumps.values())}")
        if max(found) > top:
            raise Broken("rows doubled", f"{told}: {_where(table, set(unit.ids))}, {list(subject.jumps.values())}")


def _look_at_unread(world: World, subject: Subject) -> None:
    """What the runs of data intervals have passed is named by ``check``, and nothing else is."""
    ends = [interval.end_ms for name, interval in world.airflow.begun if name == subject.name]
    if not ends or not subject.checkpoint().attempts.epochs.lanes():
        return
    left = [unit for unit in subject.units if unit.at_ms < max(ends) and not subject.is_planned(unit)]
    passed = Counter(subject.named(unit.source) for unit in left if subject.options.plan == "interval")
    findings = "; ".join(finding.message for finding in find_unread(subject.checkpoint()))
    named = {name: int(count) for count, name in re.findall(r"(\d+) files of source '([^']+)'", findings)}
    if named != passed:
        raise Broken("check does not name what nobody read", f"{dict(passed)} of {subject.name}: {findings or None}")


def _look_at_retention(subject: Subject) -> None:
    """Where nobody is left to do anything, a lane keeps as many batches as its newest attempt said, and no more."""
    checkpoint = subject.checkpoint()
    for name in checkpoint.lanes():
        kept, ids = retained(checkpoint, name), checkpoint.lane(name).commit_log.ids()
        if kept is not None and len(ids) > kept and not checkpoint.leases.unfinished(name):
            raise Broken("retention stands still", f"lane {name} of {subject.name} keeps {ids}, not {kept}")


def _look_at_logs(subject: Subject) -> None:
    checkpoint = subject.checkpoint()
    findings = verify_all(checkpoint)
    if findings:
        raise Broken("check finds something wrong", "; ".join(finding.message for finding in findings))
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        if lane.offset_log.ids() != lane.commit_log.ids():
            raise Broken("a batch is not committed", f"lane {name}: {lane.offset_log.ids()} {lane.commit_log.ids()}")
        aside = [n for n in lane.commit_log.ids() if is_aside(checkpoint, BatchKey(name, n), lane.commit_log.get(n))]
        if aside:
            raise Broken("a batch stays set aside", f"{aside} of lane {name}, though it was cleared")


def _look_at_requests(world: World, subject: Subject) -> None:
    """Every replay that somebody asked for is answered, unless its run was deleted."""
    checkpoint = subject.checkpoint()
    there = [run.identity() for run in world.airflow.runs if run.subject is subject]
    for name in checkpoint.replays.epochs.lanes():
        for number in checkpoint.replays.epochs.ids(name):
            for request in checkpoint.replays.pending(BatchKey(name, number)):
                if request.run is None or any(run.is_of(request.run) for run in there):
                    raise Broken("a replay has no answer", f"batch {name}/{number} of {subject.name}: {request.run}")


def _look_at_leftovers(world: World, subject: Subject) -> None:
    stages = stages_of(subject.pipeline().sink, subject.checkpoint())
    if stages:
        raise Broken("a stage without an owner", f"{stages} of {subject.name}")
    checkpoint = subject.checkpoint()
    unfinished = [
        (key, epoch)
        for key, epoch in checkpoint.leases.unfinished()
        # An attempt whose sink nobody trusts stays: nobody can tell whether it is published.
        if (attempt := checkpoint.attempts.get(key, epoch)) is None or attempt.handle.get("host") != HOSTILE
    ]
    if unfinished:
        raise Broken("an attempt that nobody has finished", f"{unfinished} of {subject.name}")


def look_at_replays(world: World, subject: Subject) -> None:
    """What a cleared run has made is of the code that it was cleared for."""
    checkpoint, tables = subject.checkpoint(), subject.tables()
    for run in world.airflow.runs:
        if run.subject is not subject or run.state != SUCCESS or not run.wanted:
            continue
        for key, before in _records(checkpoint):
            # What it came across after its clear was another run's to make.
            if run.identity().relation_to(before) is Relation.LATER:
                old = [row for table in tables for row in table.get(key, []) if row["version"] < run.wanted]
                if old:
                    told = f"{key}: code {old[0]['version']}, {run.name} wants {run.wanted}"
                    raise Broken("a clear did not replay", told)


def _records(checkpoint: Checkpoint) -> Iterator[tuple[BatchKey, RunIdentity]]:
    """Batches, and whose they are by their entries."""
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in lane.offset_log.ids():
            for entry in (lane.offset_log.get(number), lane.commit_log.get(number)):
                if entry is not None and entry.run is not None:
                    yield BatchKey(name, number), entry.run


def _look_at_hooks(world: World, subject: Subject) -> None:
    attempts = subject.checkpoint().attempts
    for lane in attempts.epochs.lanes():
        for number in attempts.epochs.ids(lane):
            key = BatchKey(lane, number)
            for attempt in attempts.all(key):
                end = attempts.ended(key, attempt.epoch)
                if not attempt.code or attempt.definition is None or end is None:
                    continue
                told = world.told.get((subject.name, key, attempt.epoch, True), [])
                if any(told.count(f"{hook} created") > 1 for hook in HOOKS):
                    raise Broken("a hook was told twice", f"{key} attempt {attempt.epoch}: {told}")
                for index, hook in enumerate(HOOKS):
                    status = "finished" if f"{hook} finished" in told else _STATUS[end.state]
                    if f"{hook} {status}" not in told:
                        _look_at_given_up(subject, attempt, index, told=f"{hook} {end.state}: {told}")


def _look_at_given_up(subject: Subject, attempt: Attempt, index: int, *, told: str) -> None:
    """A hook that was not told how an attempt ended has failed nine times, and that is on record."""
    key, epoch, hook = attempt.key, attempt.epoch, f"{Told.__module__}:{Told.__qualname__}"
    found = [one for one in subject.checkpoint().deliveries.given_up(key) if one.epoch == epoch and hook in one.hook]
    mine = [one.tries for one in found if one.where.rpartition("/")[2].startswith(f"{index}.")]
    if not mine:
        raise Broken("a hook was not told", f"{key} attempt {epoch} {told}")
    if mine != [CALLS]:
        raise Broken("a hook is given up at another call than promised", f"{key} attempt {epoch} {told}: {mine}")


def _where(table: Table, rows: set[int]) -> str:
    batches = {str(key): sorted(row["id"] for row in found) for key, found in table.items()}
    return "; ".join(f"{key}: {ids}" for key, ids in sorted(batches.items()) if rows & set(ids))
