"""Records that a source's name is the new name of a known source, or the name of a new source."""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import check_name, is_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.checkpoint.source_names import BEGUN, NEW, RENAMED, HalfRename
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError
from airflow_provider_microbatch.execution.letters_taken import SOURCE
from airflow_provider_microbatch.stores import Store, check_path
from airflow_provider_microbatch.upkeep.commands.copying import files_below
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.steps import Move, Write


def plan_rename_source(drafting: Drafting, *, old: str, new: str) -> Plan:
    """The plan after which source ``old`` is called ``new``, in all lanes, with the same position, log and state.

    :raises MaintenanceError: if there is no ``old``, if ``new`` is a source of its own, or if ``new`` was another's
        name.
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
    if new in names.former() and names.of(new) != old:  # a source may have its own former name again
        raise MaintenanceError(
            f"source {new!r} of {checkpoint.location} was renamed to {names.of(new)!r}, which its older entries mean "
            "by it: whatever is called so now would be taken for that one, and every run be refused. Use a name that "
            "was never used."
        )
    number = max(numbers(store.list(RENAMED)), default=-1) + 1
    record = encode_record({"old": old, "new": new, **drafting.trail})
    begun = f"{RENAMED}/{number}{BEGUN}"
    # Written first: if the rename is given up half way, moved files would count as a source read under the new name.
    drafting.write(begun, record, f"until it is done no run begins, neither under {old!r} nor under {new!r}")
    for folder in ("microbatch/sources", *(["sources"] if identity.format == "v2" else [])):
        _move(drafting, f"{folder}/{old}", f"{folder}/{new}")
    # Written last: until this entry exists, every run sees the old name.
    why = f"source {old!r} is called {new!r} from now on, in older entries too"
    drafting.write(f"{RENAMED}/{number}", record, why, after=begun)
    drafting.note(f"the pipeline has to name it {new!r} from now on.")
    return drafting.plan()


def check_not_half_renamed(checkpoint: Checkpoint) -> None:
    """Check that no rename was given up half way: readers of the sources' own logs, and planners, would take the log of
    a source that lies under two names for damaged, or for another source's.

    :raises MaintenanceError: naming the way on, if a rename was given up half way.
    """
    half = checkpoint.names.half()
    if half is not None:
        raise MaintenanceError(f"{half.message(checkpoint.location)} Nothing was done.")


def take_back_half_rename(drafting: Drafting) -> None:
    """Plan to undo a rename that was given up half way: its files go back to their former place."""
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
    # Done last: if the command is killed earlier, the next repair continues.
    drafting.put_away(half.path, f"source {half.old!r} is not called {half.new!r}: that was given up")


def _half(drafting: Drafting) -> HalfRename | None:
    """The rename that was given up half way. Its entry may be torn, which stops every run: the command's record has the
    entry whole. Without the record, the entry is moved away if nothing lies under a name that no batch has read from,
    since nothing was moved then."""
    checkpoint, store = drafting.checkpoint, drafting.store
    path = checkpoint.names.torn()
    if path is None:
        with suppress(CorruptEntryError):  # of a later version; `verify_all` reports it
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
        drafting.put_away(path, "torn; nothing lies under another name")
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
    """Whether a batch has read from a source of this name. No source is renamed to such a name: so the files are the
    source's own, and the entry of the rename came late, from a process that slept until the rename was given up, and
    died."""
    return name in checkpoint.read_names()


def _move(drafting: Drafting, path: str, target: str) -> None:
    if any(files_below(drafting.store, path)):
        why = "what the source keeps for itself" if path.startswith("microbatch/") else "the source's log"
        drafting.step(Move(path=path, target=target, why=why))


def _differs(drafting: Drafting, folder: str, target: str) -> tuple[str, str] | None:
    """The path of a file below ``folder``, and of a different file at its place below ``target``; None if none
    differs."""
    store = drafting.store
    for path in files_below(store, folder):
        there = f"{target}{path.removeprefix(folder)}"
        if store.get(there) not in (None, store.get(path)):
            return path, there
    return None


def plan_add_source(drafting: Drafting, *, name: str) -> Plan:
    """The plan after which ``name`` is known to be a new source, even if another source has vanished. The new source is
    read from its beginning.

    :raises MaintenanceError: if older entries mean another source by the name.
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
                drafting.put_away(path, "a rename that was given up has left it; it is another source's")
    drafting.write(f"{NEW}/{name}", encode_record(drafting.trail), f"source {name!r} is new: all it has is read")
    return drafting.plan()


def _known(drafting: Drafting) -> dict[str, bool]:
    """Sources of the checkpoint, and whether batches have read anything from them."""
    checkpoint = drafting.checkpoint
    identity, newest = checkpoint.identity(), checkpoint.offset_log.latest()
    known = dict.fromkeys(identity.sources if identity is not None else (), False)
    if identity is not None and identity.format == "v1":
        return dict.fromkeys(known, True)
    known.update({name: end is not None for name, end in (newest[1].ends if newest else {}).items()})
    # Not every source has a log, and the live lane does not tell what only data intervals have read.
    known.update(dict.fromkeys({*checkpoint.names.with_log(), *checkpoint.read_names()} - {SOURCE}, True))
    for name in _copies(checkpoint):
        known[name] = False
    return known


def _copies(checkpoint: Checkpoint) -> list[str]:
    """Names whose log is only a copy of another source's log: a rename whose process came late and died has left it.
    Names of sources that batches have read from are in the batches' entries, and are no copies."""
    names, own = checkpoint.names, checkpoint.read_names()
    return [name for name in names.with_log() if name not in own and any(names.is_copy(name, of) for of in own)]


def say_begun(store: Store, left: Maintenance) -> None:
    """Record that a rename which is given up was begun, if the version that began it has not: repair then takes the
    rename back, and no run plans before. A rename that has moved nothing yet needs no record."""
    moved = [str(step.get("target")) for step in left.steps if step.get("step") == Move.kind]
    said = left.steps[-1] if left.steps else {}
    folder, _, number = str(said.get("path")).rpartition("/")
    if said.get("step") != Write.kind or folder != RENAMED or not numbers([number]):
        return
    if any(any(files_below(store, check_path(target))) for target in moved):
        store.put_if_absent(f"{RENAMED}/{number}{BEGUN}", str(said.get("text")).encode())
