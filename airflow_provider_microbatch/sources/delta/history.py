"""The stretches of a table's log after a position; and a check that the position belongs to this log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.delta import RECORD_GAP, DeltaSource
from airflow_provider_microbatch.sources.delta.commits import Commit, Commits, File
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.delta.table import Snapshot, has_change_feed, snapshot_of
from airflow_provider_microbatch.sources.stretch import BEFORE_ITS_FILES, Stretch
from airflow_provider_microbatch.sources.ways_on import SetOffset, read_all_now

_BRING_BACK = ("RESTORE", "CLONE")
"""Operations whose files may have been in the table before: those of an earlier version, or of another table that is
cloned into this one once more. Every other operation adds files that it has written."""
_MOST_NAMED = 20
"""Number of versions that an error names one by one."""


class History:
    """:param now: the table as it is.
    :param set_offset: the command that sets the position.
    :param old_before_ms: versions of before that time are old, milliseconds since the epoch.
    :param had_feed: whether a table had a change feed, by its id and a version, as the questions so far have found;
        None where its log does not tell that any more. To find it opens the table, which may be large.
    """

    def __init__(
        self,
        source: DeltaSource,
        *,
        now: Snapshot,
        commits: Commits,
        set_offset: SetOffset,
        old_before_ms: int,
        had_feed: dict[tuple[str, int], bool | None],
    ) -> None:
        self._source = source
        self.now = now
        self._commits = commits
        self._set_offset = set_offset
        self._old_before_ms = old_before_ms
        self._had_feed = had_feed

    def check(self, place: Place) -> None:
        """:raises SourceError: if ``place`` is not a place of the current table."""
        now, where = self.now, self._source.root
        if place.table is not None and place.table != now.id:
            raise SourceError(
                f"{where} is another table than the one that was read: its id was {place.table}, and is {now.id}. It "
                f"was dropped and made anew, and what is there now cannot be told from what was read. "
                f"{self._begin_again()}"
            )
        if place.pinned > now.version:
            raise SourceError(
                f"{where} went back: its newest version is {now.version}, and version {place.pinned} was read. It was "
                f"restored from a backup. {self._begin_again()}"
            )
        if place.commit is not None and place.commit not in self._digests(place):
            raise SourceError(
                f"version {place.pinned} of {where} is not the one that was read: the table was restored from a backup "
                f"and has been written since. {self._begin_again()}"
            )

    def _digests(self, place: Place) -> Iterator[str | None]:
        """Yield what the position's commit may be known by. One that is not there is any; not so the one before it."""
        yield self._commits.digest(place.pinned) or place.commit
        if place.is_within:  # positions on record had the digest of the commit before their version
            yield self._commits.digest(place.version - 1)

    def stretches(self, start: Place) -> Iterator[Stretch[File]]:
        """Yield the stretches in order, beginning with the stretch of ``start``."""
        version = start.version
        if start.in_snapshot:
            yield self._snapshot(version)
            version += 1
        elif self._source.change_feed and start.index != BEFORE_ITS_FILES:
            yield Stretch(version=version, refused=self._in_part(version))
            return
        is_fed: bool | None = None
        for number in range(version, self.now.version + 1):
            commit = self._commits.get(number)
            if self._source.change_feed:
                is_fed = self._is_fed(number, commit, before=is_fed)
            is_old = commit is not None and commit.time_ms < self._old_before_ms
            yield replace(self._version(number, commit, has_no_feed=is_fed is False), is_old=is_old)

    def _is_fed(self, version: int, commit: Commit | None, *, before: bool | None) -> bool | None:
        """Whether the change feed tells of a version; None if that is not known. Where it does not, Delta refuses to
        read it: no batch may have rows of such a version.

        :param before: the same of the version before.
        """
        if commit is None:
            return None
        if commit.properties is not None:
            return has_change_feed(commit.properties)
        if before is not None or not commit.rows:
            return before
        at = (self.now.id, version)
        if at not in self._had_feed:
            try:
                self._had_feed[at] = snapshot_of(self._source.root, version).has_change_feed
            except SourceError:
                self._had_feed[at] = None  # the log tells what this version has changed, and not what the table had
        return self._had_feed[at]

    def _snapshot(self, version: int) -> Stretch[File]:
        try:
            files = snapshot_of(self._source.root, version).files()
        except SourceError as error:
            refused = (
                f"version {version} of {self._source.root} is expired: its rows are not all read, and its log does not "
                f"tell any more which they are ({error}). {self._begin_again()} To go on without those that were not "
                f"read: `{self._begin_at(self._kept_after(version))}`. Keep the log for longer than the first rows "
                "take (delta.logRetentionDuration)."
            )
            return Stretch(version=version, in_snapshot=True, refused=refused)
        return Stretch(version=version, in_snapshot=True, files=tuple(files))

    def _version(self, version: int, commit: Commit | None, *, has_no_feed: bool) -> Stretch[File]:
        is_other = commit is not None and commit.schema is not None and version > 0
        if version in self._source.skip_versions:
            what = "which is expired" if commit is None else _in_words(commit)
            return Stretch(version=version, passed_over=f"{what} (skip_versions)", is_other=is_other)
        if commit is None:
            return Stretch(version=version, refused=self._expired(version))
        if self._source.change_feed:
            if commit.rows and has_no_feed:
                return Stretch(version=version, refused=self._untold(version, commit))
            return Stretch(version=version, files=commit.rows, is_one=True, is_other=is_other)
        # A file is added for the first time, or its version is no append: rows that were read would come again.
        brings_back = commit.operation in _BRING_BACK and bool(commit.added) and version > 0
        if brings_back and not commit.removed:
            refused = (
                f"version {version} of {self._source.root} is no append: {_in_words(commit)}. Rows that were read may "
                f"be among those that come back. {self._skip(version, version + 1)} {self._begin_again()}"
            )
            return Stretch(version=version, refused=refused)
        if not commit.removed:
            return Stretch(version=version, files=commit.added, is_other=is_other)
        if not commit.added and self._source.on_delete == RECORD_GAP:
            return Stretch(version=version, passed_over=f"{_in_words(commit)} (on_delete)", is_other=is_other)
        refused = (
            f"version {version} of {self._source.root} is no append: {_in_words(commit)}. Whoever reads appends has "
            "rows that are not in the table any more, and cannot tell which of the added ones are new. "
            f"{self._skip(version, version + 1)} change_feed=True reads such versions, where the table has a change "
            "feed."
        )
        return Stretch(version=version, refused=refused)

    def _untold(self, version: int, commit: Commit) -> str:
        """Describe a version of which the change feed does not tell, with the ways on: behind those that follow it, up
        to the one that turns the feed on again."""
        on = next(filter(self._turns_on, range(version + 1, self.now.version + 1)), self.now.version + 1)
        return (
            f"version {version} of {self._source.root} ({_in_words(commit)}) was committed while the change feed was "
            f"off, as it was up to version {on - 1}: how rows change is not told. {self._skip(version, on)} Where rows "
            "were added and nothing else, change_feed=False reads them, in a batch that ends before it is on again."
        )

    def _turns_on(self, version: int) -> bool:
        commit = self._commits.get(version)
        return commit is not None and commit.properties is not None and has_change_feed(commit.properties)

    def _expired(self, version: int) -> str:
        first = self._kept_after(version)
        return (
            f"version {version} of {self._source.root} is expired: it was not read, and its log tells versions from "
            f"{first} to {self.now.version}. {self._begin_again()} {self._skip(version, first)} Keep the log for "
            "longer than the pipeline may stand still (delta.logRetentionDuration)."
        )

    def _kept_after(self, version: int) -> int:
        """Return the first version after ``version`` that the log still tells."""
        return next((kept for kept in self._commits.kept() if kept > version), self.now.version + 1)

    def _in_part(self, version: int) -> str:
        return (
            f"version {version} of {self._source.root} is read in part, file by file, and the change feed tells it as "
            "a whole: rows that were read would come again. Plan by files until a batch ends behind it; or "
            f"begin there, without its other rows: `{self._begin_at(version + 1)}`."
        )

    def _skip(self, version: int, behind: int) -> str:
        """Return the ways to pass over versions.

        :param behind: the first version that is not passed over.
        """
        them, begin = "it" if behind == version + 1 else "them", f"`{self._begin_at(behind)}`"
        if behind - version > _MOST_NAMED:
            return f"To begin behind them with other rows: {begin}."
        # Those that are set stay: no batch ends behind a version that is passed over, as long as no row is behind it.
        skipped = sorted({*self._source.skip_versions, *range(version, behind)})
        return (
            f"skip_versions={skipped} passes over {them}, with all that was added, and the batch says so; or begin "
            f"behind {them} with other rows: {begin}."
        )

    def _begin_at(self, version: int) -> str:
        return self._set_offset(Place(version=version).text(), skip=True)

    def _begin_again(self) -> str:
        return read_all_now(self._set_offset, Place(version=self.now.version, in_snapshot=True).text())


def feeds(stretches: Iterable[Stretch[File]]) -> list[list[int]]:
    """First and last of each run of versions that are read together; no version in a run is passed over."""
    found = list[list[int]]()
    for one in stretches:
        if one.passed_over is not None or not one.files:
            continue
        if found and found[-1][1] == one.version - 1:
            found[-1][1] = one.version
        else:
            found.append([one.version, one.version])
    return found


def _in_words(commit: Commit) -> str:
    """Describe a commit for people."""
    return f"{commit.words}, {len(commit.removed)} file(s) taken out and {len(commit.added)} added"
