"""Drive micro-batches through a running Airflow: land files, watch the checkpoint, kill somebody, wait for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.cli.table import show_range
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.stores.location import open_store
from demo.orders import Till
from demo.processes import Victim, java_of
from demo.proof import Proof
from demo.running_airflow import LocalAirflowError, RunningAirflow

BATCH_SECONDS = 300.0
"""How long a batch may take, a retry after a kill included, before the demo gives up."""

_MID_RUN_SECONDS = 2.5
"""How long Spark of the batch that is killed has been running by then; a batch takes it 6 seconds and more."""


@dataclass(frozen=True, kw_only=True)
class Killed:
    """What was killed.

    :param batch: id of the batch.
    :param epoch: its attempt.
    :param victim: who of it.
    """

    batch: int
    epoch: int
    victim: Victim


Kill = Callable[[psutil.Process], Victim]
"""Kills somebody who works at a batch, found by its driver. :raises LookupError: if nobody does any more."""


class Drive:
    """:param airflow: started, and the DAG runs.
    :param dag_id: the DAG.
    :param checkpoint: where its checkpoint lies.
    :param till: lands files.
    :param say: takes one line an event.
    """

    def __init__(
        self, *, airflow: RunningAirflow, dag_id: str, checkpoint: str, till: Till, say: Callable[[str], None]
    ) -> None:
        self.checkpoint = Checkpoint(open_store(checkpoint))
        self._airflow = airflow
        self._dag_id = dag_id
        self._till = till
        self._say = say
        self._said: set[str] = set()

    def run(self, *, batches: int, kills: Mapping[int, Kill]) -> list[Killed]:
        """Drive so many batches; returns what was killed.

        :param batches: how many. Each wave of files lands when the batch before it is planned, so that the batches are
            the same at every run.
        :param kills: who is killed, by the batch's id; what has died of it is started again behind that batch.
        :raises LocalAirflowError: if a batch does not come through.
        """
        killed = []
        self._land(0)
        for batch in range(batches):
            key = BatchKey(LIVE, batch)
            self._wait(key, self.checkpoint.attempts.latest_epoch, f"an attempt at batch {batch}")
            if batch + 1 < batches:
                self._land(batch + 1)
            if batch in kills:
                killed.append(self._kill(key, kills[batch]))
            self._wait(key, self._committed, f"the commit of batch {batch}")
            self._airflow.start_again()
        self._airflow.wait_for(self._rested, timeout=BATCH_SECONDS, what="the end of the last DAG run")
        return killed

    def recovered(self, killed: Killed) -> Proof:
        """The killed batch was committed by a later attempt, which another try of the same DAG run made; on another
        machine, if the first one's was lost."""
        key = BatchKey(LIVE, killed.batch)
        batch = summarize(self.checkpoint, key)
        problems = []
        if batch.state != "committed" or batch.epoch <= killed.epoch:
            problems.append(f"it is {batch.state}, by attempt {batch.epoch}")
        end = self.checkpoint.attempts.ended(key, killed.epoch)
        if end is None or end.state == "succeeded":
            problems.append(f"attempt {killed.epoch} ended as {end.state if end else 'nobody knows'}")
        claim = f"batch {killed.batch}: attempt {killed.epoch} was killed, attempt {batch.epoch} was committed"
        if killed.victim.loses_host:
            first, last = self._host(key, killed.epoch), self._host(key, batch.epoch)
            claim += f"; {killed.victim.what} of the one was on {first}, of the other on {last}"
            problems += [f"both ran on {first}"] if first == last else []
        return Proof(claim=claim, problems=tuple(problems))

    def runs_ended_well(self) -> Proof:
        """No DAG run failed; the newest may be waiting for data."""
        runs = self._airflow.runs(self._dag_id)
        wrong = [run for run in runs if run["state"] not in ("success", "running", "queued")]
        ended = sum(run["state"] == "success" for run in runs)
        return Proof(
            claim=f"{ended} DAG runs ended with success, {len(runs) - ended - len(wrong)} waiting for data",
            problems=tuple(f"{run['dag_run_id']} is {run['state']}" for run in wrong),
        )

    def _land(self, wave: int) -> None:
        files = 1 + wave % 3
        rows = self._till.land(files)
        self._say(f"landed {files} file{'s' if files > 1 else ''} with {rows} orders")

    def _wait(self, key: BatchKey, condition: Callable[[BatchKey], object], what: str) -> None:
        def look() -> object:
            self._tell(key)
            return condition(key)

        self._airflow.wait_for(look, timeout=BATCH_SECONDS, what=what, every=0.5)
        self._tell(key)

    def _tell(self, key: BatchKey) -> None:
        """Say what happened to the batch and was not said yet."""
        entry = self.checkpoint.offset_log.get(key.id)
        if entry is None:
            return
        batch = summarize(self.checkpoint, key)
        ranges = ", ".join(f"{name} {show_range(ends)}" for name, ends in batch.offsets.items())
        self._say_once(f"batch {key.id} planned: {ranges}")
        for attempt in self.checkpoint.attempts.all(key):
            self._say_once(f"batch {key.id} attempt {attempt.epoch} started")
            end = self.checkpoint.attempts.ended(key, attempt.epoch)
            if end is not None and end.state != "succeeded":
                self._say_once(f"batch {key.id} attempt {attempt.epoch} {end.state}: {_first_line(end.error)}")
        if batch.committed_ms is not None:
            self._say_once(f"batch {key.id} {batch.state}: {batch.rows_out} rows, {batch.seconds:.1f} s")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _host(self, key: BatchKey, epoch: int) -> str:
        attempt = self.checkpoint.attempts.get(key, epoch)
        return str(attempt.handle.get("host")) if attempt else "nobody knows"

    def _kill(self, key: BatchKey, kill: Kill) -> Killed:
        attempt = self.checkpoint.attempts.latest(key)
        assert attempt is not None, "it was waited for"
        tag = attempt.handle["tag"]

        seen: list[float] = []

        def in_the_middle() -> psutil.Process | None:
            java = java_of(self._airflow.processes(), tag)
            if java is not None:
                seen.append(time.monotonic())
            return java if java is not None and seen[-1] - seen[0] > _MID_RUN_SECONDS else None

        java = self._airflow.wait_for(
            in_the_middle, timeout=BATCH_SECONDS, what=f"Spark in the middle of batch {key.id}", every=0.25
        )
        assert java is not None, "that is what was waited for"
        try:
            victim = kill(java)
        except LookupError as error:
            raise LocalAirflowError(f"batch {key.id} could not be killed: {error}") from None
        self._say(f"killed {victim.what} of batch {key.id} mid-run {victim.how}")
        return Killed(batch=key.id, epoch=attempt.epoch, victim=victim)

    def _committed(self, key: BatchKey) -> bool:
        return self.checkpoint.commit_log.get(key.id) is not None

    def _rested(self) -> bool:
        """Every run that planned a batch has ended."""
        entries = [self.checkpoint.offset_log.get(number) for number in self.checkpoint.offset_log.ids()]
        planners = {entry.run.run_id for entry in entries if entry is not None and entry.run is not None}
        runs = self._airflow.runs(self._dag_id)
        return not any(run["state"] == "running" for run in runs if run["dag_run_id"] in planners)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
