"""The state that a batch goes on from stands still: no replay of the batch before takes its place any more.

The table takes the replay of a batch and the publish of the next one in two steps, and a process may sleep between any
look and its step. What decides is their order on record. A replay has its attempt on record before it looks whether the
next batch is planned, and replaces nothing if so. An attempt at the next batch, which is planned by then, first puts an
end to all attempts of before that could still replace, and asks the table for the state after that. So whoever looked
too early is ended, and whoever comes later sees the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt, AttemptEnd, CommitEntry
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.exceptions import AttemptFencedError, BatchInProgressError, CheckpointError, SinkError
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.execution.liveness import sign_of_life
from airflow_provider_microbatch.execution.planned import PlannedBatch, load_batch
from airflow_provider_microbatch.execution.replay import answers
from airflow_provider_microbatch.execution.stateful import state_before
from airflow_provider_microbatch.execution.told_state import published_result, state_of
from airflow_provider_microbatch.sinks import Manifest, OpenSink

log = logging.getLogger(__name__)

EndEarlier = Callable[[Attempt, int], Mapping[int, str]]
"""Puts an end to the attempts of a batch before the given one, and after the epoch. What cannot be ended now stays
without an end on record, and is returned by its epoch, with the reason in words."""


def standing_commit(
    checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, commit: CommitEntry, *, by_record: bool = False
) -> CommitEntry:
    """The commit entry of the batch before, as a plan goes on from it. The entry is the first attempt's, and is never
    written again; a replay replaces output and state. By the entry's own watermark the next batch would drop rows as
    late that are not, or take rows that are, and one without data that the replay asks for would not be made.

    :param key: the batch that is to be planned.
    :param commit: the entry as it lies in the log.
    :param by_record: take what the newest answer to a replay tells for what the table has, where no later attempt may
        have published, or where the table cannot be asked. That is enough to tell whether a batch is to be made, and
        sensors, which tell it, may run where a table never can be asked.
    :raises BatchInProgressError: as :func:`check_no_replay_waits`.
    :raises CheckpointError: as :func:`check_no_replay_waits`, and if what the replay tells of its state cannot be read.
    :raises SinkError: if the table cannot tell, and what is on record is not to be taken for it.
    """
    before = _before(key)
    if before is None or not checkpoint.replays.epochs.all(before):
        return commit
    check_no_replay_waits(checkpoint, sink, key)
    result = _result(checkpoint, sink, before, commit, by_record=by_record)
    state = state_of(result, where=f"batch {before} of {checkpoint.location}")
    if state is None:
        return commit  # an attempt says what is wrong with it
    return replace(
        commit,
        next_watermark_ms=int(state["nextWatermarkMs"]),
        requires_another_batch=bool(result.get("requiresAnotherBatch", False)),
    )


def check_no_replay_waits(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> None:
    """Check, before a batch is planned, that no clear of the batch before waits: the clear's user wants other output
    there, and behind a planned batch none can be made. Writes nothing.

    :param key: the batch that is to be planned.
    :raises BatchInProgressError: if the replay is on its way.
    :raises CheckpointError: if it is not, naming the ways on: nothing else may ever answer the clear.
    """
    before = _before(key)
    pending = [] if before is None else checkpoint.replays.pending(before)
    if before is None or not pending:
        return
    published = _published(checkpoint, sink, before)
    made = None if published is None else checkpoint.attempts.made(before, published.epoch)
    # A replay that died between its publish and its answer waits for nothing: its state is the one that counts.
    waiting = next((request for request in pending if made is None or not answers(made, request)), None)
    if waiting is None:
        return
    run = waiting.run
    by = "nobody" if run is None else f"run {run.run_id!r} of DAG {run.dag_id!r}"
    what = (
        f"a clear of batch {before} of {checkpoint.location} by {by} waits for its answer (replay request "
        f"{waiting.epoch}), which replaces the state that batch {key} goes on from."
    )
    newest = checkpoint.attempts.latest(before)
    is_alive = newest is not None and sign_of_life(checkpoint, newest) is not None
    # A request is a little older than its attempt.
    if is_alive or checkpoint.replays.epochs.age_seconds(before) < LEASE_SECONDS:
        raise BatchInProgressError(f"{what} Nothing was done here; a run after that one makes the next batch.")
    parked = None if newest is None else sign_of_life(checkpoint, newest, parked=True)
    # Without the option the command would wait for the audits too.
    despite = "" if parked is None else " --despite-audits"
    raise CheckpointError(
        f"{what} Nothing was planned, since {parked or 'no sign of life is there of its replay'}. Have that run try "
        "again, or clear its task again. If it will not, or cannot: `microbatch withdraw-clear "
        f"{quote(checkpoint.location)} {before}{despite}` leaves the batch as it is, and the next run goes on from it."
    )


def have_stand(
    checkpoint: Checkpoint, sink: OpenSink, attempt: Attempt, *, end_earlier: EndEarlier, now_ms: int
) -> None:
    """Put an end to all attempts that could still replace the batch before, of which none is made from now on.

    :param attempt: of a batch that keeps state; on record.
    :raises CheckpointError: if one of them cannot be ended now. Its process may sleep right before its replace.
    """
    before = _before(attempt.key)
    while before is not None and (left := _may_replace(checkpoint, sink, before)):
        fencing = fence(
            before,
            checkpoint.attempts.latest_epoch(before) + 1,
            by=FencedBy.GONE_ON,
            started_ms=now_ms,
            run=attempt.run,
        )
        if not checkpoint.attempts.take_exactly(fencing):
            continue
        reasons = end_earlier(fencing, left[0].epoch - 1)
        end = AttemptEnd(state="canceled", error=f"batch {attempt.key} goes on from the state", ended_ms=now_ms)
        checkpoint.attempts.end(before, fencing.epoch, end)
        left = _may_replace(checkpoint, sink, before)
        if left:
            run = left[0].run
            why = reasons.get(left[0].epoch, f"it has come meanwhile, or {sink.location()} tells no end of it")
            raise CheckpointError(
                f"batch {before}: attempt {left[0].epoch} of {'no run' if run is None else f'run {run.run_id!r}'} was "
                f"to replace its output, and could not be ended: it could still replace the state that batch "
                f"{attempt.key} goes on from. Nothing was run. Mend what was in the way, and run this task again: {why}"
            )


def check_stands(checkpoint: Checkpoint, sink: OpenSink, planned: PlannedBatch, staged: Manifest) -> None:
    """Check that a stage was made on the state that is published by now.

    :raises AttemptFencedError: if the table has other output of the batch before, as one that was restored has.
    """
    state = state_of(staged.result, where=f"the stage of batch {planned.key} attempt {staged.epoch}")
    if state is None or state.get("base") is None:
        return
    before = state_before(planned, checkpoint=checkpoint, sink=sink)
    if before is None or before["ids"] != state["base"]:
        raise AttemptFencedError(
            f"batch {planned.key} attempt {staged.epoch} goes on from what {sink.location()} had of the batch before, "
            "and that has another state by now. Nothing was published; the next try goes on from what is there."
        )


def _result(
    checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, commit: CommitEntry, *, by_record: bool
) -> Mapping[str, Any]:
    """The result of the published output of a committed batch; see :func:`standing_commit`, and raises as it does."""
    asked = [sink] if not by_record or _may_be_newer(checkpoint, key, commit) else []
    try:
        return published_result(checkpoint, key, asked)
    except SinkError as error:
        if not by_record:
            raise
        # Nobody may ever be able to ask the table here, and no answer comes to a clear that is withdrawn: a sensor that
        # insists would never fire again. The plan asks the table.
        log.info("Batch %s: what is on record of its replays counts, since its table cannot tell: %s", key, error)
        return published_result(checkpoint, key, [])


def _may_be_newer(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry) -> bool:
    """Whether an attempt may have published that is newer than those whose result is on record. A fence never does."""
    told = _told_of(checkpoint, key, commit)
    newer = [checkpoint.attempts.get(key, epoch) for epoch in checkpoint.attempts.epochs.all(key) if epoch > told]
    return any(one is None or not one.is_fence for one in newer)


def _told_of(checkpoint: Checkpoint, key: BatchKey, commit: CommitEntry) -> int:
    """The newest attempt at a committed batch whose result is on record. A later one may have published, and died
    before its answer, also where its request waits no more, since it was withdrawn: the table alone tells of it."""
    answer = checkpoint.replays.newest_answer(key)
    return max(commit.epoch or 0, 0 if answer is None else int(answer["attempt"]))


def _before(key: BatchKey) -> BatchKey | None:
    return BatchKey(key.lane, key.id - 1) if key.id > 0 else None


def _published(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> Manifest | None:
    return sink.seen(expected(checkpoint, load_batch(checkpoint, key).identity))


def _may_replace(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey) -> list[Attempt]:
    """Attempts that are newer than the published one, and whose stage may still be there: the end of one goes on record
    after its stage was dropped. Oldest first."""
    open_epochs = checkpoint.attempts.epochs.open(key)
    published = _published(checkpoint, sink, key) if open_epochs else None
    newer = [epoch for epoch in open_epochs if published is None or epoch > published.epoch]
    found = [checkpoint.attempts.get(key, epoch) for epoch in newer]
    return [one for one in found if one is not None and not one.is_fence]
