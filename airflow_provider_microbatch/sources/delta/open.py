"""A Delta table beside its checkpoint: plans ranges of versions and says how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from shlex import quote
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import NOTHING, Read
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.delta import EARLIEST, DeltaSource
from airflow_provider_microbatch.sources.delta.begin import beginning
from airflow_provider_microbatch.sources.delta.commits import Commits, File
from airflow_provider_microbatch.sources.delta.history import History, feeds
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.delta.reading import check_there, files_to_read, schema_of
from airflow_provider_microbatch.sources.delta.table import Snapshot, snapshot_of
from airflow_provider_microbatch.sources.stretch import (
    Limits,
    Refused,
    Stretch,
    between,
    end_of,
    figures_of,
    passed_over,
)

T = TypeVar("T")

_READER = "airflow_provider_microbatch.runtime.delta:read"
_BEGIN = "begin"


class OpenDeltaSource(OpenSource):
    """Offsets are :class:`~airflow_provider_microbatch.sources.delta.offset.Place` as JSON.

    There is no log of what is planned: the table's own is one, and of two planners the offset entry's put decides.
    Where the first batch begins is put on record before it is planned.
    """

    def __init__(self, source: DeltaSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._state = context.state
        self._commits = Commits(source.root)
        self._limits = Limits(files=source.max_files, bytes=source.max_bytes)

    @property
    def splits(self) -> str:
        return "files"

    def check(self) -> None:
        """Is the table there, and does it have what is asked of it?"""
        self._named(self._now)

    def initial_offset(self) -> Offset | None:
        """Where the first batch begins, as it is on record."""
        data = self._state.get(_BEGIN)
        if data is None:
            return None
        try:
            return Place.of(data.decode()).text()
        except ValueError as error:
            raise CorruptEntryError(
                f"{self._state.location}/{_BEGIN} is torn: {error}. Restore it from a backup of the checkpoint."
            ) from error

    def has_new(self, position: Offset | None) -> bool:
        """Looks at the table's log as far as the next file with rows."""
        return self._named(lambda: self._has_new(position))

    def _has_new(self, position: Offset | None) -> bool:
        now, begin = self._now(), self._start(position)
        if begin is None:
            if self._source.start != EARLIEST:
                return True  # the first plan makes a first position
            begin = beginning(self._source, now, self._commits)
        return self._end(begin, now, Limits(files=1)) != begin

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """As far as the limit goes; not into a version that changes the table's columns or properties, nor into one
        that cannot be read. Writes down where the first batch begins."""
        return self._named(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: Offset | None, limit: ReadLimit) -> Offset | None:
        now, begin = self._now(), self._start(start)
        if begin is None:
            if not self._has_new(None):
                return None
            first = self._pinned(beginning(self._source, now, self._commits), now)
            self._state.put_if_absent(_BEGIN, first.text().encode())
            begin = self._start(None)
            assert begin is not None, "it was put there, and nobody removes it"
        end = self._end(begin, now, self._limits & Limits(files=limit.splits, bytes=limit.bytes, rows=limit.rows))
        if end == begin:
            return begin.text() if start is None else start
        return self._pinned(end, now).text()

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Each file or version of the range, but for those that are passed over."""
        return self._named(lambda: self._read(start, end))

    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        stretches = self._range(start, end)
        check_there(self._source.root, stretches)
        snapshot = snapshot_of(self._source.root, None if not stretches else stretches[-1].version)
        is_fed = self._source.change_feed
        by_file = [one for one in stretches if one.in_snapshot or not is_fed]
        how = files_to_read(self._source.root, by_file, snapshot)
        if is_fed:
            first = stretches[0].version if by_file else snapshot.version
            commit = self._commits.get(first)
            how["changes"] = feeds(one for one in stretches if not one.in_snapshot)
            how["as_inserts"] = [first, 0 if commit is None else commit.time_ms]
        needs_delta = bool(how.get("versions") or how.get("changes"))
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "path": self._source.root,
                "schema": schema_of(snapshot),
                "told": {"passed_over": passed_over(stretches)},
                **how,
            },
            requires=self._source.requires() if needs_delta else NOTHING,
        )

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Are the files there that Spark has read, and is the table the one that was planned?"""
        self._named(lambda: check_there(self._source.root, self._range(start, end)))

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """A version that the log does not tell any more, or a file that is gone."""
        try:
            self.verify(start, end)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Versions that are passed over, as the source is set."""
        before = (told or {}).get("passed_over", {})
        try:
            now = self._named(lambda: passed_over(self._range(start, end)))
        except SourceChangedError:
            return None  # a read refuses
        new = [f"version {version}, {what}" for version, what in now.items() if version not in before]
        return f"passed over: {'; '.join(new)}" if new else None

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """The table, and the files of each version."""
        found = self._named(lambda: self._range(start, end))
        files = [[one.version, one.in_snapshot, [file.path for file in one.files]] for one in found]
        id = self._place(end).table if end is not None else None
        return digest_of_range(id, self._source.change_feed, files)

    def check_offset(self, offset: Offset) -> None:
        """A position is one of this table, in what its log has."""
        self._named(lambda: self._history(self._now()).check(self._place(offset)))

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """By version, and by file; of another table's position nobody can tell."""
        one, two = self._start(offset), self._start(other)
        if one is None or two is None:
            return one is not None
        if None not in (one.table, two.table) and one.table != two.table:
            return None
        return one.order > two.order

    def lag(self, position: Offset | None) -> Figures:
        """Files, bytes and rows up to the table's newest version."""
        return self._named(lambda: self._lag(position))

    def _lag(self, position: Offset | None) -> Figures:
        now, begin = self._now(), self._start(position)
        if begin is None:
            begin = beginning(self._source, now, self._commits)
        history, head = self._history(now), Place(version=now.version + 1)
        history.check(begin)
        found = between(begin, head, history.stretches(begin))
        return figures_of(file for one in found for file in one.files)

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """Files, bytes and rows; of what the log does not tell any more nobody knows."""
        try:
            found = self._named(lambda: self._range(start, end))
        except SourceChangedError:
            return Figures()
        return figures_of(file for one in found for file in one.files)

    def _range(self, start: Offset | None, end: Offset | None) -> list[Stretch[File]]:
        """What lies in it.

        :raises SourceChangedError: if it is not there any more as it was planned.
        """
        if end is None or start == end:
            return []
        first, last = self._start(start), self._place(end)
        if first is None:
            raise SourceError("where its first batch begins is not on record any more. Restore the checkpoint.")
        history = self._history(snapshot_of(self._source.root))
        try:
            history.check(last)
        except SourceError as error:
            raise SourceChangedError(str(error)) from error
        found = list(between(first, last, history.stretches(first)))
        for one in found:
            if one.refused is not None:
                raise SourceChangedError(one.refused)
        return found

    def _end(self, begin: Place, now: Snapshot, limits: Limits) -> Place:
        history = self._history(now)
        history.check(begin)
        try:
            return end_of(begin, history.stretches(begin), limits)
        except Refused as error:
            raise SourceChangedError(str(error)) from error

    def _history(self, now: Snapshot) -> History:
        go_on = f"microbatch set-offset CHECKPOINT --source {quote(self._name)} --allow-skip --offset"
        return History(self._source, now=now, commits=self._commits, go_on=go_on)

    def _now(self) -> Snapshot:
        now = snapshot_of(self._source.root)
        if self._source.change_feed and not now.has_change_feed:
            raise SourceError(
                f"the Delta table {self._source.root} has no change feed: ALTER TABLE … SET TBLPROPERTIES "
                "('delta.enableChangeDataFeed' = 'true'), which it has from then on; or change_feed=False."
            )
        return now

    def _pinned(self, place: Place, now: Snapshot) -> Place:
        return replace(place, table=now.id, commit=self._commits.digest(place.pinned))

    def _start(self, position: Offset | None) -> Place | None:
        """The position; of None the one that is on record as the beginning, or None if there is none yet."""
        text = self.initial_offset() if position is None else position
        return None if text is None else self._place(text)

    def _place(self, offset: Offset) -> Place:
        try:
            return Place.of(offset)
        except ValueError as error:
            raise SourceError(f"source {self._name!r}: {error}") from error

    def _named(self, question: Callable[[], T]) -> T:
        """Its answer; of an error, which source has it."""
        try:
            return question()
        except SourceError as error:
            if repr(self._name) in str(error):
                raise
            raise type(error)(f"source {self._name!r}: {error}") from error
