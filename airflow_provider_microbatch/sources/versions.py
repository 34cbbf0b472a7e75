"""Tables with versions, opened for their checkpoint: the planning and checking that their sources share.

No log of planned ranges is kept: the table's own log serves as one, and of two planners the offset entry's put decides.
The beginning of the first batch is put on record before the batch is planned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.naming import asked_of
from airflow_provider_microbatch.sources.stretch import (
    Limits,
    Refused,
    Spot,
    Stretch,
    U,
    between,
    end_of,
    figures_of,
    passed_over,
)

MOST_VERSIONS = 100
"""Number of versions whose data is counted for the lag. It is told with each batch: if all versions were counted, each
batch of a source would take the longer, the farther the source is behind."""

OLD_MS = 6 * 3_600_000
"""Age at which a commit without rows is passed by a batch without rows. Tables keep their history for days."""

_BEGIN = "begin"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TablePlace(Spot):
    """A position in one table, as the logs store it.

    :param table: the table's id; None where a user wrote the position, which then belongs to the current table.
    """

    table: str | None = None

    @abstractmethod
    def text(self) -> Offset:
        """Return the text that the logs store."""

    @classmethod
    @abstractmethod
    def of(cls, offset: Offset) -> Self:
        """:raises ValueError: if the text is not a place."""


P = TypeVar("P", bound=TablePlace)
Q = TypeVar("Q", bound=TablePlace, contravariant=True)
V = TypeVar("V", bound="Stretch[Any]", covariant=True)


class TableHistory(Protocol[Q, V]):
    """The history of changes that the current table tells."""

    def check(self, place: Q) -> None:
        """:raises SourceError: if ``place`` is not a place of the current table."""

    def stretches(self, start: Q) -> Iterator[V]:
        """Yield the stretches in order, beginning with the stretch of ``start``."""


H = TypeVar("H", bound=TableHistory[Any, Any])


class OpenVersions(OpenSource, Generic[P, H, U]):
    """A source whose offsets are places as JSON. Between two looks at a table the table may have changed, so each
    question is answered from one history.

    :cvar numbered: the name of a version, in messages.
    :param place: the class of the table's places.
    :param limits: the user's limits.
    """

    numbered: ClassVar[str]
    may_move_alone = True

    def __init__(self, context: SourceContext, *, place: type[P], limits: Limits, begins_with_all: bool) -> None:
        self._name = context.name
        self._set_offset = context.set_offset
        self._state = context.state
        self._clock_ms = context.clock_ms
        self._moves_alone = context.moves_alone
        self._limits = limits
        self._place_type = place
        self._begins_with_all = begins_with_all

    @property
    def splits(self) -> str:
        return "files"

    @abstractmethod
    def _history(self) -> H:
        """Return the history of the table as it is now.

        :raises SourceError: if the table is not there.
        """

    @abstractmethod
    def _beginning(self, history: H) -> P:
        """Return the place where the first batch would begin, as of now."""

    @abstractmethod
    def _head(self, begin: P, history: H) -> Spot:
        """Return the place behind all data of the table."""

    @abstractmethod
    def _pinned(self, place: P, history: H) -> P:
        """Return the place with the ids that distinguish the table, and its history, from another."""

    def _first(self, history: H) -> P:
        """Return the place where the first batch begins, as it is put on record."""
        return self._pinned(self._beginning(history), history)

    @abstractmethod
    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        """See :meth:`OpenSource.read`."""

    def _old_before_ms(self) -> int:
        """Return the time before which commits are old, milliseconds since the epoch; 0 where none is passed."""
        return self._clock_ms() - OLD_MS if self._moves_alone else 0

    def _known_by(self) -> tuple[Any, ...]:
        """Return values, in addition to the table and its files, that decide which rows are read."""
        return ()

    def _look(self) -> H:
        """Return the history for a plan, after a check that the table has the features that the source needs."""
        return self._history()

    def _check_there(self, stretches: list[Stretch[U]]) -> None:
        """:raises SourceError: if files are gone that a history still names."""

    def check(self) -> None:
        """Check that the table exists and has the features that the source needs."""
        self._named(self._look)

    def initial_offset(self) -> Offset | None:
        """Return the place where the first batch begins, as it is on record."""
        data = self._state.get(_BEGIN)
        if data is None:
            return None
        try:
            return self._place_type.of(data.decode()).text()
        except ValueError as error:
            raise CorruptEntryError(
                f"{self._state.location}/{_BEGIN} is torn: {error}. Restore it from a backup of the checkpoint."
            ) from error

    def has_new(self, position: Offset | None) -> bool:
        """Whether there is anything after ``position``. Looks only as far as the next file with rows."""
        return self._named(lambda: self._has_new(self._look(), self._start(position)))

    def _has_new(self, history: H, begin: P | None) -> bool:
        if begin is None:
            if not self._begins_with_all:
                return True  # the first plan makes a first position
            begin = self._beginning(history)
        return self._end(begin, history, Limits(files=1)) != begin

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Return the end of the next range, within the limits: not in a version that changes the table's columns or
        properties, nor in one that cannot be read. Puts the beginning of the first batch on record."""
        return self._named(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: Offset | None, limit: ReadLimit) -> Offset | None:
        history, begin = self._look(), self._start(start)
        if begin is None:
            if not self._has_new(history, None):
                return None
            first = self._first(history)
            self._state.put_if_absent(_BEGIN, first.text().encode())
            begin = self._start(None)
            assert begin is not None, "it was put there, and nobody removes it"
        own = Limits(files=limit.splits, bytes=limit.bytes, rows=limit.rows)
        end = self._end(begin, history, self._limits & own)
        if end == begin:
            return begin.text() if start is None else start
        return self._pinned(end, history).text()

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Return a read of each file or version of the range, without those that are passed over."""
        return self._named(lambda: self._read(start, end))

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check that the table is the planned one and that the files that Spark has read are there."""
        self._named(lambda: self._check_there(self._range(start, end)))

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason if the table no longer tells a version of the range, or if a file is gone; None otherwise."""
        try:
            self.verify(start, end)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Describe the changes that are passed over, as the source is set."""
        before = (told or {}).get("passed_over", {})
        try:
            now = self._named(lambda: passed_over(self._range(start, end)))
        except SourceChangedError:
            return None  # a read refuses
        new = [f"{self.numbered} {version}, {what}" for version, what in now.items() if version not in before]
        return f"passed over: {'; '.join(new)}" if new else None

    def gone_since(self, position: Offset | None) -> str | None:
        """Look at all versions behind the position, and at their files, which may be kept for shorter than the history
        that names them."""
        return self._named(lambda: self._gone_since(self._look(), self._start(position)))

    def _gone_since(self, history: H, begin: P | None) -> str | None:
        if begin is None and not self._begins_with_all:
            return f"source {self._name!r}: where its first batch began is not on record"
        begin = begin or self._beginning(history)
        history.check(begin)
        self._check_there(_unrefused(between(begin, self._head(begin, history), history.stretches(begin))))
        return None

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of the table and the files of each version."""
        found = self._named(lambda: self._range(start, end))
        parts = [[one.version, one.in_snapshot, [file.path for file in one.files]] for one in found]
        return digest_of_range(self._place(end).table if end is not None else None, *self._known_by(), parts)

    def check_offset(self, offset: Offset) -> None:
        """Check that the position is one of this table, within the history that the table still tells."""
        place = self._place(offset)
        self._named(lambda: self._look().check(place))

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """Compare by version, and by file; None for positions of different tables, and where a snapshot is read as a
        whole from one of them on, of which nobody can tell what was read before."""
        one, two = self._start(offset), self._start(other)
        if one is None or two is None:
            return one is not None
        if None not in (one.table, two.table) and one.table != two.table:
            return None
        # All rows that the table has at that version, those too that came by an earlier one, and were read by that.
        if one.in_snapshot and one.version >= two.version and (one.version, True) != (two.version, two.in_snapshot):
            return None
        return one.order > two.order

    def why_not_again(self, start: Offset | None, end: Offset | None) -> str | None:
        """See :meth:`OpenSource.why_not_again`. From a snapshot that a user has written as a position, all its rows are
        read, though the history of ``end`` be gone: the table was rolled back, or made anew."""
        reason, begin = super().why_not_again(start, end), self._start(start)
        if reason is None or end is None or begin is None or begin.table is not None or not begin.in_snapshot:
            return reason
        try:
            self._history().check(self._place(end))
        except SourceError:
            return self._why_not_from_snapshot(begin)
        return reason

    def _why_not_from_snapshot(self, begin: P) -> str | None:
        try:
            self._end(begin, self._history(), Limits(files=1))
        except SourceError as error:
            return str(error)
        return None

    def lag(self, position: Offset | None) -> Figures:
        """Files, bytes and rows up to the table's newest version; unknown beyond :data:`MOST_VERSIONS`."""
        return self._named(lambda: self._lag(position))

    def _lag(self, position: Offset | None) -> Figures:
        history = self._look()
        begin = self._start(position) or self._beginning(history)
        history.check(begin)
        walked = between(begin, self._head(begin, history), history.stretches(begin))
        found = list(islice(walked, MOST_VERSIONS + 1))
        if len(found) > MOST_VERSIONS:
            return Figures()
        return figures_of(file for one in found for file in one.files)

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """Return files, bytes and rows; unknown where the table no longer tells a version of the range."""
        try:
            found = self._named(lambda: self._range(start, end))
        except SourceChangedError:
            return Figures()
        return figures_of(file for one in found for file in one.files)

    def _range(self, start: Offset | None, end: Offset | None, history: H | None = None) -> list[Stretch[U]]:
        """Return the stretches of a range.

        :param history: the history to use; None: the history of the table as it is now.
        :raises SourceChangedError: if the planned range is no longer there unchanged.
        """
        if end is None or start == end:
            return []
        first, last = self._start(start), self._place(end)
        if first is None:
            raise SourceError("where its first batch begins is not on record any more. Restore the checkpoint.")
        history = history or self._history()
        try:
            history.check(last)
        except SourceError as error:
            raise SourceChangedError(str(error)) from error
        return _unrefused(between(first, last, history.stretches(first)))

    def _end(self, begin: P, history: H, limits: Limits) -> P:
        history.check(begin)
        try:
            return end_of(begin, history.stretches(begin), limits)
        except Refused as error:
            raise SourceChangedError(str(error)) from error

    def _start(self, position: Offset | None) -> P | None:
        """Return the place of ``position``; for None the beginning that is on record, or None if there is none yet."""
        text = self.initial_offset() if position is None else position
        return None if text is None else self._place(text)

    def _place(self, offset: Offset) -> P:
        try:
            return self._place_type.of(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    def _named(self, question: Callable[[], T]) -> T:
        return asked_of(self._name, question)


def _unrefused(stretches: Iterable[Stretch[U]]) -> list[Stretch[U]]:
    found = list(stretches)
    for one in found:
        if one.refused is not None:
            raise SourceChangedError(one.refused)
    return found
