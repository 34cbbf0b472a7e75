"""Determines where the first batch begins."""

from __future__ import annotations

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.delta import EARLIEST, LATEST, DeltaSource
from airflow_provider_microbatch.sources.delta.commits import Commits
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.delta.table import Snapshot, snapshot_of


def beginning(source: DeltaSource, now: Snapshot, commits: Commits) -> Place:
    """Return the place that the source's ``start`` names in the table as it is now.

    :raises SourceError: if the log no longer tells the commits from that place on.
    """
    if source.start == EARLIEST:
        return Place(version=now.version, in_snapshot=True)
    if source.start == LATEST:
        return Place(version=now.version + 1)
    version = source.start if isinstance(source.start, int) else _at(source, now, commits)
    if version > now.version + 1:
        raise SourceError(f"start={version}, and the newest version of {source.root} is {now.version}.")
    if version <= now.version:
        if not commits.path(version).is_file():
            first = next(commits.kept(), now.version + 1)
            raise SourceError(
                f"start={version}: the log of {source.root} tells versions from {first} on. start={EARLIEST!r} begins "
                "with all rows that the table has."
            )
        if source.change_feed and not snapshot_of(source.root, version).has_change_feed:
            raise SourceError(
                f"start={version}: {source.root} had no change feed then. Begin at a version that has one, or with "
                f"start={EARLIEST!r} by all rows that the table has."
            )
    return Place(version=version)


def _at(source: DeltaSource, now: Snapshot, commits: Commits) -> int:
    """The first version at or after the moment of ``start``."""
    wanted, kept = source.begins_ms or 0, list(commits.kept())
    for version in kept:
        commit = commits.get(version)
        if commit is not None and commit.time_ms >= wanted:
            if version == kept[0] > 0:
                raise SourceError(
                    f"start={source.start!r}: the log of {source.root} tells versions from {version} on, which is "
                    f"later, and not what was committed between. start={EARLIEST!r} begins with all rows that the "
                    "table has."
                )
            return version
    return now.version + 1
