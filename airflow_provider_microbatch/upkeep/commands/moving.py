"""The steps of ``microbatch copy``: copy everything, leave the old place, open the new place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_microbatch.checkpoint.places import ARRIVED, ARRIVING, MOVED, OF_THE_PLACE, Move
from airflow_provider_microbatch.checkpoint.records import encode_record
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.copying import is_file

_METADATA = "metadata"
_MAINTENANCE = "maintenance"
_ROUNDS = 5
"""Number of rounds in which files that a process writes or takes back meanwhile are copied again. No live process
does."""


def moving_files(store: Store) -> Iterator[str]:
    """Paths of all files that move along, except ``metadata``, which is copied last. Files about the place itself stay:
    commands that have not ended, and entries that a process was about to remove."""
    for name in sorted(store.list("")):
        if name == _MAINTENANCE:
            yield from _ended_commands(store)
        elif name != _METADATA:
            yield from (path for path in _below(store, name) if not path.startswith("microbatch/retained/"))


def _ended_commands(store: Store) -> Iterator[str]:
    names = sorted({*store.list(_MAINTENANCE)} - OF_THE_PLACE)
    ended = {name.removesuffix(".end") for name in names if name.endswith(".end")}
    for name in names:
        if name.removesuffix(".end").removesuffix(".decided") in ended:
            yield f"{_MAINTENANCE}/{name}"


def _below(store: Store, path: str) -> Iterator[str]:
    if is_file(store, path):
        yield path
        return
    maybe_folders = {*store.folders(path)}
    for name in sorted(store.list(path)):
        if name in maybe_folders:
            yield from _below(store, f"{path}/{name}")
        else:
            yield f"{path}/{name}"


@dataclass(frozen=True, kw_only=True)
class _OfAMove:
    """The fields that all steps of one move share, in the order in which they are stored.

    :param source: the place that the checkpoint leaves.
    :param target: the place that the checkpoint moves to.
    :param checkpoint: id of the checkpoint.
    :param by: user and host.
    :param at_ms: when the move was planned, milliseconds since the epoch, UTC.
    :param why: the reason, for people.
    """

    source: str
    target: str
    checkpoint: str
    by: str
    at_ms: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CopyTo(_OfAMove):
    """Copy all files that move along, entry by entry, and read each entry again at the new place. No run can begin at
    the new place: it records that the checkpoint is on its way, and has no ``metadata``."""

    kind: ClassVar[str] = "copy to"

    @property
    def what(self) -> str:
        """The place that the step changes, for people."""
        return self.target

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Copy the files that are missing or differ. Do nothing if the new place is open: this command, or another
        process of it, has come that far, and files that are only there were written since.

        :raises MaintenanceError: if another checkpoint is there, or a process writes at one of the places.
        """
        target, move = open_store(self.target), move_of(self)
        # Before the record too, or a checkpoint that a run has begun there would be closed, and its files replaced.
        _check_nobody_else(store, target, move)
        is_new = arrive(target, move)
        try:
            _check_nobody_else(store, target, move)
        except MaintenanceError:
            if is_new:  # nothing was copied yet, and the record would close the checkpoint that was begun there
                target.delete_if(f"{_MAINTENANCE}/{ARRIVING}", move.encoded())
            raise

        def is_done() -> bool:
            return is_over() or is_open(target)

        for _ in range(_ROUNDS):
            if is_done() or self._is_same(store, target, is_done):
                return
        raise MaintenanceError(
            f"{store.location} and {target.location} are not the same, {_ROUNDS} times in a row: somebody writes there."
        )

    def _is_same(self, store: Store, target: Store, is_over: Callable[[], bool]) -> bool:
        """Copy missing files and remove files that are gone at the old place. Return whether there was nothing to
        do."""
        is_same, paths = True, list(moving_files(store))
        for path in paths:
            data, there = store.get(path), target.get(path)
            if is_over():  # asked for what is there already too: the caller gives signs of life meanwhile
                return False
            if data is None or data == there:
                is_same = is_same and data is not None
                continue
            is_same = False
            if there is not None:
                target.delete_if(path, there)
            # Another process of this command may have come first, with the same bytes.
            if not target.put_if_absent(path, data) and target.get(path) != data:
                raise MaintenanceError(f"{target.location}/{path} is there and is another one.")
            if is_over():
                if _came_late(store, target, path, data):
                    target.delete_if(path, data)
                return False
        for path in {*moving_files(target)}.difference(paths):
            # An offset entry that a process wrote late, and took back, may have been copied in between.
            there = target.get(path)
            if there is not None and store.get(path) is None and not is_over():
                target.delete_if(path, there)
                is_same = False
        return is_same


