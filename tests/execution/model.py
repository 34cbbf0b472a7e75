"""An explicit model of the protocol that drives the real code: what a process does next is found by running it.

A process is a function of what it has seen. So a sleeping process is kept as the answers it got so far; to wake it, it
is run again from its beginning, fed with these, and goes on with the world as it is by then. It sleeps before each
change of checkpoint, stage or table. Killing it is forgetting it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any
from unittest import mock

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.subtasks import SubtaskDone
from airflow_provider_microbatch.exceptions import MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.execution import execution as execution_module
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job, Read, Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SelfContained, SubtaskStages
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, ReadLimit, Source, SourceContext, Split
from airflow_provider_microbatch.stores import Store, Versioned
from airflow_provider_microbatch.upkeep.janitor import Janitor

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
    if path not in world.files or _version(world.files[path][0]) != version:
        return world, None
    return replace(world, files={**world.files, path: (data, world.now_ms)}), _version(data)


def _version(data: bytes) -> str:
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


class ModelStore(Store):
    """The checkpoint's store."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        return f"/model/{self._folder}".rstrip("/")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return bool(port().ask("put", self._folder + path, data))

    def get(self, path: str) -> bytes | None:
        found: bytes | None = port().ask("get", self._folder + path)
        return found

    def get_versioned(self, path: str) -> Versioned | None:
        data = self.get(path)
        return None if data is None else Versioned(data=data, version=_version(data))

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        answer: str | None = port().ask("compare and put", self._folder + path, data, version)
        return answer

    def list(self, folder: str) -> list[str]:
        return list(port().ask("list", (self._folder + folder).rstrip("/")))

    def delete(self, path: str) -> bool:
        return bool(port().ask("delete", self._folder + path))

    def now_ms(self) -> int:
        return int(port().ask("now"))

    def modified_ms(self, path: str) -> int | None:
        found: int | None = port().ask("modified", self._folder + path)
        return found

    def scoped(self, folder: str) -> ModelStore:
        return ModelStore(f"{self._folder}{folder}/")


@dataclass(frozen=True)
class ModelSink(SelfContained):
    """One row a batch."""

    def location(self) -> str:
        return "model"

    def check(self) -> None:
        return

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        return Stage(writer="", arguments={}, report=f"{batch.key}/{epoch}")

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        found: Manifest | None = port().ask("manifest", batch.key, epoch)
        return found

    def failure(self, batch: BatchIdentity, epoch: int) -> None:
        return None

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        found: Manifest | None = port().ask("contains", batch.key)
        return None if found is None else batch.check(found, where="the model's table")

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        published: Manifest = port().ask("publish", batch.key, epoch)
        return batch.check(published, where="the model's table")

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        published: Manifest = port().ask("replace", batch.key, epoch)
        return batch.check(published, where="the model's table")

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        return bool(port().ask("drop", batch.key, epoch))

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return list(port().ask("stages")) if checkpoint else []


@dataclass(frozen=True)
class SplitSink(ModelSink):
    """One that can have halves pass from attempt to attempt."""

    @property
    def subtasks(self) -> SubtaskStages:
        return _Halves()


