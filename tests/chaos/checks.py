"""What must be true of a world when everything has come to rest: checked by content, not by what anybody said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from tests.chaos.setting import Setting
from tests.chaos.tally import Tally
from tests.support.hooks import lines
from tests.support.whose import stages_of


def published(setting: Setting) -> list[dict[int, list[tuple[int, int]]]]:
    """Ids and code versions by batch, as a reader of each table finds them."""
    return [
        {key.id: [(row["id"], row["version"]) for row in rows] for key, rows in table.items()}
        for table in setting.where.published()
    ]


def check(setting: Setting, *, landed: int, newest: Mapping[int, int], tally: Tally) -> None:
    """Count what is wrong in ``tally``.

    :param landed: ids 0 to ``landed - 1`` were landed, once each.
    :param newest: batch → version of the code of its newest replay.
    """
    checkpoint = setting.checkpoint()
    ids = checkpoint.offset_log.ids()
    for table in published(setting):
        seen = Counter(row for rows in table.values() for row, _ in rows)
        lost = sorted(set(range(landed)) - seen.keys())
        doubled = sorted(row for row, count in seen.items() if count > 1)
        tally.blame("rows lost", len(lost), f"{lost[:10]}")
        tally.blame("rows doubled", len(doubled), f"{doubled[:10]}")
        for batch, rows in sorted(table.items()):
            versions = {version for _, version in rows}
            expected = {newest.get(batch, 0)} if rows else set()
            tally.blame("wrong states", versions != expected, f"batch {batch} is of code {versions}, not {expected}")
        tally.blame("wrong states", sorted(table) != ids, f"the table has {sorted(table)} of {ids}")
    if setting.archive:
        leftover = [unit for name in setting.sources for unit in setting.where.not_given_up(name)]
        tally.blame("wrong states", len(leftover), f"committed files that were not archived: {leftover[:3]}")
    check_checkpoint(setting, tally)
    tally.counts["rows landed"] += landed


def check_checkpoint(setting: Setting, tally: Tally) -> None:
    """Count what is wrong beside the rows: in the logs, of stages and attempts, and in what hooks were told."""
    checkpoint = setting.checkpoint()
    ids = checkpoint.offset_log.ids()
    tally.blame("wrong states", ids != list(range(len(ids))), f"offset ids {ids}")
    tally.blame("wrong states", checkpoint.commit_log.ids() != ids, f"commits {checkpoint.commit_log.ids()} of {ids}")
    findings = verify_all(checkpoint)
    tally.blame("wrong states", len(findings), "; ".join(finding.message for finding in findings))
    for batch in ids:
        pending = checkpoint.replays.pending(BatchKey("live", batch))
        tally.blame("wrong states", len(pending), f"batch {batch} has replays without an answer")
    _check_cleanliness(setting, checkpoint, tally)
    _check_hooks(setting, checkpoint, ids, tally)
    tally.counts["batches"] += len(ids)


def _check_cleanliness(setting: Setting, checkpoint: Checkpoint, tally: Tally) -> None:
    """Nothing is left that a janitor, which has run, should have seen to."""
    stages = stages_of(setting.pipeline().sink, checkpoint)
    tally.blame("stages orphaned", len(stages), f"{stages}")
    unfinished = checkpoint.leases.unfinished()
    tally.blame("wrong states", len(unfinished), f"attempts that nobody has finished: {unfinished}")


def _check_hooks(setting: Setting, checkpoint: Checkpoint, ids: list[int], tally: Tally) -> None:
    """Each attempt's hook was told CREATED at most once and an end at least once; FINISHED if it was committed."""
    told = Counter(lines(setting.diary))
    for batch in ids:
        key = BatchKey("live", batch)
        commit = checkpoint.commit_log.get(batch)
        for attempt in checkpoint.attempts.all(key):
            if attempt.definition is None:
                continue  # a janitor's, which only fences
            name = f"{key} {attempt.epoch}"
            ends = [status for status in ("finished", "failed", "canceled") if told[f"diary {status} {name}"]]
            tally.blame("wrong states", told[f"diary created {name}"] > 1, f"{name}: on_created was called twice")
            tally.blame("wrong states", not ends, f"{name}: no hook was told how it ended")
            committed = commit is not None and commit.epoch == attempt.epoch
            tally.blame("wrong states", committed and "finished" not in ends, f"{name} is committed; told: {ends}")
        tally.counts["attempts"] += len(checkpoint.attempts.all(key))
        commit = checkpoint.commit_log.get(key.id)
        if commit is not None and "subtasks" in commit.progress:
            tally.counts["batches split by split"] += 1
            tally.counts["splits taken over"] += commit.progress["subtasks"]["taken"]
