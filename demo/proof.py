"""What the demo claims, checked against files and processes alone: nothing here asks the package under test, but
its commands, which are run as a user would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from demo.processes import describe, java_among

Row = Mapping[str, Any]
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One claim.

    :param claim: what was looked at, with figures.
    :param problems: what contradicts it; empty if it holds.
    """

    claim: str
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.problems:
            return f"ok    {self.claim}"
        return "\n".join([f"WRONG {self.claim}", *(f"      {problem}" for problem in self.problems)])


def landed_rows(landing: Path) -> list[Row]:
    """Every row in the landing folder, as its files say."""
    rows: list[Row] = []
    for path in sorted(landing.rglob("*.json")):
        rows += [row_of(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return rows


def row_of(line: str) -> Row:
    """A line that has landed."""
    row = json.loads(line)
    return {**row, "ts": datetime.fromisoformat(row["ts"])}


def lake_rows(table: Path) -> list[Row]:
    """Every row that a reader of the table sees: pyarrow lists the folder itself and knows nothing of batches."""
    import pyarrow.dataset

    if not table.exists():
        return []
    rows: list[Row] = pyarrow.dataset.dataset(table, format="parquet", partitioning="hive").to_table().to_pylist()
    return [utc(row) for row in rows]


def utc(row: Row) -> Row:
    """A row of the table with its time in UTC."""
    return {**row, "ts": _utc(row["ts"])} if isinstance(row.get("ts"), datetime) else row


def compare_rows(landed: Iterable[Row], lake: Iterable[Row]) -> Proof:
    """Each landed row is in the lake once, with equal values in every landed column, and nothing else is."""
    landed, lake = list(landed), list(lake)
    expected = {row["id"]: row for row in landed}
    times = Counter(row["id"] for row in lake)
    problems = []
    if len(expected) != len(landed):
        problems.append(f"{len(landed) - len(expected)} ids were landed twice: the demo itself is wrong")
    problems += _listed("lost: landed and not in the lake", [number for number in expected if number not in times])
    problems += _listed("doubled: in the lake more than once", [number for number, count in times.items() if count > 1])
    problems += _listed("unknown: in the lake and never landed", [number for number in times if number not in expected])
    changed = []
    for row in lake:
        wanted = expected.get(row["id"])
        if wanted is not None and any(name not in row or row[name] != value for name, value in wanted.items()):
            changed.append(row["id"])
    problems += _listed("changed: other values in the lake than landed", changed)
    return Proof(claim=f"{len(lake):,} rows in the lake, {len(landed):,} rows landed", problems=tuple(problems))


def no_stage_left(table: Path) -> Proof:
    """No attempt has left files behind that readers do not see."""
    left = sorted(path for path in (table / "_staging").rglob("*") if path.is_file())
    stages = sorted({str(path.relative_to(table).parent) for path in left})
    return Proof(claim="no stage left beside the table", problems=tuple(f"left: {stage}" for stage in stages))


def no_disk_has(keys: Iterable[str], files: Iterable[Path]) -> Proof:
    """No file on a disk is called, with its folder, as an object is."""
    names, files = {tuple(key.split("/")[-2:]) for key in keys}, list(files)
    left = [path for path in files if path.parts[-2:] in names]
    return Proof(
        claim=f"{len(names)} objects of landing, table and checkpoint, none among {len(files):,} files on disks",
        problems=tuple(f"on a disk: {path}" for path in left),
    )


def logs_are_in(keys: Iterable[str], logs: Mapping[str, str]) -> Proof:
    """Each task's log is an object, and is shown.

    :param logs: what is shown, by the end of the object's key.
    """
    keys = list(keys)
    problems = [f"not in the bucket: {place}" for place in logs if not any(key.endswith(place) for key in keys)]
    problems += [f"not shown: {place}" for place, text in logs.items() if not text.strip()]
    return Proof(claim=f"{len(logs)} logs of tasks in the bucket, shown by the API server", problems=tuple(problems))


def check_is_clean(checkpoint: Path | str) -> Proof:
    """``microbatch check`` finds nothing."""
    return _command("check", checkpoint)


def janitor_leaves_nothing(checkpoint: str) -> Proof:
    """``microbatch janitor`` cleans up after drivers that nobody could stop."""
    return _command("janitor", checkpoint)


def _command(name: str, checkpoint: Path | str) -> Proof:
    command = [sys.executable, "-m", "airflow_provider_microbatch.cli.main", name, str(checkpoint)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    said = (ended.stdout + ended.stderr).splitlines()
    return Proof(
        claim=f"microbatch {name} {checkpoint}: exit status {ended.returncode}",
        problems=tuple(said) if ended.returncode != 0 else (),
    )


def no_java_left(processes: Iterable[psutil.Process]) -> Proof:
    """No Java process runs on without the task that started it."""
    left = java_among(processes)
    return Proof(claim="no Spark process left running", problems=tuple(describe(process) for process in left))


def no_process_left(processes: Iterable[psutil.Process]) -> Proof:
    """After Airflow was stopped, no process that it started is alive."""
    return Proof(
        claim="no process left after the stop", problems=tuple(f"left: {describe(process)}" for process in processes)
    )


def verdict(proofs: Iterable[Proof]) -> int:
    """Print every claim; the exit status is 0 if all hold, else 1."""
    status = 0
    for proof in proofs:
        print(proof, flush=True)
        status = 1 if proof.problems else status
    return status


def _listed(what: str, numbers: list[Any]) -> list[str]:
    if not numbers:
        return []
    shown = ", ".join(str(number) for number in sorted(numbers)[:_SHOWN])
    return [f"{what}: {len(numbers)} (id {shown}{', …' if len(numbers) > _SHOWN else ''})"]


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
