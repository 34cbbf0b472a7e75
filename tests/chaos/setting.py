"""What lies in a world's folder: landing folders, checkpoint, table; the same in driver, task and checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.stores.location import open_store
from tests.support.customers import IN_SQL
from tests.support.hooks import Diary
from tests.support.served_systems import SYSTEMS, Job
from tests.support.system import System
from tests.support.systems import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Setting:
    """:param root: folder of the world.
    :param system: what the pipeline lives in, by its name in :mod:`tests.support.systems`.
    :param sources: names.
    :param format: of the checkpoint.
    :param max_files: limit of a batch, for each source.
    :param archive: whether committed files are moved away.
    :param lease_seconds: how long an attempt counts as alive after its holder's last sign.
    """

    root: str
    system: str = DEFAULT
    sources: tuple[str, ...] = ("orders",)
    format: str = "v2"
    max_files: int | None = None
    archive: bool = False
    lease_seconds: float = LEASE_SECONDS

    @classmethod
    def load(cls, root: Path) -> Setting:
        values = json.loads((root / "setting.json").read_text())
        return cls(**{**values, "sources": tuple(values["sources"])})

    def save(self) -> None:
        """Make the landing folders and write the setting down for the task processes."""
        for name in self.sources:
            self.where.prepare(name)
        (Path(self.root) / "setting.json").write_text(json.dumps(asdict(self)))

    @property
    def where(self) -> System:
        """The system, in this world's folder."""
        return SYSTEMS[self.system](Path(self.root))

    @property
    def code(self) -> str:
        """File of the transform, below the DAGs folder; the small engine has none."""
        return f"chaos_jobs/{Path(self.root).name}.py"

    @property
    def diary(self) -> Path:
        """What the pipeline's job status hook was told."""
        return Path(self.root, "diary")

    def pipeline(self) -> Pipeline:
        where = self.where
        sources = {name: where.source(name, limit=self.max_files, cleans=self.archive) for name in self.sources}
        arguments: dict[str, Any] = {
            "transform": f"{self.code}:transform",
            "checkpoint_format": self.format,
            "hooks": [Diary(str(self.diary))],
            "split_wise": self.split_wise,
        }
        if isinstance(where, Job):
            return where.in_job(sources, **arguments)
        return Pipeline("orders", checkpoint=where.checkpoint(), sources=sources, sink=where.sink(), **arguments)

    @property
    def split_wise(self) -> bool:
        """Whether the pipeline is run split by split."""
        return len(self.sources) == 1 and getattr(self.where, "split_wise", False)

    @property
    def columns_in_sql(self) -> Sequence[str]:
        """What a transform in Spark adds to the rows besides their version."""
        return IN_SQL if getattr(self.where, "scd_type", 0) == 2 else ()

    @property
    def sink_class(self) -> type:
        """That of the table, opened."""
        return type(self.where.sink().open(SinkContext()))

    @property
    def publish_steps(self) -> Sequence[tuple[Any, str, str]]:
        """Where a process may die while that publishes: owner and name of a function, and the step's."""
        return self.where.publish_steps()

    def land(self, source: str, rows: range) -> None:
        """One unit of these ids."""
        self.where.land(source, rows)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(self.where.checkpoint()), sources=self.sources)

    def execution(self) -> Execution:
        return Execution(pipeline=self.pipeline(), checkpoint=self.checkpoint(), lease_seconds=self.lease_seconds)


def identity(*, number: int, attempt: int, clear: int) -> RunIdentity:
    """The task run ``number`` as Airflow names it."""
    return RunIdentity(
        dag_id="orders",
        run_id=f"run-{number}",
        task_id="micro_batch",
        ti_id=f"ti-{number}-{clear}-{attempt}",
        try_number=attempt,
        clear_number=clear,
    )
