"""One try of one task run whose driver is a real spark-submit, one run of the janitor, or the uninterrupted run."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.engines.code import resolve_code
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError, MicroBatchError
from airflow_provider_microbatch.execution.engine import Code, EngineState, Handle
from airflow_provider_microbatch.runtime.job import Transform
from airflow_provider_microbatch.settings import Settings, hand_down
from airflow_provider_microbatch.upkeep.janitor import Janitor
from tests.chaos.points import Points
from tests.chaos.setting import identity
from tests.chaos.state import state_job
from tests.chaos.state.setting import StateSetting
from tests.support.hooks import Diary

UNINTERRUPTED = "uninterrupted"
"""Folder, below a world's, of checkpoint and table of the run that nobody disturbs."""

# A driver that lives for seconds does not repay what a better compiler costs.
CONF = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def prepare(folder: Path) -> None:
    """What Spark's hook needs of Airflow, imported once for all tasks that are forked from this process."""
    os.environ["AIRFLOW_HOME"] = str(folder / "airflow")
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[1]"})
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    assert SparkSubmitHook


class Blind(SparkSubmitEngine):
    """Of a cluster that knows no driver of earlier attempts, and stops none: they go on beside the new one."""

    def poll(self, handle: Handle) -> EngineState:
        return EngineState.UNKNOWN

    def cancel(self, handle: Handle) -> bool:
        return False


def run(order: dict[str, Any]) -> dict[str, Any]:
    """As :func:`tests.chaos.task.run`; ``engine`` has ``point`` and ``victim`` of the driver's. With ``uninterrupted``
    alone: the same files through the same transform, in one Spark that nobody kills. With ``blind`` drivers of earlier
    attempts are left alone."""
    root = Path(order["root"])
    _write_to(root / "tasks.log")
    if UNINTERRUPTED in order:
        return _uninterrupted(replace(StateSetting.load(root), folder=UNINTERRUPTED))
    setting = StateSetting.load(root)
    who = "task" if "number" in order else "janitor"
    points = Points(order["point"], action=order.get("action", "kill"), root=root, who=who)
    points.install(SparkSubmitEngine, setting.sink_class, setting.publish_steps)
    if "number" not in order:
        return _clean(setting)
    fault = {"root": str(root), "task": os.getpid(), **order["engine"]}
    kind = Blind if order.get("blind") else SparkSubmitEngine
    engine = kind(conf=CONF, env_vars={state_job.FAULT: json.dumps(fault)}, grace_seconds=5)
    code, called = resolve_code(f"state_job.py:{setting.kind}", base=Path(state_job.__file__).parent)
    try:
        summary = setting.execution().run(
            run=identity(number=order["number"], attempt=order["attempt"], clear=order["clear"]),
            engine=engine,
            code=code,
            transform=called,
        )
    except MicroBatchError as error:
        # Of a driver that was killed it is one of several kinds.
        kind = EngineError if isinstance(error, EngineError) else type(error)
        return {"outcome": "error", "type": kind.__name__, "message": str(error)}
    if summary is None:
        return {"outcome": "nothing"}
    return {"outcome": "committed", "batch": summary.key.id, "state": summary.state}


def _clean(setting: StateSetting) -> dict[str, Any]:
    hand_down(lambda: Settings(trusted_modules=(Diary.__module__,)))
    engine = SparkSubmitEngine(conf=CONF, grace_seconds=5)
    report = Janitor(
        checkpoint=setting.checkpoint(),
        engine_of=lambda name: engine if name == engine.name else None,
        grace_seconds=0.0,
    ).run()
    return {"outcome": "cleaned", "failed": report.problems, "dropped": len(report.of("stage dropped"))}


def _uninterrupted(setting: StateSetting) -> dict[str, Any]:
    from tests.state.stateful import SessionEngine
    from tests.support.local_spark import end_jvm, local_spark

    with local_spark() as spark:
        engine, number = SessionEngine(spark), 0
        code = Code(transform=f"state_job.py:{setting.kind}", code_hash="")
        called = Transform(module=state_job.__name__, function=setting.kind)
        run = identity(number=number, attempt=1, clear=0)
        while setting.execution().run(run=run, engine=engine, code=code, transform=called) is not None:
            number += 1
            run = identity(number=number, attempt=1, clear=0)
    end_jvm()
    return {"outcome": "committed", "batch": number - 1}


def _write_to(path: Path) -> None:
    """What Spark and its hook say goes to the world's folder."""
    with path.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
