"""An engine whose jobs are processes of the world: they write step by step, die, hang, lie dead, or go on after their
task has died."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Job
from tests.simulator.processes import Process

if TYPE_CHECKING:
    from tests.simulator.world import World

NAME = "simulated"

DIES, DIES_HALF_WAY, HANGS, LIES_DEAD, OUTLIVES = "dies", "dies half way", "hangs", "lies dead", "outlives its end"
FATES = (DIES, DIES_HALF_WAY, HANGS, LIES_DEAD, OUTLIVES)


@dataclass
class Running:
    """A job that was started.

    :param process: what runs it.
    :param hangs: it never ends by itself.
    :param lies_dead: it runs, and the engine says that it does not know it.
    :param outlives_cancel: it goes on when it is told to end.
    """

    process: Process
    hangs: bool = False
    lies_dead: bool = False
    outlives_cancel: bool = False


class Cluster:
    """All jobs of the world, by tag.

    :param world: the world.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.jobs: dict[str, Running] = {}
        self.unreachable = False
        self.poison: set[int] = set()
        """Rows at which the transform fails."""
        self.next: list[str] = []
        """What becomes of the next jobs."""

    def start(self, tag: str, job: Job, *, version: int) -> None:
        world, fate = self._world, self.next.pop(0) if self.next else ""

        def body() -> None:
            running = self.jobs[tag]
            try:
                for step in world.system_of(job.pipeline).execute(job, version=version):
                    world.point(f"job {job.lane}/{job.batch_id} attempt {job.epoch}: {step}")
                    if fate == DIES_HALF_WAY and step.startswith("write"):
                        raise EngineError("the driver was killed by SIGKILL")
                    while running.hangs:
                        world.processes.wait("an end of its hanging", lambda: not running.hangs)
                    if step == "read" and self._is_poisoned(job):
                        world.system_of(job.pipeline).fail(job, "poison")
                        raise EngineError("spark-submit ended with 1")
            except OSError as error:
                # What it reads or writes was taken away under it.
                raise EngineError(f"spark-submit ended with 1: {error}") from error

        name = f"job {job.lane}/{job.batch_id} attempt {job.epoch}"
        process = world.processes.spawn(name, body, machine=len(world.skews) - 1)
        self.jobs[tag] = Running(
            process, hangs=fate == HANGS, lies_dead=fate == LIES_DEAD, outlives_cancel=fate == OUTLIVES
        )
        world.touched = True
        if fate == DIES:
            world.processes.kill(process)

    def _is_poisoned(self, job: Job) -> bool:
        if not self.poison:
            return False
        system = self._world.system_of(job.pipeline)
        return any(row["id"] in self.poison for row in system.rows_of(job))

    def alive(self) -> list[tuple[str, Running]]:
        """Jobs that still run."""
        return [(tag, found) for tag, found in self.jobs.items() if not found.process.gone]


class SimulatedEngine:
    """The engine, as one process of the world uses it.

    :param cluster: where jobs run.
    """

    name = NAME

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster = cluster
        self._world = world

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        return {"engine": self.name, "tag": f"{pipeline}-{key}-{epoch}-{self._world.random.getrandbits(32):08x}"}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        with self._asking("start"):
            self._cluster.start(handle["tag"], job, version=int(code.code_hash or 0))

    def result(self, handle: Handle) -> None:
        found = self._cluster.jobs[handle["tag"]]
        self._world.processes.wait(f"the end of {found.process.name}", lambda: found.process.gone)
        if found.process.error is not None or found.process.state == "dead":
            raise EngineError(str(found.process.error or "the driver was killed by SIGKILL"))

    def poll(self, handle: Handle) -> EngineState:
        with self._asking("poll"):
            found = self._cluster.jobs.get(str(handle.get("tag")))
            if found is None or found.lies_dead:
                return EngineState.UNKNOWN
            if not found.process.gone:
                return EngineState.RUNNING
            return EngineState.UNKNOWN if found.process.state == "dead" else EngineState.SUCCEEDED

    def cancel(self, handle: Handle) -> bool:
        with self._asking("cancel"):
            found = self._cluster.jobs.get(str(handle.get("tag")))
            if found is None or found.process.gone or found.outlives_cancel:
                return False
            self._world.processes.kill(found.process)
            return True

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        self._world.point(f"engine.{what}")
        if self._cluster.unreachable and self._world.processes.current is not None:
            raise EngineError(f"cannot {what}: the cluster cannot be reached")
        yield
