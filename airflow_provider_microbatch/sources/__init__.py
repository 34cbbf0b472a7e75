"""Sources: the planning half, which needs neither Airflow nor a JVM. One module per system, loaded when used.

A :class:`Source` is what the user writes down. Opened with a :class:`SourceContext` it becomes an
:class:`OpenSource`, which answers questions of the planner. The reading half of a source is a function of the
``runtime`` that Spark calls with the arguments of a :class:`~airflow_provider_microbatch.runtime.job.Read`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.connections import Connect, connect
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import IntervalError, SourceError
from airflow_provider_microbatch.lifetime import Close, at_end
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources.intervals import (
    CommittedRange,
    HeldRange,
    HeldRanges,
    Interval,
    IntervalSurvey,
)
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """What a source may use of its surroundings.

    :param name: name of the source in its pipeline.
    :param log: the store, scoped to Spark's source log folder of this source (``sources/<name or position>``).
    :param state: the store, scoped to what this source keeps for itself beside Spark's folders (pinned schema, index).
    :param states_before: likewise by the names that the source had before. A rename takes what lies there along; what
        does lie there was noted by a process that slept through it.
    :param clock_ms: the time, milliseconds since the epoch.
    :param checkpoint_id: by which the checkpoint is known outside of itself; None while it is nobody's.
    :param connect: finds a connection by its id, when it is needed.
    :param lane: the lane whose ranges are planned and read. What one lane takes no other lane reads.
    :param being_read: ranges of this source, of all lanes, that attempts are at, or that were asked for again and wait
        for one. What a commit gives up must not be of them.
    :param committed: ranges of this source by the committed batches of a lane, the newest first, read from the logs as
        far as they are asked for. What a commit gives up must be of them, whatever was told to ``release``: who told it
        may have slept since. None at all while a command is at the checkpoint, which may take them back.
    :param at_end: takes what is to be called when the task, look or command is over that the source was opened for:
        what closes what it holds.
    """

    name: str
    log: Store
    state: Store
    clock_ms: Callable[[], int]
    states_before: Callable[[], Sequence[Store]] = tuple
    checkpoint_id: Callable[[], str | None] = lambda: None
    lane: str = LIVE
    being_read: Callable[[], Sequence[HeldRange]] = tuple
    committed: Callable[[str], Iterable[CommittedRange]] = lambda _: ()
    connect: Connect = connect
    at_end: Callable[[Close], None] = at_end


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How much there is in a range or after a position, known without reading it. None where the source cannot tell
    cheaply.

    :param splits: the smallest units of the source, which it names by :attr:`OpenSource.splits`.
    """

    rows: int | None = None
    bytes: int | None = None
    splits: int | None = None


@dataclass(frozen=True, kw_only=True)
class Split:
    """A part of a range that can be read by itself: the smallest unit that a subtask of a batch takes.

    :param id: by which it is known, unique in its range: the same at each call, in every process, and never of other
        rows. Any text; it becomes no path.
    :param read: how the runtime reads it.
    """

    id: str
    read: Read


@dataclass(frozen=True, kw_only=True)
class ReadLimit:
    """How much the next batch may take from a source, beside the source's own limits (Spark's ``ReadLimit``). None: no
    limit. A source heeds what it can count without reading; each batch has at least one split.
    """

    rows: int | None = None
    bytes: int | None = None
    splits: int | None = None


class Late(Enum):
    """In place of an offset: the range ends where an attempt comes to when it reads it, which nobody knows before."""

    LATE = "late"


LATE = Late.LATE


def digest_of_range(*parts: Any) -> str:
    """For :meth:`OpenSource.known_as`: of JSON values that together tell the data of a range from any other."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


UNLIMITED = ReadLimit()
"""The source's own limits hold."""


