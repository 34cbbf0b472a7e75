"""Reads the recorded steps of a killed command. Another program may have written the record: the whole record is
checked before any step is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_microbatch.checkpoint.checkpoint import TOP, Checkpoint
from airflow_provider_microbatch.checkpoint.key import check_name
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.exceptions import MaintenanceError, MicroBatchError
from airflow_provider_microbatch.runtime.operator_schemas import is_addresses, is_schema
from airflow_provider_microbatch.stores import Store, check_path
from airflow_provider_microbatch.upkeep.commands.copying import Copy
from airflow_provider_microbatch.upkeep.commands.moving import MovingStep
from airflow_provider_microbatch.upkeep.commands.site import Recorded, tables_of
from airflow_provider_microbatch.upkeep.commands.steps import (
    DropOutput,
    DropStage,
    Fence,
    Keep,
    OfState,
    OfTable,
    Step,
    Sweep,
    step_from_dict,
)

_ASIDE = "repaired/"
DROP_OUTPUT = "--drop-output"
"""The option of a command that takes batches out of a table."""
_TOUCHED = TOP - {"maintenance"}
"""Top-level folders in which steps change files. Commands write their own records, in ``maintenance``, without a
step."""


def read_steps(left: Maintenance, store: Store, *, told: Collection[str]) -> tuple[Step, ...]:
    """The steps of a command that was killed, if each is a step that a command plans for this checkpoint.

    :param store: the checkpoint.
    :param told: locations that the user has named now, besides the checkpoint. No location is taken from the record.
    :raises MaintenanceError: naming the record, if it holds anything else; nothing was done.
    """
    checkpoint = Checkpoint(store)
    try:
        steps = tuple(step_from_dict(values) for values in left.steps)
        for step in steps:
            _check(step, store, checkpoint, told)
    except (MicroBatchError, TypeError, AttributeError, ValueError) as error:
        where = checkpoint.maintenance.where(left.number)
        raise MaintenanceError(
            f"{where} has steps that are not done from a record: {error} Nothing was done. If `microbatch "
            f"{left.command}` is yours, run it again as it was typed; if not, look who wrote that file. `microbatch "
            f"repair {store.location} --give-up` gives its steps up."
        ) from error
    return steps


def check_typed(left: Maintenance, steps: Sequence[Step], *, typed: str) -> None:
    """Check that a person has typed this command, if it takes output out of a table: a record alone must never do that.

    :param typed: the command that was typed now.
    :raises MaintenanceError: if another command was typed; nothing was done.
    """
    dropped = [step for step in steps if isinstance(step, DropOutput)]
    if dropped and (typed != left.command or DROP_OUTPUT not in typed):
        raise MaintenanceError(
            f"`microbatch {left.command}` (by {left.by}) was killed, and takes batch {dropped[0].key} out of "
            f"{dropped[0].where!r:.200}: type it again, and it is finished first. If nobody typed it, look who wrote "
            f"its record, maintenance/{left.number}; `microbatch repair --give-up` gives its steps up."
        )


def _check(step: Step, store: Store, checkpoint: Checkpoint, told: Collection[str]) -> None:
    if isinstance(step, Copy):
        _check_copy(step, store, told)
    elif isinstance(step, OfState):
        step.check()
    elif isinstance(step, MovingStep):
        if step.source != store.location or step.target not in told:
            raise MaintenanceError(
                f"it moves {step.source!r:.200} to {step.target!r:.200}, which only the command that names both "
                "finishes."
            )
    elif isinstance(step, OfTable):
        identity = checkpoint.identity()
        if isinstance(step, DropStage) and step.checkpoint not in ("", identity.query_id if identity else ""):
            raise MaintenanceError(
                f"the stage of {step.what} is checkpoint {step.checkpoint!r:.100}'s, and not this one's."
            )
        recorded = Recorded(checkpoint)
        sinks = recorded.on_record()
        if not any(step.sink == sink.definition.to_dict() for sink in (*sinks, *tables_of(sinks))):
            raise MaintenanceError(
                " ".join([f"{step.where!r:.200} is the table of no pipeline that is on record here.",
                          *recorded.unusable()])
            )  # fmt: skip
    elif isinstance(step, Keep):
        check_name(step.source, what="source")
        check_name(step.lane, what="lane")
        if not all(offset is None or isinstance(offset, str) for offset in (step.start, step.end)):
            raise MaintenanceError(f"{step.start!r:.200} to {step.end!r:.200} is no range of a source.")
    elif isinstance(step, Sweep):
        folder, _, name = step.path.rpartition("/")
        if folder:
            check_path(folder)
        if not store.is_litter(name) or not check_path(step.target).startswith(_ASIDE):
            raise MaintenanceError(f"{step.path!r:.200} to {step.target!r:.200} moves no litter to {_ASIDE}.")
        for path in (step.path, step.target):
            store.check_own(path)
    else:
        if isinstance(step, Fence) and not numbers([step.path.rpartition("/")[2]]):
            raise MaintenanceError(f"{step.path!r:.200} is no epoch.")
        for path in {step.path, *filter(None, (getattr(step, name, None) for name in ("target", "after")))}:
            if check_path(path).partition("/")[0] not in _TOUCHED:
                raise MaintenanceError(f"{path!r:.200} is nothing that a command changes in a checkpoint.")
            store.check_own(path)


def _check_copy(step: Copy, store: Store, told: Collection[str]) -> None:
    """Check that one side of the copy is this checkpoint, and the other side a location that the user names now; and
    that nothing else is written into the copy than what an export or an import writes there."""
    here = store.location
    if not ((step.source == here and step.target in told) or (step.target == here and step.source in told)):
        raise MaintenanceError(
            f"it copies {step.source!r:.200} to {step.target!r:.200}, which only the command that names both finishes."
        )
    changed = step.changed
    are_entries = isinstance(changed, Mapping) and all(
        _is_entry(path) and isinstance(data, str) for path, data in changed.items()
    )
    if not are_entries:
        raise MaintenanceError(
            f"it writes {changed!r:.200} into the copy, and nothing is changed there but entries of the "
            "logs, and the addresses that are kept with state."
        )
    again = step.again
    if not (isinstance(again, Mapping) and all(is_schema(path) for paths in again.items() for path in paths)):
        raise MaintenanceError(f"it copies {again!r:.200} to other paths, which are none of state.")
    if not all(isinstance(name, str) for name in step.sources):
        raise MaintenanceError(f"{step.sources!r:.200} are no names of sources.")


def _is_entry(path: str) -> bool:
    """Whether it is an entry of the offset log or the commit log of the live lane, or what names the place of state."""
    folder, _, name = path.partition("/")
    return is_addresses(path) or (folder in ("offsets", "commits") and len(numbers([name])) == 1)
