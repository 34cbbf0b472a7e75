"""How often each row has to be in the table: once, but for what a person has set by hand and what comes too late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.codec import OURS
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.sources.intervals import Interval
from tests.simulator.subject import Jump, Subject, Unit
from tests.simulator.world import Broken

if TYPE_CHECKING:
    from tests.simulator.world import World

SET_OFFSET = "set-offset"
SKIP, REREAD = "--allow-skip", "--allow-reread"


def note_jumps(subject: Subject) -> None:
    """Take down which positions are set by hand now. What retention removed stays; what was rewound goes.

    :raises Broken: if one is set that nobody has allowed.
    """
    if not subject.sets_offsets or subject.kept is not None:
        return
    log = subject.checkpoint().offset_log
    ids = log.ids()
    for number in [number for number in subject.jumps if not ids or number >= ids[0]]:
        del subject.jumps[number]
    for number in ids:
        entry = log.get(number)
        command = "" if entry is None else str(_by_hand(entry).get("command", ""))
        if entry is None or not command.startswith(SET_OFFSET):
            continue
        jump = subject.jumps[number] = _jump(subject, entry)
        if (SKIP if jump.to > jump.before else REREAD) not in command:
            raise Broken("a position is set that nobody has allowed", f"batch {number} of {subject.name}: {command}")


def _by_hand(entry: OffsetEntry) -> Mapping[str, Any]:
    found: Mapping[str, Any] = entry.extra.get(OURS, {}).get("by_hand", {})
    return found


def _jump(subject: Subject, entry: OffsetEntry) -> Jump:
    place = subject.system.place
    changed = {name: end for name, end in entry.ends.items() if end != entry.starts.get(name)}
    ((name, end),) = changed.items()
    (landing,) = (landing for landing, names in subject.names.items() if name in names)
    return Jump(source=landing, before=place(entry.starts.get(name)), to=place(end))


def most(subject: Subject, unit: Unit) -> int:
    """How often the unit's rows may be in the table at this moment."""
    if subject.kept is not None:
        return subject.repeats.get(unit.ids[0], 1)
    return 1 + _before(subject, unit) + len(_across(subject, unit, back=True))


def wanted(world: World, subject: Subject, unit: Unit) -> tuple[int, int]:
    """How often the unit's rows have to be in the table when nothing is left to do: at least, and at most.

    The live position ends behind every unit that it has planned. So a unit is read once, once more for each time that
    the position was set from behind it to before it, and once less for each time that it was set the other way.
    """
    if subject.options.plan == "interval" and _may_be_late(world, subject, unit):
        return 0, 1
    times = 1 + _before(subject, unit)
    times += len(_across(subject, unit, back=True)) - len(_across(subject, unit, back=False))
    return times, times


def _before(subject: Subject, unit: Unit) -> int:
    """How often a checkpoint of before had published the unit, beside what this one counts as its own."""
    return subject.before.get(unit.ids[0], 0)


def _across(subject: Subject, unit: Unit, *, back: bool) -> list[Jump]:
    if not subject.jumps:
        return []
    lane, place = subject.planned_in(unit) or ("", -1)
    if lane != LIVE:
        return []
    jumps = [jump for jump in subject.jumps.values() if jump.source == unit.source]
    if back:
        return [jump for jump in jumps if jump.to < place <= jump.before]
    return [jump for jump in jumps if jump.before < place <= jump.to]


def _may_be_late(world: World, subject: Subject, unit: Unit) -> bool:
    """Whether every run that would read the unit may have looked before a listing showed it. The first is that of its
    own interval. After that was there, each whose ``lookback`` reaches the unit is one."""
    shown, begun, had = unit.shown_ms or 0, world.airflow.begun, world.airflow.had
    for interval in sorted({one for name, one in begun if name == subject.name}, key=lambda one: one.start_ms):
        looked = begun[subject.name, interval]
        if interval.start_ms <= unit.at_ms < interval.end_ms and looked > shown:
            return False
        own = [one for one in begun if one[0] == subject.name and _holds(one[1], unit)]
        after = max([shown, *(had.get(one, looked) for one in own)])
        if not own:
            continue  # a run may be on its way to it, for all that the others know
        lookback_ms = 1000 * (subject.options.lookback or 0)
        if interval.start_ms - lookback_ms <= unit.at_ms < interval.start_ms and looked > after:
            return False
    return True


def _holds(interval: Interval, unit: Unit) -> bool:
    return interval.start_ms <= unit.at_ms < interval.end_ms
