"""A Delta table as a source: planned by delta-rs, without a JVM; each range is read exactly by Spark.

The stream of a table follows its log: the files of one snapshot, if the first batches read one, and then the files that
each later version has added, or, with the change feed, the changes of rows. A position is a version, and the number of
its files that have been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit, connector, moment_ms, texts
from airflow_provider_microbatch.sources.file.path import is_glob, local_path

EARLIEST, LATEST = "earliest", "latest"
FAIL, RECORD_GAP = "fail", "record_gap"
DELTA = "4.4.0"


@dataclass(frozen=True)
class DeltaSource(Source):
    """The rows of a Delta table, and the rows that come into it; each row is read once.

    By default its versions are read as appends: a version that removes or changes rows (an UPDATE, a DELETE, an
    overwrite, a replay of a batch that a pipeline has published there) stops the plan with an error that names it. With
    ``change_feed`` such versions are read too, and each row describes its change by ``_change_type``,
    ``_commit_version`` and ``_commit_timestamp``.

    :param path: the table: an absolute local path or ``file:`` URL. As in Spark, a URL is not percent-decoded.
    :param change_feed: read the changes of rows. The table must have ``delta.enableChangeDataFeed``.
    :param start: where the first batch begins. ``earliest``: with the rows that the table has at the first plan,
        followed by later rows. ``latest``: with rows that are committed after the first plan. A version: with the rows
        that this version has committed. A moment, as ISO 8601 text with its offset from UTC: with the first version at
        or after it.
    :param max_files: the largest number of files in a batch; None for no limit. With ``change_feed`` a version is in
        one batch, however many files it has, except for the rows that exist at the start.
    :param max_bytes: the largest number of bytes of files in a batch, unless a single file is larger; None for no
        limit.
    :param skip_versions: versions that are passed over, with all rows that they have added, removed or changed. The
        batch whose range contains them reports that.
    :param on_delete: reaction to a version that only removes rows, as a DELETE of whole files does: ``fail``; or
        ``record_gap``: pass over it, which the batch then reports. Not with ``change_feed``, which reads it.
    :param packages: Maven coordinates of Delta for Spark, for spark-submit. None: those for the PySpark that is
        installed where the task runs. Empty where Spark has Delta already.
    :param jars: paths or addresses of its jars; then ``packages`` is empty unless it is given.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    path: str
    _: KW_ONLY
    change_feed: bool = False
    start: str | int = EARLIEST
    max_files: int | None = 1000
    max_bytes: int | None = None
    skip_versions: Sequence[int] = ()
    on_delete: str = FAIL
    packages: Sequence[str] | None = None
    jars: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise DefinitionError(f"DeltaSource: path must be a path or a file: URL, not {self.path!r:.200}.")
        if "%" in self.root or is_glob(self.root) or "://" in self.path.removeprefix("file://"):
            raise self._wrong("path must be local, without '%' and without a glob's characters: delta-rs decodes it")
        if not isinstance(self.change_feed, bool):
            raise self._wrong(f"change_feed must be True or False, not {self.change_feed!r:.200}")
        for name in ("max_files", "max_bytes"):
            check_limit(name, getattr(self, name), wrong=self._wrong)
        if self.on_delete not in (FAIL, RECORD_GAP):
            raise self._wrong(f"on_delete must be {FAIL!r} or {RECORD_GAP!r}, not {self.on_delete!r:.200}")
        if not isinstance(self.skip_versions, (list, tuple)) or not all(
            type(one) is int and one >= 0 for one in self.skip_versions
        ):
            raise self._wrong(f"skip_versions must be a list of versions, not {self.skip_versions!r:.200}")
        object.__setattr__(self, "skip_versions", sorted(set(self.skip_versions)))
        self._check_start()
        if self.packages is not None:
            object.__setattr__(self, "packages", texts("packages", self.packages, wrong=self._wrong))
        object.__setattr__(self, "jars", texts("jars", self.jars, wrong=self._wrong))

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.delta.open import OpenDeltaSource

        return OpenDeltaSource(self, context)

    @property
    def root(self) -> str:
        """The table's folder."""
        return local_path(self.path, field="DeltaSource: path")

    def reads_as(self) -> Mapping[str, str | None]:
        """The settings that decide how a version is read, and which versions are not."""
        skipped = ", ".join(map(str, self.skip_versions)) or None
        return {"change_feed": str(self.change_feed).lower(), "skip_versions": skipped, "on_delete": self.on_delete}

    def keeps_rows(self) -> bool:
        """True: files and versions do not change."""
        return True

    def would_read(self, location: str) -> bool:
        """Whether ``location`` is the table's folder, or lies in it."""
        try:
            path = local_path(location, field="location")
        except DefinitionError:
            return False
        return f"{path}/".startswith(f"{self.root}/")

    def shares_with(self, other: Source) -> bool:
        """Whether the other source reads the same table."""
        return isinstance(other, DeltaSource) and self.root == other.root

    def location(self) -> str:
        return self.root

    @property
    def begins_ms(self) -> int | None:
        """The moment at which the first batch begins, milliseconds since the epoch; None if it begins otherwise."""
        return moment_ms(self.start)

    def requires(self) -> Requirements:
        """Return the packages of Delta for Spark.

        :raises DefinitionError: if the version is not known, since no PySpark is installed here.
        """
        return connector(
            self.packages,
            self.jars,
            name="Delta",
            newest="4.1.3",
            made=lambda pyspark: f"io.delta:delta-spark_{pyspark.rpartition('.')[0]}_2.13:{DELTA}",
            wrong=self._wrong,
        )

    def _check_start(self) -> None:
        start = self.start
        if start not in (EARLIEST, LATEST) and not (type(start) is int and start >= 0) and moment_ms(start) is None:
            raise self._wrong(
                f"start must be {EARLIEST!r}, {LATEST!r}, a version, or a moment with its offset from UTC "
                f"('2026-11-21T00:00:00Z'); not {start!r:.200}"
            )

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"DeltaSource({self.path!r:.200}): {text}.")
