"""Say of a source's name that it is the new one of a source that there was, or that of a source that is really new."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.key import check_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.checkpoint.source_names import NEW, RENAMED
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.maintenance.copying import files_below
from airflow_provider_microbatch.execution.maintenance.plan import Drafting, Plan
from airflow_provider_microbatch.execution.maintenance.steps import Move


def plan_rename_source(drafting: Drafting, *, old: str, new: str) -> Plan:
    """The plan after which source ``old`` is called ``new``, in all lanes: its position, log and state are the same.

    :raises MaintenanceError: if there is no ``old``, or ``new`` is a source of its own.
    """
    for name in (old, new):
        check_name(name, what="source")
    checkpoint, store = drafting.checkpoint, drafting.store
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
    moves = [(f"microbatch/sources/{old}", f"microbatch/sources/{new}", "what the source keeps for itself")]
    if identity.format == "v2":
        moves.append((f"sources/{old}", f"sources/{new}", "the source's log"))
    for path, target, why in moves:
        if any(files_below(store, path)):
            drafting.step(Move(path=path, target=target, why=why))
    number = max(numbers(store.list(RENAMED)), default=-1) + 1
    record = encode_record({"old": old, "new": new, **drafting.trail})
    # Last: before it everybody sees the old name, and no run begins.
    drafting.write(f"{RENAMED}/{number}", record, f"source {old!r} is called {new!r} from now on, in older entries too")
    drafting.note(f"the pipeline has to name it {new!r} from now on.")
    return drafting.plan()


def plan_add_source(drafting: Drafting, *, name: str) -> Plan:
    """The plan after which ``name`` is known to be a new source, whatever other one has vanished: it begins at its
    beginning.

    :raises MaintenanceError: if older entries mean another source by it.
    """
    check_name(name, what="source")
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
