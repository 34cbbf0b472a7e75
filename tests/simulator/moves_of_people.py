"""Moves that no crash makes: options that change, data that is written again, commands, poison, hooks that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from tests.simulator.airflow import SUCCESS
from tests.simulator.commands import (
    COMMANDS,
    GIVE_UP,
    REPAIR,
    command,
    is_half_renamed,
    is_renamed,
    rename,
    rewind,
    set_offset,
)
from tests.simulator.engine import NAME
from tests.simulator.expected import REREAD, SKIP, most
from tests.simulator.moves import move
from tests.simulator.processes import FROZEN
from tests.simulator.promises import HOSTILE, TRAP, look_at_replays
from tests.simulator.subject import HOOKS, LEASE_SECONDS, Options, Subject, Unit
from tests.support.whose import stages_of

if TYPE_CHECKING:
    from tests.simulator.world import World


def _subject(world: World) -> Subject:
    return world.random.choice(list(world.subjects.values()))


def _may_be_exchanged(world: World, subject: Subject) -> bool:
    """Whether a plan of another checkpoint, or pipeline, would find the place of its batch taken."""
    checkpoint = subject.checkpoint()
    return (
        subject.kept is None
        and not subject.is_away
        and subject.intrudes_on is None
        and subject.options.plan == "live"
        and subject.renamed is None
        and subject.removed is None
        and subject.moves_to is None
        and not subject.table_is_older
        and not any(run.interval for run in world.airflow.runs)
        and checkpoint.maintenance.unfinished() is None
        and not any(process.name.startswith(COMMANDS) for process in world.processes.living())
    )


@move("poison", weight=2)
def poison(world: World) -> str | None:
    """The transform cannot take a row that has landed."""
    if not world.rows:
        return None
    row = world.random.randrange(max(0, world.rows - 3), world.rows)
    world.cluster.poison.add(row)
    return f"the transform fails at row {row}"


@move("the transform is mended", weight=2, always=True)
def mended(world: World) -> str | None:
    if not world.cluster.poison:
        return None
    world.cluster.poison.clear()
    return "the transform is mended"


@move("hooks fail", weight=2)
def hooks_fail(world: World) -> str | None:
    world.hooks_fail = True
    return "job status hooks fail from now on"


@move("hooks work again", weight=4, always=True)
def hooks_work(world: World) -> str | None:
    if not world.hooks_fail:
        return None
    world.hooks_fail = False
    return "job status hooks work again"


@move("a hook fails for good", weight=1)
def hook_fails_for_good(world: World) -> str | None:
    """Whenever it is told of an end: it is given up at some time."""
    hook = world.random.choice(HOOKS)
    if hook in world.deaf_hooks:
        return None
    world.deaf_hooks.add(hook)
    return f"hook {hook!r} fails for good"


@move("an option changes", weight=3)
def option_changes(world: World) -> str | None:
    subject = _subject(world)
    name, values = world.random.choice(
        [
            ("limit", [None, 1, 2]),
            ("on_failure", ["fail", "set_aside"]),
            ("retained", [None, 2, 4]),
        ]
    )
    value = world.random.choice(values)
    if name == "retained" and value is not None and subject.table_is_older:
        return None  # of what the table has lost nothing would be left to run it again by
    setattr(subject.options, name, value)
    return f"{subject.name} has {name}={value} from now on"


@move("clean_source is switched", weight=3)
def clean_source_switched(world: World) -> str | None:
    """On or off, or to another archive: one without the other."""
    subject = _subject(world)
    if world.random.random() < 0.6:
        subject.options.cleans = not subject.options.cleans
        return f"{subject.name} {'archives' if subject.options.cleans else 'leaves'} what it has read from now on"
    subject.options.archive = world.random.choice(["archive", "archive-2", "archive-3"])
    return f"{subject.name} archives, if it does, to {subject.options.archive} from now on"


@move("a unit is written again", weight=2)
def rewritten(world: World) -> str | None:
    subject = _subject(world)
    if not subject.units or is_half_renamed(subject):
        return None  # its log is in two places, and nobody can tell what is planned
    unit = world.random.choice(subject.units)
    if unit.changed or not subject.is_planned(unit):
        return None
    if not subject.system.rewrite(unit.source, unit.ids, at_ms=world.now_ms):
        return None
    unit.changed = True
    return f"{unit.source} {unit.ids} of {subject.name} is written again"


@move("a unit is restored", weight=3, always=True)
def restored(world: World) -> str | None:
    changed = [(subject, unit) for subject in world.subjects.values() for unit in subject.units if unit.changed]
    if not changed:
        return None
    subject, unit = world.random.choice(changed)
    if unit.grown and not nobody_has_read(world, subject):
        return None
    put_right(subject, unit)
    return f"{unit.source} {unit.ids} of {subject.name} is restored"


def put_right(subject: Subject, unit: Unit) -> None:
    """As it was landed."""
    subject.system.restore(unit.source, unit.ids, at_ms=unit.at_ms)
    unit.changed = unit.grown = False


@move("a unit grows", weight=3)
def grows(world: World) -> str | None:
    """Whoever wrote it was not done, and goes on while it is read."""
    subject = _subject(world)
    if is_half_renamed(subject) or subject.kept is not None or subject.moves_to is not None:
        return None
    units = [unit for unit in subject.units if not unit.changed and unit.shown_ms is not None]
    planned = [unit for unit in units if subject.is_planned(unit)]
    if not planned:
        return None
    unit = planned[-1] if world.random.random() < 0.7 else world.random.choice(planned)
    if not subject.system.grow(unit.source, unit.ids, -1 - unit.ids[0]):
        return None
    unit.changed = unit.grown = True
    return f"{unit.source} {unit.ids} of {subject.name} grows"


def nobody_has_read(world: World, subject: Subject) -> bool:
    """Whether nobody has read what has grown, or all who have were refused: put back to the byte and to the
    millisecond, it would be taken for what it was all the time."""
    return not world.processes.living() and not stages_of(subject.pipeline().sink, subject.checkpoint())


@move("set-offset", weight=14)
def sets_offset(world: World) -> str | None:
    subject = _subject(world)
    if subject.kept is not None or len(world.subjects) > 1 or subject.options.plan != "live":
        return None
    if subject.removed is not None:
        return None
    if is_half_renamed(subject):
        return None  # its log is in two places, and nobody can tell what is planned
    landing, planned = world.random.choice(subject.landings), [subject.planned_in(unit) for unit in subject.units]
    places = sorted({one[1] for one in planned if one is not None})
    checkpoint = subject.checkpoint()
    if not places or checkpoint.offset_log.latest_id() != checkpoint.commit_log.latest_id():
        return None  # while a batch is planned it is refused
    allowed = world.random.choice([(SKIP, REREAD), (SKIP, REREAD), (SKIP,), (REREAD,)])
    subject.sets_offsets = True
    given = set_offset(subject.named(landing), subject.system.offset(world.random.choice([-1, *places])), allowed)
    before = _as_advised(world)
    command(world, subject, given)
    return f"{before}{given.name} of {subject.name} begins"


@move("a source is renamed", weight=2)
def renamed(world: World) -> str | None:
    """In the DAG file, or first in the checkpoint: until both know, nothing is read twice."""
    subject = next(iter(world.subjects.values()))
    if subject.renamed is not None or subject.kept is not None or len(world.subjects) > 1:
        return None
    if subject.removed is not None:
        return None
    # What has read nothing is a new source under any name.
    read = sorted({unit.source for unit in subject.units if subject.is_planned(unit)})
    if not read:
        return None
    landing = world.random.choice(read)
    old, subject.renamed = subject.named(landing), landing
    subject.names[landing].append(f"{landing}-{len(subject.names[landing])}")
    subject.dag_lags = world.random.random() < 0.5
    if subject.dag_lags:
        command(world, subject, rename(subject))
    where = "checkpoint" if subject.dag_lags else "DAG file"
    return f"the {where} of {subject.name} is to call source {old} {subject.names[landing][-1]}"


@move("rename-source", weight=5, always=True)
def renames(world: World) -> str | None:
    """The other half of it, or the same command again."""
    subject = next(iter(world.subjects.values()))
    if subject.renamed is None or subject.kept is not None:
        return None
    if not is_renamed(subject):
        command(world, subject, rename(subject))
        return f"rename-source of {subject.name} begins"
    subject.dag_lags, subject.renamed = False, None
    return f"DAG file and checkpoint of {subject.name} agree on {', '.join(subject.sources)}"


@move("a rename-source is given up", weight=3, always=True)
def gives_up(world: World) -> str | None:
    """It was killed half way; or it only sleeps, and whoever gives it up takes it for dead."""
    subject = next(iter(world.subjects.values()))
    if subject.checkpoint().maintenance.unfinished() is not None or is_renamed(subject):
        return None
    if subject.renamed is None and renamed(world) is None:
        return None
    for process in world.processes.living():
        world.processes.kill(process)
    world.now_ms += 2 * round(LEASE_SECONDS * 1000)
    process = command(world, subject, rename(subject))
    left = None
    while left != 0 and (threads := world.processes.ready(process)):
        world.processes.go_on(threads[0])
        if is_half_renamed(subject):
            left = world.random.randrange(1, 60) if left is None else left - 1
    if process.gone or left is None:
        return f"the rename-source of {subject.name} ends"
    dies = world.random.random() < 0.7
    if dies:
        world.processes.kill(process)
    else:
        process.state = FROZEN
    world.now_ms += 2 * round(LEASE_SECONDS * 1000)
    command(world, subject, GIVE_UP)
    return f"the rename-source of {subject.name} {'dies' if dies else 'freezes'} half way, and is given up"


@move("a source is removed", weight=8)
def removed(world: World) -> str | None:
    """From the DAG file, while batches that have its rows are replayed, set aside, or on their way."""
    subject = _subject(world)
    may_be = subject.format == "v2" and subject.options.plan == "live" and len(subject.landings) > 1
    if not may_be or subject.removed is not None or subject.renamed is not None or subject.kept is not None:
        return None
    if any(run.interval for run in world.airflow.runs):
        return None  # an interval that is over without the source has to be run again for it
    subject.removed = world.random.choice(subject.landings)
    told = f"the DAG file of {subject.name} names {subject.named(subject.removed)} no more"
    over = [run for run in world.airflow.runs if run.subject is subject and run.state == SUCCESS]
    if not over or world.random.random() < 0.3:
        return told
    # Whoever changes a DAG file has the past made again by it.
    cleared = world.random.choice(over)
    world.airflow.clear(cleared)
    return f"{told}; {cleared.name} is cleared, for code {cleared.wanted}"


@move("a source is back", weight=1, always=True)
def is_back(world: World) -> str | None:
    subject = _subject(world)
    if subject.removed is None:
        return None
    name, subject.removed = subject.named(subject.removed), None
    return f"the DAG file of {subject.name} names {name} again"


@move("repair", weight=2)
def repairs(world: World) -> str | None:
    subject = _subject(world)
    if subject.kept is not None:
        return None
    command(world, subject, REPAIR)
    return f"repair of {subject.name} begins"


@move("rewind", weight=14)
def rewinds(world: World) -> str | None:
    subject = _subject(world)
    if subject.kept is not None or len(world.subjects) > 1:
        return None
    log = subject.checkpoint()
    ids = log.commit_log.ids()
    if len(ids) < 2:
        return None
    # Also to the oldest that retention kept, and to before all: refused where no log goes on from there. Not to before
    # a table that was taken over: its place would have to be said again, by start-behind, as the next run's error says.
    lowest = max((number for number in ids if is_position(log.offset_log.get(number))), default=-1)
    to = world.random.choice([-1, *ids] if not subject.before else [number for number in ids if number >= lowest])
    before = _as_advised(world)
    command(world, subject, rewind(to))
    return f"{before}rewind of {subject.name} to {to} begins"


@move("rewind of a backfill", weight=8)
def rewinds_backfill(world: World) -> str | None:
    """All that it has read is read again by whoever runs its data interval next."""
    subject = _subject(world)
    if subject.kept is not None or len(world.subjects) > 1:
        return None
    checkpoint = subject.checkpoint()
    lanes = [lane for lane in checkpoint.lanes() if lane != LIVE and checkpoint.lane(lane).offset_log.ids()]
    if not lanes:
        return None
    lane = world.random.choice(lanes)
    before = _as_advised(world)
    command(world, subject, rewind(-1, lane=lane))
    return f"{before}rewind of lane {lane} of {subject.name} begins"


def _as_advised(world: World) -> str:
    """Half of the people do what a command asks for: they pause the DAG, and wait until nobody is alive at a batch."""
    if world.random.random() < 0.5:
        return ""
    for process in world.processes.living():
        world.processes.kill(process)
    world.now_ms += 2 * round(LEASE_SECONDS * 1000)
    return "nobody is alive any more: "


def _pause(world: World) -> None:
    """Nobody is at the checkpoint while a person exchanges it: the DAG is paused, its tasks are killed."""
    jobs = {found.process for _, found in world.cluster.alive()}
    for process in world.processes.living():
        if process not in jobs:
            world.processes.kill(process)


@move("a backup is taken", weight=2)
def backed_up(world: World) -> str | None:
    subject = _subject(world)
    if subject.kept is not None or subject.moves_to is not None:
        return None
    subject.backup = world.disk.below(subject.folder)
    subject.backup_told = {attempt: list(told) for attempt, told in world.told.items()}
    return f"a backup of the checkpoint of {subject.name} is taken"


@move("another checkpoint on a kept table", weight=8)
def exchanged(world: World) -> str | None:
    """A new one, or a backup that is older than the table."""
    from tests.simulator.moves_of_topics import is_well

    subject = _subject(world)
    if not _may_be_exchanged(world, subject) or not is_well(world, subject):
        return None  # a topic without marks tells nobody that it is another's
    newest = subject.checkpoint().commit_log.latest_id()
    other = world.random.choice([{}, subject.backup])
    planned = max((int(path.rpartition("/")[2]) for path in other if _is_offset(subject, path)), default=-1)
    if newest is None or newest <= planned or BatchKey("live", planned + 1) not in subject.table():
        return None
    _pause(world)
    subject.repeats = {row: most(subject, unit) for unit in subject.units for row in unit.ids}
    look_at_replays(world, subject)
    for run in world.airflow.runs:
        if run.subject is subject and run.state == SUCCESS:
            run.wanted = 0  # an older one names batches of its runs that were taken out, and made by others, since
    subject.put_in_place(other)
    return f"{subject.name} has {'an older' if other else 'a new'} checkpoint, its table has batches up to {newest}"


def _is_offset(subject: Subject, path: str) -> bool:
    return path.removeprefix(f"{subject.folder}offsets/").isdecimal()


@move("the checkpoint is put back", weight=4, always=True)
def put_back(world: World) -> str | None:
    kept = [subject for subject in world.subjects.values() if subject.kept is not None]
    if not kept:
        return None
    subject = world.random.choice(kept)
    _pause(world)
    look_at_replays(world, subject)
    subject.put_in_place(None)
    for run in world.airflow.runs:
        if run.subject is subject and run.state == SUCCESS and run.ended_elsewhere:
            world.airflow.clear(run)  # its own checkpoint knows nothing of what it did
    return f"{subject.name} has its own checkpoint again"


@move("another pipeline on the table", weight=2)
def intrudes(world: World) -> str | None:
    subject = next(iter(world.subjects.values()))
    from tests.simulator.moves_of_topics import is_well

    if len(world.subjects) > 1 or not _may_be_exchanged(world, subject) or not is_well(world, subject):
        return None  # a topic without marks tells nobody that it is another's
    if BatchKey("live", 0) not in subject.table():
        return None
    options = Options(limit=1)
    world.add(
        Subject(world, "intruder", sources=("refunds",), options=options, format="v2", intrudes_on=subject)
    )  # fmt: skip
    return f"a pipeline 'intruder' is deployed, on the table of {subject.name}"


@move("a hostile attempt", weight=2)
def hostile(world: World) -> str | None:
    """Who can write a checkpoint, as user code can, names code of his own and a handle that is none."""
    subject = _subject(world)
    checkpoint = subject.checkpoint()
    number = checkpoint.offset_log.latest_id()
    if number is None or subject.kept is not None or subject.moves_to is not None:
        return None
    trap = {"class": f"{TRAP}:Trap", "version": 1, "arguments": {}}
    definition = {"class": f"{TRAP}:Trap", "version": 1, "arguments": {"sink": trap, "sources": {}, "hooks": [trap]}}
    key = BatchKey("live", number)
    taken = Attempt(
        key=key,
        epoch=checkpoint.attempts.latest_epoch(key) + 1,
        handle={"engine": NAME, "host": HOSTILE, "tag": "/"},
        run=None,
        code={},
        started_ms=world.now_ms,
        definition=checkpoint.definitions.put(definition),
    )
    checkpoint.attempts.take_exactly(taken)
    checkpoint.leases.begin(key, taken.epoch, seconds=LEASE_SECONDS)
    return f"user code of {subject.name} writes attempt {taken.epoch} of {key}, which names code of its own"
