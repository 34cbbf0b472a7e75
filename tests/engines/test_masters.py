"""Where a connection submits to, and what Spark refuses there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines.masters import Target
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.engines.yarn import Yarn
from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.execution.engine import EngineState
from tests.engines.conftest import World
from tests.support.waiting import wait_until

TAG = "microbatch-0b54e5a1-6f5e-4d38-9c6c-3f1a5a2b7c9d"
KEY = BatchKey("live", 5)


@pytest.mark.parametrize(
    ("connection", "master", "deploy_mode"),
    [
        ({"conn_type": "spark", "host": "local[*]"}, "local[*]", "client"),
        ({"conn_type": "spark", "host": "spark://master", "port": 7077}, "spark://master:7077", "client"),
        ({"conn_type": "spark", "host": "master", "port": 7077}, "spark://master:7077", "client"),
        ({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}, "yarn", "cluster"),
        ({"conn_type": "spark", "host": "k8s://https://a:6443", "extra": {"deploy-mode": "cluster"}},
         "k8s://https://a:6443", "cluster"),
    ],
)  # fmt: skip
def test_the_target_is_the_one_the_hook_submits_to(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], master: str, deploy_mode: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    monkeypatch.setattr("airflow_provider_microbatch.engines.kubernetes.check_client", lambda: None)
    handle = SparkSubmitEngine().handle(pipeline="orders", key=KEY, epoch=2)
    assert (handle["master"], handle["deploy_mode"]) == (master, deploy_mode)
    assert handle["engine"] == "spark-submit"
    assert handle["application"] == "orders batch live/5 attempt 2"
    assert json.loads(json.dumps(handle)) == handle
    assert SparkSubmitEngine().handle(pipeline="orders", key=KEY, epoch=2)["tag"] != handle["tag"]


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        (
            {"conn_type": "spark", "host": "spark://m:7077", "extra": {"deploy-mode": "cluster"}},
            "no Python application",
        ),
        ({"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "cluster"}}, "no cluster"),
        ({"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cloud"}}, "'cloud'"),
        ({"conn_type": "spark", "host": "yarn"}, "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"),
        ({"conn_type": "spark", "host": "yarn-cluster"}, "the host 'yarn', without a port"),
        ({"conn_type": "spark", "host": "local[*,\t4]"}, r"'spark_default' cannot be used: .* its master is 'local"),
        ({"conn_type": "yarn", "host": ""}, "master yarn://: Spark knows YARN by the one word 'yarn'"),
        ({"conn_type": "http", "host": "example.com"}, "'spark_default' is of type 'http', not 'spark'"),
    ],
)
def test_what_spark_refuses_is_refused_before_an_attempt_is_recorded(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], said: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match=said):
        SparkSubmitEngine().handle(pipeline="orders", key=KEY, epoch=1)


@pytest.mark.parametrize("master", ["local[*, 4]", "local-cluster[2, 1, 1024]"])
def test_an_attempt_on_each_master_that_spark_takes_can_be_asked_for_and_stopped(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """By another process too, such as the janitor's."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
    handle = SparkSubmitEngine().handle(pipeline="orders", key=KEY, epoch=1)
    assert SparkSubmitEngine().poll(handle) is EngineState.UNKNOWN
    assert SparkSubmitEngine().cancel(handle) is False
    failure = SparkSubmitEngine()._error(handle, ValueError("Cannot execute: spark-submit"), stopped=False)
    assert "Somebody else wrote it" not in str(failure)


def test_nothing_secret_goes_to_the_command_line_of_a_cluster() -> None:
    engine = SparkSubmitEngine(
        conf={"spark.yarn.tags": "theirs", "spark.yarn.submit.waitAppCompletion": "false"}, env_vars={"TOKEN": "x"}
    )
    settings = engine._settings(Target(master="yarn", deploy_mode="cluster"), "microbatch-1")
    assert settings["spark.yarn.appMasterEnv.TOKEN"] == "x"
    assert settings["spark.yarn.tags"] == "theirs,microbatch-1"
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert settings["spark.yarn.submit.waitAppCompletion"] == "true"
    engine = SparkSubmitEngine(conf={"spark.kubernetes.submission.waitAppCompletion": "false"}, env_vars={"TOKEN": "x"})
    settings = engine._settings(Target(master="k8s://a", deploy_mode="cluster"), "microbatch-1")
    assert settings["spark.kubernetes.submission.waitAppCompletion"] == "true"
    assert settings["spark.kubernetes.driverEnv.TOKEN"] == "x"
    assert settings["spark.kubernetes.driver.label.microbatch-tag"] == "microbatch-1"


LISTING = """Total number of applications (application-types: [] and states: [RUNNING]):1
                Application-Id      Application-Name        Application-Type
application_1700000000000_0042  orders batch live/5 attempt 2                  SPARK
"""


