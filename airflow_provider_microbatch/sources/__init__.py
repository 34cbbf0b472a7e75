"""The planning half of sources, which needs neither Airflow nor a JVM. One module per system, loaded when it is used.

A :class:`Source` is the definition that the user writes. Opened with a :class:`SourceContext` it becomes an
:class:`OpenSource`, which answers the planner's questions. The reading half of a source is a function of the
``runtime`` that Spark calls with the arguments of a :class:`~airflow_provider_microbatch.runtime.job.Read`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.checkpoint.set_offset_command import set_offset_command
from airflow_provider_microbatch.connections import Connect, connect
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.lifetime import Close, at_end
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources.figures import Figures as Figures
from airflow_provider_microbatch.sources.figures import worded
from airflow_provider_microbatch.sources.intervals import (
    CommittedRange,
    HeldRange,
    HeldRanges,
    Interval,
    IntervalSurvey,
    no_clock,
)
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """The surroundings that a source may use.

    :param name: name of the source in its pipeline.
    :param log: the store, scoped to Spark's source log folder of this source (``sources/<name or position>``).
    :param state: the store, scoped to this source's own state beside Spark's folders (pinned schema, index).
    :param names_before: returns the names that the source had before, its first one first. What it keeps by its name
        elsewhere has to be found by all: a checkpoint that was restored from a backup may know only some of them.
    :param knows: returns whether the pipeline or the checkpoint knows a source by a name, of today or of before. What
        lies outside of the checkpoint under another name was left by a source that a restored backup has forgotten.
    :param states_before: returns the same state under the names that the source had before. A rename moves the entries
        to the new name; an entry that is still there was written by a process that slept through the rename.
    :param clock_ms: the time, milliseconds since the epoch.
    :param checkpoint: address of the checkpoint, for the commands that errors name.
    :param checkpoint_id: returns the id by which other systems know the checkpoint; None while it is no pipeline's.
    :param connect: finds a connection by its id, when the connection is needed.
    :param moves_alone: whether a batch may be made that has no rows and only moves the position. Not where a batch
        takes the place of a table's rows: its readers would find none, though nothing has come.
    :param lane: the lane whose ranges are planned and read. No lane reads a range that another lane has taken.
    :param being_read: returns the ranges of this source, in all lanes, that attempts are reading or that wait for a
        requested replay. A commit must not give up data of these ranges.
    :param committed: returns the ranges of this source by the committed batches of a lane, newest first; the logs are
        read only as far as the caller iterates. A commit may give up only data of these ranges, whatever
        :meth:`OpenSource.release` was told: its caller may have slept since. Empty while a command is changing the
        checkpoint, since the command may take batches back.
    :param at_end: registers what closes the source's resources when the task, look or command ends that opened it.
    :param kept: what this process has read of ``log`` and ``state`` that never changes, by name, for the next opening.
        Emptied before a plan: a command or a backup may put others there. They may later, too: give nothing up by it.
    """

    name: str
    log: Store
    state: Store
    clock_ms: Callable[[], int]
    names_before: Callable[[], Sequence[str]] = tuple
    knows: Callable[[str], bool] = lambda _: False
    states_before: Callable[[], Sequence[Store]] = tuple
    checkpoint: str = "CHECKPOINT"
    checkpoint_id: Callable[[], str | None] = lambda: None
    moves_alone: bool = True
    lane: str = LIVE
    being_read: Callable[[], Sequence[HeldRange]] = tuple
    committed: Callable[[str], Iterable[CommittedRange]] = lambda _: ()
    connect: Connect = connect
    at_end: Callable[[Close], None] = at_end
    kept: dict[str, bytes] = field(default_factory=dict)

    def set_offset(self, offset: Offset | None, *, skip: bool = False, reread: bool = False) -> str:
        """The command that sets the source's position; see :func:`.set_offset_command`."""
        return set_offset_command(
            location=self.checkpoint, source=self.name, offset=offset, lane=self.lane, skip=skip, reread=reread
        )


