"""A pipeline of the world: its options as its DAG file has them now, what has landed for it, where it publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.pipeline import Pipeline
from airflow_provider_microbatch.sources.intervals import Interval
from tests.simulator.disk import DiskStore, Entry
from tests.simulator.hooks import Told
from tests.support.systems import Row

if TYPE_CHECKING:
    from tests.simulator.world import World

LEASE_SECONDS = 60.0


@dataclass(eq=False)
class Unit:
    """What landed at once.

    :param source: where.
    :param ids: its rows.
    :param at_ms: its time.
    :param excused: whether a person decided that these rows need not be in the table.
    :param changed: whether somebody has written it again since it landed.
    """

    source: str
    ids: list[int]
    at_ms: int
    excused: bool = False
    changed: bool = False


@dataclass
class Options:
    """What the user has written down, and may change."""

    limit: int | None = None
    cleans: bool = False
    on_failure: str = "fail"
    retained: int | None = None
    plan: str = "live"
    on_overlap: str = "skip"


class Subject:
    """:param world: the world.
    :param name: of the pipeline.
    :param sources: names.
    :param options: at the beginning.
    :param format: of the checkpoint.
    :param intrudes_on: whose table it would write; nothing of it may ever get there.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        sources: tuple[str, ...],
        options: Options,
        format: str,
        intrudes_on: Subject | None = None,
    ) -> None:
        self._world = world
        self.name = name
        self.sources = sources
        self.options = options
        self.format = format
        self.folder = f"{name}/"
        """Of its checkpoint, on the world's disk."""
        self.root = world.root / name
        self.root.mkdir()
        self.system = world.make_system(Path(self.root))
        self.intrudes_on = intrudes_on
        self.units: list[Unit] = []
        self.backup: dict[str, Entry] = {}
        """Of its checkpoint, at some time."""
        self.kept: dict[str, Entry] | None = None
        """Its checkpoint, while an older or a new one is in its place."""
        self.version = 0
        """Of its code; every clear runs the newest."""
        for source in sources:
            self.system.prepare(source)

    def pipeline(self) -> Pipeline:
        """As its DAG file says it now."""
        given, system = self.options, self.system
        return Pipeline(
            self.name,
            checkpoint=f"/disk/{self.folder}".rstrip("/"),
            sources={name: system.source(name, limit=given.limit, cleans=given.cleans) for name in self.sources},
            sink=(self.intrudes_on or self).system.sink(),
            transform="jobs/orders.py:transform",
            checkpoint_format=self.format,
            min_batches_to_retain=given.retained,
            on_failure=given.on_failure,
            set_aside_after=2,
            plan=given.plan,
            on_overlap=given.on_overlap,
            hooks=(Told("first"), Told("second")),
        )

    def store(self) -> DiskStore:
        """Its checkpoint's store."""
        return DiskStore(self._world, self.folder)

    def checkpoint(self) -> Checkpoint:
        """A fresh one, as every process makes it."""
        return Checkpoint(self.store(), sources=self.sources)

    def execution(self) -> Execution:
        """A fresh one, in the running process."""
        return Execution(
            pipeline=self.pipeline(),
            checkpoint=self.checkpoint(),
            clock_ms=self._world.machine_ms,
            lease_seconds=LEASE_SECONDS,
        )

    def work(self, interval: Interval) -> IntervalWork:
        """The work of a run that has a data interval."""
        return IntervalWork(
            pipeline=self.pipeline(),
            checkpoint=self.checkpoint(),
            interval=interval,
            clock_ms=self._world.machine_ms,
        )

    def land(self, source: str, rows: int) -> Unit:
        """One more unit."""
        world = self._world
        unit = Unit(source=source, ids=list(range(world.rows, world.rows + rows)), at_ms=world.now_ms)
        world.rows += rows
        self.units.append(unit)
        self.system.land(source, unit.ids, at_ms=unit.at_ms)
        return unit

    def is_planned(self, unit: Unit) -> bool:
        """Whether a batch has it."""
        return self.system.is_planned(self.checkpoint().source_log(unit.source), unit.source, unit.ids)

    def wanted(self) -> set[int]:
        """Rows that the table has to have, once each."""
        return {row for unit in self.units if not unit.excused for row in unit.ids}

    def landed(self) -> set[int]:
        """All rows that were ever landed."""
        return {row for unit in self.units for row in unit.ids}

    def put_in_place(self, checkpoint: dict[str, Entry] | None) -> None:
        """Put another checkpoint in the place of this one, which is kept; None: put it back."""
        disk = self._world.disk
        there = disk.below(self.folder)
        for path in there:
            disk.remove(path)
        for path, entry in (self.kept or {} if checkpoint is None else checkpoint).items():
            disk.put(path, entry)
        self.kept = None if checkpoint is None else there

    def table(self) -> Mapping[BatchKey, list[Row]]:
        """The table, as a reader finds it."""
        return {} if self.intrudes_on else self.system.published()
