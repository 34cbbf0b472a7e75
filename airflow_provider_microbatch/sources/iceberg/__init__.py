"""An Iceberg table as a source: planned by pyiceberg, without a JVM; each range is read exactly by Spark.

The stream of a branch follows its snapshots: the files of one snapshot, if the first batches read one, and then the
rows that each later snapshot has appended. A compaction brings no rows. Spark gets the address of the table's metadata,
and needs neither the catalog nor its credentials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.sources import OpenSource, Source, SourceContext
from airflow_provider_microbatch.sources.arguments import check_limit, connector, moment_ms, texts

EARLIEST, LATEST = "earliest", "latest"
FAIL, RECORD_GAP = "fail", "record_gap"
MAIN = "main"
ICEBERG = "1.12.0"


@dataclass(frozen=True)
class IcebergSource(Source):
    """The rows of a branch of an Iceberg table, and the rows that are appended to it; each row is read once.

    A snapshot that removes or changes rows (a DELETE, an overwrite, a replay of a batch that a pipeline has published
    there) stops the plan with an error that names it.

    :param conn_id: the Airflow connection of the catalog, of type ``iceberg``: see ``docs/iceberg.md``.
    :param table: its name in the catalog, ``namespace.table``.
    :param branch: the branch that is read.
    :param start: where the first batch begins. ``earliest``: with the rows that the branch has at the first plan,
        followed by later rows. ``latest``: with rows that are committed after the first plan. A snapshot's id: with the
        rows that this snapshot has appended. A moment, as ISO 8601 text with its offset from UTC: with the first
        snapshot at or after it.
    :param max_files: the largest number of files in a batch; None for no limit. The rows that one snapshot has appended
        are in one batch, however many, except for the rows that exist at the start.
    :param max_bytes: the largest number of bytes of files in a batch, likewise; None for no limit.
    :param skip_snapshots: ids of snapshots that are passed over, with all rows that they have added, removed or
        changed. The batch whose range contains them reports that.
    :param on_delete: reaction to a snapshot that only removes rows: ``fail``; or ``record_gap``: pass over it, which
        the batch then reports.
    :param packages: Maven coordinates of Iceberg for Spark, for spark-submit. None: those for the PySpark that is
        installed where the task runs. Empty where Spark has Iceberg already.
    :param jars: paths or addresses of its jars; then ``packages`` is empty unless it is given.
    :raises DefinitionError: for a wrong type or value, naming the field.
    """

    conn_id: str
    table: str
    _: KW_ONLY
    branch: str = MAIN
    start: str | int = EARLIEST
    max_files: int | None = 1000
    max_bytes: int | None = None
    skip_snapshots: Sequence[int] = ()
    on_delete: str = FAIL
    packages: Sequence[str] | None = None
    jars: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("conn_id", "branch"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise self._wrong(f"{name} must be a text that is not empty, not {value!r:.200}")
        names = self.table.split(".") if isinstance(self.table, str) else []
        if len(names) < 2 or not all(name and name == name.strip() for name in names):
            raise self._wrong("table must be a name in the catalog, such as 'shop.orders'")
        for name in ("max_files", "max_bytes"):
            check_limit(name, getattr(self, name), wrong=self._wrong)
        if self.on_delete not in (FAIL, RECORD_GAP):
            raise self._wrong(f"on_delete must be {FAIL!r} or {RECORD_GAP!r}, not {self.on_delete!r:.200}")
        if not isinstance(self.skip_snapshots, (list, tuple)) or not all(
            type(one) is int for one in self.skip_snapshots
        ):
            raise self._wrong(f"skip_snapshots must be a list of snapshots' ids, not {self.skip_snapshots!r:.200}")
        object.__setattr__(self, "skip_snapshots", sorted(set(self.skip_snapshots)))
        self._check_start()
        if self.packages is not None:
            object.__setattr__(self, "packages", texts("packages", self.packages, wrong=self._wrong))
        object.__setattr__(self, "jars", texts("jars", self.jars, wrong=self._wrong))

    def open(self, context: SourceContext) -> OpenSource:
        """Return the source opened for one checkpoint."""
        from airflow_provider_microbatch.sources.iceberg.open import OpenIcebergSource

        return OpenIcebergSource(self, context)

    def reads_as(self) -> Mapping[str, str | None]:
        """The settings that decide which snapshots are not read."""
        return {"skip_snapshots": ", ".join(map(str, self.skip_snapshots)) or None, "on_delete": self.on_delete}

    def keeps_rows(self) -> bool:
        """True: files and snapshots do not change."""
        return True

    def would_read(self, location: str) -> bool:
        """Whether ``location`` is the branch, as a sink names it."""
        return location == self.location()

    def shares_with(self, other: Source) -> bool:
        """Whether the other source reads the same branch."""
        return isinstance(other, IcebergSource) and self.location() == other.location()

    def location(self) -> str:
        branch = "" if self.branch == MAIN else f"@{self.branch}"
        return f"iceberg:{self.conn_id}/{self.table}{branch}"

    @property
    def begins_ms(self) -> int | None:
        """The moment at which the first batch begins, milliseconds since the epoch; None if it begins otherwise."""
        return moment_ms(self.start)

    def requires(self) -> Requirements:
        """Return the packages of Iceberg for Spark.

        :raises DefinitionError: if the version is not known, since no PySpark is installed here.
        """
        return connector(
            self.packages,
            self.jars,
            name="Iceberg",
            newest="4.1.3",
            made=lambda pyspark: (
                f"org.apache.iceberg:iceberg-spark-runtime-{pyspark.rpartition('.')[0]}_2.13:{ICEBERG}"
            ),
            wrong=self._wrong,
        )

    def _check_start(self) -> None:
        start = self.start
        if start not in (EARLIEST, LATEST) and type(start) is not int and moment_ms(start) is None:
            raise self._wrong(
                f"start must be {EARLIEST!r}, {LATEST!r}, a snapshot's id, or a moment with its offset from UTC "
                f"('2026-11-21T00:00:00Z'); not {start!r:.200}"
            )

    def _wrong(self, text: str) -> DefinitionError:
        return DefinitionError(f"IcebergSource({self.conn_id!r:.100}, {self.table!r:.100}): {text}.")
