"""An explicit model of the protocol that drives the real code: what a process does next is found by running it.

A process is a function of what it has seen. So a sleeping process is kept as the answers it got so far; to wake it, it
is run again from its beginning, fed with these, and goes on with the world as it is by then. It sleeps before each
change of checkpoint, stage or table. Killing it is forgetting it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.subtasks import SubtaskDone
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution import execution as execution_module
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job, Read, Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, SelfContained, SubtaskStages
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, ReadLimit, Source, SourceContext, Split
from airflow_provider_microbatch.stores import Store, Versioned
from airflow_provider_microbatch.upkeep.janitor import Janitor
from tests.execution.modelled_world import (
    KEPT,
    ROWS,
    Asleep,
    Port,
    Question,
    World,
    looking_through,
    port,
    splitting,
    version_of,
)


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
        return None if data is None else Versioned(data=data, version=version_of(data))

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
        stack.enter_context(splitting(pipeline.split_wise))
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
    with looking_through(new):
        try:
            _live(sleeping.who)
        except Asleep as asleep:
            return new.world, replace(sleeping, memory=tuple(new.memory), before=asleep.question), False
        except MicroBatchError:
            return new.world, None, False
    return new.world, None, True


def look(world: World, question: Callable[[], Any]) -> Any:
    """Ask something of a world without changing it."""
    with looking_through(Port(world, (), 0)):
        return question()
