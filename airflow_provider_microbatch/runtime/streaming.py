"""Runs one planned batch by Spark's own streaming engine, which keeps the state of its operators.

Not for Spark Connect: only the driver's own JVM shows the query's plan, which has the order of its sources.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.batch import Frames
from airflow_provider_microbatch.runtime.bounded import (
    at_the_end,
    check_all_told,
    check_clock,
    check_let_go,
    check_times,
)
from airflow_provider_microbatch.runtime.copied_rows import copied, count_of_copy
from airflow_provider_microbatch.runtime.failure import BatchFailure, failing_as
from airflow_provider_microbatch.runtime.files import literally
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.kept_columns import kept_columns
from airflow_provider_microbatch.runtime.other_state import (
    columns_told,
    newer_settings,
    refuse_first_operator,
    refuse_moved_columns,
    refuse_moved_state,
    refuse_other_spark,
    refuse_other_state,
    refuse_passed_over,
)
from airflow_provider_microbatch.runtime.parquet_settings import kept_whole
from airflow_provider_microbatch.runtime.query_plan import SOURCE, Query, source_of
from airflow_provider_microbatch.runtime.streaming_folder import (
    ROWS,
    TOLD,
    leave_state,
    make_folder,
    plan_end,
    read_commit,
    remove_folder,
    write_folder,
)
from airflow_provider_microbatch.runtime.streaming_job import Stream, Streaming
from airflow_provider_microbatch.runtime.watermarks import POLICY, moved_on, of_query, streams_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("microbatch")

SNAPSHOT_EVERY = 10
"""Batches between two full uploads of RocksDB; the batches between them upload their changes."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE = "spark.sql.streaming.stateStore."
PROVIDER = _STATE + "providerClass"
FORMAT = _STATE + "checkpointFormatVersion"
CHANGELOG = _STATE + "rocksdb.changelogCheckpointing.enabled"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""With it Spark names sources, in logs of format v2. An attempt's own folder names them by position, whatever the
format of the checkpoint, which pins the setting."""
STATE_SETTINGS = {PROVIDER: ROCKSDB, FORMAT: "2", _STATE + "stateSchemaCheck": "true"}
"""Settings that a pipeline which keeps state has to leave as they are."""

_NEVER = "1000000000"
_METADATA_CLASSES = (
    "org.apache.spark.sql.execution.streaming.OffsetSeqMetadata",
    "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata",
)


@dataclass(frozen=True, kw_only=True)
class OpenedStreams:
    """The sources of a batch, as its transform gets them.

    :param frames: the streaming frames by source name.
    :param streams: what they are frames of, by source name.
    :param learned: what the readers of copied rows learned, by source name.
    :param rows: number of copied rows by source name.
    """

    frames: Frames
    streams: Mapping[str, Stream]
    learned: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, int]


@contextmanager
def own_folder(spark: SparkSession, streaming: Streaming) -> Iterator[None]:
    """Have the attempt's own folder inside, and nothing of it afterwards.

    :raises BatchFailure: with Spark Connect, or if the attempt has run already.
    """
    if "connect" in type(spark).__module__:
        raise BatchFailure(
            "runtime",
            "a stateful pipeline runs by spark-submit: a Spark Connect server does not show in which order a query has "
            "its sources. Give the operator a connection of type spark",
        )
    with failing_as("runtime"):
        make_folder(streaming)
    # Spark asks a Python process beside the driver what a processor keeps. The process gets none of the job's files: it
    # finds the processor's module only where the driver does.
    spark.sparkContext.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    try:
        yield
    finally:
        remove_folder(streaming.folder)


def open_streams(
    spark: SparkSession, job: Job, streaming: Streaming, load: Callable[[str], Callable[..., Any]]
) -> OpenedStreams:
    """Open a stream of each source: of its range where it lies, or of a copy of the range's rows.

    :param load: returns the function that a path names.
    :raises BatchFailure: if a range cannot be read, or a stream not be opened.
    """
    frames, streams, learned, rows = Frames(absent=job.absent), dict(streaming.sources), {}, {}
    for name, read in job.sources.items():
        with failing_as("read", where=f"source {name!r}"):
            log.info("copying the rows of source %s%s", name, f", {read.amount}" if read.amount else "")
            found = load(read.reader)(spark, read.arguments)
            if found.absent is None:
                streams[name] = copied(found, name=name, folder=Path(streaming.folder) / ROWS / name)
                rows[name] = count_of_copy(spark, streams[name])
            else:
                frames.absent[name] = found.absent
            if found.learned:
                learned[name] = dict(found.learned)
    for name, stream in streams.items():
        with failing_as("read", where=f"source {name!r}"):
            frames[name] = load(stream.reader)(spark, {**stream.arguments, "tag": {SOURCE: name}})
    return OpenedStreams(frames=frames, streams=streams, learned=learned, rows=rows)


def run_query(
    spark: SparkSession, job: Job, result: DataFrame, write: Callable[[DataFrame], None]
) -> tuple[dict[str, Any] | None, bool, dict[str, Any]]:
    """Run the batch as the only batch of a streaming query. The job's streams are those that :func:`open_streams`
    opened, and the attempt's :func:`own_folder` is there.

    Of a bounded batch Spark makes two where something may wait for a watermark: one with the data, and one at the end
    of all time, at which everything is final. Their rows are the batch's together.

    :param result: the frame that the transform made of the streams.
    :param write: called once, with the batch's rows.
    :return: the state that the next batch continues from, None for a bounded batch; whether Spark asks for a batch
        without data; the query's progress.
    :raises BatchFailure: as the transform or the write does.
    """
    streaming = job.streaming
    assert streaming is not None
    if not result.isStreaming:
        raise BatchFailure(
            "transform",
            "of a pipeline with stateful=True the transform returned a frame that is no stream; make it of "
            "batch.sources, or leave out stateful=True",
        )
    planned = Query(result)
    if streaming.bounded:
        check_clock(planned.nodes)
    before = streaming.before
    was: Mapping[str, Any] = before or {}
    refuse_other_spark(str(was.get("sparkVersion", spark.version)), spark.version)
    if before is not None and not before["ids"]:
        refuse_first_operator(planned.nodes)
    with planned.told_in_full():
        places, kept = planned.places(), kept_columns(result)
        as_before = kept_columns(result, called=was["renamed"]) if was.get("renamed") else kept
        streams = streams_of(planned, was.get("timed", []))
    refuse_moved_state(was.get("places", []), places)
    # Each version of Spark has its own order of some.
    columns = was.get("columns", []) if was.get("sparkVersion") == spark.version else []
    if kept is not None and as_before is not None:
        refuse_moved_columns(columns, as_before)
        columns = columns_told(kept)
    with failing_as("runtime"):
        # The first batch changes all state anyway; a state taken over from a streaming query has its snapshots at other
        # batches.
        is_first = before is None or before.get("since") == job.batch_id
        whole = is_first or (job.batch_id + 1) % SNAPSHOT_EVERY == 0
        _keep_state_by_ids(spark, whole=whole, bounded=streaming.bounded)
        conf = dict(before["conf"]) if before is not None else _pinned_by_spark(spark)
        if before is not None and newer_settings(conf):
            pinned = _pinned_by_spark(spark)
            refuse_passed_over(conf, pinned, planned.nodes, kept_by=str(was.get("sparkVersion", "another version")))
        conf.pop(EVOLUTION, None)  # the checkpoint's own, where it has it
        uses, names = _in_order(result, streaming.sources)
        write_folder(
            streaming,
            [streaming.sources[name] for name in uses],
            [streaming.sources[name] for name in names],
            batch_id=job.batch_id,
            watermark_ms=job.watermark_ms,
            timestamp_ms=job.batch_timestamp_ms,
            conf=conf,
        )
        named = streams.names
    ends = streaming.bounded and bool(named)
    told = Path(streaming.folder) / TOLD
    first = partial(_keep, told) if ends else write
    query = _run(streaming, job.batch_id, result, first, check_let_go if streaming.bounded else None)
    with failing_as("runtime"):
        commit = read_commit(streaming.folder, job.batch_id)
        last = query._jsq.streamingQuery().lastExecution()
        watermarks = moved_on(was.get("watermarks", {}), named, last.executedPlan())
        at_ms = of_query(commit["nextBatchWatermarkMs"], watermarks, named, policy=conf.get(POLICY, "min"))
        another = not streaming.bounded and _asks_for_another(last, at_ms, job)
        progress = query.lastProgress
    figures = _figures(progress, uses, names)
    if ends:
        check_times(figures, last.executedPlan())
        at = job.batch_id + 1
        with failing_as("runtime"):
            plan_end(
                streaming,
                [streaming.sources[name] for name in uses],
                batch_id=at,
                timestamp_ms=job.batch_timestamp_ms,
                conf=conf,
            )
        with at_the_end(planned.nodes):
            query = _run(streaming, at, result, lambda last: write(_together(told, last)))
        with failing_as("runtime"):
            check_all_told(spark, streaming.folder, at, _executed(query), output_mode=streaming.output_mode)
    if streaming.bounded:
        return None, False, figures
    with failing_as("runtime"):
        schemas = leave_state(streaming, job.batch_id)
    state = {
        "ids": commit["stateUniqueIds"] or {},
        "base": before["ids"] if before is not None else None,
        "conf": conf,
        "nextWatermarkMs": at_ms,
        "watermarks": watermarks,
        "timed": list(streams.made),
        "places": places,
        "columns": columns,
        "outputMode": streaming.output_mode,
        "sparkVersion": spark.version,
        **({"since": before["since"]} if before is not None and "since" in before else {}),
        **({"schemas": schemas} if schemas else {}),
    }
    return state, another, figures


def _keep(folder: Path, frame: DataFrame) -> None:
    """Keep rows for a later moment. Spark's own copy of a frame may be lost with an executor, and could not be made
    again: the state has gone on."""
    where = "the rows from before the end of the interval"
    with failing_as("write", where=where), kept_whole(frame.sparkSession):
        frame.write.parquet(f"file://{folder}")


def _together(folder: Path, last: DataFrame) -> DataFrame:
    """The kept rows, and the last ones."""
    session = last.sparkSession
    return session.read.schema(last.schema).parquet("file://" + literally(str(folder))).union(last)


def _run(
    streaming: Streaming,
    planned: int,
    result: DataFrame,
    write: Callable[[DataFrame], None],
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Run the planned batch, and return the query.

    :param check: is given Spark's plan of the batch, which Spark makes when the query runs, before a row is read.
    """
    failures: list[BatchFailure] = []
    started = Future[Any]()

    def write_batch(frame: DataFrame, batch_id: int) -> None:
        try:
            if batch_id != planned:
                raise BatchFailure(
                    "runtime",
                    f"Spark's streaming engine ran batch {batch_id}, and batch {planned} was planned. Nothing of "
                    "it was written. Run the task again; if it comes again, report it with the attempt's log",
                )
            if check is not None:
                with failing_as("runtime"):
                    check(_executed(started.result()))
            write(frame)
        except BatchFailure as failure:
            failures.append(failure)
            raise

    from pyspark.errors import PySparkException

    with failing_as("transform"):
        query = (
            result.writeStream.outputMode(streaming.output_mode)
            .option("checkpointLocation", "file://" + streaming.folder)
            .trigger(once=True)
            .foreachBatch(write_batch)
            .start()
        )
        started.set_result(query)
        try:
            query.awaitTermination()
        except PySparkException as error:
            if failures:
                raise failures[0] from None
            refuse_other_state(str(error))
            raise
    return query


