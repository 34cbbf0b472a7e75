"""A zombie that nobody can reach ends by itself when it sees the fence beside its stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.runtime import fence
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.fence import Fence, FencedFailure
from airflow_provider_microbatch.sinks.file import FileSink
from tests.runtime.jobs import BATCH, EXPECTED, land, make_job
from tests.sinks.stages import make_ready
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # The endless job has the only core.
    with local_spark() as session:
        yield session


@pytest.fixture(params=[False, True], ids=["beside the driver", "elsewhere"], autouse=True)
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Spark's driver is on another host, Spark looks for the fence."""
    if request.param:
        monkeypatch.setattr(fence, "path_beside_driver", lambda spark, address: None)


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "my lake ü%20"), format="json")


@contextmanager
def log_of(spark: Any) -> Iterator[Any]:
    """What the driver's Java logs in the block, as a writer of Java's."""
    log4j, writer = spark._jvm.org.apache.logging.log4j, spark._jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, writer, "told", False, True)
    appender.start()
    root = log4j.LogManager.getContext(False).getRootLogger()
    root.addAppender(appender)
    try:
        yield writer
    finally:
        root.removeAppender(appender)


def test_a_look_for_a_mark_that_is_not_there_leaves_no_word_in_the_log(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    with log_of(spark) as log:
        Fence(spark, f"file://{tmp_path}/_staging/attempt=1.fence").check()
        assert log.toString() == ""
        with pytest.raises(PySparkException):
            spark.read.text(f"file://{tmp_path}/asked for alone")
        assert "asked for alone" in log.toString(), "this is how it would be told"


def test_a_bucket_that_the_driver_has_no_file_system_for_ends_no_watch(spark: Any) -> None:
    fence = Fence(spark, "s3a://lake/_staging/attempt=1.fence")
    fence.check()
    with fence.watched():
        pass


def test_an_attempt_that_is_fenced_mid_job_stops_its_spark(
    spark: Any, sink: FileSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "POLL_SECONDS", 0.1)
    at_work = tmp_path / "at work"
    job = make_job(sink, "never_ends", [land(tmp_path / "landing")], conf={"spark.microbatch.test.mark": str(at_work)})
    seen: list[BaseException] = []

    def zombie() -> None:
        try:
            run_job(spark, job)
        except FencedFailure as error:
            seen.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    while not at_work.exists():
        thread.join(timeout=0.05)
        assert thread.is_alive(), "it ended before it was fenced"
    sink.fence(BATCH, 1, by="superseded by attempt 2")
    thread.join(timeout=60)
    assert len(seen) == 1
    assert sink.manifest(BATCH, 1) is None
    assert sink.failure(BATCH, 1) is None, "its stage may be dropped already: an error report would make it anew"


def test_an_attempt_that_was_fenced_before_its_last_step_leaves_no_manifest(
    spark: Any, sink: FileSink, tmp_path: Path
) -> None:
    make_ready(sink)
    sink.fence(BATCH, 1, by="superseded by attempt 2")
    with pytest.raises(FencedFailure, match="a later attempt has taken its place"):
        run_job(spark, make_job(sink, None, [land(tmp_path / "landing")]))
    assert sink.manifest(BATCH, 1) is None
    run_job(spark, make_job(sink, None, [land(tmp_path / "landing")], epoch=2))
    assert sink.publish(EXPECTED, 2).epoch == 2
