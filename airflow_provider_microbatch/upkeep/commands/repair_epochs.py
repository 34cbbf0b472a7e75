"""Repair of attempts, leases and replays: records that only tell which attempt did what, and that fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.checkpoint.attempts import attempt_values
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.epochs import Epochs
from airflow_provider_microbatch.checkpoint.fences import FencedBy, fence
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.checkpoint.replays import Replay, refused, withdrawn
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, MicroBatchError
from airflow_provider_microbatch.execution.replay import answers
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.progress_again import progress_again
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded
from airflow_provider_microbatch.upkeep.commands.steps import End, Fence

_UNREADABLE = "its entry was torn or missing"
_MOST_MISSING = 1_000
"""Missing epochs of a batch that are replaced at most: a stray file, or a manifest, may have any number."""


def repair_attempts(drafting: Drafting) -> None:
    """Plan that every epoch can be read, and that every attempt without an end has a lease, by which the janitor finds
    it."""
    _mend(
        drafting,
        "attempts",
        lambda: drafting.checkpoint.attempts.epochs,
        lambda key, epoch: _fence(drafting, key, epoch, FencedBy.COMMAND),
        lambda key, epoch: {"state": "canceled", "ended_ms": drafting.at_ms, "error": _UNREADABLE},
    )
    attempts, leases = drafting.checkpoint.attempts, drafting.checkpoint.leases
    for lane in filter(is_lane, drafting.store.folders("leases")):
        for name in drafting.store.list(f"leases/{lane}"):
            path = f"leases/{lane}/{name}"
            if not _is_record(drafting.store.get(path)):
                drafting.put_away(path, "torn")
    held = set(leases.unfinished())
    for lane in attempts.epochs.lanes():
        for number in attempts.epochs.ids(lane):
            key = BatchKey(lane, number)
            if is_beyond(drafting, key):
                fence_attempts(drafting, key, why=f"batch {key} is in no log; the next one of this number is another")
                continue
            for epoch in sorted({*attempts.epochs.all(key)} - {*attempts.epochs.ends(key)}):
                if (key, epoch) not in held:
                    values = {"seconds": 0, "parked": False}
                    why = f"attempt {epoch} of batch {key} has no end; with a lease that is over the janitor ends it"
                    drafting.write(f"leases/{lane}/{number}-{epoch}-1", encode_record(values), why)


def unfinished_of(checkpoint: Checkpoint, key: BatchKey) -> list[Attempt]:
    """The batch's attempts that have no end."""
    attempts = checkpoint.attempts
    open_epochs = [epoch for epoch in attempts.epochs.all(key) if epoch not in attempts.epochs.ends(key)]
    found = []
    for epoch in open_epochs:
        try:
            found.append(attempts.get(key, epoch))
        except CheckpointError:
            continue  # torn: the attempt's process could not publish either
    return [attempt for attempt in found if attempt is not None]


def repair_replays(drafting: Drafting, recorded: Recorded) -> None:
    """Plan that requests can be read, and that an answered request records its answer: without it the batch would run
    again."""
    unknown = set[BatchKey]()

    def end_of(key: BatchKey, request: int) -> Mapping[str, Any] | None:
        try:
            return _end_of_unreadable(drafting, recorded, key, request)
        except MicroBatchError as error:
            unknown.add(key)
            where = drafting.checkpoint.replays.epochs.where(key, request)
            what = f"it is torn or missing, and nobody can tell now whether it was answered: {error}"
            drafting.problem(where, what, "Mend that, then run the command again.")
            return None

    _mend(
        drafting,
        "replays",
        lambda: drafting.checkpoint.replays.epochs,
        lambda key, epoch: {"run": None, "requested_ms": drafting.at_ms},
        end_of,
    )
    checkpoint = drafting.checkpoint
    for lane in checkpoint.replays.epochs.lanes():
        for number in checkpoint.replays.epochs.ids(lane):
            key = BatchKey(lane, number)
            if is_beyond(drafting, key):
                withdraw_requests(drafting, key, why=f"batch {key} is in no log")
                continue
            for request in () if key in unknown else checkpoint.replays.pending(key):
                answer = None
                with suppress(MicroBatchError):  # as long as the table cannot be asked, the request waits
                    answer = _answer(drafting, recorded, request)
                if answer is not None:
                    drafting.write(
                        f"replays/{key}/{request.epoch}.end",
                        encode_record(answer),
                        f"attempt {answer['attempt']}, which is in the table, was made for it",
                    )


