"""Say of a source's name that it is the new one of a source that there was, or that of a source that is really new."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import check_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.source_names import BEGUN, NEW, RENAMED
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError
from airflow_provider_microbatch.upkeep.commands.copying import files_below
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.steps import Move


def plan_rename_source(drafting: Drafting, *, old: str, new: str) -> Plan:
    """The plan after which source ``old`` is called ``new``, in all lanes: its position, log and state are the same.

    :raises MaintenanceError: if there is no ``old``, or ``new`` is a source of its own.
    """
    for name in (old, new):
        check_name(name, what="source")
    checkpoint, store = drafting.checkpoint, drafting.store
    check_not_half_renamed(checkpoint)
    identity, names = checkpoint.identity(), checkpoint.names
    if identity is None:
        raise MaintenanceError(f"{checkpoint.location} belongs to no pipeline yet: there is no source to rename.")
    if (old, new) in names.renames()[-1:]:
        return drafting.plan()
    known = _known(drafting)
    if old not in known:
        raise MaintenanceError(f"{checkpoint.location} has no source {old!r}; it has {', '.join(sorted(known))}.")
    if known.get(new):
        raise MaintenanceError(
            f"{checkpoint.location} has a source {new!r} that has read something: two positions cannot be made one. "
            f"If it is the same and what it has read is doubled, `microbatch rewind` takes that out first."
        )
    number = max(numbers(store.list(RENAMED)), default=-1) + 1
    record = encode_record({"old": old, "new": new, **drafting.trail})
    begun = f"{RENAMED}/{number}{BEGUN}"
    # First: given up half way, what was moved would be taken for a source that has been read under the new name.
    drafting.write(begun, record, f"until it is done no run begins, neither under {old!r} nor under {new!r}")
    for folder in ("microbatch/sources", *(["sources"] if identity.format == "v2" else [])):
        _move(drafting, f"{folder}/{old}", f"{folder}/{new}")
    # Last: before it everybody sees the old name.
    why = f"source {old!r} is called {new!r} from now on, in older entries too"
    drafting.write(f"{RENAMED}/{number}", record, why, after=begun)
    drafting.note(f"the pipeline has to name it {new!r} from now on.")
    return drafting.plan()


def check_not_half_renamed(checkpoint: Checkpoint) -> None:
    """What reads the sources' own logs, or plans from them, would take those of a source that lies under two names for
    damaged, or for another one's.

    :raises MaintenanceError: naming the way on, if a rename was given up half way.
    """
    half = checkpoint.names.half()
    if half is not None:
        raise MaintenanceError(f"{half.message(checkpoint.location)} Nothing was done.")


def take_back_half_rename(drafting: Drafting) -> None:
    """Plan that a rename that was given up half way is as if it was never begun: its files go back where they were."""
    half = None
    with suppress(CorruptEntryError):  # its names are known to nobody then; `verify_all` tells it
        half = drafting.checkpoint.names.half()
    if half is None:
        return
    folders = [] if _has_read(drafting.checkpoint, half.new) else ["microbatch/sources", "sources"]
    for folder in folders:
        other = _differs(drafting, f"{folder}/{half.new}", f"{folder}/{half.old}")
        if other is not None:
            path, target = other
            drafting.problem(
                f"{drafting.store.location}/{half.path}",
                f"{half.message(drafting.store.location)} But {path} and {target} differ, and one of them is source "
                f"{half.old!r}'s.",
                "Look which of the two is, move the other one out of the checkpoint, and repair again.",
            )
            return
    for folder in folders:
        _move(drafting, f"{folder}/{half.new}", f"{folder}/{half.old}")
    # Last: killed before it, the next repair goes on.
    drafting.set_aside(half.path, f"source {half.old!r} is not called {half.new!r}: that was given up")


def _has_read(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a batch has read of a source of that name. Nothing is renamed to one: so its files are its own, and what
    says that a rename was begun came late, of a process that slept until that was given up, and died."""
    newest = [checkpoint.lane(lane).offset_log.latest() for lane in checkpoint.lanes()]
    return any(found is not None and found[1].ends.get(name) is not None for found in newest)


def _move(drafting: Drafting, path: str, target: str) -> None:
    if any(files_below(drafting.store, path)):
        why = "what the source keeps for itself" if path.startswith("microbatch/") else "the source's log"
        drafting.step(Move(path=path, target=target, why=why))


def _differs(drafting: Drafting, folder: str, target: str) -> tuple[str, str] | None:
    """A file below ``folder`` for which there is another one below ``target``."""
    store = drafting.store
    for path in files_below(store, folder):
        there = f"{target}{path.removeprefix(folder)}"
        if store.get(there) not in (None, store.get(path)):
            return path, there
    return None


def plan_add_source(drafting: Drafting, *, name: str) -> Plan:
    """The plan after which ``name`` is known to be a new source, whatever other one has vanished: it begins at its
    beginning.

    :raises MaintenanceError: if older entries mean another source by it.
    """
    check_name(name, what="source")
    check_not_half_renamed(drafting.checkpoint)
    names = drafting.checkpoint.names
    if name in names.former():
        raise MaintenanceError(
            f"source {name!r} of {drafting.checkpoint.location} was renamed to {names.of(name)!r}, which its older "
            "entries mean by it. Use a name that was never used."
        )
    if names.is_new(name) or _known(drafting).get(name):
        return drafting.plan()
    drafting.write(f"{NEW}/{name}", encode_record(drafting.trail), f"source {name!r} is new: all it has is read")
    return drafting.plan()


def _known(drafting: Drafting) -> dict[str, bool]:
    """Sources of the checkpoint, and whether they have read something."""
    checkpoint = drafting.checkpoint
    identity, newest = checkpoint.identity(), checkpoint.offset_log.latest()
    known = dict.fromkeys(identity.sources if identity is not None else (), False)
    if identity is not None and identity.format == "v1":
        return dict.fromkeys(known, True)
    known.update({name: end is not None for name, end in (newest[1].ends if newest else {}).items()})
    known.update(dict.fromkeys(checkpoint.names.with_log(), True))
    return known
