"""The record of a batch's output in a sink, and the check that the output is that batch's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError

FORGOTTEN = "forgotten"
"""Key in a manifest's identity: the erasure entries whose rows the output has left out."""

RANGES = "ranges"
"""Key in a manifest's identity: by source, the data that the output was made of."""

ADOPTED = 0
"""The epoch of adopted output."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an attempt wrote; the manifest travels with the data when the data is published.

    :param key: the batch.
    :param epoch: the attempt.
    :param identity: identity of the batch; None if an older version wrote the manifest.
    :param files: path relative to the batch's folder → bytes.
    :param result: the runtime's result (``numInputRows`` by source, ``numOutputRows``, ``durationMs`` by phase, …);
        of one of several sinks, ``sink`` is its name.
    """

    key: BatchKey
    epoch: int
    identity: BatchIdentity | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def made_of(self) -> Mapping[str, str]:
        """By source, the name of the data that the output was made of; see ``OpenSource.known_as``. A source that
        cannot name its data is missing; empty if an older version wrote the manifest."""
        told = self.result.get("identity")
        ranges = told.get(RANGES) if isinstance(told, Mapping) else None
        found = ranges.items() if isinstance(ranges, Mapping) else ()
        return {str(name): known for name, known in found if isinstance(known, str)}

    @property
    def tells_ranges(self) -> bool:
        """Whether it was written by a version that tells :attr:`made_of`; a range without data has no name there."""
        told = self.result.get("identity")
        return isinstance(told, Mapping) and isinstance(told.get(RANGES), Mapping)

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Marks of the erasure entries whose rows the output has left out."""
        told = self.result.get("identity")
        found = told.get(FORGOTTEN) if isinstance(told, Mapping) else None
        return tuple(mark for mark in found if isinstance(mark, str)) if isinstance(found, list) else ()

    @property
    def held_to(self) -> tuple[str, ...]:
        """The table's rules for rows that the rows were held against, as
        :attr:`~airflow_provider_microbatch.runtime.intake.Intake.rules` has them."""
        found = self.result.get("heldTo")
        return tuple(rule for rule in found if isinstance(rule, str)) if isinstance(found, list) else ()

    @property
    def dead_letters(self) -> int:
        """How many dead letters the attempt made; 0 if its runtime did not tell."""
        found = self.result.get("numDeadLetters")
        return found if isinstance(found, int) else 0

    def is_of(self, batch: BatchIdentity, epoch: int) -> bool:
        """Whether the manifest is that attempt's."""
        own = self.identity == batch if self.identity is not None else not batch.checkpoint
        return own and self.epoch == epoch


def _none(_: Manifest) -> Manifest | None:
    return None


def _any(_: int) -> bool:
    return True