def withdraw_requests(drafting: Drafting, key: BatchKey, *, why: str) -> None:
    """Plan that no request for a replay of the batch is open, and none was answered. The requests stay, so that their
    numbers are never given out again: a late answer would otherwise count for a later request."""
    replays = drafting.checkpoint.replays
    ended = replays.epochs.ends(key)
    for epoch in replays.epochs.all(key):
        path = f"replays/{key}/{epoch}.end"
        if epoch in ended:
            drafting.put_away(path, why)
        drafting.step(End(path=path, text=encode_record(withdrawn(why)).decode(), why=why))


def is_beyond(drafting: Drafting, key: BatchKey) -> bool:
    """Whether the batch is missing in the log for another reason than retention."""
    ids = drafting.checkpoint.lane(key.lane).offset_log.ids()
    return key.id not in ids and key.id >= min(ids, default=0)


def fence_attempts(drafting: Drafting, key: BatchKey, *, why: str, also_ended: bool = False) -> None:
    """Plan to end the attempts of a batch that is planned anew. The process of such an attempt may only sleep, and what
    it has read no longer agrees with the log: a later epoch keeps it from publishing and committing. The batch's new
    life begins with the later epoch: earlier failures do not count.

    :param also_ended: begin a new life also where all attempts have ended, if one of them has failed.
    """
    epochs = drafting.checkpoint.attempts.epochs
    began, ended = epochs.all(key), epochs.ends(key)
    open_epochs = [epoch for epoch in began if epoch not in ended]
    for epoch in open_epochs:
        drafting.step(End(path=f"attempts/{key}/{epoch}.end", text=_end(drafting, why), why=why))
    known_ends = [drafting.checkpoint.attempts.ended(key, epoch) for epoch in began]
    has_failed = also_ended and any(end is not None and end.state == "failed" for end in known_ends)
    if began and (has_failed or began[-1] in open_epochs):
        drafting.step(
            Fence(
                path=f"attempts/{key}/{began[-1] + 1}",
                text=encode_record(_fence(drafting, key, began[-1] + 1, FencedBy.REWOUND)).decode(),
                end=_end(drafting, "it runs nothing"),
                why=f"fences attempt {began[-1]}",
            )
        )


def fence_unknown(drafting: Drafting, key: BatchKey, published: Iterable[Published], *, why: str) -> None:
    """Plan to take the epochs that a restored checkpoint lacks, up to that of output which is in a table. In a bucket
    an attempt's files stay where they were written, also when its output was taken out: an attempt of that epoch would
    find its place taken."""
    newest = drafting.checkpoint.attempts.latest_epoch(key)
    highest = max((one.manifest.epoch for one in published), default=newest)
    for epoch in range(newest + 1, min(highest, newest + _MOST_MISSING) + 1):
        text = encode_record(_fence(drafting, key, epoch, FencedBy.REWOUND)).decode()
        end = _end(drafting, "it runs nothing")
        drafting.step(Fence(path=f"attempts/{key}/{epoch}", text=text, end=end, why=why))


def fence_ahead(drafting: Drafting, key: BatchKey, *, why: str) -> None:
    """Plan to take the epoch after the newest one, and nothing else: the earlier attempts can neither publish nor
    commit any more, and are ended later, as all dead attempts are."""
    epoch = drafting.checkpoint.attempts.epochs.all(key)[-1] + 1
    drafting.step(
        Fence(
            path=f"attempts/{key}/{epoch}",
            text=encode_record(_fence(drafting, key, epoch, FencedBy.COMMAND)).decode(),
            end=_end(drafting, "it runs nothing"),
            why=why,
        )
    )


