"""Runs a batch split by split. Each subtask is a small job that writes its manifest last: a subtask with a manifest is
finished, and a later attempt need not run it again. The batch's own manifest is written after all subtasks' manifests,
and lists their files as files of one stage."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job, Subtask

log = logging.getLogger("microbatch")

Done = tuple[Mapping[str, Any], Sequence[str]]
"""The result of a subtask, and the lines of its manifest that name its files."""


def run_subtasks(
    job: Job, run: Callable[[Subtask], Done], *, load: Callable[[str], Callable[..., Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Run those subtasks that no earlier attempt has finished, in order.

    :param run: runs one subtask, and leaves its manifest.
    :param load: finds a function by ``module:function``.
    :return: the result of the batch, and the lines of its manifest.
    :raises BatchFailure: if a subtask fails, or if the subtasks' results do not fit together.
    """
    results, lines = list[Mapping[str, Any]](), list[str]()
    taken = sum(subtask.done is not None for subtask in job.subtasks)
    if taken:
        log.info("%s of %s splits were finished by an attempt before and are not read again", taken, len(job.subtasks))
    for number, subtask in enumerate(job.subtasks, start=1):
        if subtask.done is None:
            log.info("split %s of %s: %s", number, len(job.subtasks), subtask.split)
            result, listed = run(subtask)
        else:
            result, files = subtask.done["result"], subtask.done["files"]
            listed = [json.dumps({"file": name, "bytes": size}, ensure_ascii=False) for name, size in files.items()]
        results.append(result)
        lines += listed
        _check_alike(job, results)
    return merged(job, results, load=load), lines


def merged(
    job: Job, results: Sequence[Mapping[str, Any]], *, load: Callable[[str], Callable[..., Any]]
) -> dict[str, Any]:
    """The result of the batch. Figures are sums over all its rows, no matter which attempt has read them.

    :param results: results of the subtasks, in their order.
    """
    names = list(dict.fromkeys(subtask.source for subtask in job.subtasks))
    taken = [result for subtask, result in zip(job.subtasks, results, strict=True) if subtask.done is not None]
    return {
        "batchId": job.batch_id,
        "epoch": job.epoch,
        "identity": dict(job.identity),
        "numInputRows": {name: _sum(_of(results, "numInputRows", name)) for name in names},
        "numEmptyRows": {name: rows for name in names if (rows := _sum(_of(results, "numEmptyRows", name)))},
        "numOutputRows": _sum([result.get("numOutputRows") for result in results]),
        "durationMs": _added([result.get("durationMs") or {} for result in results]),
        "learned": _learned(results),
        "read": _told(job, results, load),
        "warnings": list(dict.fromkeys(text for result in results for text in result.get("warnings", ()))),
        "requiresAnotherBatch": any(result.get("requiresAnotherBatch") for result in results),
        "sparkVersion": results[-1].get("sparkVersion"),
        "subtasks": {
            "run": len(results) - len(taken),
            "taken": len(taken),
            "rowsTaken": _sum([_sum([*(result.get("numInputRows") or {}).values()]) for result in taken]),
        },
    }


def _check_alike(job: Job, results: Sequence[Mapping[str, Any]]) -> None:
    written = [number for number, result in enumerate(results) if result.get("columns") is not None]
    first, last = (results[number]["columns"] for number in (written[0], written[-1])) if written else ("", "")
    if first != last:
        one, other = job.subtasks[written[0]].split, job.subtasks[written[-1]].split
        raise BatchFailure(
            "result",
            f"the transform returned the columns {_columns(first)} for split {one!r} and {_columns(last)} for split "
            f"{other!r}. A pipeline with split_wise=True has each split transformed by itself; return the same columns "
            "for all of them",
        )


def _columns(columns: Sequence[Sequence[str]]) -> str:
    return ", ".join(" ".join(column) for column in columns) or "(none)"


def _learned(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for result in results:
        for name, facts in (result.get("learned") or {}).items():
            if found.setdefault(name, facts) != facts:
                raise BatchFailure(
                    "read",
                    f"splits of source {name!r} were read with different columns: {found[name]} and {facts}. Name all "
                    "columns, also those that its folders give, in the source's schema",
                )
    return found


def _told(
    job: Job, results: Sequence[Mapping[str, Any]], load: Callable[[str], Callable[..., Any]]
) -> dict[str, Mapping[str, Any]]:
    told: dict[str, Mapping[str, Any]] = {}
    for name in dict.fromkeys(subtask.source for subtask in job.subtasks):
        joins = next(subtask.read.joins for subtask in job.subtasks if subtask.source == name)
        if joins:
            told[name] = load(joins)([(result.get("read") or {}).get(name) or {} for result in results])
    return told


def _of(results: Sequence[Mapping[str, Any]], figure: str, name: str) -> list[int | None]:
    return [(result.get(figure) or {}).get(name, 0) for result in results]


def _sum(figures: Sequence[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _added(durations: Sequence[Mapping[str, int]]) -> dict[str, int]:
    phases = dict.fromkeys(phase for duration in durations for phase in duration)
    return {phase: sum(duration.get(phase, 0) for duration in durations) for phase in phases}