class _Halves(SubtaskStages):
    def stage(self, batch: BatchIdentity, epoch: int, name: str) -> Stage:
        return Stage(writer="", arguments={}, report=f"{batch.key}/{epoch}/{name}")

    def finished(self, batch: BatchIdentity, epoch: int) -> Sequence[SubtaskDone]:
        return list(port().ask("finished", batch.key, epoch))

    def keep(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> None:
        for one in done:
            port().ask("move", (batch.key, epoch, one.name), (batch.key, KEPT, f"{one.name}-{one.epoch}"))

    def adopt(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> Sequence[SubtaskDone]:
        for one in done:
            port().ask("move", (batch.key, KEPT, f"{one.name}-{one.epoch}"), (batch.key, epoch, one.name))
        there = {(one.name, one.epoch) for one in port().ask("finished", batch.key, epoch)}
        return [one for one in done if (one.name, one.epoch) in there]

    def assemble(self, batch: BatchIdentity, epoch: int) -> None:
        return

    def kept(self, checkpoint: str) -> list[BatchKey]:
        return list(port().ask("kept"))

    def drop(self, batch: BatchIdentity) -> bool:
        return bool(port().ask("drop", batch.key, KEPT))


@dataclass(frozen=True)
class ModelSource(Source):
    """Offsets count rows; all rows are there from the beginning."""

    def open(self, context: SourceContext) -> OpenSource:
        return _Rows()


class _Rows(OpenSource):
    def check(self) -> None:
        return

    def has_new(self, position: str | None) -> bool:
        return int(position or 0) < ROWS

    def latest_offset(self, start: str | None, limit: ReadLimit = UNLIMITED) -> str | None:
        return str(min(int(start or 0) + 1, ROWS))

    def read(self, start: str | None, end: str | None) -> Read:
        return Read(reader="", arguments={"row": int(end or 0)})

    def splits_of(self, start: str | None, end: str | None) -> Sequence[Split]:
        return [Split(id=half, read=self.read(start, end)) for half in ("left", "right")]


class ModelEngine:
    """Writes the stage at once; cannot tell what runs, as on another host."""

    name = "model"

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": f"{key}-{epoch}"}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        key, identity = BatchKey(job.lane, job.batch_id), BatchIdentity.from_dict(job.identity)
        for subtask in job.subtasks:
            if subtask.done is None:
                port().ask("begin", key, job.epoch, subtask.name)
                done = SubtaskDone(name=subtask.name, made_of=subtask.made_of, epoch=job.epoch)
                port().ask("finish", key, job.epoch, done)
        read = job.subtasks[0].read if job.subtasks else job.sources["rows"]
        staged = (read.arguments["row"], identity)
        port().ask("stage", BatchKey(job.lane, job.batch_id), job.epoch, staged)

    def result(self, handle: Handle) -> None:
        return

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        return False


PIPELINE = Pipeline(
    "model", checkpoint="/model", sources={"rows": ModelSource()}, sink=ModelSink(), no_data_batches=False
)


SPLIT_WISE = replace(PIPELINE, sink=SplitSink(), split_wise=True)

_pipeline = PIPELINE


def split_wise() -> bool:
    """Whether the pipeline that is modelled now is."""
    return _pipeline.split_wise


@dataclass(frozen=True, order=True)
class Who:
    """A process: a try of a task run, or the janitor (``run`` is -1)."""

    run: int
    attempt: int = 0
    clear: int = 0

    def identity(self) -> RunIdentity:
        return RunIdentity(
            dag_id="model",
            run_id=f"run-{self.run}",
            task_id="micro_batch",
            ti_id=f"{self.run}-{self.attempt}-{self.clear}",
            try_number=self.attempt,
            clear_number=self.clear,
        )


@dataclass(frozen=True)
class Sleeping:
    """A process before its next change.

    :param memory: what it asked, and was told.
    :param before: the change, which it has decided on; None if it has not begun.
    """

    who: Who
    memory: tuple[tuple[Question, Any], ...]
    before: Question | None = None

    @cached_property
    def digest(self) -> int:
        """The same for processes that have seen the same: what they ask follows from what they were told."""
        return hash((self.who, tuple(repr(answer) for _, answer in self.memory)))


def checkpoint() -> Checkpoint:
    """The checkpoint, as the process that runs sees it."""
    return Checkpoint(ModelStore())


def _live(who: Who) -> None:
    if who.run < 0:
        engine = ModelEngine()
        engines = {engine.name: engine}
        Janitor(checkpoint=checkpoint(), engine_of=engines.get, clock_ms=_zero).run()
        return
    execution = Execution(pipeline=_pipeline, checkpoint=checkpoint(), clock_ms=_zero)
    execution.run(run=who.identity(), engine=ModelEngine(), code=Code(), transform=None)


def _zero() -> int:
    return 0


@contextmanager
def _looking_through(new: Port) -> Iterator[None]:
    global _port
    before, _port = _port, new
    try:
        yield
    finally:
        _port = before


@contextmanager
def modelled(pipeline: Pipeline = PIPELINE) -> Iterator[None]:
    """No threads that renew leases, no chance, and nothing is cleaned up by who falls asleep."""
    global _pipeline
    real = Execution.abandon

    def abandon(self: Execution, attempt: Any, *, error: BaseException, **kwargs: Any) -> None:
        if not isinstance(error, Asleep):
            real(self, attempt, error=error, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Execution, "abandon", abandon))
        stack.enter_context(mock.patch.object(execution_module, "Holder", mock.MagicMock()))
        stack.enter_context(mock.patch.object(uuid, "uuid4", return_value=uuid.UUID(int=0)))
        _pipeline = pipeline
        try:
            yield
        finally:
            _pipeline = PIPELINE


def advance(world: World, sleeping: Sleeping, *, changes: int | None = 1) -> tuple[World, Sleeping | None, bool]:
    """Wake a process for one change.

    :param changes: how many; None lets it run to its end.
    :return: the world after it; the process, None if it has ended; whether it ended well.
    """
    new = Port(world, sleeping.memory, changes)
    with _looking_through(new):
        try:
            _live(sleeping.who)
        except Asleep as asleep:
            return new.world, replace(sleeping, memory=tuple(new.memory), before=asleep.question), False
        except MicroBatchError:
            return new.world, None, False
    return new.world, None, True


def look(world: World, question: Callable[[], Any]) -> Any:
    """Ask something of a world without changing it."""
    with _looking_through(Port(world, (), 0)):
        return question()
