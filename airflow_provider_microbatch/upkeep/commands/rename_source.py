"""Say of a source's name that it is the new one of a source that there was, or that of a source that is really new."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, check_name, is_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.checkpoint.source_names import BEGUN, NEW, RENAMED, HalfRename
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError
from airflow_provider_microbatch.stores import Store, check_path
from airflow_provider_microbatch.upkeep.commands.copying import files_below
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.steps import Move, Write


def plan_rename_source(drafting: Drafting, *, old: str, new: str) -> Plan:
    """The plan after which source ``old`` is called ``new``, in all lanes: its position, log and state are the same.

    :raises MaintenanceError: if there is no ``old``, ``new`` is a source of its own, or was the name of another.
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
    if new in names.former() and names.of(new) != old:  # its own name of before it may have again
        raise MaintenanceError(
            f"source {new!r} of {checkpoint.location} was renamed to {names.of(new)!r}, which its older entries mean "
            "by it: whatever is called so now would be taken for that one, and every run be refused. Use a name that "
            "was never used."
        )
    _check_nothing_forgotten(checkpoint, old)
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


def _check_nothing_forgotten(checkpoint: Checkpoint, name: str) -> None:
    """What a source has noted outside of the checkpoint, it has under this name: under another one nobody would find
    that this checkpoint was restored, and what later batches have taken would be read by none."""
    source = Recorded(checkpoint).source(name, lane=LIVE)
    why = None if source is None else source.forgotten()
    if why is not None:
        raise MaintenanceError(f"source {name!r}: {why} Nothing was renamed; do that first.")


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
    half = _half(drafting)
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


def _half(drafting: Drafting) -> HalfRename | None:
    """The rename that was given up half way. What says so may be torn, which stops everybody: its command's record has
    it whole. Without that it is set aside if nothing lies under a name that no batch has read of: nothing was moved."""
    checkpoint, store = drafting.checkpoint, drafting.store
    path = checkpoint.names.torn()
    if path is None:
        with suppress(CorruptEntryError):  # of a later version; `verify_all` tells it
            return checkpoint.names.half()
        return None
    text = checkpoint.maintenance.written(path)
    said = {} if text is None else decode_record(text.encode(), where=path)
    old, new = said.get("old"), said.get("new")
    if is_name(old) and is_name(new):
        return HalfRename(path=path, old=str(old), new=str(new))
    identity = checkpoint.identity()
    own = checkpoint.read_names() | {*(identity.sources if identity is not None else ())}
    tops = ("sources", "microbatch/sources")
    found = sorted({name for top in tops for name in store.list(top) if store.list(f"{top}/{name}")} - own)
    if not found:
        drafting.set_aside(path, "torn; nothing lies under another name")
        return None
    which = ", ".join(map(repr, found))
    drafting.problem(
        f"{store.location}/{path}",
        f"it cannot be read, and says that a rename of a source was begun. No batch has read of {which}: it may be "
        "what another source was to be called, with the files of that one, or a new source.",
        f"Look whose the files below {store.location}/sources are. If a source was being renamed: move them back below "
        f"its name. Then move {store.location}/{path} out of the checkpoint.",
    )
    return None


def _has_read(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a batch has read of a source of that name. Nothing is renamed to one: so its files are its own, and what
    says that a rename was begun came late, of a process that slept until that was given up, and died."""
    return name in checkpoint.read_names()


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
        drafting.note(f"source {name!r} is known, as one of its own.")
        return drafting.plan()
    if name in _copies(drafting.checkpoint):
        for folder in ("microbatch/sources", "sources"):
            for path in list(files_below(drafting.store, f"{folder}/{name}")):
                drafting.set_aside(path, "a rename that was given up has left it; it is another source's")
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
    for name in _copies(checkpoint):
        known[name] = False
    return known


def _copies(checkpoint: Checkpoint) -> list[str]:
    """Names that have a log, and nothing but another source's: what a rename has left that died when it came late. A
    batch that has read of a source names it."""
    names, own = checkpoint.names, checkpoint.read_names()
    return [name for name in names.with_log() if name not in own and any(names.is_copy(name, of) for of in own)]


def say_begun(store: Store, left: Maintenance) -> None:
    """Say of a rename that is given up that it was begun, if the version that began it did not: repair takes it back
    then, and nobody plans before. One that has moved nothing yet needs no such word."""
    moved = [str(step.get("target")) for step in left.steps if step.get("step") == Move.kind]
    said = left.steps[-1] if left.steps else {}
    folder, _, number = str(said.get("path")).rpartition("/")
    if said.get("step") != Write.kind or folder != RENAMED or not numbers([number]):
        return
    if any(any(files_below(store, check_path(target))) for target in moved):
        store.put_if_absent(f"{RENAMED}/{number}{BEGUN}", str(said.get("text")).encode())