class Source(Definition, ABC):
    """Definition of a source. Constructors check types and values and touch nothing."""

    @abstractmethod
    def open(self, context: SourceContext) -> OpenSource:
        """The source in the surroundings of one checkpoint. Touches nothing yet."""

    @property
    def refuses_limits(self) -> str | None:
        """Why no limit may be put on how much a batch takes of the source, in words; None if one may."""
        return None

    @property
    def refuses_streams(self) -> str | None:
        """Why a stateful pipeline cannot have the source, in words; None if :meth:`OpenSource.stream` is there."""
        return "it has no form that Spark's streaming engine reads a planned range by"

    @property
    def refuses_dead_letters(self) -> str | None:
        """Why a pipeline that keeps dead letters cannot have the source, in words that follow its name; None if it
        can."""
        return None

    @property
    def gives_up(self) -> bool:
        """Whether what is committed may be gone from the source afterwards."""
        return False

    @property
    def gives_up_to(self) -> str | None:
        """The address that what it gives up is moved to; None if it is moved nowhere."""
        return None

    def reads_as(self) -> Mapping[str, str | None]:
        """What of the definition decides which rows come of a range, by the names that users know it by; None is not
        set. A batch is read as it is set then, and by this is told that it is another way than when it was planned, or
        read before. What looks like a secret is hidden by whoever shows it."""
        return {}

    def keeps_rows(self) -> bool:
        """Whether a range that is read as it was before (:meth:`reads_as`) should have as many rows as it had, so that
        a replay with fewer takes the place of nothing. Not where what is read may be mended."""
        return False

    def moved_from(self, before: Source) -> str | None:
        """What it means, for people, that the batches so far were read as ``before`` says; None if nothing is to be
        said. By default a position goes on, wherever the source is now."""
        if self.location() == before.location():
            return None
        return (
            "it goes on at the position that it has. Where the data is other than that of before, what lies there "
            "before the position is not read: `microbatch set-offset` sets it"
        )

    def would_read(self, location: str) -> bool:
        """Whether what is written at an address would be read by this source, told by the address alone."""
        return False

    def shares_with(self, other: Source) -> bool:
        """Whether both could read the same data, told by their definitions alone."""
        return False

    def gives_up_beside(self, other: Source) -> bool:
        """Whether what both give up could be moved to the same place, told by their definitions alone."""
        return False

    def location(self) -> str:
        """The address a person would recognise, for messages and tables."""
        return type(self).__name__


