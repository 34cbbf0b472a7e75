"""The steps that a plan is made of. Each step can be repeated: doing it twice has the same effect as doing it once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

from airflow_provider_microbatch.checkpoint.by_hand import bears_trail
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.maintenance import FILE_PUT_AWAY, OUTPUT_DROPPED
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError, MicroBatchError
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.sinks import Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.manifest import only
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.convert_state import ConvertState
from airflow_provider_microbatch.upkeep.commands.copying import Copy, files_below
from airflow_provider_microbatch.upkeep.commands.moving import MovingStep
from airflow_provider_microbatch.upkeep.commands.not_in import NotIn
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.state_away import PutStateAway

IsOver = Callable[[], bool]
"""Whether the step's command must not do anything any more: while its process slept, another may have finished it, or
given it up, or the checkpoint was restored from a backup. Asked before each change of a step except the first, which
directly follows such a check."""


def _not_over() -> bool:
    """Always False, for a draft: no other process changes it."""
    return False


def digest(data: bytes) -> str:
    """The SHA-256 by which a step recognises the bytes that it was planned for."""
    return hashlib.sha256(data).hexdigest()


def _move(store: Store, path: str, target: str, is_over: IsOver) -> None:
    """Copy first, then delete: if the process is killed in between, the file exists twice and is never lost.

    :raises MaintenanceError: if the target is another file.
    """
    data = store.get(path)
    if data is None or is_over():
        return
    try:
        is_new = store.put_if_absent(target, data)
        if is_new and is_over() and store.get(path) == data:
            store.delete_if(target, data)  # late, or not needed: the pipeline has the file at its old place
        if is_new or store.get(target) == data:
            _remove_copied(store, path, target, data, is_over)
            return
    except (MicroBatchError, OSError):
        if is_over():
            _leave_one(store, path, target, data)
        raise
    raise MaintenanceError(f"{store.location}/{target} is taken by something else.")


def _leave_one(store: Store, path: str, target: str, data: bytes) -> None:
    """Leave exactly one copy, after a change without an answer by a command that is over. The change may have happened,
    and no process does its rest: two copies would count as two sources, and no copy would be a loss."""
    if store.get(path) == data:
        store.delete_if(target, data)
    if store.get(target) != data:
        store.put_if_absent(path, data)


def _remove_copied(store: Store, path: str, target: str, data: bytes, is_over: IsOver) -> None:
    """Remove the file that was copied to ``target``.

    The process may sleep before it deletes, until the command is over: a file that has the name by then belongs to the
    next life, and must stay. The bytes alone do not always tell: a file that was put back, or restored, has the same
    bytes. Such a file is gone from both places then, and is put back. A process that is not late checks too: if two
    processes move a file to and fro, each deletes the other's copy, and the process that deletes last sees it.
    """
    if not is_over() and store.delete_if(path, data) and store.get(target) != data:
        store.put_if_absent(path if is_over() else target, data)


@dataclass(frozen=True, kw_only=True)
class PutAway:
    """Move a file of the checkpoint away. The file is never deleted.

    :param path: the file.
    :param target: where the file goes.
    :param sha256: digest of its content; a file with other content is not touched.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = FILE_PUT_AWAY

    path: str
    target: str
    sha256: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def apply(self, store: Store, *, is_over: IsOver = _not_over) -> None:
        """Copy first, then delete: if the process is killed in between, the file exists twice and is never lost.

        :raises MaintenanceError: if the file is not the one that the plan was made for.
        """
        data, moved = store.get(self.path), store.get(self.target)
        planned = data is not None and digest(data) == self.sha256
        if moved is None:
            if data is None:
                return  # an offset entry that was written late, and taken back by its process
            if not planned:
                raise MaintenanceError(f"{store.location}/{self.path} was changed since the plan was made.")
            store.put_if_absent(self.target, data)
        elif digest(moved) != self.sha256:
            raise MaintenanceError(f"{store.location}/{self.target} is taken by something else.")
        # If the copy exists and the old place has other bytes, this step and the next one were done before.
        if data is not None and planned:
            _remove_copied(store, self.path, self.target, data, is_over)


@dataclass(frozen=True, kw_only=True)
class PutAwayLate:
    """Move away a file of the checkpoint that did not exist when the plan was made: a process that slept since before
    the command, and died right after it wrote the file, could not take the file back.

    :param path: the file.
    :param target: where the file goes.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "put away if it came late"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def apply(self, store: Store, *, is_over: IsOver) -> None:
        """Move the file away, whatever it is, and as often as one appears. The process may sleep here until another has
        finished the command: a file that exists then belongs to the batch's next life, and stays."""
        data = store.get(self.path)
        # After the look: no run writes it before the command has ended.
        if data is None or is_over():
            return
        target, others = self.target, 1
        while not store.put_if_absent(target, data) and store.get(target) != data:
            others += 1
            target = f"{self.target}.{others}"
        _remove_copied(store, self.path, target, data, is_over)