def _no(_: BatchKey) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class ExpectedBatch:
    """A batch as its checkpoint asks a sink for it: output at the batch's place counts only if it bears this identity.

    :param identity: identity of the batch.
    :param tables: the checkpoint's knowledge of its tables: a batch that is missing from a table that is away may be in
        it.
    :param recognise: called for output of another identity, or of none: returns the manifest as which the output
        counts, or None.
    :param newest: the newest batch of the lane that the checkpoint knows, if it is not the batch before this one.
    :param can_rewind_to: whether ``microbatch rewind`` may go back to a batch of the lane, for the ways on.
    :param is_past: of a batch of any lane, whether the checkpoint has committed it, or a later one of its lane: then it
        is not made for the first time any more.
    :param staged_as: identity in the stage of the attempt to be published, if the stage was written by an older version
        that recorded less than ``identity``.
    """

    identity: BatchIdentity
    tables: KnownTables
    recognise: Callable[[Manifest], Manifest | None] = _none
    newest: int | None = None
    can_rewind_to: Callable[[int], bool] = _any
    is_past: Callable[[BatchKey], bool] = _no
    staged_as: BatchIdentity | None = None

    @property
    def key(self) -> BatchKey:
        """The batch's place."""
        return self.identity.key

    @property
    def staged(self) -> BatchIdentity:
        """The identity under which the stage of the attempt was written."""
        return self.staged_as or self.identity

    def find(self, found: Manifest) -> Manifest | None:
        """The output at the batch's place, as the batch's own; None if it is another batch's."""
        if found.identity is not None and found.identity == self.identity:
            return found
        return self.recognise(found)

    def check(self, found: Manifest, *, where: str, can_withdraw: bool = True) -> Manifest:
        """Like :meth:`find`.

        :param can_withdraw: whether output can be taken out there, for the ways on.
        :raises ForeignBatchError: if the output is another batch's.
        """
        own = self.find(found)
        if own is None:
            raise ForeignBatchError(
                f"batch {self.key} in {where} is another one than {_asking(self.identity)} means by that number: "
                f"{self._whose(found)} Nothing was published, committed or given up. "
                f"{self._ways_on(found, can_withdraw=can_withdraw)}"
            )
        return own

    def check_stage(self, found: Manifest, *, where: str) -> Manifest:
        """The manifest of a stage that is to be published. :raises SinkError: if its job ran another plan."""
        if self.find(found) is None:
            raise SinkError(
                f"the stage {where} was written for another plan of batch {self.key}, or by a runtime that does not "
                "say whose batch it runs. It was not published; run the batch again."
            )
        return found

    def _whose(self, found: Manifest) -> str:
        if found.identity is None:
            return (
                "it was published by a version of this package that did not say whose a batch is, and by no attempt "
                "that this checkpoint has on record."
            )
        if found.identity.checkpoint == self.identity.checkpoint:
            return (
                f"it was published by {found.identity}, which is this checkpoint, by another plan of the batch. The "
                "checkpoint was restored from an older backup, or a copy of it goes on beside it: only one of them may "
                "be used from now on."
            )
        return f"it was published by {found.identity}."

    def _ways_on(self, found: Manifest, *, can_withdraw: bool) -> str:
        place, key = quote(self.identity.location), self.key
        lane = "" if key.lane == LIVE else f" --lane {key.lane}"
        ways = ["give the pipeline another path or table"]
        newest = key.id - 1 if self.newest is None else self.newest
        is_own = found.identity is not None and found.identity.checkpoint == self.identity.checkpoint
        if is_own and not can_withdraw:
            plan = (
                f"`microbatch rewind {place} --to {newest}{lane}` gives up the plan, then " if self._is_planned else ""
            )
            way = counted_over(self.identity.location, key.lane)
            ways += [] if way is None else [f"{plan}{way}"]
        elif is_own:
            ways.append(
                f"`microbatch rewind {place} --to {newest} --drop-output{lane}` takes what is later than the "
                "backup out of the table and reads it again, as far as it is still there"
            )
        elif key.lane == LIVE:
            ways.append(
                f"`microbatch start-behind {place}` has this checkpoint count on behind all that the table holds, if "
                "nobody else writes there any more; it reads all that its sources have, also what is in the table"
            )
            if found.identity is not None:
                ways.insert(0, self._as_before(found.identity))
        if self._is_planned:
            ways.append(
                f"`microbatch adopt {place} {key}` has what is there count as this batch, whose own range is not read"
            )
        return f"Ways on: {'; '.join(ways)}."

    @property
    def _is_planned(self) -> bool:
        return bool(self.identity.digest)

    def _as_before(self, made: BatchIdentity) -> str:
        """How the pipeline goes on as the one that made the batch. The name belongs to it: a checkpoint refuses any
        other pipeline's."""
        if made.location == self.identity.location:
            way = "if the checkpoint that was here was moved, put it back, or name its place of now as checkpoint=…"
            is_renamed = made.pipeline != self.identity.pipeline
            return way + (f", and call the pipeline {made.pipeline!r} again" if is_renamed else "")
        return (
            "if that pipeline is this one, have it go on as it was, by its name and its checkpoint of before: "
            f"Pipeline({made.pipeline!r}, …, checkpoint={made.location!r}){_of_job(made)}"
        )


def _of_job(made: BatchIdentity) -> str:
    """How a job is to be written so that its pipeline is the one that made the batch; empty if no job's is called so:
    as the job and, like the last folder of its checkpoint, as itself."""
    root, _, name = made.location.rpartition("/")
    job = made.pipeline.removesuffix(f".{name}")
    if job == made.pipeline:
        return ""
    return f", or in a job JobGraph({job!r}, …, checkpoint={root!r}) and its sink(…, pipeline={name!r})"


def counted_over(place: str, lane: str) -> str | None:
    """The way on behind batches of this checkpoint that no log knows, and that nobody can take out of their table; None
    for the lane of an interval, which has none.

    :param place: address of the checkpoint.
    """
    if lane == LETTERS:
        return (
            f"`microbatch start-behind {quote(place)} --lane {lane} --allow-skip` has this lane count on behind what "
            "is there; nobody can tell which dead letters that has, so none that it may have is run again then, and no "
            "batch that has some of them is replayed"
        )
    if lane != LIVE:
        return None
    return (
        f"`microbatch start-behind {quote(place)} --allow-reread` has this checkpoint count on behind what is there; "
        f"before the next run `microbatch set-offset {quote(place)} --source … --offset … --allow-skip` sets each "
        "source behind what was read for that, or its rows come a second time"
    )


def only(found: Manifest, *, checkpoint: str, location: str, tables: KnownTables) -> ExpectedBatch:
    """Expect the output that was looked at, of whatever checkpoint: for a plan, seen by the user, that takes this
    output out.

    :param checkpoint: id of the checkpoint that takes the output out, and keeps it for a while.
    :param location: where that checkpoint lies, for messages.
    :param tables: that checkpoint's knowledge of its tables.
    """

    def same(other: Manifest) -> Manifest | None:
        return other if other.identity == found.identity else None

    place = BatchIdentity.at(found.key, checkpoint=checkpoint, location=location)
    return ExpectedBatch(identity=place, tables=tables, recognise=same)


def as_adopted(found: Manifest) -> Manifest:
    """Adopted output: its attempt is another checkpoint's, so it counts as older than all of this one's."""
    return dataclasses.replace(found, epoch=ADOPTED)


def _asking(identity: BatchIdentity) -> str:
    return f"pipeline {identity.pipeline!r} (checkpoint {identity.checkpoint} at {identity.location})"
