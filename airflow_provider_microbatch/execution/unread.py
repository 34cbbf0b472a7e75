"""Data of an interval pipeline that its runs have passed: older than their intervals, and in no batch of any lane.

Airflow makes no run for some intervals: those of a pause without catchup, or between two schedules. Data may also come
after its interval's run. Every run is green then, so the log of the next run tells of such data, and ``check`` does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import span_of
from airflow_provider_microbatch.checkpoint.verify import Finding
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import CheckpointError, MicroBatchError
from airflow_provider_microbatch.execution.intervals import longest_of, newest_of
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.ran_last import ran_last
from airflow_provider_microbatch.pipeline import INTERVAL
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.intervals import Interval, Unread, written_ms


def find_unread(checkpoint: Checkpoint) -> list[Finding]:
    """Findings of unread data, one for each source; empty unless the newest attempt's pipeline is planned by intervals.
    Lists the sources. A source that cannot be looked at from here is left out."""
    newest = ran_last(checkpoint)
    runs = [*checkpoint.intervals.lanes(), *checkpoint.lanes()]
    span = span_of(newest_of(runs) or "")
    if newest is None or newest.definition is None or span is None:
        return []
    try:
        arguments = (checkpoint.definitions.get(newest.definition) or {}).get("arguments", {})
    except CheckpointError:
        return []  # torn; that is another finding
    if arguments.get("plan") != INTERVAL:
        return []  # a live lane reads whatever is new
    found = []
    # The interval itself is not looked at: only the data before it is.
    after = Interval(start_ms=span[1], end_ms=span[1] + 1, whole=True)
    for name, recorded in arguments.get("sources", {}).items():
        name = checkpoint.names.of(name)
        try:
            source = Source.from_dict(recorded)
            opened = OpenedSources({name: source}, checkpoint=checkpoint, lane=newest.key.lane, clock_ms=now_ms)
            unread = opened.open(name).survey_interval(after, {}).passed
        except (MicroBatchError, OSError):
            continue  # the source's own commands and runs say what is wrong with it
        if unread is not None:
            found.append(
                Finding(
                    kind="unread",
                    where=source.location(),
                    message=f"{told({name: unread})} It is older than {written_ms(span[1])}, where the newest data "
                    "interval ends that was run: no run was made for it, or it came after its run.",
                    repair=way_on(unread, run=newest.run, limit_ms=span[1], length_ms=longest_of(runs)),
                )
            )
    return found


def told(unread: Mapping[str, Unread]) -> str:
    """How much unread data there is of each source, and from when, in words."""
    each = (
        f"{one.count} {one.splits} of source {name!r}, of {written_ms(one.first_ms)} to {written_ms(one.last_ms)}"
        for name, one in unread.items()
    )
    return f"No batch has read {' and '.join(each)}."


def together(unread: Iterable[Unread]) -> Unread:
    """The unread data of several sources as one."""
    parts = list(unread)
    return Unread(
        count=sum(one.count for one in parts),
        first_ms=min(one.first_ms for one in parts),
        last_ms=max(one.last_ms for one in parts),
    )


def way_on(unread: Unread, *, run: RunIdentity | None, limit_ms: int, length_ms: int) -> str:
    """The way in which the unread data gets read, in words.

    :param run: one of the pipeline's runs; None if none is known.
    :param limit_ms: where the newest interval ends that was run; milliseconds since the epoch, UTC.
    :param length_ms: length of the longest interval that was run, milliseconds.
    """
    # A run bears the start of its interval or its end, as its timetable has it: both are in this range. Runs that are
    # there already are left as they are, and runs that find nothing skip. The lengths stand in the checkpoint, where
    # user code may write: a start that is no moment would fail each run.
    start = max(unread.first_ms - length_ms, min(unread.first_ms, 0))
    is_partition = run is not None and run.partition_date is not None
    end = unread.last_ms if is_partition else min(unread.last_ms + length_ms, limit_ms)
    # A writer of the checkpoint must not have a person paste more than a name.
    dag = shlex.quote(run.dag_id) if run is not None else "DAG_ID"
    seconds = -(-(limit_ms - unread.first_ms) // 1000)
    command = f"airflow backfill create --dag-id {dag} --from-date {_second(start)} --to-date {_second(end)}"
    return (
        f"If no run is on its way to it, `{command}` makes the runs that are missing. Where that finds none to make, "
        "as for what came after its run, or lies between two schedules, or in no interval of the schedule at all: "
        f"lookback={seconds} (seconds) of the pipeline, or more, has the next scheduled run take it. What nobody "
        "wants: move it out of the source."
    )


def _second(moment_ms: int) -> str:
    return written_ms(moment_ms // 1000 * 1000)
