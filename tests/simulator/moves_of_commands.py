"""Moves of a person who has a checkpoint go on elsewhere, or from another one: start-behind, adopt, export, import; and
who adds a source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from tests.simulator.commands import (
    add_source,
    adopt,
    command,
    export,
    import_,
    rewind,
    start_behind,
    typed_until_it_ends,
)
from tests.simulator.disk import Entry
from tests.simulator.expected import most
from tests.simulator.moves import move
from tests.simulator.moves_of_restores import (
    forget_clears,
    missing_in_table,
    names_a_trap,
    put_sources_right,
    stop_everybody,
    told_of,
    whole,
)
from tests.simulator.moves_of_topics import is_well
from tests.simulator.processes import Process
from tests.simulator.subject import Subject
from tests.simulator.systems import FilesIntoTopic
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.world import World

_ADDED = 2
"""So many sources are added at most."""


@move("export, and import of that", weight=4)
def exported(world: World) -> str | None:
    """Both may be killed, and are typed again. The pipeline goes on from the copy of the copy. Leases are no part of
    it: a janitor has ended first what was left unfinished."""
    from tests.simulator.rest import finish, janitor

    subject = whole(world)
    if subject is None:
        return None
    stop_everybody(world)
    janitor(world, subject)
    finish(world)
    if subject.checkpoint().leases.unfinished():
        return f"hooks of {subject.name} have yet to be told"
    world.moves += 1
    there, here = f"exported-{world.moves}/", f"{subject.name}-{world.moves}/"
    said = typed_until_it_ends(world, subject, export(there))
    if _is_refused(said):
        return f"the export of {subject.name} is {said.result}"
    said = typed_until_it_ends(world, subject, import_(subject, there, at=here))
    if _is_refused(said):
        raise Broken("an export cannot be imported", f"{said.result}")
    subject.folder, subject.backup, subject.saved = here, {}, None
    world.touched = True
    return f"{subject.name} goes on at {here}, which is imported from its export"


def _is_refused(said: Process) -> bool:
    """Killed after its last step and typed again, it is refused, too: because it is done, as it says."""
    told = str(said.result)
    return told.startswith("refused") and "was done there to its end" not in told


@move("start-behind", weight=8)
def starts_behind(world: World) -> str | None:
    """The checkpoint is lost. A new one, or a backup, takes over the table that is kept, and counts on behind all that
    is there: what that was made of is read again."""
    subject = whole(world)
    if subject is None or not _has_all_units(subject) or _is_in_trouble(world, subject):
        return None
    newest = subject.checkpoint().commit_log.latest_id()
    if newest is None or BatchKey(LIVE, newest) not in subject.table():
        return None
    stop_everybody(world)
    world.broker.settle()
    put_sources_right(subject)
    others: list[dict[str, Entry]] = [{}]
    if not (subject.sets_offsets or subject.before or any(len(names) > 1 for names in subject.names.values())):
        is_behind = _plans_nothing(subject, subject.backup) and _is_in_table(subject, subject.backup)
        others += [subject.backup] if is_behind else []
    subject.put_in_place(world.random.choice(others))
    subject.kept = None  # it is gone for good
    other = subject.checkpoint().commit_log.latest_id()
    times = Counter(row["id"] for rows in subject.table().values() for row in rows)
    subject.before = {row: max(0, times[row] - subject.is_planned(unit)) for unit in subject.units for row in unit.ids}
    world.told = {} if other is None else {attempt: list(told) for attempt, told in subject.backup_told.items()}
    subject.backup, subject.saved, subject.jumps = {}, None, {}
    subject.runs_of.clear()
    forget_clears(world, subject)
    world.touched, world.lost_answer = True, None
    _one_run(world, subject)  # it is refused, and the checkpoint is the pipeline's by then
    said = typed_until_it_ends(world, subject, start_behind())
    if str(said.result).startswith("refused"):
        raise Broken("a checkpoint cannot count on behind a table", f"{said.result}")
    return f"{subject.name} has a checkpoint up to {other}, which starts behind {newest}: {said.result}"


def _plans_nothing(subject: Subject, entries: Mapping[str, Entry]) -> bool:
    """Whether all batches in the backup are committed, and there are some."""
    offsets, commits = (
        {path.rpartition("/")[2] for path in entries if re.fullmatch(rf"{subject.folder}{log}/\d+", path)}
        for log in ("offsets", "commits")
    )
    return bool(commits) and offsets == commits


def _is_in_table(subject: Subject, backup: dict[str, Entry]) -> bool:
    """Whether the table has what the backup has committed. What was rewound since is there by another plan, if at all:
    no run goes on behind that, and each names the rewind that takes it out. To count on behind the table is no way on
    there."""
    subject.put_in_place(backup)
    missing = missing_in_table(subject)
    subject.put_in_place(None)
    return not missing


def _has_all_units(subject: Subject) -> bool:
    """Whether no source has given up what it had: the new checkpoint reads all."""
    there = sum(len(subject.system.not_given_up(landing)) for landing in subject.landings)
    return not subject.options.cleans and there == len(subject.units)


@move("adopt", weight=6)
def adopts(world: World) -> str | None:
    """A batch is planned, and a copy of the checkpoint has planned and published it, too, of the same data or more.
    The copy is lost. Of the same data the published one counts; of more it is refused, and taken out. Typed as a run
    says it that was refused: until then nobody knows a source that no attempt has read before."""
    subject = whole(world)
    if subject is None or not _has_all_units(subject) or _is_in_trouble(world, subject) or names_a_trap(world, subject):
        return None
    stop_everybody(world)
    put_sources_right(subject)
    newest = subject.checkpoint().commit_log.latest_id()
    if newest is None or subject.checkpoint().offset_log.latest_id() != newest:
        return None
    subject.land(subject.landings[0], 1)
    before, told, runs = world.disk.below(subject.folder), told_of(world), list(world.airflow.runs)
    run = world.airflow.new_run(subject)
    world.airflow.begin_task(run)
    try:
        planned = subject.execution().plan(run.identity())
    except MicroBatchError as error:
        return f"nothing is planned: {error}"
    assert planned is not None, "something has landed"
    has_more = world.random.random() < 0.4 and not isinstance(subject.system, FilesIntoTopic)
    if has_more:
        subject.land(subject.landings[0], 1)
    subject.repeats = {row: most(subject, unit) for unit in subject.units for row in unit.ids}
    subject.put_in_place(before)
    _one_run(world, subject)
    stop_everybody(world)
    subject.put_in_place(None)
    world.told, world.airflow.runs[:] = told, [*runs, run]
    forget_clears(world, subject)
    world.touched = True
    if planned.key not in subject.table():
        return f"{planned.key} is planned twice, and published by nobody"
    world.lost_answer = None
    _one_run(world, subject)
    stop_everybody(world)
    said = typed_until_it_ends(world, subject, adopt(planned.key))
    if not has_more and str(said.result).startswith("refused"):
        raise Broken("what was made of the same data cannot be adopted", f"{planned.key}: {said.result}")
    if has_more:
        said = typed_until_it_ends(world, subject, rewind(planned.key.id - 1))
    return f"{planned.key} is planned twice, published by a copy that is lost, and {said.name}: {said.result}"


def _is_in_trouble(world: World, subject: Subject) -> bool:
    return bool(world.disk.trouble or world.cluster.unreachable or not is_well(world, subject) or world.full)


@move("a source is added", weight=3)
def source_added(world: World) -> str | None:
    """To the DAG file, beside all others, or where another has vanished from it: then runs stop until a person
    says that the one is not the other under a new name."""
    subject = whole(world, without=True)
    if subject is None or subject.format != "v2" or len(subject.landings) > 2 + _ADDED:
        return None
    landing = f"refunds_{len(subject.landings)}"
    subject.add_source(landing)
    unit = subject.land(landing, world.random.randint(1, 3))
    return f"the DAG file of {subject.name} names {landing} too, which has {unit.ids}"


@move("add-source", weight=6)
def source_is_new(world: World) -> str | None:
    subject = whole(world, without=True)
    if subject is None:
        return None
    known = subject.checkpoint().read_names()
    added = [one for one in subject.landings if one.startswith("refunds_") and one not in known]
    if not added:
        return None
    given = add_source(world.random.choice(added))
    command(world, subject, given)
    return f"{given.name} of {subject.name} begins"


def _one_run(world: World, subject: Subject) -> str:
    """A run that is tried once. How it ends."""
    from tests.simulator.rest import finish

    run = world.airflow.new_run(subject)
    world.airflow.begin_try(run)
    finish(world)
    return run.state
