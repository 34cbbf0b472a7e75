"""Operators outside of a scheduler: a context of plain objects, and the engine that needs no Spark.

What the real context holds is held by the tests below ``tests/scheduler``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.operators.drain import DrainSlotOperator
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import SubmitMicroBatchOperator
from tests.support.inline_engine import InlineEngine


def context(
    bundle: Path,
    *,
    number: int = 1,
    task_id: str = "micro_batch",
    map_index: int = -1,
    try_number: int = 1,
    clear_number: int = 0,
    run_type: str = "scheduled",
    running: tuple[str, ...] = (),
    others: int = 0,
    interval: tuple[datetime, datetime] | None = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    partition_date: datetime | None = None,
    timetable: Any = None,
) -> Any:
    """What a task of DAG run ``number`` gets."""
    ti = SimpleNamespace(
        dag_id="orders",
        run_id=f"run-{number}",
        task_id=task_id,
        map_index=map_index,
        id=f"ti-{number}-{task_id}-{clear_number}-{try_number}{f'-{map_index}' if map_index >= 0 else ''}",
        try_number=try_number,
        get_dagrun_state=lambda *, dag_id, run_id: "running" if run_id in running else "failed",
        get_task_states=lambda *, dag_id, task_ids, run_ids: {},
        get_dr_count=lambda *, dag_id, states: 1 + others if set(states) == {"queued", "running"} else -1,
        bundle_instance=SimpleNamespace(name="dags-folder", version="abc123", path=bundle),
    )
    dag_run = SimpleNamespace(
        clear_number=clear_number,
        logical_date=datetime(2026, 1, 1, tzinfo=UTC),
        partition_key=None,
        partition_date=partition_date,
        run_id=ti.run_id,
        data_interval_start=interval[0] if interval else None,
        data_interval_end=interval[1] if interval else None,
        run_type=run_type,
    )
    return {"ti": ti, "dag_run": dag_run, "dag": SimpleNamespace(timetable=timetable, task_dict={})}


def transform_file(bundle: Path) -> None:
    """The file that the pipelines of the tests name."""
    (bundle / "jobs").mkdir(parents=True, exist_ok=True)
    (bundle / "jobs" / "orders.py").write_text("def transform(batch):\n    return batch.sources['orders']\n")


class InlineOperator(MicroBatchOperator):
    """A MicroBatchOperator on the given engine."""

    def __init__(self, *, inline: InlineEngine, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inline = inline

    def engine(self) -> Engine:
        return self.inline


class InlineSlot(DrainSlotOperator):
    """A slot of a drain on the given engine."""

    def __init__(self, *, inline: InlineEngine, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inline = inline

    def engine(self) -> Engine:
        return self.inline


class InlineSubmit(SubmitMicroBatchOperator):
    """A SubmitMicroBatchOperator on the given engine."""

    def __init__(self, *, inline: InlineEngine, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inline = inline

    def engine(self) -> Engine:
        return self.inline


def tree(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Everything below a folder: mtime in nanoseconds, mode, content."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }
