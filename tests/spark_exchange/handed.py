"""A transform that a streaming query and a pipeline make in turn, with its state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime.converted_state import OldState, convert_in
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.stores.location import open_store
from tests.environments import REPOSITORY, spark_environment, spark_script
from tests.spark_exchange.state_query import MODES, SCHEMAS, catch_up
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.support.inline_engine import InlineEngine
from tests.support.local_spark import local_spark


class Spark(Protocol):
    """Runs our jobs, and queries of its own."""

    @property
    def engine(self) -> InlineEngine:
        """Of our jobs."""
        ...

    def stream(self, **query: Any) -> list[dict[str, Any]]:
        """See :func:`catch_up`."""
        ...

    def convert(self, old: OldState) -> None:
        """See :func:`convert_in`."""
        ...


class SparkHere:
    """The locked one, in this process."""

    def __init__(self, session: Any) -> None:
        self.engine = SessionEngine(session)
        self._session = session

    def stream(self, **query: Any) -> list[dict[str, Any]]:
        return catch_up(self._session, **query)

    def convert(self, old: OldState) -> None:
        convert_in(self._session.newSession(), old, is_over=lambda: False)


class OtherSpark(InlineEngine):
    """Of another version, in an environment of its own."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        super().__init__()
        self._ask = ask

    @property
    def engine(self) -> InlineEngine:
        return self

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        """Run it to its end."""
        self._answer({"job": job.to_json()})

    def result(self, handle: Handle) -> None:
        """It has ended."""

    def stream(self, **query: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._answer({"query": query})["rows"]
        return rows

    def convert(self, old: OldState) -> None:
        self._answer({"convert": asdict(old)})

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._ask(json.dumps(asked)))
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer


@contextmanager
def spark_here() -> Iterator[Spark]:
    """The locked one."""
    with local_spark() as session:
        yield SparkHere(session)


@contextmanager
def other_spark(version: str) -> Iterator[Spark]:
    """One of another version."""
    script = Path(__file__).with_name("state_query.py")
    with spark_script(spark_environment(version), script, str(REPOSITORY)) as ask:
        yield OtherSpark(ask)


class _World(StatefulWorld):
    """Its files land where the query finds them: they are known by their paths."""

    def _landing(self, source: str) -> Path:
        return self.root.parent / "landing" / source


class Handed:
    """One transform, made by a streaming query and by a pipeline in turn, each with a checkpoint of its own place.

    :param spark: runs both.
    :param kind: the transform's name.
    :param conf: settings of the query's session.
    :param partitions: number of partitions of the state.
    """

    def __init__(self, root: Path, spark: Spark, kind: str, conf: Mapping[str, str], *, partitions: int = 2) -> None:
        self.partitions = {"spark.sql.shuffle.partitions": str(partitions)}
        self.root, self.kind, self.conf = root, kind, {**self.partitions, **conf}
        self.spark = spark
        self.sources = ("payments", "orders") if kind in ("joined", "paid_in_sessions") else ("orders",)
        self.worlds = 0
        self.landed = 0
        self.query_rows: list[dict[str, Any]] = []
        self.our_rows: list[dict[str, Any]] = []
        self.at = root / "query-0"
        for name in self.sources:
            (root / "landing" / name).mkdir(parents=True)

    def land(self, *rows: tuple[int, str], source: str = "orders") -> None:
        """A file of these ids and times."""
        self.landed += 1
        path = self.root / "landing" / source / f"{self.landed:03}.json"
        path.write_text("".join(json.dumps({"id": id, "at": f"2026-01-01T00:{at}Z"}) + "\n" for id, at in rows))

    def stream(self, *, files: int = 1000) -> list[dict[str, Any]]:
        """Let a streaming query catch up, from the checkpoint that is its now; the rows that it gave.

        :param files: so many are a batch at most.
        """
        rows = self.spark.stream(
            kind=self.kind,
            landing=str(self.root / "landing"),
            sources=self.sources,
            at=str(self.at),
            conf=self.conf,
            files=files,
        )
        self.query_rows += rows
        return rows

    def begin(self) -> None:
        """A pipeline that no query was before."""
        self.worlds += 1
        self.world = _World(
            self.root / f"ours-{self.worlds}",
            f"tests.state.transforms:{self.kind}",
            schema=SCHEMAS[self.kind],
            mode=MODES[self.kind],
            engine=self.spark.engine,
            checkpoint_format="v1",
            conf=self.partitions,
        )
        self.world.root.mkdir()
        self.world.sources = self.sources

    def import_it(self) -> None:
        """From the query's checkpoint to one of ours, which goes on without that."""
        self.begin()
        target = str(self.world.root / "checkpoint")
        words = ["import", str(self.at), target, "--pipeline", "orders", "--sources", ",".join(self.sources)]
        assert main(words) == 0
        shutil.rmtree(self.at)
        assert verify_all(self.world.checkpoint) == []

    def run(self) -> list[dict[str, Any]]:
        """Runs of the pipeline until there is nothing to do; the rows that they gave."""
        number = 0
        while self.world.run(100 * self.worlds + self.landed + number) is not None:
            number += 50
        assert verify_all(self.world.checkpoint) == []
        rows = [row for batch in self.world.table().values() for row in batch]
        self.our_rows += rows
        return rows

    def go_on_from_counts(self) -> None:
        """A query counts orders by id, and a pipeline goes on from its counts."""
        self.land((1, "00:00"), (2, "00:00"))
        self.stream()
        self.land((1, "00:00"))
        self.stream()
        self.import_it()
        assert self.run() == [], "what the query has read is not read again"
        for _ in range(2):
            self.land((1, "00:00"))
            self.run()
        assert self.our_rows[-1] == {"id": 1, "count": 4}

    def export_it(self) -> None:
        """From ours to one that the query goes on from."""
        self.at = self.root / f"query-{self.worlds}"
        assert main(["export", str(self.world.root / "checkpoint"), str(self.at)]) == 0
        assert verify_all(Checkpoint(open_store(str(self.at)), sources=self.sources)) == []


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    """The rows, to be compared whatever their order."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
