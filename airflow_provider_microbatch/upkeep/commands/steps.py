"""The steps that a plan is made of. Each can be done again: done twice it is as if it was done once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.by_hand import bears_trail
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError, MicroBatchError
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.sinks import Manifest, Sink, SinkContext
from airflow_provider_microbatch.sinks.manifest import only
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.copying import copy_checkpoint, files_below
from airflow_provider_microbatch.upkeep.commands.moving import MOVING, MovingStep
from airflow_provider_microbatch.upkeep.commands.site import Recorded

IsOver = Callable[[], bool]
"""Whether nothing of the command that a step is of is to be done any more: its process may have slept, and another have
finished it, or given it up, or restored the checkpoint from a backup. Asked before each change but the first of a step,
which follows such a look."""


def _not_over() -> bool:
    """A draft is nobody's but the command's."""
    return False


def digest(data: bytes) -> str:
    """SHA-256, by which a step knows the bytes that it was planned for."""
    return hashlib.sha256(data).hexdigest()


def _move(store: Store, path: str, target: str, is_over: IsOver) -> None:
    """Copy first, then delete: killed in between, the file is there twice and never gone.

    :raises MaintenanceError: if something else is at the target.
    """
    data = store.get(path)
    if data is None or is_over():
        return
    try:
        is_new = store.put_if_absent(target, data)
        if is_new and is_over() and store.get(path) == data:
            store.delete_if(target, data)  # it came late, or nobody needs it: what goes on has the file where it was
        if is_new or store.get(target) == data:
            _remove_copied(store, path, target, data, is_over)
            return
    except (MicroBatchError, OSError):
        if is_over():
            _leave_one(store, path, target, data)
        raise
    raise MaintenanceError(f"{store.location}/{target} is taken by something else.")


def _leave_one(store: Store, path: str, target: str, data: bytes) -> None:
    """After a change without an answer, of a command that is over: it may be done. Nobody does the rest of it: two
    copies would count for two sources, and none is lost."""
    if store.get(path) == data:
        store.delete_if(target, data)
    if store.get(target) != data:
        store.put_if_absent(path, data)


def _remove_copied(store: Store, path: str, target: str, data: bytes, is_over: IsOver) -> None:
    """Remove what was copied to ``target``.

    Whoever does it may sleep before it deletes, until the command is over: what has the name by then is of the next
    life, and stays. By its bytes alone that is not always told: a file that was put back, or restored, is the same one.
    It is gone from both places then, and is put back. Also who is not late looks: of two that move a file to and fro
    each deletes the other's copy, and the one that deletes last sees it.
    """
    if not is_over() and store.delete_if(path, data) and store.get(target) != data:
        store.put_if_absent(path if is_over() else target, data)


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """Move a file of the checkpoint away. Nothing is ever deleted.

    :param path: the file.
    :param target: where it goes.
    :param sha256: of its content; another content is not touched.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "set aside"

    path: str
    target: str
    sha256: str
    why: str

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.path

    def apply(self, store: Store, *, is_over: IsOver = _not_over) -> None:
        """Copy first, then delete: killed in between, the file is there twice and never gone.

        :raises MaintenanceError: if the file is another one than the plan was made for.
        """
        data, moved = store.get(self.path), store.get(self.target)
        planned = data is not None and digest(data) == self.sha256
        if moved is None:
            if data is None:
                return  # a plan that was late, and was taken back by who made it
            if not planned:
                raise MaintenanceError(f"{store.location}/{self.path} was changed since the plan was made.")
            store.put_if_absent(self.target, data)
        elif digest(moved) != self.sha256:
            raise MaintenanceError(f"{store.location}/{self.target} is taken by something else.")
        # With the copy there and other bytes in its old place, this step and the one after it were done before.
        if data is not None and planned:
            _remove_copied(store, self.path, self.target, data, is_over)