class OpenSource(ABC):
    """A source beside its checkpoint. Offsets are JSON texts; None is "before anything".

    All methods may raise :class:`~airflow_provider_microbatch.exceptions.SourceError`.
    """

    @property
    def splits(self) -> str:
        """What people call the smallest units of the source, in the plural: ``files``, ``shards``."""
        return "splits"

    @abstractmethod
    def check(self) -> None:
        """Raise if the source cannot be used at all (a path that is missing or may not be read). Writes nothing."""

    @abstractmethod
    def has_new(self, position: Offset | None) -> bool:
        """The sensor's whole question: is there anything after ``position``? No JVM, no side effect, writes nothing."""

    def initial_offset(self) -> Offset | None:
        """Where the first batch begins: asked while there is no position, before :meth:`latest_offset`, and again after
        it has planned an end from None, for a source that chooses its first position with its first plan. The first
        batch's entry names it as its start, and nobody asks again: a batch that is read again begins where it did. To
        have it there is reason enough for a batch, though it has no row. A source that answers after the plan alone has
        it durable by then. None is "before anything"."""
        return None

    @abstractmethod
    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | Late | None:
        """Plan: the end of the next range, within the source's own limits and ``limit``. None if there has never been
        data; the same as ``start`` if nothing is new. May write the source's own log, put-if-absent; called again
        after a crash it returns what it wrote. ``LATE`` if there is something and only reading it tells where it ends:
        :meth:`read_late` is asked then, and :meth:`resolve` for the end."""

    def absent(self, start: Offset | None, end: Offset | None) -> str | None:
        """Why the range can have no frame, for people: it has no data, and nobody knows the schema of none. None if it
        can be read; else :meth:`read` is not called. The transform may do without the frame."""
        return None

    @abstractmethod
    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """What the runtime has to read for ``(start, end]``; ``end == start`` is an empty range with a schema. Not
        asked for a range that is :meth:`absent`.

        :raises SourceChangedError: if what was planned is no longer there as it was.
        """

    def telling_refused(self, read: Read) -> Read:
        """A read of :meth:`read`, of which the runtime is also told what does not parse (``refused`` of its result),
        for dead letters. By default nothing is: each row parses, or fails the batch."""
        return read

    def stream(self, start: Offset | None, end: Offset | None) -> Stream:
        """How Spark's streaming engine reads ``(start, end]``: what its own source would have in a checkpoint. Asked
        where :attr:`Source.refuses_streams` is None.

        :raises SourceChangedError: as :meth:`read` does.
        """
        raise SourceError(f"a {type(self).__name__} is not read as a stream.")

    def splits_of(self, start: Offset | None, end: Offset | None) -> Sequence[Split]:
        """The splits of ``(start, end]``, in the order in which they are read: each row of the range is in one of them,
        and their reads add up to :meth:`read`. At least one. Asked where :meth:`read` is, and as often: it tells the
        same splits each time. A source whose range is read as a whole has the one that this returns.

        Readers of several splits tell what they read one by one; :attr:`Read.joins` makes one answer of theirs.

        :raises SourceChangedError: as :meth:`read` does.
        """
        return [Split(id="all", read=self.read(start, end))]

    def rows(self, start: Offset | None, end: Offset | None) -> Iterator[Sequence[Any] | Mapping[str, Any]]:
        """The rows of ``(start, end]``, read here and now and without Spark, for people and for checks.

        :raises SourceError: if it takes Spark to read them.
        """
        raise SourceError(f"it takes Spark to read the rows of a {type(self).__name__}.")

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """A text by which the data of ``(start, end]`` is known outside of this checkpoint: the same for the same data,
        whoever has planned it, and of no other. None if offsets alone do not tell that. By it a person's word is proved
        that output of another plan is this range's; see :func:`digest_of_range`."""
        return None

    def secrets(self) -> Mapping[str, str]:
        """What the runtime's reader needs beside a :class:`Read`, which is stored and shown: passwords, by names that
        the reader asks by. An engine hands them over apart from the job, and keeps them nowhere. Looked up for each
        attempt."""
        return {}

    def read_late(self, start: Offset | None) -> Read:
        """What the runtime has to read from ``start`` on, up to where it comes.

        :raises SourceChangedError: if the start is no longer there.
        """
        raise SourceError(f"{type(self).__name__} plans no late ends, and the batch's offset entry has one.")

    def resolve(self, start: Offset | None, told: Mapping[str, Any]) -> Offset | None:
        """Where an attempt has ended, by what the runtime's reader told; ``start`` if it found nothing. Asked for each
        attempt of a batch that was planned with a late end, also for one that read up to a known one. Writes nothing.

        :raises SourceError: if the reader did not tell.
        """
        raise SourceError(f"{type(self).__name__} plans no late ends, and the batch's offset entry has one.")

    def verify(  # noqa: B027
        self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None
    ) -> None:
        """Called after Spark has read the range and before publish: raise SourceChangedError if the range changed
        while it was read, or if what was read is not the range.

        :param told: what the runtime's reader told of what it read; None if it tells nothing (an older version's).
        """

    def learned(self, facts: dict[str, Any]) -> None:  # noqa: B027
        """Take what the runtime's reader learned (such as an inferred schema) and pin it in the checkpoint.
        Called before publish; idempotent."""

    def commit(self, end: Offset) -> None:  # noqa: B027
        """The batch that ends here is committed. Idempotent; called again if it may have been missed. What it gives up
        for good must have been told to :meth:`release`: before the offset there may be ranges that no batch has read.
        """

    def keep(self, start: Offset | None, end: Offset | None) -> None:  # noqa: B027
        """The batch of this range is set aside, or the range is skipped by command: ``commit`` of a later end must
        leave it readable until :meth:`release`. Called before the commit entry is written; durable on return,
        idempotent. A source whose ``commit`` gives nothing up has nothing to do.

        :raises SourceError: if the range cannot be kept; the batch is not set aside then.
        """

    def release(self, start: Offset | None, end: Offset | None) -> None:  # noqa: B027
        """A batch of this checkpoint has read the range and is in the sink: the ``commit`` that follows may give it up.
        Called once the batch is published, before its commit entry is written: a crash in between must not hide which
        ranges were read. Not called for what a batch of another query has read, nor when a batch is replayed that was
        committed before. Durable on return, idempotent."""

    def finished(self, position: Offset | None) -> bool:
        """True if nothing will ever come after ``position`` (a bounded source that was read)."""
        return False

    def why_not_again(self, start: Offset | None, end: Offset | None) -> str | None:
        """None if the range can be read again, for all that can be seen without reading it; else the reason why not."""
        try:
            reason = self.not_replayable(start, end)
            if reason is None:
                self.read(start, end)
        except SourceError as error:
            return str(error)
        return reason

    def why_not_from(self, start: Offset | None) -> str | None:
        """None if what comes after ``start`` can be read again, for all that can be seen without reading it; else the
        reason why not. For a batch whose end was late, and is not on record any more."""
        try:
            self.read_late(start)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """What of the range is not there any more, and is left out when it is read since the source is set to go on
        without it; in words, with names. None if all of it is there, or if :meth:`read` would refuse.

        :param told: what the reader told of a read of before: what that had left out does not count.
        """
        return None

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """None if the committed range can be read again, else the reason why not."""
        return None

    def damaged(self, end: Offset | None) -> Iterator[tuple[Offset, str]]:
        """Positions of which the source's own log can no longer tell what they are, with the reason. Reads all of it.

        :param end: how far batches have read.
        """
        return iter(())

    def forgotten(self) -> str | None:
        """What the source has given up for batches of this checkpoint that the checkpoint does not know, since it was
        restored from an older backup; in words, with the ways on. None if there is nothing of the kind, or nobody can
        tell. As long as there is, nothing is planned, and nothing is new."""
        return None

    def not_read(self) -> str | None:
        """What lies in the source and no batch will ever read, though it has come after what was read; in words, with
        the ways on. None if there is nothing of the kind, or nobody can tell. For ``microbatch check``: may take long.
        """
        return None

    def torn(self) -> Iterator[tuple[str, str]]:
        """Names of what this source keeps for itself, has learned of its data and cannot read, with the reason."""
        return iter(())

    def forget_after(self, end: Offset | None) -> None:  # noqa: B027
        """Whatever was planned after ``end`` is planned anew, by what is there then. For a log that is damaged, and
        batches that were taken out of the table; nobody plans meanwhile.

        :raises SourceError: if it cannot be forgotten.
        """

    def check_offset(self, offset: Offset) -> None:  # noqa: B027
        """:raises SourceError: if the text, which a person wrote, is no position of this source that exists."""

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """Whether ``offset`` lies after ``other``; None if this source cannot tell."""
        return None

    def lag(self, position: Offset | None) -> Figures:
        """How much lies after ``position``."""
        return Figures()

    def lag_by_split(self, position: Offset | None) -> Mapping[str, int]:
        """The same in the source's smallest units by where they are, such as by the partitions of topics. Empty if they
        are in one place, or it cannot be told."""
        return {}

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """How much there is in a range."""
        return Figures()

    def in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        """The same for people and for commit entries, in the words of the source: ``{"files": 3, "bytes": 1200}``."""
        figures: Any = self.describe(start, end)
        return self._worded(figures)

    def lag_in_words(self, position: Offset | None) -> dict[str, int]:
        """How much lies after ``position``, for people and for commit entries, in the words of the source: ``{"rows":
        12}``. Asked once a batch, before it is committed: empty where it is not known, or takes long to know."""
        return self._worded(self.lag(position))

    def _worded(self, figures: Any) -> dict[str, int]:
        if isinstance(figures, Mapping):  # of a source that was written before figures had names
            return {str(word): count for word, count in figures.items() if type(count) is int}
        told = {self.splits: figures.splits, "rows": figures.rows, "bytes": figures.bytes}
        return {word: count for word, count in told.items() if count is not None}

    def survey_interval(self, interval: Interval, held: HeldRanges) -> IntervalSurvey:
        """What there is in an interval of the source's clock, and who holds it. Writes nothing.

        :param held: what the batches of all lanes read of this source.
        :raises IntervalError: if the source has no clock.
        """
        raise self._no_clock()

    def plan_interval(self, interval: Interval, held: HeldRanges) -> tuple[Offset | None, Offset | None]:
        """Start and end of what no other lane holds of the interval; the same twice if there is nothing. May write the
        source's own log, put-if-absent; called again after a crash, by the same lane, it returns what it wrote.

        From then on no other lane takes it: not the live one, whatever its position is, and not that of another
        interval. Limits such as files per batch do not count: an interval is one batch.

        :param held: what the batches of all lanes read of this source.
        :raises IntervalError: if the source has no clock.
        """
        raise self._no_clock()

    def _no_clock(self) -> IntervalError:
        return IntervalError(
            f"a {type(self).__name__} has no clock that tells which of its data belongs to a data interval. Its "
            "pipeline can be run as new data comes and replayed batch by batch, but not be backfilled."
        )
