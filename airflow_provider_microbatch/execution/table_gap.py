"""Batches that a table has lost and that no log knows any more: retention had removed their entries when the table was
put back to before them. No clear and no rewind brings them back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.execution.published_to import first_published_to
from airflow_provider_microbatch.sinks import OpenSink


@dataclass(frozen=True, kw_only=True)
class TableGap:
    """Consecutive batches that a table lacks, right before the oldest that the log keeps.

    :param first: the first of them.
    :param last: the last of them.
    :param were_here: whether they were in this table, as far as the log tells. If not, nobody can tell: the oldest that
        the log keeps went to another one, which may have been the pipeline's for a while.
    """

    first: int
    last: int
    were_here: bool

    def __str__(self) -> str:
        return numbers(self.first, self.last)

    def ways_on(self) -> str:
        """What to do about it, in words."""
        if not self.were_here:
            return (
                f"If the table had {self}, bring back a backup of it that has batch {self.last} before any task is "
                "cleared: once the later batches are back, nobody misses that any more. If it did not, go on."
            )
        return (
            f"Bring back a backup of the table that has batch {self.last}, then clear the tasks of later batches that "
            "it lacks, the oldest first. Without one, start a new checkpoint and a new table, which read all that the "
            "sources have; or name another table in the pipeline: it gets what is kept, once the tasks of that are "
            "cleared, and all that follows, and this table stays as it is."
        )


def gap_below(checkpoint: Checkpoint, table: OpenSink, lane: str, *, beside: OpenSink) -> TableGap | None:
    """The batches between the newest one that the table knows, and the lane's oldest entry; None if there are none, or
    they were a streaming query's, or the table cannot list its batches. For callers that have found the table to lack a
    batch of the log: a table that lacks none may only have got another's place then, or come after a position set by
    hand.

    :param beside: the pipeline's sink of now.
    :raises SinkError: if the table cannot tell.
    """
    oldest = next(iter(checkpoint.lane(lane).offset_log.ids()), 0)
    if oldest == 0 or type(table).batches is OpenSink.batches:
        return None
    # One that remembers loses its newest batches, when it is put back: if it has any of the log, it has lost none of
    # before. Of files somebody may have removed any.
    below = None if table.definition.remembers_batches else oldest
    known = max((one for one in table.batches(lane, checkpoint.tables) if below is None or one < below), default=-1)
    had = None if known + 1 >= oldest else _had_the_oldest(checkpoint, table, lane, beside=beside)
    return None if had is None else TableGap(first=known + 1, last=oldest - 1, were_here=had)


def _had_the_oldest(checkpoint: Checkpoint, table: OpenSink, lane: str, *, beside: OpenSink) -> bool | None:
    """Whether the oldest batch of the log of which that is known went to this table at first: nothing else tells where
    those before it went. A clear tells nothing of them: it also fills a table that was named after them. If all that
    the log keeps were set aside, and nothing but clears has published any, the first of these tells. None if it was a
    streaming query's, which wrote to a table of its own."""
    logs = checkpoint.lane(lane)
    for by_clears in (False, True):
        for number in logs.offset_log.ids():
            commit = logs.commit_of(number)
            if commit is None or commit.set_aside is not by_clears:
                continue
            if commit.epoch is None and not commit.set_aside:
                return None
            wrote = first_published_to(checkpoint, BatchKey(lane, number), beside=beside)
            if wrote:
                return any(table.is_written_by(one, checkpoint.tables) for one in wrote)
    return False


def known_before(checkpoint: Checkpoint, table: OpenSink, key: BatchKey) -> Iterator[int]:
    """Numbers of the table's batches before this one; none of a table that cannot list them."""
    if type(table).batches is not OpenSink.batches:
        yield from (number for number in table.batches(key.lane, checkpoint.tables) if number < key.id)


def numbers(first: int, last: int) -> str:
    """The batches from one to another, in words."""
    return f"batch {first}" if first == last else f"batches {first} to {last}"
