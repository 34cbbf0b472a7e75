"""What lies in a world of a stateful pipeline: files that land for its sources, checkpoint, table."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from tests.chaos.setting import Setting
from tests.support.hooks import Diary

SOURCES = {"totals": ("orders",), "windows": ("orders",), "once": ("orders",), "joined": ("orders", "payments")}
"""By what the transform does: aggregation in both output modes, deduplication, join."""

START = datetime(2026, 1, 1, tzinfo=UTC)
STEP = timedelta(seconds=20)
KEYS = 5


@dataclass(frozen=True, kw_only=True)
class StateSetting(Setting):
    """:param kind: the transform, of :data:`SOURCES`.
    :param folder: of checkpoint and table, below the root.
    """

    kind: str = "totals"
    folder: str = ""

    def pipeline(self) -> Pipeline:
        """One file of each source is a batch: so a batch has the same rows whatever lands while it fails."""
        return Pipeline(
            "orders",
            checkpoint=str(self.place / "checkpoint"),
            sources={
                name: FileSource(
                    str(Path(self.root, "landing", name)),
                    format="json",
                    schema="id long, at timestamp, amount long",
                    max_files=1,
                )
                for name in self.sources
            },
            sink=FileSink(str(self.place / "lake"), format="json"),
            transform=f"state_job.py:{self.kind}",
            stateful=True,
            output_mode="update" if self.kind == "totals" else "append",
            conf={"spark.sql.shuffle.partitions": "2"},
            hooks=[Diary(str(self.diary))],
        )

    @property
    def place(self) -> Path:
        return Path(self.root, self.folder)

    @property
    def diary(self) -> Path:
        return self.place / "diary"

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(str(self.place / "checkpoint")), sources=self.sources)

    def land_unit(self, number: int, dice: random.Random) -> None:
        """One file of each source, renamed into place when it is whole. Some rows are there twice, some are late."""
        for name in self.sources:
            at = START + number * STEP
            rows = [
                {"id": dice.randrange(KEYS), "at": _text(at + timedelta(seconds=dice.randrange(10))), "amount": number}
                for _ in range(dice.randint(1, 4))
            ]
            rows += rows[: dice.randint(0, 1)]
            if len(self.sources) == 1 and number > 3 and dice.random() < 0.4:
                rows.append({"id": dice.randrange(KEYS), "at": _text(START), "amount": 1})
            self._land(name, number, rows)

    def land_last(self, number: int) -> None:
        """What lets the watermark pass all that has landed."""
        for name in self.sources:
            self._land(name, number, [{"id": KEYS, "at": _text(START + (number + 100) * STEP), "amount": 0}])

    def _land(self, source: str, number: int, rows: list[dict[str, object]]) -> None:
        folder = Path(self.root, "landing", source)
        hidden = folder / f".{number:06}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / f"{number:06}.json")

    def lines(self) -> list[str]:
        """The rows of the table, as they stand in its files, sorted."""
        parts = (self.place / "lake").glob("lane=live/batch_id=*/part-*")
        return sorted(line for path in parts for line in path.read_text().splitlines())


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
