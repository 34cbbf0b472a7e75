"""The world of the protocol model: all that outlives a process, as values, and what a process asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.subtasks import SubtaskDone
from airflow_provider_microbatch.exceptions import MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import Manifest

HOUR_MS = 60 * 60 * 1000
ROWS = 3
"""The source has as many rows, one a batch."""


Staged = tuple[int, BatchIdentity]
"""A row, and the batch that it was read for."""

KEPT = 0
"""In place of an epoch: where what is kept of a batch lies."""

Half = tuple[SubtaskDone, bool]
"""A finished half of a row, and whether it lacks something: its stage was dropped while it was written."""

Question = tuple[str, tuple[Any, ...]]
"""What a process asks of the world, or changes."""


class Asleep(BaseException):
    """The process sleeps before its next change. No cleanup code may run.

    :param question: the change.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


@dataclass(frozen=True)
class World:
    """Everything that outlives a process. Values are never changed in place.

    :param files: path → bytes and when they were written.
    :param stages: batch and attempt → the row's number, and the batch's identity.
    :param table: batch → attempt, row and identity.
    :param now_ms: the store's clock.
    :param halves: batch, attempt and name → a finished subtask there.
    :param begun: batch, attempt and name of those that are being written, and whose stage is still there.
    """

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    stages: dict[tuple[BatchKey, int], Staged] = field(default_factory=dict)
    table: dict[BatchKey, tuple[int, Staged]] = field(default_factory=dict)
    now_ms: int = HOUR_MS
    halves: dict[tuple[BatchKey, int, str], Half] = field(default_factory=dict)
    begun: frozenset[tuple[BatchKey, int, str]] = frozenset()

    @cached_property
    def digest(self) -> int:
        """The same for equal worlds. Of 64 bits: two of a million worlds are taken for one with odds of 1 to 10⁷."""
        halves = frozenset((place, half[0].epoch, half[0].made_of, half[1]) for place, half in self.halves.items())
        contents = map(frozenset, (self.files.items(), self.stages.items(), self.table.items()))
        return hash((*contents, self.now_ms, halves, self.begun))


class Port:
    """What a process sees of the world: each call is answered from its memory as long as that lasts, then by the world.

    :param world: as it is now.
    :param memory: questions and answers so far.
    :param changes: so many changes may be made before it sleeps; None for no limit.
    """

    def __init__(self, world: World, memory: tuple[tuple[Question, Any], ...], changes: int | None) -> None:
        self.world = world
        self.memory = list(memory)
        self._told = 0
        self._changes = changes

    def ask(self, name: str, *arguments: Any) -> Any:
        """Answer a question, or make a change."""
        question = (name, arguments)
        if self._told < len(self.memory):
            asked, answer = self.memory[self._told]
            assert asked == question, f"the process is no function of what it sees: {asked} was {question}"
            self._told += 1
            return self._give(answer)
        after, answer = _ANSWERS[name](self.world, *arguments)
        if after is not self.world:
            if not _unseen(name, *arguments):
                if self._changes == 0:
                    raise Asleep(question)
                if self._changes is not None:
                    self._changes -= 1
            self.world = after
        self.memory.append((question, answer))
        self._told += 1
        return self._give(answer)

    @staticmethod
    def _give(answer: Any) -> Any:
        if isinstance(answer, MicroBatchError):
            raise answer
        return answer


def _unseen(name: str, *arguments: Any) -> bool:
    """Changes that come out the same whoever makes them first: to sleep before them would only multiply states."""
    return name == "put" and str(arguments[0]).startswith(("metadata", "microbatch/"))


def _put(world: World, path: str, data: bytes) -> tuple[World, bool]:
    if path in world.files:
        return world, False
    return replace(world, files={**world.files, path: (data, world.now_ms)}), True


def _compare_and_put(world: World, path: str, data: bytes, version: str) -> tuple[World, str | None]:
    if path not in world.files or version_of(world.files[path][0]) != version:
        return world, None
    return replace(world, files={**world.files, path: (data, world.now_ms)}), version_of(data)


def version_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def _delete(world: World, path: str) -> tuple[World, bool]:
    if path not in world.files:
        return world, False
    return replace(world, files={name: data for name, data in world.files.items() if name != path}), True


def _list(world: World, folder: str) -> tuple[World, tuple[str, ...]]:
    prefix = f"{folder}/" if folder else ""
    return world, tuple(sorted({p[len(prefix) :].partition("/")[0] for p in world.files if p.startswith(prefix)}))


def _manifest(key: BatchKey, epoch: int, staged: Staged) -> Manifest:
    row, identity = staged
    # What ran split by split says so.
    told = {"subtasks": {}} if split_wise() else {}
    return Manifest(key=key, epoch=epoch, identity=identity, files={}, result={"row": row, **told})


def _contains(world: World, key: BatchKey) -> tuple[World, Manifest | None]:
    found = world.table.get(key)
    return world, None if found is None else _manifest(key, *found)