@dataclass(frozen=True, kw_only=True)
class Split:
    """A part of a range that can be read by itself: the smallest unit that a subtask of a batch takes.

    :param id: names the split, unique in its range: the same at each call and in every process, and never given to
        other rows. Any text; it is never used as a path.
    :param read: how the runtime reads the split.
    """

    id: str
    read: Read


@dataclass(frozen=True, kw_only=True)
class ReadLimit:
    """How much the next batch may take from a source, in addition to the source's own limits (Spark's ``ReadLimit``).
    None: no limit. A source applies the limits whose units it can count without reading; each batch has at least one
    split."""

    rows: int | None = None
    bytes: int | None = None
    splits: int | None = None


class Late(Enum):
    """In place of an end offset that is known only after reading: the attempt that reads the range decides it."""

    LATE = "late"


LATE = Late.LATE


def digest_of_range(*parts: Any) -> str:
    """Return the digest for :meth:`OpenSource.known_as` of JSON values that tell a range's data from all other data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


UNLIMITED = ReadLimit()
"""No limit beyond the source's own."""


class Source(Definition, ABC):
    """Definition of a source. Constructors check types and values and touch nothing."""

    @abstractmethod
    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint. Reads and writes nothing yet."""

    @property
    def refuses_limits(self) -> str | None:
        """The reason, in words, why a limit on a batch of the source is refused; None if limits are allowed."""
        return None

    @property
    def refuses_streams(self) -> str | None:
        """The reason, in words, why a stateful pipeline cannot have the source; None if it can. A source may have a
        stream of its own (:meth:`OpenSource.stream`), and needs none: the rows that :meth:`OpenSource.read` describes
        are copied, and Spark streams the copy. So the only source to be refused has a range without columns."""
        return None

    @property
    def refuses_dead_letters(self) -> str | None:
        """The reason why a pipeline that keeps dead letters cannot have the source, in words that follow the source's
        name; None if the pipeline can."""
        return None

    @property
    def refuses_intervals(self) -> str | None:
        """The reason, in such words, why ``plan="interval"`` is refused; None if it is not."""
        return None

    @property
    def gives_up(self) -> bool:
        """Whether committed data may be gone from the source afterwards."""
        return False

    @property
    def gives_up_to(self) -> str | None:
        """The address to which it moves the data that it gives up; None if it moves it nowhere."""
        return None

    def reads_as(self) -> Mapping[str, str | None]:
        """The settings of the definition that decide which rows a range yields, under the names that users know; None
        for one that is not set. A batch is read with the settings of that moment: an attempt compares them with those
        of the plan or of an earlier read. The caller that shows the values hides those that look like secrets."""
        return {}

    def keeps_rows(self) -> bool:
        """Whether a range that is read with the same settings as before (:meth:`reads_as`) should have as many rows as
        before: a replay with fewer rows then does not replace the batch. False where data may be corrected later."""
        return False

    def moved_from(self, before: Source) -> str | None:
        """Explain what it means for the user that the batches so far were read as ``before`` defines; None if there is
        nothing to explain. By default a position remains valid, wherever the source is now."""
        if self.location() == before.location():
            return None
        return (
            "it goes on at the position that it has. Where the data is other than that of before, what lies there "
            "before the position is not read: `microbatch set-offset` sets it"
        )

    def would_read(self, location: str) -> bool:
        """Whether this source would read data that is written at ``location``, judged by the address alone."""
        return False

    def shares_with(self, other: Source) -> bool:
        """Whether both sources could read the same data, judged by their definitions alone."""
        return False

    def refuses_beside(self, other: Source) -> str | None:
        """The reason, in words that follow the names of both, why no pipeline can have both; None if one can."""
        return None

    def location(self) -> str:
        """The address in a form that a user recognises, for messages and tables."""
        return type(self).__name__


class OpenSource(ABC):
    """A source opened for its checkpoint. Offsets are JSON texts; None means "before anything". All methods may raise
    :class:`~airflow_provider_microbatch.exceptions.SourceError`.

    :cvar may_move_alone: whether ``moves_alone`` of the context decides anything in it. Another is asked once a plan.
    """

    may_move_alone: ClassVar[bool] = False

    @property
    def splits(self) -> str:
        """The name that users give to the smallest units of the source, in the plural: ``files``, ``shards``."""
        return "splits"

    @abstractmethod
    def check(self) -> None:
        """Raise if the source cannot be used at all (its path is missing or may not be read). Writes nothing."""

    @abstractmethod
    def has_new(self, position: Offset | None) -> bool:
        """Whether there is anything after ``position``, as sensors ask. Starts no JVM, changes and writes nothing."""

    def initial_offset(self) -> Offset | None:
        """Return the position at which the first batch begins; None: before anything. Called while there is none,
        before :meth:`latest_offset`, and again after that has planned an end from None, for a source that chooses its
        first position with its first plan, and has made it durable by then. The first batch's entry records it as its
        start, which is reason enough for a batch, even one without rows; the planner never asks for it again."""
        return None

    @abstractmethod
    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | Late | None:
        """Plan: return the end of the next range, within the source's own limits and ``limit``. None if there has never
        been data; ``start`` if nothing is new. May write the source's own log, by put-if-absent; when called again
        after a crash, returns the end that the log has. Returns ``LATE`` if there is data and only reading it tells
        where the range ends: the caller then uses :meth:`read_late` for the read, and :meth:`resolve` for the end."""

    def absent(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason, for people, why the range can have no frame: it has no data, and its schema is therefore unknown.
        None if the range can be read; otherwise :meth:`read` is not called. The transform may do without the frame."""
        return None

    @abstractmethod
    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Return the description of the read of ``(start, end]`` for the runtime; ``end == start`` is an empty range
        with a schema. Not called for a range that is :meth:`absent`.

        :raises SourceChangedError: if planned data is missing or was changed.
        """

    def telling_refused(self, read: Read) -> Read:
        """Have the runtime also return the records that do not parse (``refused`` of its result), for dead letters."""
        return read

    def stream(self, start: Offset | None, end: Offset | None) -> Stream | None:
        """Return how Spark's streaming engine reads exactly ``(start, end]`` by a source of its own, with the offsets
        that this source would have in a checkpoint. None if it cannot: an attempt of a stateful batch then copies the
        rows of :meth:`read` before Spark streams them. Called only where :attr:`Source.refuses_streams` is None, and
        never for a late end.

        :raises SourceChangedError: as :meth:`read` does.
        """
        return None

    def splits_of(self, start: Offset | None, end: Offset | None) -> Sequence[Split]:
        """Return the splits of ``(start, end]`` in reading order: each row of the range is in exactly one of them, and
        their reads add up to :meth:`read`. There is at least one. Called under the same conditions as :meth:`read`, and
        as often; every call returns the same splits. A source whose range can only be read as a whole inherits one.
        Where a subtask reads several, each read has a result of its own, and :attr:`Read.joins` joins these.

        :raises SourceChangedError: as :meth:`read` does.
        """
        return [Split(id="all", read=self.read(start, end))]

    def rows(self, start: Offset | None, end: Offset | None) -> Iterator[Sequence[Any] | Mapping[str, Any]]:
        """Return the rows of ``(start, end]``, read in this process and without Spark, for people and for checks.

        :raises SourceError: if only Spark can read them.
        """
        raise SourceError(f"it takes Spark to read the rows of a {type(self).__name__}.")

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a text that identifies the data of ``(start, end]`` outside of this checkpoint: the same for the same
        data, whichever pipeline has planned it, and never that of other data. None if offsets alone do not identify
        data. It proves a user's claim that output of another plan is of this range; see :func:`digest_of_range`."""
        return None

    def secrets(self) -> Mapping[str, str]:
        """Return the secrets (passwords) that an attempt's reader needs, by the names that it asks for. :class:`Read`
        has none, since it is stored and shown: an engine passes them apart, and stores them nowhere."""
        return {}

    def read_late(self, start: Offset | None) -> Read:
        """Return the description of a read from ``start`` on whose end is late: the reader decides where it ends.

        :raises SourceChangedError: if the start is no longer there.
        """
        raise SourceError(f"{type(self).__name__} plans no late ends, and the batch's offset entry has one.")

    def resolve(self, start: Offset | None, told: Mapping[str, Any]) -> Offset | None:
        """Return the offset where an attempt has ended, from the result of the runtime's reader; ``start`` if it found
        nothing. Called for each attempt of a batch that was planned with a late end, also for one that read up to a
        known end. Writes nothing.

        :raises SourceError: if the reader's result does not contain the end.
        """
        raise SourceError(f"{type(self).__name__} plans no late ends, and the batch's offset entry has one.")

    def verify(  # noqa: B027
        self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None
    ) -> None:
        """Raise SourceChangedError if the range changed while Spark read it, or if Spark read something other than the
        range. Called after Spark has read the range and before publish.

        :param told: the reader's result, which describes what it has read; None if it is of an older version.
        """

    def learned(self, facts: dict[str, Any]) -> None:  # noqa: B027
        """Pin facts that the reader learned (an inferred schema) in the checkpoint. Before publish; idempotent."""

    def commit(self, end: Offset) -> None:  # noqa: B027
        """Note that the batch that ends at ``end`` is committed. Idempotent; called again if a call may have been
        missed. The source may give up for good only ranges that were passed to :meth:`release`: before the offset there
        may be ranges that no batch has read."""

    def keep(self, start: Offset | None, end: Offset | None) -> None:  # noqa: B027
        """Keep a range whose batch is set aside, or that a command skips: ``commit`` of a later end must leave the
        range readable until :meth:`release`. Called before the commit entry is written; durable on return, idempotent.
        A source whose ``commit`` gives nothing up has nothing to do.

        :raises SourceError: if the range cannot be kept; the batch is not set aside then.
        """

    def release(self, start: Offset | None, end: Offset | None) -> None:  # noqa: B027
        """Allow the following ``commit`` to give the range up: a batch of this checkpoint has read the range and is in
        the sink. Called once the batch is published, before its commit entry is written: a crash in between must not
        hide which ranges were read. Not called for a range that a batch of another query has read, nor for a replay of
        a batch that was committed before. Durable on return, idempotent."""

    def finished(self, position: Offset | None) -> bool:
        """Whether nothing will ever come after ``position`` (the end of a bounded source)."""
        return False

    def why_not_again(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason why the range cannot be read again, as far as visible without reading it; None if it can."""
        try:
            reason = self.not_replayable(start, end)
            if reason is None:
                self.read(start, end)
        except SourceError as error:
            return str(error)
        return reason

    def why_not_anew(self, start: Offset | None, end: Offset | None) -> str | None:
        """The same where the range is planned anew: what came into it since is no reason, what is gone is."""
        return self.why_not_again(start, end)

    def doubt_anew(self, start: Offset | None, end: Offset | None) -> str | None:
        """What may be gone there though the source cannot tell, in words; None if it can."""
        return None

    def why_not_back(self, position: Offset | None, end: Offset | None) -> str | None:
        """The reason why plans cannot go on from an earlier position; None if they can.

        :param end: up to where batches have read, whose rows stay where they are.
        """
        return self.why_not_again(position, end)

    def why_not_from(self, start: Offset | None) -> str | None:
        """The reason why the data after ``start`` cannot be read again, as far as visible without reading it; None if
        it can. For a batch whose end was late and is no longer on record."""
        try:
            self.read_late(start)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Describe, with names, the data of the range that is missing and is left out of a read because the source is
        set to go on without it. None if no data is missing, or if :meth:`read` would refuse.

        :param told: the reader's result of an earlier read: data that the earlier read left out does not count.
        """
        return None

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason why the committed range cannot be read again; None if it can."""
        return None

    def damaged(self, end: Offset | None) -> Iterator[tuple[Offset, str]]:
        """Yield positions that the source's own log can no longer explain, each with the reason. Reads the whole log.

        :param end: the offset up to which batches have read.
        """
        return iter(())

    def forgotten(self) -> str | None:
        """Describe the data that the source has given up for batches that the checkpoint does not know, since it was
        restored from an older backup; with the possible remedies. None if there is none, or if the source cannot tell.
        As long as there is some, the source plans nothing and reports nothing as new."""
        return None

    def gone_since(self, position: Offset | None) -> str | None:
        """Describe data that came after ``position`` and is gone, also where the source is set to go on without it;
        None if it can tell of none.

        :raises SourceError: if it cannot go on from there.
        """
        self.has_new(position)
        return None

    def not_read(self) -> str | None:
        """Describe data that no batch will ever read although it came after what was read, with the possible remedies.
        None if there is none, or if the source cannot tell. May take long: used by ``microbatch check``."""
        return None

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield names of learned facts in the source's own state that cannot be read, each with the reason."""
        return iter(())

    def forget_after(self, end: Offset | None) -> None:  # noqa: B027
        """Forget every plan after ``end``: the next plan is made from the data that is there then. For a damaged log,
        and for batches that were taken out of the table; the caller ensures that no planner runs meanwhile.

        :raises SourceError: if a plan cannot be forgotten.
        """

    def check_offset(self, offset: Offset) -> None:  # noqa: B027
        """:raises SourceError: if ``offset``, which a user wrote, is not an existing position of this source."""

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """Whether ``offset`` lies after ``other``; None if this source cannot tell."""
        return None

    def lag(self, position: Offset | None) -> Figures:
        """How much data lies after ``position``."""
        return Figures()

    def lag_by_split(self, position: Offset | None) -> Mapping[str, int]:
        """How many of the source's smallest units lie after ``position``, by their place, such as by topic partition.
        Empty if all units are in one place, or if the source cannot tell."""
        return {}

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """How much data is in the range of a batch."""
        return Figures()

    def in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        """In the words of the source (``{"files": 3, "bytes": 1200}``), how much data is in the range of a batch: for
        people and for commit entries."""
        return worded(self.describe(start, end), splits=self.splits)

    def between_in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        """In the words of the source, how much data it has now between two positions, which need not be the ends of one
        batch. Empty where the source cannot tell."""
        return self.in_words(start, end)

    def lag_in_words(self, position: Offset | None) -> dict[str, int]:
        """In the words of the source (``{"rows": 12}``), how much lies after ``position``; empty if unknown or slow."""
        return worded(self.lag(position), splits=self.splits)

    def lags(self, position: Offset | None) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What :meth:`lag_in_words` and :meth:`lag_by_split` tell, for a commit. One question may answer both."""
        return self.lag_in_words(position), self.lag_by_split(position)

    def survey_interval(self, interval: Interval, held: HeldRanges) -> IntervalSurvey:
        """Survey the data in an interval of the source's clock, and the batches that hold it. Writes nothing.

        :param held: the ranges of this source that the batches of all lanes read.
        :raises IntervalError: if the source has no clock.
        """
        raise no_clock(self)

    def plan_interval(self, interval: Interval, held: HeldRanges) -> tuple[Offset | None, Offset | None]:
        """Return start and end of the part of the interval that no other lane holds; start and end are equal if there
        is nothing. May write the source's own log, by put-if-absent; when the same lane calls again after a crash,
        returns the range that the log has.

        From then on no other lane takes the range: neither the live lane, whatever its position is, nor the lane of
        another interval. Limits such as files per batch do not apply: an interval is one batch.

        :param held: the ranges of this source that the batches of all lanes read.
        :raises IntervalError: if the source has no clock, or the interval is to be whole and cannot be yet.
        """
        raise no_clock(self)
