"""What the pipelines of these worlds do, and where their drivers die. It travels to Spark: of the tests it has nothing.

A driver is told by its environment where to die: ``root``, ``point``, ``victim`` and ``task`` (pid) as JSON. The victim
``task beside`` is a task whose driver goes on as soon as the next attempt's has begun.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import app, report, streaming
from airflow_provider_microbatch.runtime.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAULT = "MICROBATCH_CHAOS"
BESIDE = "task beside"
NAP_POINTS = ("in foreachBatch", "after the stage", "after Spark's commit")
NAP_SECONDS = 300.0
"""As long as such a driver waits for the next one, at most."""

WATCH_SECONDS = 30.0
"""As long as the driver of a batch waits for files of its state, at most: a batch without any has none."""

POINTS = (
    "before the query",
    "in foreachBatch",
    "a half of the state",
    "after the stage",
    "after Spark's commit",
    "before the manifest",
    "after the manifest",
)


def totals(batch: Batch) -> DataFrame:
    """Rows of an id so far, whenever they change: a batch shows all that came before."""
    from pyspark.sql import functions as F

    _arm()
    return batch.sources["orders"].groupBy("id").agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))


def windows(batch: Batch) -> DataFrame:
    """Rows of an id in half a minute, once the watermark has passed it."""
    from pyspark.sql import functions as F

    _arm()
    orders = batch.sources["orders"].withWatermark("at", "30 seconds")
    by = orders.groupBy(F.window("at", "30 seconds"), "id").agg(F.sum("amount").alias("amount"))
    return by.select(F.col("window.start").alias("start"), "id", "amount")


def once(batch: Batch) -> DataFrame:
    """Orders, each once."""
    _arm()
    return batch.sources["orders"].select("id", "at").withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])


def joined(batch: Batch) -> DataFrame:
    """Orders with the payments of their next minute, and those without, once the watermark has passed it."""
    from pyspark.sql import functions as F

    _arm()
    orders = batch.sources["orders"].withWatermark("at", "30 seconds").alias("o")
    payments = batch.sources["payments"].withWatermark("at", "30 seconds").alias("p")
    within = F.expr("o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 MINUTE")
    both = orders.join(payments, within, "leftOuter")
    return both.select("o.id", "o.at", "o.amount", F.col("p.amount").alias("paid"))


def _arm() -> None:
    """Have this driver die where it is told to."""
    fault = json.loads(os.environ.get(FAULT, "{}"))
    if not fault.get("point"):
        return
    die = _death(fault)
    die("before the query")
    run_query, read_commit, write_manifest = streaming.run_query, streaming.read_commit, report.write_manifest

    def query(spark: Any, job: Any, result: Any, write: Callable[[Any], None]) -> Any:
        fault["folder"] = job.streaming.folder
        # That of a first batch lies in the attempt's own folder until the stage is whole.
        seen = _watch([Path(job.streaming.state), Path(job.streaming.folder, "state")], die)

        def write_stage(frame: Any) -> None:
            die("in foreachBatch")
            write(frame)
            if fault["point"] == POINTS[2]:
                # On a busy machine the watch comes late, and a driver that goes on would end without having died.
                seen.wait(WATCH_SECONDS)
            die("after the stage")

        return run_query(spark, job, result, write_stage)

    def commit(folder: str, batch_id: int) -> Any:
        die("after Spark's commit")
        return read_commit(folder, batch_id)

    def manifest(*args: Any, **kwargs: Any) -> None:
        die("before the manifest")
        write_manifest(*args, **kwargs)
        die("after the manifest")

    app.run_query, streaming.read_commit, report.write_manifest = query, commit, manifest  # type: ignore[attr-defined]


def _watch(folders: Sequence[Path], die: Callable[[str], None]) -> threading.Event:
    """Die when the first files of the attempt's state are there, while others are missing. Set when they are."""
    seen = threading.Event()

    def files() -> set[Path]:
        return {path for one in folders for path in one.rglob("*") if path.suffix in (".changelog", ".zip")}

    def watch(before: set[Path]) -> None:
        while not files() - before:
            time.sleep(0.002)
        die(POINTS[2])
        seen.set()

    threading.Thread(target=watch, args=(files(),), daemon=True).start()
    return seen


def _nap(own: Path) -> None:
    """Until another attempt at the batch shows its Spark a folder."""
    batch, end = own.name.partition("-")[0], time.monotonic() + NAP_SECONDS
    while not any(other != own for other in own.parent.glob(f"{batch}-*")) and time.monotonic() < end:
        time.sleep(0.01)


def _death(fault: dict[str, Any]) -> Callable[[str], None]:
    mine, jvm = os.getpid(), os.getppid()
    task = [fault["task"]]
    victims = {"driver": [jvm, mine], "task": task, "both": [*task, jvm, mine], BESIDE: task}

    def die(point: str) -> None:
        if point != fault["point"]:
            return
        with Path(fault["root"], "kills.log").open("a") as log:
            log.write(f"{fault['victim']}, driver at {point}\n")
        fault["point"] = None
        for pid in victims[fault["victim"]]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if fault["victim"] == BESIDE:
            _nap(Path(fault["folder"]))

    return die
