"""Which run is at a batch: a batch that another run is alive at is left alone, and that run is named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, Relation, RunIdentity
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import AttemptFencedError, BatchInProgressError, EngineError, SinkError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.identity import complete_replace, expected, latest_seen
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.position import check_not_taken_back
from airflow_provider_microbatch.execution.replay import request_replay, withdraw_those_of_before
from airflow_provider_microbatch.execution.set_aside import aside_error, is_aside
from airflow_provider_microbatch.sinks import Manifest

log = logging.getLogger(__name__)

_MOST_MISSED = 1_000
"""Number of attempts of one batch that a restored backup may not know: each is put on record."""

GoesOn = Callable[[RunIdentity], bool]
"""Whether the orchestrator says that a run goes on. Asked only where no process could renew a lease: while a batch is
between two tasks of its run."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The state of a batch that no other run is alive at, as a run finds it.

    :param planned: the batch.
    :param newest: the batch's highest epoch at that moment; 0 if there was none. Everything else was read after it.
    :param request: the replay request that the run has to answer; None if there is none.
    """

    planned: PlannedBatch
    newest: int
    request: int | None

    @property
    def is_done(self) -> bool:
        """Whether the batch is committed, and no clear wants it again."""
        return self.planned.committed and self.request is None

    def check_code(self, checkpoint: Checkpoint, run: RunIdentity, code: Code) -> None:
        """Check that the run's code is not older than that of a later clear. A try that slept through the clear of
        another run of its batch has old code: its replay would put the output of that code in the place of the later
        clear's output, or pass for the output that the later clear waits for. The retry of such a try has the newer
        code, and answers both.

        :raises AttemptFencedError: if the newest replay, or a request, is of a later try, and of other code.
        """
        if self.request is None:
            return
        key = self.planned.key
        for request in checkpoint.replays.pending(key):
            if _is_overtaken(run, code, by=request.run, code_hash=request.code_hash):
                raise AttemptFencedError(
                    f"batch {key}: {named_run(request.run)} was cleared later than this try was made, and waits for "
                    f"the batch with other code, by replay request {request.epoch}. A retry of this task has the code "
                    "of now."
                )
        done = (attempt for attempt in reversed(checkpoint.attempts.all(key)) if attempt.request is not None)
        newest = next(
            (one for one in done if (end := checkpoint.attempts.ended(key, one.epoch)) and end.state == "succeeded"),
            None,
        )
        if newest is not None and _is_overtaken(run, code, by=newest.run, code_hash=newest.code.get("code_hash")):
            raise AttemptFencedError(
                f"batch {key}: {named_run(newest.run)} was cleared later than this try was made, and has replayed the "
                f"batch with other code as attempt {newest.epoch}. A retry of this task has the code of now."
            )


def _is_overtaken(run: RunIdentity, code: Code, *, by: RunIdentity | None, code_hash: str | None) -> bool:
    """Whether another run, whose try was made later than this one, has other code; False if that cannot be told."""
    if by is None or code_hash is None or run.is_of(by) or not by.is_newer_than(run):
        return False
    return code_hash != code.code_hash


def no_run_goes_on(_: RunIdentity) -> bool:
    """The answer for batches that are never between two tasks."""
    return False


def named(attempt: Attempt | None) -> str:
    """An attempt and its run, as errors name them."""
    if attempt is None:
        return "an attempt that is no longer on record"
    return f"attempt {attempt.epoch} of {named_run(attempt.run)}"


def check_not_fenced(checkpoint: Checkpoint, attempt: Attempt) -> None:
    """Check that the attempt is the newest. :raises AttemptFencedError: if there is a later attempt at the batch."""
    newest = checkpoint.attempts.latest_epoch(attempt.key)
    if newest < attempt.epoch and checkpoint.attempts.get(attempt.key, attempt.epoch) is not None:
        return  # a listing may miss for a while what was put just now
    if newest != attempt.epoch:
        winner = named(checkpoint.attempts.get(attempt.key, newest))
        raise AttemptFencedError(
            f"batch {attempt.key}: attempt {attempt.epoch} is fenced by {winner}, which alone may publish. Nothing was "
            "published by this one."
        )


def named_run(run: RunIdentity | None) -> str:
    """A run, as errors name it."""
    return f"run {run.run_id!r} of DAG {run.dag_id!r}" if run else "no run of Airflow"


def look(
    *,
    checkpoint: Checkpoint,
    planner: Planner,
    key: BatchKey,
    run: RunIdentity,
    engine_of: EngineOf,
    goes_on: GoesOn,
    code: Code | None,
    now_ms: int,
    any_task: bool = False,
) -> Look:
    """The work that ``run`` has at the batch. A replay that a clear asks for is on record on return.

    :param engine_of: asked whether an attempt whose lease has run out still runs.
    :param code: the code that ``run`` has; None if ``run`` does not know.
    :param goes_on: asked about a run whose batch is between two of its tasks.
    :param any_task: as for :func:`in_the_way`.
    :raises BatchInProgressError: if another run is alive at the batch, or another task of this one.
    :raises AttemptFencedError: if another run is alive at the batch, and ``run`` has to replay it: a skip would lose
        that.
    :raises BatchSetAsideError: if the batch is set aside, and no clear wants it again.
    :raises SourceError: if the batch is to be replayed and a source cannot read its range again.
    """
    newest = checkpoint.attempts.latest_epoch(key)
    planned = planner.load(key.id)
    commit = checkpoint.lane(key.lane).commit_of(key.id) if planned.committed else None
    request = None
    if commit is None:
        check_not_taken_back(checkpoint, planned.identity)
        withdraw_those_of_before(checkpoint, key)
    else:
        request = request_replay(
            checkpoint=checkpoint,
            sources=planner.sources,
            sink=planner.sink,
            planned=planned,
            commit=commit,
            run=run,
            code=code,
            now_ms=now_ms,
        )
    found = Look(planned=planned, newest=newest, request=request)
    if found.is_done:
        if commit is not None and is_aside(checkpoint, key, commit):
            raise aside_error(planned, commit)
        return found
    held = in_the_way(
        checkpoint,
        key,
        newest=checkpoint.attempts.get(key, newest) if newest else None,
        planned_by=planned.entry.run,
        run=run,
        engine_of=engine_of,
        goes_on=goes_on,
        any_task=any_task,
    )
    if held is not None and request is not None:
        raise AttemptFencedError(
            f"{held}. Replay request {request} is on record and waits: try again when that attempt has ended."
        )
    if held is not None:
        raise BatchInProgressError(f"{held}. Nothing was done here; that run, or the next one, finishes the batch.")
    is_of_several = len(planner.sink.tables) > 1
    if request is None and not is_of_several:
        return found
    batch = expected(checkpoint, planned.identity)
    published = latest_seen(planner.sink, batch) if is_of_several else planner.seen(batch)
    if published is None or published.epoch <= newest:
        return found
    return replace(found, newest=_take_what_is_published(checkpoint, key, newest, published.epoch, now_ms=now_ms))


def published_for(found: Look, *, checkpoint: Checkpoint, planner: Planner) -> Manifest | None:
    """The batch's output that is in the sink, and in all of its tables, and only waits for its commit entry, or for the
    answer to the replay it was made for; None if there is none."""
    planned = found.planned
    published = planner.finished(expected(checkpoint, planned.identity), committed=planned.committed)
    if published is None or found.request is None:
        return published
    attempt = checkpoint.attempts.made(planned.key, published.epoch)
    if attempt is None or attempt.request is None or attempt.request < found.request:
        return None
    return complete_replace(checkpoint, planner.sink, planned.identity, published)


def _take_what_is_published(checkpoint: Checkpoint, key: BatchKey, newest: int, published: int, *, now_ms: int) -> int:
    """Put the epochs up to that of the published attempt on record, which a restored backup does not know. A new
    attempt with the published one's number would take the output for its own, and answer a replay with it.

    :return: the last epoch that this run has put on record.
    :raises SinkError: if there are more epochs than any backup can have missed.
    """
    if published - newest > _MOST_MISSED:
        rewind = command(checkpoint.lane(key.lane), f"rewind --to {key.id - 1} --drop-output")
        raise SinkError(
            f"batch {key} in the table says that it is of attempt {published}; this checkpoint has {newest} on record. "
            "No backup is as old as that: somebody has changed its manifest. Look at the batch's folder. To make it "
            f"anew, move it away and clear the batch's task, or have {rewind} take it and all later batches out."
        )
    for epoch in range(newest + 1, published + 1):
        unknown = fence(key, epoch, by=FencedBy.RESTORED, started_ms=now_ms)
        if not checkpoint.attempts.take_exactly(unknown):
            return epoch - 1  # the next look finds the process that was faster
        end = AttemptEnd(
            state="superseded", error="made before a backup of the checkpoint was restored", ended_ms=now_ms
        )
        checkpoint.attempts.end(key, epoch, end)
    return published


def in_the_way(
    checkpoint: Checkpoint,
    key: BatchKey,
    *,
    newest: Attempt | None,
    planned_by: RunIdentity | None,
    run: RunIdentity | None,
    engine_of: EngineOf,
    goes_on: GoesOn = no_run_goes_on,
    any_task: bool = False,
) -> str | None:
    """Which other run is alive at the batch, in words; None if there is none. Writes nothing.

    A retry is the same run: it takes its own batch over at once. A try from before a clear is not the same run. Nor is
    another task of the run, as long as that task gives a sign of life: two tasks that name one pipeline would end each
    other's attempts until one has no retry left. The batch of a dead task belongs to its run, as a task may be renamed
    between a run and its clear.

    :param newest: the batch's newest attempt; no other may publish.
    :param planned_by: the run that planned the batch; asked for as long as there is no attempt.
    :param run: the asking run.
    :param goes_on: asked about the run whose stage waits for its audits, or whose batch for its first attempt.
    :param any_task: the asking task begins no attempt, as a sensor or the step before the one that does: any task of
        its run may be at the batch.
    :raises EngineError: if the engine cannot be asked: the attempt may be alive then, and must not be taken for dead.
    """
    if newest is None:
        if planned_by is None or _is_own(planned_by, run) or not goes_on(planned_by):
            return None
        return f"batch {key} is in progress: {named_run(planned_by)} planned it and goes on"
    if run is not None and newest.run is not None and _is_own(newest.run, run):
        if any_task or newest.run.task_id == run.task_id:
            return None
        sign = sign_of_life(checkpoint, newest, engine_of)
        whose = f"attempt {newest.epoch} of task {newest.run.task_id!r} of the same run"
        return None if sign is None else f"batch {key} is in progress: {whose} is alive ({sign})"
    sign = sign_of_life(checkpoint, newest, engine_of)
    if sign is None and newest.run is not None and goes_on(newest.run):
        parked = sign_of_life(checkpoint, newest, parked=True)
        sign = None if parked is None else "its stage waits for the commit, and its run goes on"
    return None if sign is None else f"batch {key} is in progress: {named(newest)} is alive ({sign})"


def held_by_another(
    checkpoint: Checkpoint, key: BatchKey, run: RunIdentity | None, engine_of: EngineOf
) -> str | None:  # fmt: skip
    """Which other run is alive at the batch, in words; None if there is none. See :func:`in_the_way`. For callers that
    begin no attempt."""
    newest = checkpoint.attempts.latest(key)
    return in_the_way(
        checkpoint, key, newest=newest, planned_by=None, run=run, engine_of=engine_of, any_task=True
    )  # fmt: skip


def known_to_be_held(
    checkpoint: Checkpoint, key: BatchKey, run: RunIdentity | None, engine_of: EngineOf
) -> str | None:  # fmt: skip
    """As :func:`held_by_another`; None too if the engine cannot be asked. For sensors: the operator behind one is on a
    host where the engine can be asked, and a sensor that failed here would keep it from recovering the batch."""
    try:
        return held_by_another(checkpoint, key, run, engine_of)
    except EngineError as unknown:
        log.warning("Nobody can tell from here whether another run is alive at batch %s: %s", key, unknown)
        return None


def _is_own(other: RunIdentity, run: RunIdentity | None) -> bool:
    return run is not None and run.relation_to(other) in (Relation.SAME, Relation.LATER)