def _executed(query: Any) -> Any:
    """Spark's plan of a query's newest batch, as it is executed."""
    return query._jsq.streamingQuery().lastExecution().executedPlan()


def close_state(spark: SparkSession) -> None:
    """Close the state of this process before it ends. Spark leaves RocksDB open, and RocksDB's own threads may abort a
    JVM that ends beneath them, after everything was written."""
    try:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    except Exception as error:
        log.debug("the state was left open: %s", error)


def state_settings() -> dict[str, str]:
    """Settings of a session that keeps state by ids, or reads such state."""
    # Names of state files have an id of their attempt: two attempts of one batch never overwrite each other's files.
    return {PROVIDER: ROCKSDB, FORMAT: "2"}


def _keep_state_by_ids(spark: SparkSession, *, whole: bool, bounded: bool) -> None:
    settings = {
        **state_settings(),
        # Spark otherwise leaves the upload of a full snapshot to a thread that runs each minute: a driver of one batch
        # would end earlier, and the changes to read would grow with history.
        CHANGELOG: str(not whole).lower(),
        # The same thread deletes files that it takes for old, and may delete files that another attempt's commit names.
        "spark.sql.streaming.minBatchesToRetain": _NEVER,
        # The log of files that an attempt is shown has two entries at most. By a lower number, as a pipeline's or a
        # cluster's own, Spark would look for one that holds those before it, and for none of its files.
        "spark.sql.streaming.fileSource.log.compactInterval": _NEVER,
        # Figures of the batch are those of Spark's newest progress. Of one that it is to hold it holds none: no row was
        # late then, whatever its time, and none read.
        "spark.sql.streaming.numRecentProgressUpdates": "100",
    }
    if bounded:
        # Whether all rows were told is told by how many an operator keeps. Where Spark does not count them, it is none.
        settings[_STATE + "rocksdb.trackTotalNumberOfRows"] = "true"
    # RocksDB's settings are read whatever the case of their letters, and of two spellings either one.
    named = {key.lower(): value for key, value in settings.items()}
    settings |= {key: named[key.lower()] for key in spark.conf.getAll if key.lower() in named}
    for key, value in settings.items():
        spark.conf.set(key, value)


