"""Words of the event tests: DAGs whose attempts are held in the middle, and what must be true when all is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.janitor import Janitor
from demo.local_airflow import LocalAirflow
from tests.support.hooks import lines
from tests.support.leases import expire_leases
from tests.support.whose import stages_of

SECONDS = 240.0
"""What anything may take on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """One DAG of event_dags.py.

    :param home: what its DAG file knows as ``MICROBATCH_HOME``.
    :param airflow: it runs.
    :param name: of the DAG, its pipeline and its folder.
    """

    home: Path
    airflow: LocalAirflow
    name: str

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def landing(self) -> Path:
        folder = self.folder / "landing"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(open_store(str(self.folder / "checkpoint")))

    def land(self, number: int) -> None:
        """A file with one row."""
        unfinished = self.landing / f".{number}.json"
        unfinished.write_text(json.dumps({"id": number}) + "\n")
        unfinished.rename(self.landing / f"{number}.json")

    def trigger(self) -> str:
        return self.airflow.trigger(self.name)

    def clear(self, run_id: str) -> None:
        self.airflow.clear(self.name, run_id)

    def write(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """A call of the REST API."""
        self.airflow.api(method, path, body)

    def state(self, run_id: str, task_id: str = "micro_batch") -> str:
        return str(self.airflow.task_instances(self.name, run_id)[task_id]["state"])

    def wait_for_state(self, run_id: str, *states: str, task_id: str = "micro_batch") -> None:
        self.airflow.wait_for(
            lambda: self.state(run_id, task_id) in states,
            timeout=SECONDS,
            what=f"{task_id} of {self.name} to be {' or '.join(states)}",
            every=0.5,
        )

    def task_path(self, run_id: str, task_id: str = "micro_batch") -> str:
        return f"dags/{self.name}/dagRuns/{run_id}/taskInstances/{task_id}"

    def held(self, epoch: int = 1) -> int:
        """Wait until the attempt is in the middle of its work; returns its process id."""
        sign = self.folder / f"attempt-{epoch}"
        self.airflow.wait_for(sign.exists, timeout=SECONDS, what=f"attempt {epoch} of {self.name}")
        return int(sign.read_text())

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def wait_for_end(self, epoch: int = 1) -> None:
        """Wait until the attempt's end is on record."""
        self.airflow.wait_for(
            lambda: self.checkpoint.attempts.ended(BatchKey(LIVE, 0), epoch),
            timeout=SECONDS,
            what=f"the end of attempt {epoch} of {self.name}",
        )

    def reasons(self) -> list[str]:
        """What Airflow's processes have marked: status and reason."""
        return [f"{mark.status}: {mark.reason}" for mark in self.checkpoint.marks.all().values()]

    def wait_for_mark(self, beginning: str) -> None:
        self.airflow.wait_for(
            lambda: [reason for reason in self.reasons() if reason.startswith(beginning)],
            timeout=SECONDS,
            what=f"a mark {beginning!r} of {self.name}, which has {self.reasons()}",
        )

    def janitor(self) -> None:
        """The leases run out, and the janitor comes by."""
        expire_leases(self.folder / "checkpoint")
        report = Janitor(checkpoint=self.checkpoint).run()
        assert not report.failed, report

    def run_to_success(self) -> None:
        """One more run, which takes up what is left."""
        run_id = self.trigger()
        assert self.airflow.wait_for_run(self.name, run_id, timeout=SECONDS) == "success", self.name

    def run_until_committed(self) -> None:
        """More runs, until batch 0 is committed and each of its attempts has its end on record. A run skips while an
        attempt of an earlier one is alive."""

        def committed() -> bool:
            if self.checkpoint.commit_log.has(0) and not self.checkpoint.leases.unfinished():
                return True
            self.run_to_success()
            return False

        self.airflow.wait_for(committed, timeout=SECONDS, what=f"batch 0 of {self.name} to be committed")

    def told(self) -> dict[int, list[str]]:
        """What the hook was told of each attempt of batch 0, repetitions left out."""
        found: dict[int, list[str]] = {}
        for line in lines(self.folder / "diary"):
            _, status, key, epoch = line.split()
            if key == f"{LIVE}/0":
                found.setdefault(int(epoch), []).append(status)
        return {epoch: [status for status, _ in groupby(statuses)] for epoch, statuses in sorted(found.items())}

    def check(self, *statuses: str | set[str]) -> None:
        """Every row that has landed is in the table once, nothing is left, and the attempts of batch 0 were told these
        statuses in this order; a set where it depends on who was faster."""
        landed = sorted(int(path.stem) for path in self.landing.glob("[0-9]*.json"))
        table = [
            json.loads(line)["id"]
            for path in (self.folder / "lake").glob(f"lane={LIVE}/batch_id=*/*.json")
            for line in path.read_text().splitlines()
        ]
        assert sorted(table) == landed, self.name
        assert stages_of(FileSink(str(self.folder / "lake"), format="json"), self.checkpoint) == [], self.name
        assert self.checkpoint.leases.unfinished() == [], self.name
        told = self.told()
        assert [status[0] for status in told.values()] == ["created"] * len(statuses), (self.name, told)
        for allowed, (_, *ends) in zip(statuses, told.values(), strict=True):
            assert len(ends) == 1, (self.name, told)
            assert ends[0] in ({allowed} if isinstance(allowed, str) else allowed), (self.name, told)
        order = [int(line.split()[3]) for line in lines(self.folder / "diary") if f" {LIVE}/0 " in line]
        assert order == sorted(order), (self.name, "a later attempt was created before the earlier one had ended")
