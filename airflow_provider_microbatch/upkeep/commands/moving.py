"""The steps of ``microbatch copy``: copy everything, leave the old place, open the new one."""

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
"""So often what somebody writes or takes back meanwhile is copied after. Nobody who is alive does."""


def moving_files(store: Store) -> Iterator[str]:
    """Paths of all that moves along, but for ``metadata``, which comes last. What stays says who does what at the place
    itself: the commands that have not ended, and what somebody was about to remove."""
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
    """What the steps of one move have in common, in the order in which they are written down.

    :param source: the place the checkpoint leaves.
    :param target: the place it comes to.
    :param checkpoint: its id.
    :param by: user and host.
    :param at_ms: when it was planned, milliseconds since the epoch, UTC.
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
    """Copy all that moves along, entry by entry, and look at each of them again at the new place. Nobody can begin
    anything there: it says that the checkpoint is on its way, and has no ``metadata``."""

    kind: ClassVar[str] = "copy to"

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.target

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Copy what is not there yet. Nothing where the new place is open: the command, or another one beside it, has
        come that far, and what is there and not here has been written since.

        :raises MaintenanceError: if something else is there, or somebody writes at one of the places.
        """
        target = open_store(self.target)
        arrive(target, move_of(self))

        def is_done() -> bool:
            return is_over() or is_open(target)

        for _ in range(_ROUNDS):
            if is_done() or self._is_same(store, target, is_done):
                return
        raise MaintenanceError(
            f"{store.location} and {target.location} are not the same, {_ROUNDS} times in a row: somebody writes there."
        )

    def _is_same(self, store: Store, target: Store, is_over: Callable[[], bool]) -> bool:
        """Copy what is missing and remove what is no more; whether nothing was to be done."""
        is_same, paths = True, list(moving_files(store))
        for path in paths:
            data, there = store.get(path), target.get(path)
            if data is None or data == there:
                is_same = is_same and data is not None
                continue
            if is_over():
                return False
            is_same = False
            if there is not None and not target.delete_if(path, there):
                raise MaintenanceError(f"{target.location}/{path} is written by somebody else.")
            if not target.put_if_absent(path, data):
                raise MaintenanceError(f"{target.location}/{path} is there and is another one.")
            if is_over():
                if _came_late(store, target, path, data):
                    target.delete_if(path, data)
                return False
        for path in {*moving_files(target)}.difference(paths):
            # A plan that came late, and was taken back by who made it, may have been copied in between.
            there = target.get(path)
            if there is not None and store.get(path) is None and not is_over():
                target.delete_if(path, there)
                is_same = False
        return is_same


def _came_late(store: Store, target: Store, path: str, data: bytes) -> bool:
    """Whether a file that was just copied is one too many: its process slept before the put, and the place may be in
    use by now, and have removed what it has no use for. If it slept after the put, another has finished the copy with
    this very file, and who goes on there needs it."""
    if store.get(path) != data:
        return True
    opened_ms, written_ms = target.modified_ms(f"{_MAINTENANCE}/{ARRIVED}"), target.modified_ms(path)
    return opened_ms is not None and written_ms is not None and written_ms > opened_ms


@dataclass(frozen=True, kw_only=True)
class Leave(_OfAMove):
    """Say at the old place that the checkpoint has gone. From here on nobody goes on there, whatever becomes of the
    command."""

    kind: ClassVar[str] = "leave"

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.source

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Say it, unless it is said.

        :raises MaintenanceError: if it was said of another place; or the command was given up at this moment.
        """
        path, data = f"{_MAINTENANCE}/{MOVED}", move_of(self).encoded()
        is_new = store.put_if_absent(path, data)
        if not is_new and store.get(path) != data:
            raise MaintenanceError(f"{store.location}/{path} says that it has moved elsewhere.")
        # Not taken back: whoever has read it may be opening the new place by now. What went on here since the command
        # was given up is copied after.
        if is_new and is_over():
            raise MaintenanceError(
                f"{store.location} has left for {self.target} although its copy was given up. Type it again, and it "
                "goes on."
            )


@dataclass(frozen=True, kw_only=True)
class Open(_OfAMove):
    """Let the new place be used."""

    kind: ClassVar[str] = "open"

    @property
    def what(self) -> str:
        """What it is done to, for people."""
        return self.target

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Open it, unless it is open.

        :raises MaintenanceError: if the old place does not say that the checkpoint has gone there; or the new one, that
            it is on its way there.
        """
        target, move = open_store(self.target), move_of(self)
        if store.get(f"{_MAINTENANCE}/{MOVED}") != move.encoded():
            raise MaintenanceError(f"{store.location} does not say that it has moved to {target.location}.")
        if target.get(f"{_MAINTENANCE}/{ARRIVING}") != move.encoded():
            raise MaintenanceError(f"{target.location} is not where {store.location} was copied to: it was removed.")
        metadata = store.get(_METADATA)
        if metadata is None:
            raise MaintenanceError(f"{store.location}/{_METADATA} is gone, and with it the checkpoint's id.")
        if not target.put_if_absent(_METADATA, metadata) and target.get(_METADATA) != metadata:
            raise MaintenanceError(f"{target.location}/{_METADATA} is another checkpoint's.")
        target.put_if_absent(f"{_MAINTENANCE}/{ARRIVED}", encode_record({"by": self.by}))


MovingStep = CopyTo | Leave | Open
MOVING = (CopyTo, Leave, Open)


def move_of(step: MovingStep) -> Move:
    """What a step is part of."""
    return Move(source=step.source, target=step.target, checkpoint=step.checkpoint, by=step.by, at_ms=step.at_ms)


def is_open(target: Store) -> bool:
    """Whether the new place may be used."""
    return target.get(f"{_MAINTENANCE}/{ARRIVED}") is not None


def arrive(target: Store, move: Move) -> None:
    """Say at the new place that the checkpoint is on its way.

    :raises MaintenanceError: if something else is there.
    """
    path, data = f"{_MAINTENANCE}/{ARRIVING}", move.encoded()
    if not target.put_if_absent(path, data) and target.get(path) != data:
        raise MaintenanceError(f"{target.location} is where another checkpoint was copied to. Name another place.")