def _pinned_by_spark(spark: SparkSession) -> dict[str, str]:
    """The settings that Spark itself would pin in its first entry. If an entry lacks a key, Spark falls back to the
    default from before the key existed."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    for name in _METADATA_CLASSES:
        try:
            jvm.java.lang.Class.forName(name, False, jvm.Thread.currentThread().getContextClassLoader())
        except Exception as error:
            log.debug("no class %s here: %s", name, type(error).__name__)
            continue
        metadata: Any = jvm
        for part in name.split("."):
            metadata = getattr(metadata, part)
        for conf in (session.conf(), session.sessionState().conf()):
            try:
                found = metadata.apply(0, 0, conf)
            except Exception as error:
                log.debug("%s.apply takes no %s: %s", name, conf, type(error).__name__)
                continue
            pinned: dict[str, str | None] = json.loads(found.json())["conf"]
            # Spark reads some pinned settings under another name in the query's session, where they have no value yet.
            return {key: str(spark.conf.get(key)) if value is None else value for key, value in pinned.items()}
    raise RuntimeError(f"Spark {spark.version} has no OffsetSeqMetadata that this package knows")


def _in_order(result: DataFrame, streams: Mapping[str, Stream]) -> tuple[list[str], list[str]]:
    """Names of sources by their position in the query, from left to right: first each use, as an entry of the offset
    log has them; second each relation once, in the order by which Spark numbers the sources' own logs."""
    leaves = result._jdf.queryExecution().analyzed().collectLeaves()
    seen: list[Any] = []
    uses, once = [], []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not leaf.getClass().getSimpleName().startswith("StreamingRelation"):
            continue
        name = source_of(leaf)
        if name is None or name not in streams:
            raise BatchFailure(
                "transform",
                "the transform opened a stream of its own; a batch reads what was planned, so make the result of "
                "batch.sources",
            )
        uses.append(name)
        if not any(leaf.equals(other) for other in seen):
            seen.append(leaf)
            once.append(name)
    return uses, once