def _came_late(store: Store, target: Store, path: str, data: bytes) -> bool:
    """Whether a file that was just copied must be removed again. If this process slept before the put, the new place
    may be in use by now, and may have removed the file as unneeded. If this process slept after the put, another
    process has finished the copy with this very file, and the pipeline needs the file there."""
    if store.get(path) != data:
        return True
    opened_ms, written_ms = target.modified_ms(f"{_MAINTENANCE}/{ARRIVED}"), target.modified_ms(path)
    return opened_ms is not None and written_ms is not None and written_ms > opened_ms


@dataclass(frozen=True, kw_only=True)
class Leave(_OfAMove):
    """Record at the old place that the checkpoint has left. From here on no run begins there, whatever becomes of the
    command."""

    kind: ClassVar[str] = "leave"

    @property
    def what(self) -> str:
        """The place that the step changes, for people."""
        return self.source

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Record the move, unless it is recorded already.

        :raises MaintenanceError: if a move to another place is recorded, the new place is gone or has another
            checkpoint, or the command was given up at this moment.
        """
        path, data = f"{_MAINTENANCE}/{MOVED}", move_of(self).encoded()
        if store.get(path) is None:
            # Later than this nothing but the same command goes on, so the new place must be one that it can open.
            target = open_store(self.target)
            _check_arriving(store, target, move_of(self))
            _check_nobody_else(store, target, move_of(self))
        is_new = store.put_if_absent(path, data)
        if not is_new and store.get(path) != data:
            raise MaintenanceError(f"{store.location}/{path} says that it has moved elsewhere.")
        # The record is not taken back: a process that has read it may be opening the new place by now. Entries that
        # were written here since the command was given up are copied later.
        if is_new and is_over():
            raise MaintenanceError(
                f"{store.location} has left for {self.target} although its copy was given up. Type it again, and it "
                "goes on."
            )


@dataclass(frozen=True, kw_only=True)
class Open(_OfAMove):
    """Let runs use the new place."""

    kind: ClassVar[str] = "open"

    @property
    def what(self) -> str:
        """The place that the step changes, for people."""
        return self.target

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Open the new place, unless it is open.

        :raises MaintenanceError: if the old place does not record a move to the new place, or the new place does not
            record that the checkpoint is on its way there.
        """
        target, move = open_store(self.target), move_of(self)
        if store.get(f"{_MAINTENANCE}/{MOVED}") != move.encoded():
            raise MaintenanceError(f"{store.location} does not say that it has moved to {target.location}.")
        _check_arriving(store, target, move)
        metadata = store.get(_METADATA)
        if metadata is None:
            raise MaintenanceError(f"{store.location}/{_METADATA} is gone, and with it the checkpoint's id.")
        if not target.put_if_absent(_METADATA, metadata) and target.get(_METADATA) != metadata:
            raise _taken(store, target, _METADATA, move)
        target.put_if_absent(f"{_MAINTENANCE}/{ARRIVED}", encode_record({"by": self.by}))


MovingStep = CopyTo | Leave | Open


def move_of(step: MovingStep) -> Move:
    """The move that a step is part of."""
    return Move(source=step.source, target=step.target, checkpoint=step.checkpoint, by=step.by, at_ms=step.at_ms)


def is_open(target: Store) -> bool:
    """Whether runs may use the new place."""
    return target.get(f"{_MAINTENANCE}/{ARRIVED}") is not None


def arrive(target: Store, move: Move) -> bool:
    """Record at the new place that the checkpoint is on its way.

    :return: False if that was on record.
    :raises MaintenanceError: if another checkpoint was copied there.
    """
    path, data = f"{_MAINTENANCE}/{ARRIVING}", move.encoded()
    is_new = target.put_if_absent(path, data)
    if not is_new and target.get(path) != data:
        raise MaintenanceError(
            f"{target.location} is where another checkpoint was copied to. Move what is there away, or name another "
            "place."
        )
    return is_new


def _check_nobody_else(store: Store, target: Store, move: Move) -> None:
    """Check that nobody has begun a checkpoint at the new place, which had nothing when the move was planned: a command
    that is killed before its first entry there leaves nothing that keeps a run from it.

    :raises MaintenanceError: if somebody has.
    """
    metadata = target.get(_METADATA)
    if target.get(f"{_MAINTENANCE}/{ARRIVING}") is None:
        found = _METADATA if metadata is not None else next(moving_files(target), None)
    else:
        found = _METADATA if metadata not in (None, store.get(_METADATA)) else None
    if found is not None:
        raise _taken(store, target, found, move)


def _check_arriving(store: Store, target: Store, move: Move) -> None:
    if target.get(f"{_MAINTENANCE}/{ARRIVING}") != move.encoded():
        raise MaintenanceError(
            f"{target.location} is not where {store.location} was copied to: it was removed. Type {move.command} again "
            "with nothing there."
        )


def _taken(store: Store, target: Store, path: str, move: Move) -> MaintenanceError:
    return MaintenanceError(
        f"{target.location}/{path} is another checkpoint's: a run has begun one there since {store.location} was about "
        f"to be copied. Pause the DAG, move all that is at {target.location} away, then type {move.command} again."
    )
