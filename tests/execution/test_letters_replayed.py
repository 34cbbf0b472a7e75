"""Dead letters that are run again: each once, whoever asks how often, and by Spark from where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, MaintenanceError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.engine import Handle
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.summary import BatchSummary
from airflow_provider_microbatch.runtime.job import Transform
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.maintaining import applied, rewind
from tests.execution.two_tables import is_clean
from tests.execution.world import CODE, World, run_identity
from tests.support.local_spark import local_spark
from tests.support.spark_engine import SparkEngine

pytestmark = pytest.mark.spark

LINES = ('{"id": 1}', '{"id": -2}', '{"id": "three"}', '{"id": -400}')


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


class Letters(World):
    """A pipeline without a transform, whose dead letters are run through ``mends``."""

    def __init__(self, root: Path, spark: Any, letters: Sink) -> None:
        options = {"transform": None, "expect": {"id >= 0": "dead_letter"}, "dead_letters": letters}
        super().__init__(root, sink=FileSink(str(root / "lake")), **options)
        self.engine = SparkEngine(spark)
        self.spark = spark

    def land_lines(self, name: str, *lines: str) -> None:
        (self.landing() / f"{name}.json").write_text("".join(f"{line}\n" for line in lines))

    @property
    def replaying(self) -> Execution:
        pipeline = replaying(self.pipeline, "jobs/mend.py:mends")
        return execution_of(pipeline, self.checkpoint, clock_ms=self._tick)

    def replay(self, number: int, *, clear_number: int = 0) -> BatchSummary | None:
        run = run_identity(number, clear_number=clear_number)
        mends = Transform(module="tests.runtime.shop", function="mends")
        summary = self.replaying.run(run=run, engine=self.engine, code=CODE, transform=mends)
        assert summary is None or isinstance(summary, BatchSummary)
        return summary

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.spark.read.parquet(str(self.lake)).collect())


def test_letters_are_run_again_once(tmp_path: Path, spark: Any) -> None:
    world = Letters(tmp_path, spark, FileSink(str(tmp_path / "letters"), format="json"))
    world.land_lines("a", *LINES)
    world.run(0, world.engine)
    world.land_lines("b", '{"id": 5}')
    world.run(1, world.engine)  # has none
    assert world.ids() == [1, 5]

    replayed = world.replay(10)
    assert replayed is not None
    assert str(replayed.key) == "dead-letters/0"
    assert (replayed.rows_out, replayed.dead_letters, replayed.read) == (2, 1, {"dead_letters": {"batches": 1}})
    assert world.ids() == [1, 2, 3, 5]
    world.replay(10, clear_number=1)
    assert world.ids() == [1, 2, 3, 5]

    again = world.replay(11)  # what was refused again
    assert again is not None
    assert (str(again.key), again.rows_out, again.dead_letters) == ("dead-letters/1", 0, 1)
    assert world.ids() == [1, 2, 3, 5]

    world.land_lines("c", '{"id": 7}')  # the live lane goes on as if nothing had been
    summary = world.run(2, world.engine)
    assert summary is not None
    assert summary.key == BatchKey("live", 2)
    assert world.ids() == [1, 2, 3, 5, 7]
    assert is_clean(world)


def test_letters_are_read_of_their_batch_where_a_table_has_merged_its_files(tmp_path: Path, spark: Any) -> None:
    world = Letters(tmp_path, spark, DeltaSink(str(tmp_path / "letters")))
    for number, line in enumerate(LINES[1:3]):
        world.land_lines(str(number), line)
        world.run(number, world.engine)
    assert DeltaTable((tmp_path / "letters").as_uri()).optimize.compact()["numFilesRemoved"] == 2
    assert world.replay(10) is not None
    assert world.ids() == [2, 3]


def test_a_batch_is_not_replayed_whose_letters_were_and_forget_says_so(
    tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it rewound."""
    world = Letters(tmp_path, spark, FileSink(str(tmp_path / "letters")))
    world.land_lines("a", *LINES[:3])
    world.run(0, world.engine)
    assert world.replay(10) is not None
    assert world.replay(11) is None  # there is nothing more
    with pytest.raises(CheckpointError, match="live/0 is not replayed: its dead letters were run again as batch dead-"):
        world.run(0, world.engine, clear_number=1)
    with pytest.raises(
        MaintenanceError, match=r"as batches dead-letters/0: .* --to -1 --drop-output --lane dead-letters"
    ):
        applied(world, rewind(-1))
    assert world.ids() == [1, 2, 3]
    applied(world, rewind(-1, lane="dead-letters"))
    world.run(0, world.engine, clear_number=1, try_number=2)
    assert world.ids() == [1]
    assert world.replay(12) is not None
    assert world.ids() == [1, 2, 3]
    applied(world, rewind(-1, lane="dead-letters"))
    applied(world, rewind(-1))
    world.run(13, world.engine)
    assert world.replay(14) is not None
    assert world.ids() == [1, 2, 3]
    assert main(["forget", world.pipeline.checkpoint, "--where", "id = 3"]) == 0
    told = capsys.readouterr().out
    assert f"microbatch rewind {world.checkpoint.location} --lane dead-letters --to -1 --drop-output" in told


class Meanwhile(SparkEngine):
    """When the job has ended, and before anything of it is published, the letters are run again elsewhere, by a version
    that does not look for a clear that waits."""

    def __init__(self, world: Letters) -> None:
        super().__init__(world.spark)
        self.world = world

    def result(self, handle: Handle) -> None:
        super().result(handle)
        with mock.patch("airflow_provider_microbatch.execution.dead_letters.check_not_replayed"):
            assert self.world.replay(10) is not None


def test_nor_is_one_published_whose_letters_were_run_again_while_it_ran(tmp_path: Path, spark: Any) -> None:
    world = Letters(tmp_path, spark, FileSink(str(tmp_path / "letters")))
    world.land_lines("a", *LINES[:3])
    world.run(0, world.engine)
    with pytest.raises(CheckpointError, match="live/0 is not replayed: its dead letters were run again as batch dead-"):
        world.run(0, Meanwhile(world), clear_number=1)
    assert world.ids() == [1, 2, 3]


def test_where_there_are_no_dead_letters_nothing_is_replayed(tmp_path: Path) -> None:
    with pytest.raises(MaintenanceError, match="has no dead_letters="):
        replaying(World(tmp_path).pipeline, "jobs/mend.py:mends")
    with pytest.raises(DefinitionError, match=r"is not of the form 'path/to/file.py:function'"):
        replaying(World(tmp_path, dead_letters=FileSink(str(tmp_path / "letters"))).pipeline, "mend")