def test_yarn_is_asked_by_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = tmp_path / "yarn"
    yarn.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ $2 = -list ] && cat {tmp_path}/listing\nexit 0\n')
    yarn.chmod(0o755)
    (tmp_path / "listing").write_text(LISTING)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    handle = {
        "engine": "spark-submit", "host": "elsewhere", "tag": TAG, "application": "orders",
        "master": "yarn", "deploy_mode": "cluster", "namespace": None,
    }  # fmt: skip
    engine = SparkSubmitEngine()
    assert engine.poll(handle) is EngineState.RUNNING
    assert engine.cancel(handle) is True
    calls = (tmp_path / "calls").read_text().splitlines()
    assert f"-appTags {TAG}" in calls[0]
    assert calls[-1] == "application -kill application_1700000000000_0042"
    (tmp_path / "listing").write_text(LISTING.splitlines()[0])
    assert engine.poll(handle) is EngineState.UNKNOWN
    assert engine.cancel(handle) is False


STATUS = """Application Report :
\tApplication-Id : application_1700000000000_0042
\tState : FAILED
\tFinal-State : FAILED
\tLog Aggregation Status : DISABLED
\tDiagnostics : Application application_1700000000000_0042 failed 1 times due to exitCode: 137
Failing this attempt.Diagnostics: Killed by external signal
. Failing the application.
\tUnmanaged Application : false
\tTimeoutType : LIFETIME\tExpiryTime : UNLIMITED\tRemainingTime : -1seconds
"""


def test_how_an_application_failed_is_asked_by_tag_and_told_whole(tmp_path: Path) -> None:
    yarn, asked_of = tmp_path / "yarn", "application_1700000000000_0042"
    yarn.write_text(
        "#!/bin/sh\n"
        f'[ "$2 $3 $4" = "-list -appTags {TAG}" ] && cat {tmp_path}/listing\n'
        f'[ "$2 $3" = "-status {asked_of}" ] && cat {tmp_path}/status\nexit 0\n'
    )
    yarn.chmod(0o755)
    (tmp_path / "listing").write_text(LISTING)
    (tmp_path / "status").write_text(STATUS)
    asked = Yarn(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"}, binary="spark-submit")
    failure = asked.failure(TAG)
    assert failure is not None
    assert (failure.application, failure.was_killed) == (asked_of, False)
    assert failure.diagnostics.startswith(f"Application {asked_of} failed 1 times due to exitCode: 137\nFailing")
    assert failure.diagnostics.endswith(". Failing the application.")
    (tmp_path / "status").write_text(STATUS.replace("FAILED", "KILLED"))
    failure = asked.failure(TAG)
    assert failure is not None
    assert failure.was_killed
    (tmp_path / "status").write_text(STATUS.replace("FAILED", "SUCCEEDED"))
    assert asked.failure(TAG) is None


def test_a_task_that_is_told_to_stop_asks_yarn_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has three seconds, and a call of Hadoop's client may take two: the id is on spark-submit's lips."""
    folder, asked_of = tmp_path / "bin", "application_1700000000000_0042"
    folder.mkdir()
    (folder / "yarn").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    (folder / "spark-submit").write_text(f"#!/bin/sh\necho Submitted application {asked_of}\nsleep 600\n")
    for program in folder.iterdir():
        program.chmod(0o755)
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    world.engine = engine = SparkSubmitEngine(grace_seconds=1)
    handle = world.start(*world.job(None, [world.land("a.json", [{"id": 1}])]))
    wait_until(lambda: engine._launches[handle["tag"]].application_on_yarn is not None)
    assert engine.cancel(handle) is True
    assert (tmp_path / "calls").read_text() == f"application -kill {asked_of}\n"


def test_a_package_manager_of_the_same_name_is_not_asked(tmp_path: Path) -> None:
    """Images that have Node.js often have its yarn on PATH."""
    programs = {
        "yarn": """echo 'error Command "application" not found.' >&2; exit 1""",
        "spark-submit": "exit 1",
        "spark-class": f"echo $1 >> {tmp_path}/classes; [ $3 = -list ] && cat {tmp_path}/listing; exit 0",
    }
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "listing").write_text(LISTING)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HADOOP_CONF_DIR": "/etc/hadoop/conf"}
    yarn = Yarn(environment=environment, binary="spark-submit")
    assert yarn.applications(TAG) == ["application_1700000000000_0042"]
    assert yarn.kill(TAG)
    assert set((tmp_path / "classes").read_text().split()) == {"org.apache.hadoop.yarn.client.cli.ApplicationCLI"}


def test_a_yarn_that_cannot_be_asked_is_an_error_not_a_guess() -> None:
    """At once: a triggerer has no time to look for a ResourceManager that nothing names."""
    with pytest.raises(EngineError, match=r"neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set\. Set"):
        Yarn(environment={"PATH": os.environ["PATH"]}, binary="spark-submit").applications(TAG)
    with pytest.raises(EngineError, match="neither, beside spark-submit, 'spark-class' nor 'yarn' is here"):
        Yarn(environment={"PATH": "/nowhere", "HADOOP_CONF_DIR": "/x"}, binary="spark-submit").applications(TAG)