def _staged(world: World, key: BatchKey, epoch: int) -> tuple[World, Manifest | None]:
    staged = world.stages.get((key, epoch))
    return world, None if staged is None else _manifest(key, epoch, staged)


def _publish(world: World, key: BatchKey, epoch: int) -> tuple[World, Any]:
    if key in world.table:
        return world, _manifest(key, *world.table[key])
    if (key, epoch) not in world.stages:
        return world, SinkError(f"no stage {key} {epoch}")
    return _moved(world, key, epoch)


def _replace(world: World, key: BatchKey, epoch: int) -> tuple[World, Any]:
    current = world.table.get(key)
    if current is None:
        return _publish(world, key, epoch)
    if current[0] > epoch:
        return world, PublishConflictError(f"{key}: {current[0]} is later than {epoch}")
    if current[0] == epoch:
        return world, _manifest(key, *current)
    if (key, epoch) not in world.stages:
        return world, SinkError(f"no stage {key} {epoch}")
    return _moved(world, key, epoch)


def _moved(world: World, key: BatchKey, epoch: int) -> tuple[World, Any]:
    staged = world.stages[key, epoch]
    if split_wise():
        own = {place: half for place, half in world.halves.items() if place[:2] == (key, epoch)}
        if len(own) < 2:
            return world, SinkError(f"a half of {key} {epoch} was taken away")
        assert not any(torn for _, torn in own.values()), "what is published lacks nothing"
        world = replace(world, halves={place: half for place, half in world.halves.items() if place not in own})
    stages = {stage: found for stage, found in world.stages.items() if stage != (key, epoch)}
    return replace(world, stages=stages, table={**world.table, key: (epoch, staged)}), _manifest(key, epoch, staged)


def _drop(world: World, key: BatchKey, epoch: int) -> tuple[World, bool]:
    halves = {place: half for place, half in world.halves.items() if place[:2] != (key, epoch)}
    begun = frozenset(place for place in world.begun if place[:2] != (key, epoch))
    if (key, epoch) not in world.stages and (halves, begun) == (world.halves, world.begun):
        return world, False
    world = replace(world, halves=halves, begun=begun)
    return replace(world, stages={s: staged for s, staged in world.stages.items() if s != (key, epoch)}), True


def _begin(world: World, *place: Any) -> tuple[World, None]:
    return replace(world, begun=world.begun | {place}), None


def _finish(world: World, key: BatchKey, epoch: int, done: SubtaskDone) -> tuple[World, None]:
    place = (key, epoch, done.name)
    half = (done, place not in world.begun)
    return replace(world, halves={**world.halves, place: half}, begun=world.begun - {place}), None


def _finished(world: World, key: BatchKey, epoch: int) -> tuple[World, tuple[SubtaskDone, ...]]:
    found = sorted(place for place in world.halves if place[:2] == (key, epoch))
    return world, tuple(world.halves[place][0] for place in found)


def _move(world: World, source: tuple[BatchKey, int, str], target: tuple[BatchKey, int, str]) -> tuple[World, bool]:
    if source not in world.halves or target in world.halves:
        return world, False
    halves = {place: half for place, half in world.halves.items() if place != source}
    return replace(world, halves={**halves, target: world.halves[source]}), True


_ANSWERS: dict[str, Callable[..., tuple[World, Any]]] = {
    "put": _put,
    "compare and put": _compare_and_put,
    "delete": _delete,
    "list": _list,
    "get": lambda world, path: (world, world.files[path][0] if path in world.files else None),
    "modified": lambda world, path: (world, world.files[path][1] if path in world.files else None),
    "now": lambda world: (world, world.now_ms),
    "contains": _contains,
    "manifest": _staged,
    "publish": _publish,
    "replace": _replace,
    "drop": _drop,
    "begin": _begin,
    "finish": _finish,
    "finished": _finished,
    "move": _move,
    "kept": lambda world: (world, tuple(sorted({place[0] for place in world.halves if place[1] == KEPT}))),
    "stages": lambda world: (
        world,
        tuple(sorted({*world.stages, *(place[:2] for place in (*world.halves, *world.begun) if place[1] != KEPT)})),
    ),
    "stage": lambda world, key, epoch, staged: (replace(world, stages={**world.stages, (key, epoch): staged}), None),
}

_port: Port | None = None


def port() -> Port:
    """The port of the process that runs: sinks are made again from their definitions and have no other way to it."""
    assert _port is not None
    return _port


@contextmanager
def looking_through(new: Port) -> Iterator[None]:
    """Whoever asks in the block asks by this port."""
    global _port
    before, _port = _port, new
    try:
        yield
    finally:
        _port = before


_split_wise = False


def split_wise() -> bool:
    """Whether the pipeline that is modelled now is."""
    return _split_wise


@contextmanager
def splitting(given: bool) -> Iterator[None]:
    """The pipeline that is modelled in the block is split-wise, or is not."""
    global _split_wise
    before, _split_wise = _split_wise, given
    try:
        yield
    finally:
        _split_wise = before