def _asks_for_another(last: Any, watermark: int, job: Job) -> bool:
    """Whether Spark's own rule asks for another batch: an operator has rows to emit or remove, or a timeout, at the
    watermark of the next batch.

    :param last: Spark's execution of this one.
    """
    try:
        metadata = last.offsetSeqMetadata()
        newer = metadata.copy(watermark, metadata.batchTimestampMs(), metadata.conf())
        return bool(last.shouldRunAnotherBatch(newer))
    except Exception as error:
        log.info(
            "Spark does not say whether it wants a batch without data (%s): by its watermark", type(error).__name__
        )
        return bool(watermark > job.watermark_ms)


def _figures(progress: Any, uses: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Spark's figures of the batch; of a source that it does not count row by row no number of rows.

    :param uses: names of sources, by each use in the plan.
    :param names: the same, by each relation of the plan.
    """
    values: Mapping[str, Any] = progress if isinstance(progress, Mapping) else {}
    operators = [
        {key: one.get(key) for key in ("operatorName", "numRowsTotal", "numRowsUpdated", "numRowsDroppedByWatermark")}
        | {"memoryUsedBytes": one.get("memoryUsedBytes")}
        for one in values.get("stateOperators", ())
    ]
    counts: dict[str, list[int]] = {name: [] for name in names}
    for name, one in zip(names, values.get("sources", ()), strict=False):
        counts[name].append(one.get("numInputRows") or 0)
    # Of a relation that the plan uses twice Spark counts each row twice, or once where it reuses a result.
    rows = {
        name: None if uses.count(name) > names.count(name) else max(found, default=0) for name, found in counts.items()
    }
    return {
        "stateOperators": operators,
        "numRowsDroppedByWatermark": sum(one["numRowsDroppedByWatermark"] or 0 for one in operators),
        "numInputRows": rows,
    }