@dataclass(frozen=True, kw_only=True)
class Write:
    """Write a file of the checkpoint that does not exist.

    :param path: the file.
    :param text: its whole content.
    :param why: the reason, for people.
    :param after: a file that this file follows, as the commit entry of the batch before; None if there is none.
    """

    kind: ClassVar[str] = "write"

    path: str
    text: str
    why: str
    after: str | None = None

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def take_back_if_late(self, store: Store, *, since_ms: int, was_applied: bool, command: str, by: str) -> None:
        """Remove the file if it was written after the command was over: its writer slept meanwhile, and by now the name
        may be another batch's, or the file unwanted. The file bears the command's trail, so no other command writes
        these bytes; a file without a trail, as ``metadata``, stays: the next command may have written it alike.

        :param since_ms: when the command was over, by the store's clock.
        :param was_applied: whether another process has finished the command. A file written at that very moment is then
            one of its steps; if the command was given up, the file is a step that must not be done.
        :param command: the command as it was typed, without the location.
        :param by: user and host.
        """
        data = self.text.encode()
        written_ms = store.modified_ms(self.path) if bears_trail(data, command=command, by=by) else None
        if written_ms is not None and (written_ms > since_ms or (written_ms == since_ms and not was_applied)):
            store.delete_if(self.path, data)

    def apply(self, store: Store) -> None:
        """Write the file, unless it is there.

        :raises MaintenanceError: if another file is there, or the file ``after`` is gone; nothing is written then.
        """
        data = self.text.encode()
        if not store.put_if_absent(self.path, data) and store.get(self.path) != data:
            raise MaintenanceError(f"{store.location}/{self.path} was written since the plan was made.")
        # After the put: a process that takes ``after`` back looks again for files behind it, so one of the two sees the
        # other.
        if self.after and store.get(self.after) is None:
            store.delete_if(self.path, data)
            raise MaintenanceError(f"{store.location}/{self.after} was taken back since the plan was made.")


