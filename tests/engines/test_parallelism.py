"""The chain 2 → 3 → 1 → 7 of parallelisms over 6 splits on real Spark, with an attempt that dies at each change."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.flow import PipelineFlow
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.world import World, run_identity
from tests.support.local_spark import local_spark
from tests.support.spark_engine import SparkEngine

pytestmark = pytest.mark.spark

CHAIN, SPLITS, ROWS = (2, 3, 1, 7), 6, 50


def test_each_batch_is_divided_as_it_was_planned_and_has_each_split_once(tmp_path: Path) -> None:
    world = World(tmp_path, sink=FileSink(str(tmp_path / "lake"), format="json"))
    with local_spark() as spark:
        engine = SparkEngine(spark)
        for number, (readers, after) in enumerate(zip(CHAIN, (*CHAIN[1:], 4), strict=True)):
            for split in range(SPLITS):
                first = (number * SPLITS + split) * ROWS
                world.land(*range(first, first + ROWS))
            world.options["transform"] = PipelineFlow([], {"": "orders"}, partitions={"orders": readers})
            planned = world.execution.plan(run_identity(number))
            assert planned is not None
            # Its process died, and the code that takes the batch up says otherwise.
            world.options["transform"] = PipelineFlow([], {"": "orders"}, partitions={"orders": after})
            code, flow = resolve_code(world.options["transform"], base=tmp_path)
            run = run_identity(number, try_number=2)
            summary = world.execution.run(run=run, engine=engine, code=code, transform=flow)
            assert summary is not None
            assert (summary.key.id, summary.read["orders"]["files"], summary.files_out) == (number, SPLITS, readers)
    written = world.table()
    assert [len(ids) for ids in written.values()] == [SPLITS * ROWS] * len(CHAIN)
    assert sorted(id for ids in written.values() for id in ids) == list(range(len(CHAIN) * SPLITS * ROWS))
