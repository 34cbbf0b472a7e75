"""What the chaos engine launches: reads the files of a job and leaves a stage as the runtime does, as JSON lines.

Run as ``python -S -m tests.chaos.engine_process <job file>``: of files it needs nothing but the standard library, so
that a launch costs milliseconds. The job file's name holds the tag by which anybody finds the process.
"""

from __future__ import annotations

import json
import os
import site
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.runtime.files import joined, told
from airflow_provider_microbatch.runtime.job import Job, Subtask
from airflow_provider_microbatch.runtime.layout import MANIFEST, SCHEMA
from airflow_provider_microbatch.runtime.polling import revived
from airflow_provider_microbatch.runtime.subtasks import merged
from tests.chaos.signals import kill
from tests.support import channel_reader, kafka_reader
from tests.support.shadow import local, send
from tests.support.stage_parts import write_part


def rows_of(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a read has: lines of files, records of topics, whose client is installed and not of the library, or what a
    source of the user's own tells."""
    if "layers" in arguments:
        site.main()
        return kafka_reader.rows(arguments)
    if "groups" in arguments:
        paths = (path for group in arguments["groups"] for path in group["paths"])
        return [json.loads(line) for path in paths for line in local(path).read_text().splitlines()]
    sys.path.append(str(Path(__file__).resolve().parents[1] / "acme"))
    found = revived(arguments).read(arguments["start"], arguments["end"])
    return [dict(row) for row in found]  # type: ignore[arg-type]


class Engine:
    """:param plan: ``job`` (the text of a job), ``version`` (what the transform adds), ``pace`` (seconds for the middle
    of the job), ``point``, ``victim`` (whom to kill there: ``engine``, ``task`` or ``both``), ``task`` (pid), ``root``.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.job: dict[str, Any] = json.loads(plan["job"])
        self.stages = {local(stage["arguments"]["path"]): stage for stage in self.job["stages"].values()}

    def run(self) -> None:
        self.reach("begin")
        if self.job.get("subtasks"):
            self.run_by_splits()
        else:
            self.run_whole()

    def run_whole(self) -> None:
        counted: dict[str, int] = {}
        rows, read_up_to = [], dict[str, Any]()
        for name, read in self.job["sources"].items():
            if "ends" in read["arguments"]:
                site.main()
                found, read_up_to[name] = channel_reader.read(read["arguments"])
            else:
                found = rows_of(read["arguments"])
            counted[name] = len(found)
            rows += [{**row, "version": self.plan["version"]} for row in found]
        half = len(rows) // 2
        # No two attempts share a file name, as with Spark: a reader that is overtaken by a replay finds its file gone.
        one, other = (f"part-0000{number}-{self.job['epoch']}" for number in range(2))
        written = {stage: [self.write_part(stage, one, rows[:half])] for stage in self.stages}
        self.reach("half")
        time.sleep(self.plan["pace"])
        for stage in self.stages:
            written[stage].append(self.write_part(stage, other, rows[half:]))
        result = {**self.result(counted, len(rows)), "read": read_up_to}
        for stage, sizes in written.items():
            self.reach("before the manifest")
            self.write_manifest(stage, [{"result": result}, *sizes])
            self.reach("after the manifest")

    def run_by_splits(self) -> None:
        """Each split into a folder of its own, which its manifest finishes, and the batch's manifest after all. The
        middle of the job is that of the last split, when the others may pass to the next attempt."""
        job = Job.from_json(self.plan["job"])
        to_run = [subtask for subtask in job.subtasks if subtask.done is None]
        results, lines = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
        for subtask in job.subtasks:
            if subtask.done is None:
                result, listed = self.run_subtask(subtask, pace=self.plan["pace"] / len(to_run), last=to_run[-1])
            else:
                result = subtask.done["result"]
                listed = [{"file": name, "bytes": size} for name, size in subtask.done["files"].items()]
            results.append(result)
            lines += listed
        self.reach("before the manifest")
        whole = merged(job, results, load=lambda _: joined)
        self.write_manifest(next(iter(self.stages)), [{"result": whole}, *lines])
        self.reach("after the manifest")

    def run_subtask(
        self, subtask: Subtask, *, pace: float, last: Subtask
    ) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
        folder, arguments = local(subtask.stage.arguments["path"]), subtask.read.arguments
        found = rows_of(arguments)[arguments["half"] :: 2]
        rows = [{**row, "version": self.plan["version"]} for row in found]
        names = [f"part-{subtask.name}-{number}-{self.job['epoch']}" for number in range(2)]
        write_part(folder, subtask.stage.writer, subtask.stage.arguments, names[0], rows[:1])
        if subtask is last:
            self.reach("half")
        time.sleep(pace)
        write_part(folder, subtask.stage.writer, subtask.stage.arguments, names[1], rows[1:])
        # As Spark's own listing does, it sees what is there: a part of it may have been removed meanwhile.
        listed = [{"file": path.name, "bytes": path.stat().st_size} for path in sorted(folder.glob("part-*"))]
        result = {
            **self.result({subtask.source: len(rows)}, len(rows)),
            "read": {subtask.source: told(arguments)},
            "subtask": {"name": subtask.name, "split": subtask.split, "madeOf": subtask.made_of},
        }
        self.write_manifest(folder, [{"result": result}, *listed])
        return result, listed

    def result(self, rows_in: Mapping[str, int], rows_out: int) -> dict[str, Any]:
        return {
            "numInputRows": rows_in,
            "numOutputRows": rows_out,
            "durationMs": {"total": 1},
            "batchId": self.job["batch_id"],
            "epoch": self.job["epoch"],
            "identity": self.job["identity"],
        }

    def write_manifest(self, stage: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        temporary = stage / MANIFEST / "_temporary"
        self.write(temporary / "part-00000.txt", lines)
        (temporary / "part-00000.txt").rename(stage / MANIFEST / "part-00000.txt")
        temporary.rmdir()
        if stage in self.stages:
            columns = sorted((stage / SCHEMA).glob("part-*"))
            send(self.stages[stage]["arguments"]["path"], *columns, stage / MANIFEST / "part-00000.txt")

    def reach(self, point: str) -> None:
        if self.plan["point"] != point:
            return
        victim = self.plan["victim"]
        pids = {"engine": [os.getpid()], "task": [self.plan["task"]], "both": [self.plan["task"], os.getpid()]}
        kill(Path(self.plan["root"]), f"{victim}, engine at {point}", *pids[victim])

    def write_part(self, folder: Path, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """:return: the file's line in the manifest."""
        stage = self.stages[folder]
        entry = write_part(folder, stage["writer"], stage["arguments"], name, rows)
        send(stage["arguments"]["path"], folder / entry["file"])
        return entry

    @staticmethod
    def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """As Spark's committers do, folders that somebody removed are made again."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    Engine(json.loads(Path(sys.argv[1]).read_text())).run()