@dataclass(frozen=True, kw_only=True)
class SetAsideLate:
    """Move a file of the checkpoint away that was not there when the plan was made: a process that slept since before
    the command, and died right after it wrote the file, could not take it back.

    :param path: the file.
    :param target: where it goes.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "set aside if it came late"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.path

    def apply(self, store: Store, *, is_over: IsOver) -> None:
        """Move it, whatever it is, and as often as something comes. The process may sleep here until another has
        finished the command: what is there then belongs to the batch's next life, and stays."""
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
    """Write a file of the checkpoint that is not there.

    :param path: the file.
    :param text: its whole content.
    :param why: the reason, for people.
    :param after: a file that this one goes on from, as the commit entry of the batch before; None if there is none.
    """

    kind: ClassVar[str] = "write"

    path: str
    text: str
    why: str
    after: str | None = None

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.path

    def take_back_if_late(self, store: Store, *, since_ms: int, was_applied: bool, command: str, by: str) -> None:
        """Remove what came after the command was over: whoever was to write it slept meanwhile, and the name may be
        another batch's by now, or nobody want that said any more. It bears the command's trail, so nobody else writes
        these bytes; what bears none, as ``metadata``, the next command may have written alike.

        :param since_ms: since when the command is over, by the store's clock.
        :param was_applied: whether another has finished it. What came at that very moment is then one of its steps; of
            a command that was given up it is one more that was not done.
        :param command: as it was typed, without the location.
        :param by: user and host.
        """
        data = self.text.encode()
        written_ms = store.modified_ms(self.path) if bears_trail(data, command=command, by=by) else None
        if written_ms is not None and (written_ms > since_ms or (written_ms == since_ms and not was_applied)):
            store.delete_if(self.path, data)

    def apply(self, store: Store) -> None:
        """Put it there.

        :raises MaintenanceError: if something else is there, or what it goes on from is there no more; nothing is
            written then.
        """
        data = self.text.encode()
        if not store.put_if_absent(self.path, data) and store.get(self.path) != data:
            raise MaintenanceError(f"{store.location}/{self.path} was written since the plan was made.")
        # After the put: who takes that back looks once more for what goes on from it, so one of the two sees the other.
        if self.after and store.get(self.after) is None:
            store.delete_if(self.path, data)
            raise MaintenanceError(f"{store.location}/{self.after} was taken back since the plan was made.")


@dataclass(frozen=True, kw_only=True)
class End:
    """Put an end to an attempt, or to a request for a replay. One that somebody has ended meanwhile is at its end,
    whoever was first: a janitor that had looked before the command began, a listener or an answer that came late.

    :param path: the end's file.
    :param text: its whole content.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "end"

    path: str
    text: str
    why: str

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Put it there, unless there is an end."""
        store.put_if_absent(self.path, self.text.encode())


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Take an epoch, and end it: no attempt before it publishes any more. An epoch that somebody has taken meanwhile is
    theirs, and the fence comes after it.

    :param path: the file of the epoch that is free when the plan is made.
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
        """What it is done to, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Take the first epoch that is free, or was taken by this step before."""
        data, (folder, _, first) = self.text.encode(), self.path.rpartition("/")
        epoch = int(first)
        while not store.put_if_absent(f"{folder}/{epoch}", data) and store.get(f"{folder}/{epoch}") != data:
            epoch += 1
        store.put_if_absent(f"{folder}/{epoch}.end", self.end.encode())


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Have a source leave a range where it is. The source says itself what that changes of its own records, at that
    moment: others may change them while the command is at its steps.

    :param source: name of the source.
    :param lane: whose range it is.
    :param start: where the range begins; None before anything.
    :param end: where it ends.
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
        """What it is done to, for people."""
        return f"source {self.source!r} after {self.start or 'its beginning'} up to {self.end or 'its beginning'}"

    def apply(self, store: Store) -> None:
        """Have the source do it, if the pipeline on record has it. :raises SourceError: if it cannot."""
        found = Recorded(Checkpoint(store)).source(self.source, lane=self.lane)
        if found is not None:
            found.keep(self.start, self.end)


@dataclass(frozen=True, kw_only=True)
class DropOutput:
    """Take a batch's published output out of the table, whatever attempt's it is: a replay may have put its own in the
    place of what the plan saw.

    :param key: the batch, as ``str(BatchKey)``.
    :param epoch: the attempt whose output it was when the plan was made.
    :param sink: definition of the sink.
    :param where: the table's address.
    :param why: the reason, for people.
    :param identity: whose output it is, as it says itself; None if it bears no identity.
    """

    kind: ClassVar[str] = "drop output"

    key: str
    epoch: int
    sink: Mapping[str, Any]
    where: str
    why: str
    identity: Mapping[str, Any] | None = None

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return f"batch {self.key} of {self.where}"

    def apply(self, store: Store, *, is_over: IsOver) -> None:
        """Have the sink do it, unless it is done.

        :raises SinkError: if it cannot.
        :raises MaintenanceError: if the command had ended before the output was out.
        """
        identity = None if self.identity is None else BatchIdentity.from_dict(self.identity)
        seen = Manifest(key=BatchKey.parse(self.key), epoch=self.epoch, identity=identity)
        checkpoint = Checkpoint(store)
        owner = checkpoint.identity()
        own, tables = owner.query_id if owner is not None else "", checkpoint.tables.following_moves
        taken = only(seen, checkpoint=own, tables=tables)
        sink = Sink.from_dict(self.sink).open(SinkContext())
        found = sink.contains(taken)
        # After the look: what is there once the command has ended is of the batch's next life, or was given back.
        if found is None or is_over():
            return
        if sink.withdraw(taken, found.epoch) and is_over():
            raise MaintenanceError(
                f"Batch {self.key} was taken out of {self.where} after that. If it is committed, clear its task, which "
                "makes it again."
            )