def _end(drafting: Drafting, why: str) -> str:
    values = {"state": "canceled", "ended_ms": drafting.at_ms, "error": f"microbatch {drafting.command}: {why}"}
    return encode_record(values).decode()


def _fence(drafting: Drafting, key: BatchKey, epoch: int, by: FencedBy) -> Mapping[str, Any]:
    return attempt_values(fence(key, epoch, by=by, started_ms=drafting.at_ms, by_hand=drafting.trail))


def _end_of_unreadable(drafting: Drafting, recorded: Recorded, key: BatchKey, epoch: int) -> Mapping[str, Any]:
    """The end of a request of which nobody can tell whose it was. Only what is in the table answers it: with any other
    answer, a batch that was set aside would pass for one whose rows are in the table. A retry of its run asks again.

    :raises MicroBatchError: if a table cannot tell. To refuse it then would have a batch that is in the table pass for
        one that is set aside, for good.
    """
    answer = None
    if not is_beyond(drafting, key):  # else its requests are withdrawn, whatever the table has
        answer = _answer(drafting, recorded, Replay(key=key, epoch=epoch, run=None, requested_ms=0))
    if answer is not None:
        return answer
    return refused(_UNREADABLE)


def _answer(drafting: Drafting, recorded: Recorded, request: Replay) -> Mapping[str, Any] | None:
    """The answer to a request, if an attempt that was made for it is in the table. With the attempt's figures: without
    them those of the commit would count, and dead letters that the replay alone has would never be run again.

    :raises MicroBatchError: if a table cannot tell.
    """
    key, checkpoint = request.key, drafting.checkpoint
    found = recorded.published(key)
    attempt = None if found is None else checkpoint.attempts.get(key, found.manifest.epoch)
    if found is None or attempt is None or attempt.started_ms < request.requested_ms or not answers(attempt, request):
        return None
    progress = progress_again(recorded, checkpoint.lane(key.lane), found)
    return {"attempt": attempt.epoch, "completed_ms": drafting.at_ms, "progress": progress}


def _mend(
    drafting: Drafting,
    folder: str,
    epochs_of: Callable[[], Epochs],
    placeholder: Callable[[BatchKey, int], Mapping[str, Any]],
    end: Callable[[BatchKey, int], Mapping[str, Any] | None],
) -> None:
    """Plan to replace torn or missing epochs. An epoch must never be given out again: the attempts that fence by it
    would share it.

    :param placeholder: the values that stand for an epoch.
    :param end: those of its end, where none can be read; None if nobody can tell now: it stays as it is then.
    """
    for lane in epochs_of().lanes():
        for number in epochs_of().ids(lane):
            key = BatchKey(lane, number)
            epochs = epochs_of()
            there = {*epochs.all(key), *epochs.ends(key)}
            highest = max(there, default=0)
            if highest - len(there) > _MOST_MISSING:
                drafting.problem(
                    epochs.where(key, highest),
                    f"its number is {highest}, and there are {len(there)} entries: nobody has counted so far.",
                    "Look who wrote it. If nobody needs it, remove it, and repair again.",
                )
                continue
            for epoch in range(1, highest + 1):
                path = f"{folder}/{key}/{epoch}"
                is_there, is_ended = (_is_record(drafting.store.get(one)) for one in (path, f"{path}.end"))
                made = None if is_there or is_ended else end(key, epoch)
                if made is None and not (is_there or is_ended):
                    continue
                if not is_ended:
                    drafting.put_away(f"{path}.end", "torn")
                if is_there:
                    continue
                drafting.put_away(path, "torn")
                drafting.write(
                    path, encode_record(placeholder(key, epoch)), f"stands for epoch {epoch}, which is not used again"
                )
                if made is not None:
                    drafting.write(f"{path}.end", encode_record(made), "nothing comes of it")


def _is_record(data: bytes | None) -> bool:
    if data is None:
        return False
    try:
        decode_record(data, where="")
    except CorruptEntryError:
        return False
    return True
