"""How a healthy attempt looks for its fence mark: without a word in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime import fence
from airflow_provider_microbatch.runtime.fence import Fence, FencedFailure


class Reading:
    """A session that only counts what it is asked to read; nothing is there."""

    def __init__(self) -> None:
        self.read = self
        self.asked: list[Any] = []

    def options(self, **options: str) -> Reading:
        return self

    def text(self, paths: Any) -> Any:
        from pyspark.errors import PySparkException

        self.asked.append(paths)
        raise PySparkException("PATH_NOT_FOUND")


def test_beside_the_driver_spark_is_never_asked_also_while_there_is_no_stage_yet(tmp_path: Path) -> None:
    """Each question to Spark for a path that is not there is a stack trace in the log of a healthy task."""
    spark: Any = Reading()
    mark = tmp_path / "_staging" / "lane=live" / "batch_id=0" / "attempt=1.fence"
    watched = Fence(spark, f"file://{mark}")
    watched.check()
    assert spark.asked == []
    mark.parent.mkdir(parents=True)
    mark.touch()
    with pytest.raises(FencedFailure):
        watched.check()


def test_elsewhere_spark_is_asked_in_the_way_that_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one path alone it looks for the log of a streaming query too, and logs that this failed."""
    monkeypatch.setattr(fence, "path_beside_driver", lambda spark, address: None)
    spark: Any = Reading()
    Fence(spark, "hdfs://lake/fence").check()
    assert spark.asked == [["hdfs://lake/fence"] * 2]
