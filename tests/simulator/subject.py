"""A pipeline of the world: its options as its DAG file has them now, what has landed for it, where it publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.places import ARRIVED
from airflow_provider_microbatch.execution.backfill import IntervalWork
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sources.intervals import Interval
from tests.simulator.disk import DiskStore, Entry
from tests.simulator.hooks import Told
from tests.simulator.systems import FilesIntoTopic
from tests.support.system import Row

if TYPE_CHECKING:
    from tests.simulator.world import World

LEASE_SECONDS = 60.0
HOOKS = ("first", "second")
"""Names of a pipeline's hooks."""


@dataclass(eq=False)
class Unit:
    """What landed at once.

    :param source: where.
    :param ids: its rows.
    :param at_ms: its time.
    :param changed: whether somebody has written it again since it landed.
    :param grown: whether there is a row more in it, which no batch may have: somebody went on writing to it.
    :param shown_ms: since when listings show it; None as long as they do not.
    """

    source: str
    ids: list[int]
    at_ms: int
    changed: bool = False
    grown: bool = False
    shown_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Jump:
    """A position that a person has set: what lies between is not read, or read once more.

    :param source: where, by its landing place.
    :param before: the place up to which was read.
    :param to: the place up to which counts as read now.
    """

    source: str
    before: int
    to: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A backup of checkpoint and table, made while nobody was at work.

    :param checkpoint: all its entries.
    :param names: what the sources were called.
    :param told: what hooks had been told.
    :param newest: the newest batch that was committed.
    :param commanded_ms: when a command changed it last.
    :param jumps: positions that were set by hand, also those that retention had removed from the logs.
    """

    checkpoint: Mapping[str, Entry]
    names: Mapping[str, Sequence[str]]
    told: Mapping[object, Sequence[str]]
    newest: int | None
    jumps: Mapping[int, Jump]
    commanded_ms: int | None


@dataclass
class Options:
    """What the user has written down, and may change."""

    limit: int | None = None
    cleans: bool = False
    archive: str = "archive"
    on_failure: str = "fail"
    retained: int | None = None
    plan: str = "live"
    on_overlap: str = "skip"
    lookback: float | None = None
    slots: int = 1


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
        self.landings = sources
        """Where data lands."""
        self.names: dict[str, list[str]] = {source: [source] for source in sources}
        """What the sources are called, the newest last: the DAG file's is that, or, while it waits, the one before."""
        self.renamed: str | None = None
        """The landing place of the source whose rename is on its way: the DAG file or the checkpoint lags behind."""
        self.dag_lags = False
        """Whether it is the DAG file."""
        self.removed: str | None = None
        """The landing place of a source that the DAG file names no more, for now."""
        self.jumps: dict[int, Jump] = {}
        """By batch: positions that were set by hand, and that no rewind has undone."""
        self.runs_of: dict[BatchKey, set[str]] = {}
        """Names of the runs whose batches are, or were."""
        self.sets_offsets = False
        """Whether anybody has ever set a position by hand."""
        self.options = options
        self.format = format
        self.folder = f"{name}/"
        """Of its checkpoint, on the world's disk. While that moves: of the place that it comes from, until the new one
        is open."""
        self.moves_to: str | None = None
        """The folder that its checkpoint is to move to, as long as the DAG file or the checkpoint lags behind."""
        self.dag_leads = False
        """Whether the DAG file names the new place already."""
        self.root = world.root / name
        self.root.mkdir()
        self.system = world.make_system(Path(self.root))
        if isinstance(self.system, FilesIntoTopic):
            self.system.live_in(world.broker)
        self.intrudes_on = intrudes_on
        self.units: list[Unit] = []
        self.backup: dict[str, Entry] = {}
        """Of its checkpoint, at some time."""
        self.backup_told: Mapping[object, Sequence[str]] = {}
        """What hooks had been told then."""
        self.kept: dict[str, Entry] | None = None
        """Its checkpoint, while an older or a new one is in its place."""
        self.repeats: dict[int, int] = {}
        """By row: how often it may be in the table while its checkpoint is kept, for no other one knows that."""
        self.before: dict[int, int] = {}
        """By row: how often it was in the table when another checkpoint took over there, and counted on behind."""
        self.saved: Saved | None = None
        """Its checkpoint and its table, both of one moment."""
        self.table_is_older = False
        """Whether its table was restored alone, and batches that are committed are not in it."""
        self.state_is_older = False
        """Whether its state was restored alone, and that of the newest batches is not there."""
        self.is_away = False
        """Whether its table is away."""
        self.version = 0
        """Of its code; every clear runs the newest."""
        for source in sources:
            self.system.prepare(source)

    def pipeline(self) -> Pipeline:
        """As its DAG file says it now."""
        given, system = self.options, self.system
        alone = len([landing for landing in self.landings if landing != self.removed]) == 1
        return Pipeline(
            self.name,
            checkpoint=f"/disk/{self._named_folder}".rstrip("/"),
            sources={
                self.named(landing): system.source(
                    landing, limit=given.limit, cleans=given.cleans, archive=given.archive
                )
                for landing in self.landings
                if landing != self.removed
            },
            sink=(self.intrudes_on or self).system.sink(),
            transform="jobs/orders.py:transform",
            checkpoint_format=self.format,
            min_batches_to_retain=given.retained,
            plan=given.plan,
            on_overlap=given.on_overlap,
            lookback=given.lookback,
            hooks=tuple(map(Told, HOOKS)),
            split_wise=alone and getattr(system, "split_wise", False),
            **{"on_failure": given.on_failure, "set_aside_after": 2, **getattr(system, "arguments", dict)()},
        )

    def named(self, landing: str) -> str:
        """What the DAG file calls the source."""
        names = self.names[landing]
        return names[-2] if self.dag_lags and len(names) > 1 and landing == self.renamed else names[-1]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names in the DAG file."""
        return tuple(map(self.named, self.landings))

    @property
    def _named_folder(self) -> str:
        """Where the checkpoint is, as the DAG file has it."""
        return self.moves_to if self.moves_to is not None and self.dag_leads else self.folder

    def has_arrived(self) -> bool:
        """Whether the new place is open."""
        return self.moves_to is not None and f"{self.moves_to}maintenance/{ARRIVED}" in self._world.disk.entries

    def arrive(self) -> None:
        """DAG file and checkpoint agree on the new place."""
        if self.moves_to is not None:
            self.folder, self.moves_to, self.dag_leads = self.moves_to, None, False
            self.backup, self.saved = {}, None

    def store(self) -> DiskStore:
        """The store of the place where its checkpoint is."""
        return DiskStore(self._world, self.moves_to if self.moves_to and self.has_arrived() else self.folder)

    def named_checkpoint(self) -> Checkpoint:
        """The checkpoint as a process of the DAG opens it, where the DAG file says that it is."""
        return Checkpoint(DiskStore(self._world, self._named_folder), sources=self.sources)

    def checkpoint(self) -> Checkpoint:
        """A fresh one, as every process makes it."""
        return Checkpoint(self.store(), sources=self.sources)

    def execution(self) -> Execution:
        """A fresh one, in the running process."""
        return Execution(
            pipeline=self.pipeline(),
            checkpoint=self.named_checkpoint(),
            clock_ms=self._world.machine_ms,
            lease_seconds=LEASE_SECONDS,
        )

    def work(self, interval: Interval) -> IntervalWork:
        """The work of a run that has a data interval."""
        return IntervalWork(
            pipeline=self.pipeline(),
            checkpoint=self.named_checkpoint(),
            interval=interval,
            clock_ms=self._world.machine_ms,
            taken_seconds=0,
        )

    def add_source(self, landing: str) -> None:
        """The DAG file names one more."""
        self.landings, self.names[landing] = (*self.landings, landing), [landing]
        self.system.prepare(landing)

    def land(self, source: str, rows: int, *, shown: bool = True) -> Unit:
        """One more unit.

        :param shown: whether listings show it at once.
        """
        world = self._world
        unit = Unit(source=source, ids=list(range(world.rows, world.rows + rows)), at_ms=world.now_ms)
        world.rows += rows
        self.units.append(unit)
        self.system.land(source, unit.ids, at_ms=unit.at_ms)
        unit.shown_ms = world.now_ms
        if not shown:
            self.system.hide(source, unit.ids)
            unit.shown_ms = None
        return unit

    def show(self, unit: Unit) -> None:
        """Listings show the unit from now on."""
        self.system.show(unit.source, unit.ids)
        unit.shown_ms = self._world.now_ms

    def is_planned(self, unit: Unit) -> bool:
        """Whether a batch has it."""
        return self.planned_in(unit) is not None

    def planned_in(self, unit: Unit) -> tuple[str, int] | None:
        """Lane, and place in the source's order, of the unit; None if it is not planned."""
        checkpoint = self.checkpoint()
        identity = checkpoint.identity()
        names: Sequence[str] = self.names[unit.source]
        if identity is not None and identity.format == "v1":
            names = [identity.sources[self.landings.index(unit.source)]]
        return self.system.planned_in(checkpoint, names, unit.source, unit.ids)

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
        """The table, as a reader finds it; of several the first."""
        return self.tables()[0]

    def tables(self) -> Sequence[Mapping[BatchKey, list[Row]]]:
        """All of them, each of which gets all rows."""
        return [{}] if self.intrudes_on else self.system.published()
