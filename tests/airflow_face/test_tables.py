"""A job of tables in a DAG: which of them a run takes, and what becomes of a clear."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.engine import Code, Engine
from airflow_provider_microbatch.graph.tables import TableJob, folders_of
from airflow_provider_microbatch.operators.tables import TableOperator, TablesOperator
from airflow_provider_microbatch.stores.location import open_store
from tests.airflow_face.support import context
from tests.support.inline_engine import InlineEngine


class InlineTable(TableOperator):
    def code(self, context: Any) -> tuple[Code, None]:
        return Code(transform=None), None

    def engine(self) -> Engine:
        return InlineEngine()


class Tables:
    """A job of tables in a folder, whose tasks are run by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.job = TableJob(
            "shop",
            checkpoint=str(root / "checkpoints"),
            tables=folders_of(str(root / "landing")),
            source=lambda table: FileSource(str(root / "landing" / table), format="json", schema="id long"),
            sink=lambda table: FileSink(str(root / "lake" / table), format="json"),
        )

    def land(self, number: int, *tables: str) -> None:
        for table in tables:
            folder = self.root / "landing" / table
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.json").write_text(json.dumps({"id": number}) + "\n")

    def due(self, number: int, **given: Any) -> list[str]:
        task = TablesOperator(task_id="tables", job=self.job, max_pipelines=2)
        return task.execute(context(self.root, number=number, task_id="tables", **given))

    def run(self, number: int, **given: Any) -> list[str]:
        """A DAG run: what is due, then each in an instance of its own."""
        found = self.due(number, **given)
        for index, table in enumerate(found):
            task = InlineTable(task_id="micro_batch", job=self.job, table=table)
            told = context(self.root, number=number, **given)
            told["ti"].task, told["ti"].map_index = task, index
            told["ti"].id += f"-{index}"
            task.execute(told)
        return found

    def checkpoint(self, table: str) -> Checkpoint:
        return Checkpoint(open_store(self.job.pipeline(table).checkpoint), sources=[table])

    def attempts(self, table: str, number: int = 0) -> int:
        return len(self.checkpoint(table).attempts.all(BatchKey("live", number)))

    def ages(self, table: str, seconds: float) -> None:
        """Its newest commit is older than it was by so much."""
        for path in (self.root / "checkpoints" / table / "commits").iterdir():
            os.utime(path, (path.stat().st_mtime - seconds,) * 2)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_a_run_that_is_cleared_makes_its_own_tables_again_wherever_the_new_list_has_them(tables: Tables) -> None:
    tables.land(1, "a", "b", "c", "d")
    assert tables.run(1) == ["a", "b"]
    assert tables.run(2) == ["c", "d"]
    tables.ages("b", 3600)
    tables.land(2, "c", "d", "e")
    assert tables.run(1, clear_number=1) == ["b", "a"]
    assert [tables.attempts(table) for table in "abcd"] == [2, 2, 1, 1]
    for table in "ab":
        assert tables.checkpoint(table).commit_log.ids() == [0]
        assert tables.checkpoint(table).replays.pending(BatchKey("live", 0)) == []


def test_a_retry_of_the_same_run_does_not_replay(tables: Tables) -> None:
    tables.land(1, "a")
    tables.run(1)
    with pytest.raises(AirflowSkipException):
        tables.due(2)
    tables.run(1, try_number=2)
    assert tables.attempts("a") == 1


def test_a_table_that_cannot_be_made_holds_up_none_and_its_task_tells_why(tables: Tables) -> None:
    """A folder that anybody makes in the landing folder, say."""
    tables.land(1, "a", "New folder (2)", "b")
    assert tables.due(1) == ["a", "b", "New folder (2)"]
    with pytest.raises(DefinitionError, match=r"table name 'New folder \(2\)' cannot be used"):
        InlineTable(task_id="micro_batch", job=tables.job, table="New folder (2)")


def test_so_does_one_that_the_jobs_own_function_fails_for(tables: Tables) -> None:
    schemas = {"a": "id long"}
    tables.job = TableJob(
        "shop",
        checkpoint=str(tables.root / "checkpoints"),
        tables=["a", "b"],
        source=lambda table: FileSource(str(tables.root / "landing" / table), format="json", schema=schemas[table]),
        sink=lambda table: FileSink(str(tables.root / "lake" / table), format="json"),
    )
    tables.land(1, "a", "b")
    assert tables.due(1) == ["a", "b"]


def test_what_airflow_saw_of_an_instance_concerns_the_attempt_of_its_table(tables: Tables) -> None:
    tables.land(1, "a", "b")
    tables.run(1)
    attempt = tables.checkpoint("b").attempts.all(BatchKey("live", 0))[0]
    seen: dict[str, Any] = {
        "dag_id": "orders",
        "run_id": "run-1",
        "map_index": 1,
        "status": "failed",
        "reason": "",
        "marked_ms": 0,
    }
    assert Mark(**seen, task_id="micro_batch", try_number=1).concerns(attempt)
    assert not Mark(**seen, task_id="other", try_number=1).concerns(attempt)
