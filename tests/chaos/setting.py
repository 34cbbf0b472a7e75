"""What lies in a world's folder: landing folders, checkpoint, table; the same in driver, task and checks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.checkpoint.location import open_store
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.support.hooks import Diary


@dataclass(frozen=True, kw_only=True)
class Setting:
    """:param root: folder of the world.
    :param sources: names.
    :param format: of the checkpoint.
    :param max_files: limit of a batch, for each source.
    :param archive: whether committed files are moved away.
    :param lease_seconds: how long an attempt counts as alive after its holder's last sign.
    """

    root: str
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
            self.landing(name).mkdir(parents=True)
        (Path(self.root) / "setting.json").write_text(json.dumps(asdict(self)))

    def landing(self, source: str) -> Path:
        return Path(self.root, "landing", source)

    @property
    def code(self) -> str:
        """File of the transform, below the DAGs folder; the small engine has none."""
        return f"chaos_jobs/{Path(self.root).name}.py"

    @property
    def diary(self) -> Path:
        """What the pipeline's job status hook was told."""
        return Path(self.root, "diary")

    def pipeline(self) -> Pipeline:
        sources = {
            name: FileSource(
                str(self.landing(name)),
                schema="id long",
                max_files=self.max_files,
                clean_source="archive" if self.archive else None,
                archive_dir=str(Path(self.root, "archive", name)) if self.archive else None,
            )
            for name in self.sources
        }
        return Pipeline(
            "orders",
            checkpoint=str(Path(self.root, "checkpoint")),
            sources=sources,
            sink=FileSink(str(Path(self.root, "lake")), format="json"),
            transform=f"{self.code}:transform",
            checkpoint_format=self.format,
            hooks=[Diary(str(self.diary))],
        )

    def land(self, source: str, rows: range) -> None:
        """One file of these ids, renamed into place when it is whole."""
        folder = self.landing(source)
        hidden = folder / f".{rows.start}"
        hidden.write_text("".join(json.dumps({"id": row}) + "\n" for row in rows))
        hidden.rename(folder / f"{rows.start:06}.json")

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(str(Path(self.root, "checkpoint"))), sources=self.sources)

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