@dataclass(frozen=True, kw_only=True)
class DropStage:
    """Remove what an attempt has left to publish. It may have passed the fence before the fence was there.

    :param key: the batch, as ``str(BatchKey)``.
    :param epoch: the attempt.
    :param checkpoint: whose stage it is; empty for one of before identities.
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
        """What it is done to, for people."""
        return f"batch {self.key} attempt {self.epoch}, in {self.where}"

    def apply(self, store: Store) -> None:
        """Have the sink do it, unless it is done. :raises SinkError: if it cannot."""
        stage = BatchIdentity.at(BatchKey.parse(self.key), checkpoint=self.checkpoint)
        Sink.from_dict(self.sink).open(SinkContext()).drop_stage(stage, self.epoch)


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copy a checkpoint, all but what only concerns the place it lies at.

    :param source: its location.
    :param target: location of the copy.
    :param sources: names in the order of the pipeline, for a v1 log.
    :param hand_over: complete the copy for a streaming query.
    :param why: the reason, for people.
    :param changed: files that have another content in the copy, by path.
    """

    kind: ClassVar[str] = "copy"

    source: str
    target: str
    sources: tuple[str, ...]
    hand_over: bool
    why: str
    changed: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return f"{self.source} to {self.target}"

    def apply(self, store: Store, *, is_over: IsOver = _not_over) -> None:
        """Copy what is not there yet. :raises MaintenanceError: if something else is there."""
        is_whole = copy_checkpoint(
            open_store(self.source), open_store(self.target), is_over=is_over, changed=self.changed
        )
        if self.hand_over and is_whole and not is_over():
            hand_over(Checkpoint(open_store(self.target), sources=tuple(self.sources)))


@dataclass(frozen=True, kw_only=True)
class Move:
    """Move all files below a folder of the checkpoint.

    :param path: the folder.
    :param target: the other one.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "move"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return f"{self.path} to {self.target}"

    def apply(self, store: Store, *, is_over: IsOver = _not_over) -> None:
        """Move file by file. :raises MaintenanceError: if something else is at the target."""
        for path in list(files_below(store, self.path)):
            _move(store, path, f"{self.target}{path.removeprefix(self.path)}", is_over)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Move a hidden file of the checkpoint's folder away.

    :param path: the file.
    :param target: where it goes.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "sweep"

    path: str
    target: str
    why: str

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.path

    def apply(self, store: Store) -> None:
        """Move it, unless it is gone. :raises CheckpointError: if a link leads out of the checkpoint."""
        store.move_litter(self.path, self.target)


Step = SetAside | SetAsideLate | Write | End | Fence | Keep | DropOutput | DropStage | Copy | Move | Sweep | MovingStep

AskingStep = SetAside | SetAsideLate | DropOutput | Copy | Move | MovingStep
"""Steps that change more than one thing, or take what cannot be put back. Of a fence the second change is the end of
the first, and has to follow."""

_KINDS: Mapping[str, type[Step]] = {
    kind.kind: kind
    for kind in (SetAside, SetAsideLate, Write, End, Fence, Keep, DropOutput, DropStage, Copy, Move, Sweep, *MOVING)
}


def step_to_dict(step: Step) -> dict[str, Any]:
    """A step as JSON values."""
    return {"step": step.kind, **asdict(step)}


def step_from_dict(values: Mapping[str, Any]) -> Step:
    """What :func:`step_to_dict` made. :raises CheckpointError: for a step of another version of this package."""
    made = _KINDS.get(str(values.get("step")))
    if made is None:
        raise CheckpointError(f"no step {values.get('step')!r} is known here; use the version that began the command.")
    return made(**{name: of_today(value) for name, value in values.items() if name != "step"})
