"""Runs one job: read the planned ranges, call the transform, write the stage and its manifest.

The same code serves every engine, so it uses only what Spark Connect has.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import report, secrets
from airflow_provider_microbatch.runtime.access import options_of
from airflow_provider_microbatch.runtime.batch import Batch, Frames
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.counting import RowCount, writing
from airflow_provider_microbatch.runtime.failure import BatchFailure, failing_as
from airflow_provider_microbatch.runtime.fence import Fence, FencedFailure
from airflow_provider_microbatch.runtime.flow import run_flow
from airflow_provider_microbatch.runtime.job import Flow, FlowNode, Job, Subtask, Transform
from airflow_provider_microbatch.runtime.refusing import Refusing, counts_of, quiet
from airflow_provider_microbatch.runtime.session import open_session, pin
from airflow_provider_microbatch.runtime.streaming import EVOLUTION, close_state, open_streams, own_folder, run_query
from airflow_provider_microbatch.runtime.streaming_job import Streaming
from airflow_provider_microbatch.runtime.subtasks import run_subtasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("microbatch")


class Stopwatch:
    """Milliseconds by phase, as Spark's progress has them."""

    def __init__(self) -> None:
        self.duration_ms: dict[str, int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            elapsed = round((time.monotonic() - started) * 1000)
            self.duration_ms[name] = self.duration_ms.get(name, 0) + elapsed


class Warnings:
    """Warnings for the user of the pipeline. Each goes both to Spark's log and into the result: where the log reaches
    the task through a pipe, the level of a line is lost."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Log the text and keep it for the result."""
        log.warning("%s", text)
        self.texts.append(text)


def run_job(spark: SparkSession, job: Job) -> dict[str, Any]:
    """Run a job in a session of any kind. On failure, write the reason to the stage before raising.

    :return: the result, as it stands in the manifest.
    :raises BatchFailure: if the batch cannot go on.
    """
    forgets = job.checks is not None and bool(job.checks.forgotten)
    try:
        fence = Fence(spark, job.stage.fence, options=options_of(job.stage.arguments))
        with fence.watched(), failing_as("runtime"), quiet() if forgets else nullcontext():
            if job.streaming is not None:
                return _run_stateful(spark, job, fence, job.streaming)
            return _run_by_splits(spark, job, fence) if job.subtasks else _run(spark, job, fence)[0]
    except FencedFailure as failure:
        log.error("batch %s/%s attempt %s ends: %s", job.lane, job.batch_id, job.epoch, failure.error)
        raise
    except BatchFailure as failure:
        if forgets:
            failure.hide_queries()
        log.error("batch %s/%s failed in %s: %s", job.lane, job.batch_id, failure.origin, failure.error)
        try:
            report.write_error(spark, job.stage.report, failure.report(), options=options_of(job.stage.arguments))
        except Exception:
            log.exception("the failure could not be written to %s", job.stage.report)
        raise


def _run_by_splits(spark: SparkSession, job: Job, fence: Fence) -> dict[str, Any]:
    result, lines = run_subtasks(
        job, lambda subtask: _run(spark, job.alone(subtask), fence, subtask=subtask), load=_load
    )
    fence.check()
    with failing_as("write"):
        report.write_manifest(spark, job.stage.report, result, lines, options=options_of(job.stage.arguments))
    log.info("batch %s/%s staged: %s rows", job.lane, job.batch_id, result["numOutputRows"])
    return result


def _run_stateful(spark: SparkSession, job: Job, fence: Fence, streaming: Streaming) -> dict[str, Any]:
    watch = Stopwatch()
    (stage,) = job.stages.values()
    listing: DataFrame | list[str] | None = None
    rows_out = RowCount()

    def write(frame: DataFrame) -> None:
        nonlocal listing
        with watch.phase("write"), failing_as("write"):
            log.info("writing the stage %s", stage.report)
            with writing(rows_out.on(frame)) as frames:
                found = _load(stage.writer)(frames[0], stage.arguments)
            listing = found if found is None else _lines(found)  # its frame ends with the query's session
            rows_out.written(frames)

    with own_folder(spark, streaming), watch.phase("total"):
        pin(spark, {**job.conf, EVOLUTION: "false"})
        with watch.phase("read"):
            opened = open_streams(spark, job, streaming, _load)
        job = replace(job, streaming=replace(streaming, sources=opened.streams))
        with watch.phase("transform"):
            batch = _batch(spark, job, opened.frames)
            results = _transform(job, batch)
            _check_columns(job, results)
            (frame,) = (Refusing(job).divide(name, found) for name, found in results.items())
        with watch.phase("query"):
            state, another, figures = run_query(spark, job, frame, write)
    result: dict[str, Any] = {
        "batchId": job.batch_id,
        "epoch": job.epoch,
        "identity": dict(job.identity),
        "numInputRows": {name: (figures["numInputRows"] | opened.rows).get(name, 0) for name in opened.streams},
        "numOutputRows": rows_out.get(),
        "durationMs": watch.duration_ms,
        "learned": opened.learned,
        "read": {name: dict(stream.told) for name, stream in opened.streams.items() if stream.told},
        "warnings": [],
        "requiresAnotherBatch": another or batch.requires_another_batch,
        "sparkVersion": spark.version,
        "state": state,
        "stateOperators": figures["stateOperators"],
        "numRowsDroppedByWatermark": figures["numRowsDroppedByWatermark"],
    }
    fence.check()
    with failing_as("write"):
        report.write_manifest(spark, stage.report, result, listing, options=options_of(stage.arguments))
    log.info("batch %s/%s staged: %s rows", job.lane, job.batch_id, result["numOutputRows"])
    return result


def _run(
    spark: SparkSession, job: Job, fence: Fence, *, subtask: Subtask | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Read, transform and write one batch, or one subtask of a batch.

    :param subtask: the subtask, which its manifest names; None for a whole batch.
    :return: the result; for a subtask also the lines that name its files.
    """
    watch, warnings, refusing = Stopwatch(), Warnings(), Refusing(job)
    with watch.phase("total"):
        pin(spark, job.conf)
        with watch.phase("read"):
            frames, counts, learned, told, ended = _read(spark, job, warnings, refusing)
        batch = _batch(spark, job, frames)
        listings: dict[str, DataFrame | list[str] | None] = dict.fromkeys(job.stages)
        columns: list[list[str]] | None = None
        written: dict[str, int | None] = dict.fromkeys(job.stages, 0)
        if job.sources and not frames:
            _check_nothing(job, job.tables, warnings)
        else:
            with watch.phase("transform"):
                results = _transform(job, batch)
                returned = time.monotonic()
                _check_columns(job, results)
                # Divide all results before the first is written: if an expectation's condition is invalid, nothing of
                # the batch is written.
                divided = {name: refusing.divide(name, frame) for name, frame in results.items()}
            _check_nothing(job, [name for name in job.tables if name not in results], warnings)
            for count in counts.values():
                count.spoil(since=returned)
            for name, frame in divided.items():
                stage, rows_out = job.stages[name], RowCount()
                with watch.phase("write"), failing_as("write", where=f"sink {name!r}" if name else ""):
                    log.info("writing the stage %s", stage.report)
                    with writing(rows_out.on(frame)) as frames_out:
                        listings[name] = _load(stage.writer)(frames_out[0], stage.arguments)
                    if subtask is not None:
                        # Splits are held against each other by what the transform has returned.
                        fields = [field for field in frame.schema.fields if field.name != DELETED]
                        columns = [[field.name, field.dataType.simpleString()] for field in fields]
                    for count in (rows_out, *counts.values()):
                        count.written(frames_out)
                    written[name] = rows_out.get()
                    refusing.written(name, frames_out, rows=written[name])
            with watch.phase("write"), failing_as("write", where="the dead letters"):
                listings |= _write_letters(job, refusing, all_read=job.transform is None)
        for name, tell in ended.items():
            with failing_as("read", where=f"source {name!r}"):
                told[name] = {**told.get(name, {}), **tell()}
    rows_in: dict[str, int | None] = {name: 0 for name in job.sources if name not in counts}
    rows_in |= {name: count.get(patience=1.0) for name, count in counts.items()}
    empty = {name: count.empty() for name, count in counts.items() if rows_in[name] and count.empty()}
    for name, rows in empty.items():
        warnings.add(
            f"source {name}: {rows:,} of {rows_in[name]:,} rows have nothing in any column of its schema: does it fit "
            "the files (names, types, separator, header)?"
        )
    known = [written[name] for name in job.tables if written[name] is not None]
    total = sum(rows or 0 for rows in known) if len(known) == len(job.tables) else None
    written |= {name: refusing.rows for name in job.stages if name not in job.tables}
    result: dict[str, Any] = {
        "batchId": job.batch_id,
        "epoch": job.epoch,
        "identity": dict(job.identity),
        "numInputRows": rows_in,
        "numEmptyRows": empty,
        "numOutputRows": total,
        **({"numOutputRowsBySink": written} if len(written) > 1 else {}),
        "durationMs": watch.duration_ms,
        "learned": learned,
        "read": told,
        "warnings": warnings.texts,
        "requiresAnotherBatch": batch.requires_another_batch,
        "sparkVersion": spark.version,
        **refusing.figures(),
    }
    lines: list[str] = []
    if subtask is not None:
        told_of = {"name": subtask.name, "split": subtask.split, "madeOf": subtask.made_of}
        result |= {"subtask": told_of, "columns": columns}
        lines = [line for listing in listings.values() for line in _lines(listing)]
        listings = dict.fromkeys(listings, lines)
    fence.check()
    for name, stage in job.stages.items():
        with failing_as("write"):
            # A table knows by this name which of the figures is its own.
            told_here = {**result, "sink": name} if len(written) > 1 else result
            if held_to := refusing.held_to(name):
                told_here = {**told_here, "heldTo": held_to}
            report.write_manifest(spark, stage.report, told_here, listings[name], options=options_of(stage.arguments))
    seconds = watch.duration_ms["total"] / 1000
    rate = f", {total / seconds:,.0f} rows a second" if total and seconds else ""
    what = "staged" if subtask is None else "split staged"
    log.info("batch %s/%s %s: %s rows in %.1f s%s", job.lane, job.batch_id, what, total, seconds, rate)
    return result, lines


def _batch(spark: SparkSession, job: Job, frames: Frames) -> Batch:
    """The batch that a transform is given."""
    return Batch(
        id=job.batch_id,
        lane=job.lane,
        epoch=job.epoch,
        timestamp=datetime.fromtimestamp(job.batch_timestamp_ms / 1000, tz=UTC),
        sources=frames,
        spark=spark,
        watermark=_moment(job.watermark_ms) if job.watermark_ms else None,
    )


_LAST_MS = 253_402_300_799_999
"""The last moment that Python has, milliseconds since the epoch."""


def _moment(ms: int) -> datetime:
    """Python's times end with the year 9999. Spark's do not: one row's is the watermark from then on, and each later
    batch would fail of it, whether its transform looks at that or not."""
    return datetime.fromtimestamp(0, tz=UTC) + timedelta(milliseconds=min(ms, _LAST_MS))  # as exact as the number


def _lines(listing: DataFrame | list[str] | None) -> list[str]:
    if listing is None:
        return []
    return listing if isinstance(listing, list) else [row[0] for row in listing.collect()]


def _read(
    spark: SparkSession, job: Job, warnings: Warnings, refusing: Refusing
) -> tuple[Frames, dict[str, RowCount], dict[str, Any], dict[str, Any], dict[str, Callable[[], Mapping[str, Any]]]]:
    frames, counts, learned, told, ended = Frames(absent=job.absent), {}, {}, {}, {}
    for name, read in job.sources.items():
        with failing_as("read", where=f"source {name!r}"):
            log.info("reading source %s%s", name, f", {read.amount}" if read.amount else "")
            found = _load(read.reader)(spark, read.arguments)
            if found.absent is None:
                counts[name] = counts_of(found.columns, found.refused)
                observed = counts[name].on(found.frame)
                frames[name] = refusing.take_unparsed(
                    name, observed, column=found.refused, place=found.place, counts=counts[name]
                )
            else:
                warnings.add(f"source {name}: {found.absent}")
                frames.absent[name] = found.absent
            if found.learned:
                learned[name] = dict(found.learned)
            if found.told:
                told[name] = dict(found.told)
            if found.ended is not None:
                ended[name] = found.ended
    return frames, counts, learned, told, ended


def _write_letters(job: Job, refusing: Refusing, *, all_read: bool) -> dict[str, DataFrame | list[str] | None]:
    """Write the dead letters, and return the listing of their stage by its name. Without dead letters nothing is
    written and no query runs.

    :param all_read: whether no transform can have left rows of a source unread.
    """
    frame = refusing.letters(all_read=all_read)
    if frame is None or job.checks is None or job.checks.letters is None:
        return {}
    stage = job.stages[job.checks.letters]
    log.info("writing the dead letters %s", stage.report)
    with writing(frame) as frames:
        listing = _load(stage.writer)(frame, stage.arguments)
    refusing.letters_written(frame, frames)
    return {job.checks.letters: listing}


def _check_nothing(job: Job, names: Collection[str], warnings: Warnings) -> None:
    """Warn of stages that get no rows because no source has a frame for them: the transform, which would be given
    nothing, is not called.

    :raises BatchFailure: if a table takes its columns from the result, since there is no result.
    """
    for name in names:
        stage = job.stages[name]
        if stage.arguments.get("columns_of_result"):
            raise BatchFailure(
                "read",
                f"table {stage.arguments['table']} is made of the result's columns, and the sources' files hold none. "
                "Give the sink, or the source, a schema",
            )
    if names:
        which = "" if len(names) == len(job.stages) else f" for {', '.join(map(repr, names))}"
        warnings.add(
            f"no source has a frame{which}: the transform is not called, "
            f"and the batch has no rows{' there' if which else ''}"
        )


def _transform(job: Job, batch: Batch) -> dict[str, DataFrame]:
    """The frames to write by the name of their stage, in the order of the stages. A flow returns no frame for a stage
    whose sources have no frame."""
    if isinstance(job.transform, Flow):
        found = run_flow(job.transform, batch, _call_node)
        return {name: found[name] for name in job.tables if name in found}
    if job.transform is None:
        streams = job.streaming.sources if job.streaming is not None else {}
        (source,) = {*job.sources, *streams, *job.absent}
        with failing_as("read"):
            returned: object = batch.sources[source]
    else:
        returned = _call(job.transform, batch)
    what = _name(job.transform)
    return {name: _frame(value, what, name) for name, value in _by_stage(job, what, returned).items()}


def _call(transform: Transform, batch: Batch, *, where: str = "") -> object:
    log.info("calling %s", _name(transform))
    with failing_as("transform", where=where):
        # Import the transform only now: with Spark Connect, a module's top level may need the session.
        return _load(f"{transform.module}:{transform.function}")(batch)


def _call_node(node: FlowNode, given: Batch) -> DataFrame:
    assert node.transform is not None
    return _frame(_call(node.transform, given, where=f"transform {node.name!r}"), _name(node.transform), "")


def _by_stage(job: Job, what: str, returned: object) -> Mapping[str, object]:
    """The frames, or other values, that a transform returned, by the names of the stages.

    :param what: name of the transform, for messages.
    """
    if list(job.tables) == [""]:
        return {"": returned}
    names = ", ".join(map(repr, job.tables))
    if not isinstance(returned, Mapping):
        kind = f"{type(returned).__name__}, not a dict of DataFrames by the names of the sinks ({names})"
        raise BatchFailure("transform", f"{what} returned {kind}")
    unknown = [name for name in returned if name not in job.tables]
    if unknown:
        which = f"{', '.join(map(repr, unknown))}, which is no sink of this pipeline; its sinks are: {names}"
        raise BatchFailure("transform", f"{what} returned a frame for {which}")
    missing = [name for name in job.tables if name not in returned]
    if missing:
        # A sink that is left out by mistake would keep a batch without rows for ever.
        which = f"{', '.join(map(repr, missing))}; return an empty one (frame.limit(0)) if there is nothing to write"
        raise BatchFailure("transform", f"{what} returned no frame for sink {which}")
    return {name: returned[name] for name in job.tables}


def _frame(value: object, what: str, name: str) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(value, DataFrame):
        where = f" for sink {name!r}" if name else ""
        raise BatchFailure("transform", f"{what} returned{where} {_what_it_is(value)}")
    return value


def _what_it_is(value: object) -> str:
    if value is None:
        return "None, not a DataFrame; end it with 'return <the frame to write>'"
    package = type(value).__module__.partition(".")[0]
    what = type(value).__name__ if package == "builtins" else f"{package}.{type(value).__name__}"
    if package in ("pandas", "pyarrow"):
        return f"a {what}, not a DataFrame of Spark; make it one: 'return batch.spark.createDataFrame(<the frame>)'"
    return f"{what}, not a DataFrame of Spark; end it with 'return <the frame to write>'"


def _check_columns(job: Job, results: Mapping[str, DataFrame]) -> None:
    for name, frame in results.items():
        ours = {column.casefold() for column in job.stages[name].reserved_columns}
        with failing_as("transform"):  # Spark Connect analyses the query here for the first time
            taken = [column for column in frame.columns if column.casefold() in ours]
        if taken:
            raise BatchFailure(
                "transform",
                f"{_what_wrote(job, name)} returned the column {', '.join(taken)}, which this package adds; rename or "
                "drop it (a bound of versions gets another name by Merge(valid_from=…, valid_to=…))",
            )


def _what_wrote(job: Job, stage: str) -> str:
    if isinstance(job.transform, Flow):
        return job.transform.outputs[stage]
    return _name(job.transform)


def _name(transform: Transform | None) -> str:
    return f"{transform.module}.{transform.function}" if transform else "the source"


def _load(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        raise AttributeError(f"module {module_name!r} ({module.__file__}) has no function {name!r}")
    function: Callable[..., Any] = getattr(module, name)
    return function


def find_job(argument: str) -> Path:
    """The job file: at the path that spark-submit was given, else in the working directory, where ``--files`` puts the
    file in cluster mode.

    :raises FileNotFoundError: if the file is in neither place.
    """
    for path in (Path(argument), Path(Path(argument).name)):
        if path.is_file():
            return path
    raise FileNotFoundError(f"the job file is neither at {argument} nor in {Path.cwd()}; was it given to --files?")


def main(arguments: Sequence[str]) -> int:
    """Entry of the application that spark-submit runs.

    :param arguments: the path of the job file.
    :return: the exit status; 0 only if the stage is complete.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    for name in (log.name, __name__.rpartition(".")[0]):
        logging.getLogger(name).setLevel(logging.INFO)
    path = find_job(arguments[0])
    job = Job.from_json(path.read_text(encoding="utf-8"))
    secrets.take_file(path)
    log.info("pipeline %s: batch %s/%s attempt %s", job.pipeline, job.lane, job.batch_id, job.epoch)
    spark = open_session()
    try:
        run_job(spark, job)
    except BatchFailure as failure:
        sys.stderr.write(failure.traceback or f"{failure.error}\n")
        return 1
    finally:
        if job.streaming is not None:
            close_state(spark)
        spark.stop()
    return 0
