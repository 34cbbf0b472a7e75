"""A branch of an Iceberg table beside its checkpoint: plans ranges of snapshots and says how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from shlex import quote
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.iceberg import EARLIEST, IcebergSource
from airflow_provider_microbatch.sources.iceberg.branch import Branch, Commit
from airflow_provider_microbatch.sources.iceberg.history import History
from airflow_provider_microbatch.sources.iceberg.offset import Place
from airflow_provider_microbatch.sources.stretch import (
    Limits,
    Refused,
    Stretch,
    Unit,
    between,
    end_of,
    figures_of,
    passed_over,
)

T = TypeVar("T")

_READER = "airflow_provider_microbatch.runtime.iceberg:read"
_BEGIN = "begin"


class OpenIcebergSource(OpenSource):
    """Offsets are :class:`~airflow_provider_microbatch.sources.iceberg.offset.Place` as JSON.

    There is no log of what is planned: the table's own is one, and of two planners the offset entry's put decides.
    Where the first batch begins is put on record before it is planned.
    """

    def __init__(self, source: IcebergSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._state = context.state
        self._limits = Limits(files=source.max_files, bytes=source.max_bytes)
        self._catalog = OpenCatalog(
            source.conn_id,
            source.table,
            connect=context.connect,
            at_end=context.at_end,
            failed=SourceError,
            busy=SourceError,
        )

    @property
    def splits(self) -> str:
        return "files"

    def check(self) -> None:
        """Is the table there, and the branch?"""
        self._named(self._history)

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
        """One question to the catalog, and the table's metadata."""
        return self._named(lambda: self._has_new(position))

    def _has_new(self, position: Offset | None) -> bool:
        branch, history = self._history()
        begin = self._start(position)
        if begin is None:
            if self._source.start != EARLIEST:
                return True  # the first plan makes a first position
            begin = history.beginning()
        return self._end(begin, branch, history, Limits(files=1)) != begin

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """As far as the limit goes; not into a snapshot with another schema, nor into one that cannot be read. Writes
        down where the first batch begins."""
        return self._named(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: Offset | None, limit: ReadLimit) -> Offset | None:
        begin = self._start(start)
        if begin is None:
            if not self._has_new(None):
                return None
            branch, history = self._history()
            first = replace(history.beginning(), table=branch.uuid)
            self._state.put_if_absent(_BEGIN, first.text().encode())
            begin = self._start(None)
            assert begin is not None, "it was put there, and nobody removes it"
        branch, history = self._history()
        own = Limits(files=limit.splits, bytes=limit.bytes, rows=limit.rows)
        end = self._end(begin, branch, history, self._limits & own)
        if end == begin:
            return begin.text() if start is None else start
        return end.text()

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Files of the first snapshot, and runs of snapshots, but for those that are passed over."""
        return self._named(lambda: self._read(start, end))

    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        branch, history = self._history()
        stretches = self._range(start, end, history)
        runs = runs_of(history.commits(stretches))
        begin = self._start(start)
        files = [file.path for one in stretches if one.in_snapshot for file in one.files]
        address, columns = branch.as_of(history.last(stretches))
        return Read(
            reader=_READER,
            arguments={
                "name": self._name,
                "address": address,
                "columns": [list(pair) for pair in columns],
                "snapshot": None if begin is None or not files else begin.snapshot,
                "files": files,
                "runs": runs,
                "told": {"passed_over": passed_over(stretches)},
            },
            requires=self._source.requires(),
        )

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Is the table the one that was planned, and are its snapshots there?"""
        self._named(lambda: self._range(start, end, self._history()[1]))

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """Snapshots that have expired."""
        try:
            self.verify(start, end)
        except SourceError as error:
            return str(error)
        return None

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Snapshots that are passed over, as the source is set."""
        before = (told or {}).get("passed_over", {})
        try:
            now = self._named(lambda: passed_over(self._range(start, end, self._history()[1])))
        except SourceChangedError:
            return None  # a read refuses
        new = [f"sequence number {number}, {what}" for number, what in now.items() if number not in before]
        return f"passed over: {'; '.join(new)}" if new else None

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """The table, and the files or snapshots."""
        found = self._named(lambda: self._range(start, end, self._history()[1]))
        parts = [[one.version, one.in_snapshot, [file.path for file in one.files]] for one in found]
        return digest_of_range(self._place(end).table if end is not None else None, parts)

    def check_offset(self, offset: Offset) -> None:
        """A position is one of this branch."""
        place = self._place(offset)
        self._named(lambda: self._history()[1].check(place))

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """By sequence number, and by file; of another table's position nobody can tell."""
        one, two = self._start(offset), self._start(other)
        if one is None or two is None:
            return one is not None
        if None not in (one.table, two.table) and one.table != two.table:
            return None
        return one.order > two.order

    def lag(self, position: Offset | None) -> Figures:
        """Files, bytes and rows up to the branch's head."""
        return self._named(lambda: self._lag(position))

    def _lag(self, position: Offset | None) -> Figures:
        _, history = self._history()
        begin = self._start(position) or history.beginning()
        history.check(begin)
        found = between(begin, Place(version=2**63, snapshot=begin.snapshot), history.stretches(begin))
        return figures_of(file for one in found for file in one.files)

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """Files, bytes and rows; of what has expired nobody knows."""
        try:
            found = self._named(lambda: self._range(start, end, self._history()[1]))
        except SourceChangedError:
            return Figures()
        return figures_of(file for one in found for file in one.files)

    def _range(self, start: Offset | None, end: Offset | None, history: History) -> list[Stretch[Unit]]:
        """What lies in it.

        :raises SourceChangedError: if it is not there any more as it was planned.
        """
        if end is None or start == end:
            return []
        first, last = self._start(start), self._place(end)
        if first is None:
            raise SourceError("where its first batch begins is not on record any more. Restore the checkpoint.")
        try:
            history.check(last)
        except SourceError as error:
            raise SourceChangedError(str(error)) from error
        found = list(between(first, last, history.stretches(first)))
        for one in found:
            if one.refused is not None:
                raise SourceChangedError(one.refused)
        return found

    def _end(self, begin: Place, branch: Branch, history: History, limits: Limits) -> Place:
        history.check(begin)
        try:
            end = end_of(begin, history.stretches(begin), limits)
        except Refused as error:
            raise SourceChangedError(str(error)) from error
        if end == begin:
            return begin
        read = next((one.id for one in branch.chain if one.sequence == end.sequence), begin.snapshot)
        return replace(end, snapshot=read, table=branch.uuid)

    def _history(self) -> tuple[Branch, History]:
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise SourceError(
                "pyiceberg is not installed, which plans for Iceberg tables. Run: pip install "
                "'airflow-provider-microbatch[iceberg]'"
            ) from error
        table = self._catalog.load()
        if table is None:
            raise SourceError(
                f"the catalog of connection {self._source.conn_id!r} has no table {self._source.table}: it was dropped "
                "or renamed, or the connection leads to another catalog."
            )
        branch = Branch(table, self._source.branch)
        go_on = f"microbatch set-offset CHECKPOINT --source {quote(self._name)} --allow-skip --offset"
        return branch, History(self._source, branch=branch, go_on=go_on)

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


def runs_of(commits: list[Commit]) -> list[list[int | None]]:
    """Snapshots that are read together: the one before the first, which is not, and the last. Between them is none that
    is passed over; the first of a table has none before it."""
    found = list[list[int | None]]()
    for before, one in pairwise([None, *commits]):
        assert one is not None
        if found and before is not None and one.parent == before.id:
            found[-1][1] = one.id
        else:
            found.append([one.parent, one.id])
    return found
