"""The error of a spark-submit that failed begins with its cause."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.engines.spark_submit.error import submit_error, yarn_error
from airflow_provider_microbatch.engines.yarn import Failure
from airflow_provider_microbatch.exceptions import EngineError, SparkKilledError

TRACE = """26/11/22 02:00:00 WARN FileStreamSink: Assume no metadata directory
\tat org.apache.hadoop.fs.RawLocalFileSystem.getFileStatus(RawLocalFileSystem.java:1)
org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed
Caused by: java.io.IOException: No space left on device"""


def hook_error(code: int, tail: str = TRACE) -> Exception:
    """As the Spark provider's hook words it."""
    return RuntimeError(
        f"Cannot execute: spark-submit --master local[1] --name x job.py. Error code is: {code}."
        f"\nLast spark-submit output:\n{tail}"
    )


@pytest.mark.parametrize(("code", "said"), [(-9, "signal 9 (SIGKILL)"), (137, "signal 9 (SIGKILL)")])
def test_a_jvm_that_was_killed_says_by_which_signal(code: int, said: str) -> None:
    error = submit_error("orders batch live/0 attempt 1", hook_error(code), stopped=False)
    assert isinstance(error, SparkKilledError)
    assert str(error).startswith(f"orders batch live/0 attempt 1 failed: its Spark was killed by {said}")
    assert "memory runs out" in str(error)


def test_another_signal_is_named_too() -> None:
    error = submit_error("orders", hook_error(143), stopped=False)
    assert isinstance(error, SparkKilledError)
    assert str(error).startswith("orders failed: its Spark was killed by signal 15 (SIGTERM).")


def test_an_exit_code_is_followed_by_the_first_exception() -> None:
    error = submit_error("orders", hook_error(1), stopped=False)
    assert not isinstance(error, SparkKilledError)
    first, *rest = str(error).splitlines()
    assert first == (
        "orders failed: spark-submit ended with exit code 1: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task "
        "failed. Its last lines:"
    )
    assert rest == TRACE.splitlines()


def test_what_an_executor_says_after_the_end_is_no_cause_of_it() -> None:
    late = "org.apache.spark.SparkException: Could not find HeartbeatReceiver.\n\tat x.y(Z.scala:1)\n"
    told = str(submit_error("orders", hook_error(1, late + TRACE), stopped=False))
    assert told.startswith(
        "orders failed: spark-submit ended with exit code 1: org.apache.spark.SparkException: [TASK_"
    )
    told = str(submit_error("orders", hook_error(1, late), stopped=False))
    assert told.startswith("orders failed: spark-submit ended with exit code 1. Its last lines:")


def test_a_code_of_its_own_and_no_exception_is_the_code_alone() -> None:
    told = str(submit_error("orders", hook_error(101, "no such option"), stopped=False))
    assert told.startswith("orders failed: spark-submit ended with exit code 101. Its last lines:\nno such option")


def test_on_kubernetes_the_drivers_own_code_counts() -> None:
    told = RuntimeError("Cannot execute: spark-submit. Error code is: 0. Kubernetes spark exit code is: 137")
    error = submit_error("orders", told, stopped=False)
    assert str(error).startswith("orders failed: its Spark was killed by signal 9 (SIGKILL)")


def test_what_a_stopped_task_has_on_record_is_that_it_was_stopped() -> None:
    error = submit_error("orders", hook_error(143), stopped=True)
    assert str(error) == "orders was stopped: the task was told to end"
    assert not isinstance(error, SparkKilledError)


def test_what_is_no_end_of_spark_submit_stands_as_it_is() -> None:
    assert str(submit_error("orders", OSError("no such file"), stopped=False)) == "orders failed: no such file"


YARN_ID = "application_1795726709300_0002"
CONTAINER = (
    f"Application {YARN_ID} failed 1 times (global limit =2; local limit is =1) due to AM Container for "
    "appattempt_1795726709300_0002_000001 exited with  exitCode: {code}\n"
    "Failing this attempt.Diagnostics: [2026-11-26 21:01:31.128]Container killed on request. Exit code is {code}"
)


@pytest.mark.parametrize(
    ("was_killed", "diagnostics", "killed", "said"),
    [
        (True, f"Application {YARN_ID} was killed by user root at 127.0.0.1", True, "was killed by user root"),
        (False, CONTAINER.format(code=137), True, "exitCode: 137"),
        (False, CONTAINER.format(code=-104), True, "exitCode: -104"),
        (False, CONTAINER.format(code=13), False, "exitCode: 13"),
        (False, "User application exited with status 1", False, "User application exited with status 1"),
    ],
)
def test_what_ended_an_application_on_yarn_comes_first(
    was_killed: bool, diagnostics: str, killed: bool, said: str
) -> None:
    """As YARN words it."""
    failure = Failure(application=YARN_ID, was_killed=was_killed, diagnostics=diagnostics)
    error = yarn_error("orders", failure)
    first = str(error).splitlines()[0]
    assert first.startswith(f"orders failed: its application {YARN_ID} {'was ended' if killed else 'failed'} on YARN: ")
    assert said in first
    assert f"yarn logs -applicationId {YARN_ID}" in str(error)
    assert type(error) is (SparkKilledError if killed else EngineError)