@dataclass(frozen=True, kw_only=True)
class End:
    """End an attempt, or a request for a replay. If it has been ended meanwhile, that end stands, whichever process was
    first: a janitor that had looked before the command began, or a late listener or answer.

    :param path: file of the end.
    :param text: its whole content.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "end"

    path: str
    text: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Write the end, unless there is an end."""
        store.put_if_absent(self.path, self.text.encode())


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Take an epoch, and end it: no earlier attempt can publish any more. An epoch that another process has taken
    meanwhile stays taken, and the fence takes the next epoch.

    :param path: file of the epoch that is free when the plan is made.
    :param text: its whole content, which no other command writes.
    :param end: content of its end.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "fence"

    path: str
    text: str
    end: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Take the first epoch that is free, or that this step has taken before."""
        data, (folder, _, first) = self.text.encode(), self.path.rpartition("/")
        epoch = int(first)
        while not store.put_if_absent(f"{folder}/{epoch}", data) and store.get(f"{folder}/{epoch}") != data:
            epoch += 1
        store.put_if_absent(f"{folder}/{epoch}.end", self.end.encode())


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Have a source leave a range where it is. The source computes the changes to its own records when the step is
    done: others may change these records while the command does its steps.

    :param source: name of the source.
    :param lane: the lane of the range.
    :param start: where the range begins; None before anything.
    :param end: where the range ends.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "keep"

    source: str
    lane: str
    start: Offset | None
    end: Offset | None
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"source {self.source!r} after {self.start or 'its beginning'} up to {self.end or 'its beginning'}"

    def apply(self, store: Store) -> None:
        """Have the source keep the range, if the pipeline on record has the source. :raises SourceError: if it
        cannot."""
        found = Recorded(Checkpoint(store)).source(self.source, lane=self.lane)
        if found is not None:
            found.keep(self.start, self.end)


@dataclass(frozen=True, kw_only=True)
class DropOutput:
    """Take a batch's published output out of the table, whichever attempt has written it: a replay may have replaced
    the output that the plan saw. Also output that was taken out before, and came back.

    :param key: the batch, as ``str(BatchKey)``.
    :param epoch: the attempt that had written the output when the plan was made.
    :param sink: definition of the sink.
    :param where: the table's address.
    :param why: the reason, for people.
    :param identity: identity of the batch in the output's manifest; None if the output bears none.
    :param to: the batch that is the newest one then: if the output comes back, all that came after it goes once more.
    """

    kind: ClassVar[str] = OUTPUT_DROPPED

    key: str
    epoch: int
    sink: Mapping[str, Any]
    where: str
    why: str
    identity: Mapping[str, Any] | None = None
    to: int = -1

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"batch {self.key} of {self.where}"

    def apply(self, store: Store, *, is_over: IsOver) -> None:
        """Have the sink take the output out, unless it is out already.

        :raises SinkError: if the sink cannot.
        :raises MaintenanceError: if the command had ended before the output was out.
        """
        identity = None if self.identity is None else BatchIdentity.from_dict(self.identity)
        seen = Manifest(key=BatchKey.parse(self.key), epoch=self.epoch, identity=identity)
        checkpoint = Checkpoint(store)
        owner = checkpoint.identity()
        own, tables = owner.query_id if owner is not None else "", checkpoint.tables.following_moves
        taken = only(seen, checkpoint=own, location=checkpoint.location, tables=tables)
        sink = Sink.from_dict(self.sink).open(SinkContext())
        found = sink.seen(taken)
        is_there = found is not None or bool(sink.came_back(seen.key.lane, [seen.key.id], tables))
        # After the look: output that is there after the command's end is of the batch's next life, or was given back.
        if not is_there or is_over():
            return
        if sink.withdraw(taken, self.epoch if found is None else found.epoch) and is_over():
            raise MaintenanceError(
                f"Batch {self.key} was taken out of {self.where} after that. If it is committed, clear its task, which "
                "makes it again."
            )


@dataclass(frozen=True, kw_only=True)
class DropStage:
    """Remove the stage that an attempt has left to publish: the attempt may have passed the fence before it was there.

    :param key: the batch, as ``str(BatchKey)``.
    :param epoch: the attempt.
    :param checkpoint: id of the stage's checkpoint; empty for a stage from a version without identities.
    :param sink: definition of the sink.
    :param where: the table's address.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "drop stage"

    key: str
    epoch: int
    checkpoint: str
    sink: Mapping[str, Any]
    where: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"batch {self.key} attempt {self.epoch}, in {self.where}"

    def apply(self, store: Store) -> None:
        """Have the sink drop the stage, unless it is gone. :raises SinkError: if the sink cannot."""
        stage = BatchIdentity.at(BatchKey.parse(self.key), checkpoint=self.checkpoint)
        Sink.from_dict(self.sink).open(SinkContext()).drop_stage(stage, self.epoch)


@dataclass(frozen=True, kw_only=True)
class Move:
    """Move all files below a folder of the checkpoint.

    :param path: the folder.
    :param target: the folder that they are moved to.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "move"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"{self.path} to {self.target}"

    def apply(self, store: Store, *, is_over: IsOver = _not_over) -> None:
        """Move file by file. :raises MaintenanceError: if the target has another file at a path."""
        for path in list(files_below(store, self.path)):
            _move(store, path, f"{self.target}{path.removeprefix(self.path)}", is_over)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Move a hidden file of the checkpoint's folder away.

    :param path: the file.
    :param target: where the file goes.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "sweep"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Move the file, unless it is gone. :raises CheckpointError: if a link leads out of the checkpoint."""
        store.move_litter(self.path, self.target)


OfTable = DropOutput | DropStage | NotIn
"""Steps that speak to a table."""

OfState = ConvertState | PutStateAway
"""Steps that change Spark's files of state."""

Step = PutAway | PutAwayLate | Write | End | Fence | Keep | OfTable | Copy | OfState | Move | Sweep | MovingStep

AskingStep = PutAway | PutAwayLate | DropOutput | Copy | OfState | Move | MovingStep
"""Steps that make several changes, or a change that cannot be undone, and ask in between. A fence does not ask: its
second change ends the epoch of the first, and has to follow."""

_KINDS: Mapping[str, type[Step]] = {kind.kind: kind for kind in get_args(Step)} | {
    "set aside": PutAway, "set aside if it came late": PutAwayLate  # their kinds in records of earlier versions
}  # fmt: skip


def step_to_dict(step: Step) -> dict[str, Any]:
    """A step as JSON values."""
    return {"step": step.kind, **asdict(step)}


def step_from_dict(values: Mapping[str, Any]) -> Step:
    """A step from the values of :func:`step_to_dict`. :raises CheckpointError: for a step that this version lacks."""
    made = _KINDS.get(str(values.get("step")))
    if made is None:
        raise CheckpointError(f"no step {values.get('step')!r} is known here; use the version that began the command.")
    return made(**{name: of_today(value) for name, value in values.items() if name != "step"})
