"""Systems whose tables changes are merged into: the newest state of each key, or all versions of it. What each batch
has brought is kept beside the table; a look checks that the table shows what a dictionary has after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta.merged.in_bucket import OpenMergedDeltaInBucket
from airflow_provider_microbatch.sinks.delta.merged.in_folder import OpenMergedDelta
from airflow_provider_microbatch.sinks.iceberg.merged.opened import OpenMergedIceberg
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.support.table_systems import FilesIntoDelta, FilesIntoDeltaInBucket, FilesIntoIceberg, FilesIntoPostgres


class ChangesIntoDelta(FilesIntoDelta):
    """Merged by id."""

    scd_type: ClassVar[int] = 1

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenMergedDelta, "sink"), (OpenSource, OpenFileSource, "source"))


class VersionsInDelta(ChangesIntoDelta):
    """Changes of customers, of each of which the table has all versions."""

    scd_type: ClassVar[int] = 2


class ChangesIntoDeltaInBucket(FilesIntoDeltaInBucket):
    """Merged by id."""

    scd_type: ClassVar[int] = 1

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenMergedDeltaInBucket, "sink"), (OpenSource, OpenFileSource, "source"))


class VersionsInDeltaInBucket(ChangesIntoDeltaInBucket):
    """Changes of customers, of each of which the table has all versions."""

    scd_type: ClassVar[int] = 2


class ChangesIntoIceberg(FilesIntoIceberg):
    """Merged by id."""

    scd_type: ClassVar[int] = 1

    def operations(self) -> Sequence[tuple[type, type, str]]:
        return ((OpenSink, OpenMergedIceberg, "sink"), (OpenSource, OpenFileSource, "source"))


class VersionsInIceberg(ChangesIntoIceberg):
    """Changes of customers, of each of which the table has all versions."""

    scd_type: ClassVar[int] = 2


class ChangesIntoPostgres(FilesIntoPostgres):
    """Merged by id."""

    scd_type: ClassVar[int] = 1


class VersionsInPostgres(FilesIntoPostgres):
    """Changes of customers, of each of which the table has all versions."""

    scd_type: ClassVar[int] = 2
