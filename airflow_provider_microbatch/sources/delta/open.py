"""A Delta table, opened for its checkpoint: plans ranges of versions and describes how to read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.runtime.job import NOTHING, Read
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.delta import EARLIEST, DeltaSource
from airflow_provider_microbatch.sources.delta.begin import beginning
from airflow_provider_microbatch.sources.delta.commits import Commits, File
from airflow_provider_microbatch.sources.delta.history import History, feeds
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.delta.reading import check_there, files_to_read, schema_of
from airflow_provider_microbatch.sources.delta.table import snapshot_of
from airflow_provider_microbatch.sources.stretch import Limits, Spot, Stretch, passed_over
from airflow_provider_microbatch.sources.versions import OpenVersions

_READER = "airflow_provider_microbatch.runtime.delta:read"


class OpenDeltaSource(OpenVersions[Place, History, File]):
    """A version is one of the table's log. Offsets are :class:`~airflow_provider_microbatch.sources.delta.offset.Place`
    as JSON."""

    numbered = "version"

    def __init__(self, source: DeltaSource, context: SourceContext) -> None:
        limits = Limits(files=source.max_files, bytes=source.max_bytes)
        super().__init__(context, place=Place, limits=limits, begins_with_all=source.start == EARLIEST)
        self._source = source
        self._commits = Commits(source.root)
        self._had_feed = dict[tuple[str, int], bool | None]()

    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        stretches = self._range(start, end)
        check_there(self._source.root, stretches, set_offset=self._set_offset)
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

    def _history(self) -> History:
        now = snapshot_of(self._source.root)
        if now.is_merged:
            raise SourceError(
                f"changes are merged into the Delta table {self._source.root}: each of its versions writes rows of "
                "earlier ones anew, and which are new is not told. Read what its pipeline reads, or what it has "
                "written elsewhere."
            )
        return History(
            self._source,
            now=now,
            commits=self._commits,
            set_offset=self._set_offset,
            old_before_ms=self._old_before_ms(),
            had_feed=self._had_feed,
        )

    def _look(self) -> History:
        history = self._history()
        if self._source.change_feed and not history.now.has_change_feed:
            raise SourceError(
                f"the Delta table {self._source.root} has no change feed: ALTER TABLE … SET TBLPROPERTIES "
                "('delta.enableChangeDataFeed' = 'true'), which it has from then on; or change_feed=False."
            )
        return history

    def _beginning(self, history: History) -> Place:
        return beginning(self._source, history.now, self._commits)

    def _head(self, begin: Place, history: History) -> Spot:
        return Place(version=history.now.version + 1)

    def _pinned(self, place: Place, history: History) -> Place:
        return replace(place, table=history.now.id, commit=self._commits.digest(place.pinned))

    def _known_by(self) -> tuple[Any, ...]:
        return (self._source.change_feed,)

    def _check_there(self, stretches: list[Stretch[File]]) -> None:
        check_there(self._source.root, stretches, set_offset=self._set_offset)
