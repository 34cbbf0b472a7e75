"""Reads a Delta table's log, and appends one commit to it, with delta-rs.

delta-rs commits whatever it is given: it checks no constraint, no column and no earlier application transaction. It
guarantees that each version is written only once. So each commit here is for exactly the version after the snapshot
that was read; if another writer has taken that version, nothing is committed, and the loser reads the table again.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.placed.records import Records

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction

MERGED = "microbatch/merged"
"""The application transaction of a table into which changes are merged; :mod:`.merged` has what its version names."""

WITHDRAWN = 0
"""The number of a batch that was taken out."""

PATIENCE_SECONDS = 60.0
"""How long a commit is tried again while other writers commit."""

OF_ANOTHER = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)"
"""Begins the path of a file that lies in another table's folder."""

_LONGEST_PAUSE = 0.5
_ASKED = 20
"""How many of a lane's newest manifests the log is asked for: each question replays it."""

_CUT = re.compile("No (table metadata or protocol|table metadata|protocol) found in delta log")
"""What delta-rs says of a version whose commit the log has, and of which it has no older checkpoint any more."""


def in_words(info: Mapping[str, Any]) -> str:
    """A commit, by its info."""
    who = info.get("engineInfo") or info.get("clientVersion") or "somebody"
    return f"version {info.get('version')}: {info.get('operation')} by {who}"


def transaction_of(key: BatchKey) -> str:
    """The application transaction of a batch."""
    return f"microbatch/{key.lane}/{key.id}"


class Snapshot:
    """The table at one version.

    :param table: as delta-rs has opened it.
    :param log: the table's log.
    """

    def __init__(self, table: DeltaTable, log: DeltaLog) -> None:
        self.table = table
        self.log = log
        self.version = table.version()
        self._numbers = dict[BatchKey, int | None]()

    def number(self, key: BatchKey) -> int | None:
        """The number of the manifest of a batch that is in; None if the batch is not in."""
        return self._told(key) or None

    def is_taken_out(self, key: BatchKey) -> bool:
        """Whether the batch was in, and was taken out since."""
        return self._told(key) == WITHDRAWN

    def has_had(self, key: BatchKey) -> bool:
        """Whether the log knows of the batch: it is in, or was taken out."""
        return self._told(key) is not None

    def has_any(self, records: Records) -> bool:
        """Whether any batch is in: one that was taken out does not count.

        :param records: the manifests of the table.
        """
        lanes = filter(is_lane, records.lanes())
        keys = (BatchKey(one, id) for one in lanes for id in list(records.ids(one))[: -_ASKED - 1 : -1])
        return any(self.number(key) is not None for key in keys)

    def _told(self, key: BatchKey) -> int | None:
        if key not in self._numbers:  # each question replays the log
            self._numbers[key] = self.table.transaction_version(transaction_of(key))
        return self._numbers[key]

    @property
    def merged(self) -> int | None:
        """What :data:`MERGED` names; None for a table into which no changes are merged."""
        return self.table.transaction_version(MERGED)

    @property
    def table_id(self) -> str:
        """The id that the log has from the table's first version on, as an id of this package: a copy has it, too."""
        return hashlib.sha256(str(self.table.metadata().id).encode()).hexdigest()[:32]

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The table's schema, in the JSON form that Delta has taken from Spark."""
        schema: Mapping[str, Any] = json.loads(self.table.schema().to_json())
        return schema

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.table.metadata().configuration

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns, in their order."""
        return tuple(self.table.metadata().partition_columns)

    def files(self, *figures: str, but: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """The files of the version, each with those of the figures that the log has.

        :param but: paths, as the log has them, of files to leave out.
        """
        import pyarrow as pa

        table = pa.table(self.table.get_add_actions(flatten=False))
        if but:
            table = table.filter(pa.array([path not in but for path in table.column("path").to_pylist()], pa.bool_()))
        names = [name for name in figures if name in table.column_names]
        for batch in table.select(names).to_batches(max_chunksize=1000):
            yield from batch.to_pylist()

    @property
    def of_another(self) -> str | None:
        """The path of a file that lies in another table's folder; None if there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        paths = pa.table(self.table.get_add_actions(flatten=False)).column("path")
        found = paths.filter(pc.match_substring_regex(paths, OF_ANOTHER))  # of 100,000 in some 10 ms
        return found[0].as_py() if len(found) else None

    def history(self, newest: int) -> list[dict[str, Any]]:
        """The infos of so many commits, as far as the log still has them, newest first.

        :raises SinkError: if delta-rs cannot read one, as it cannot that of Spark's CLONE.
        """
        with reporting("read the commits of", self.log.home):
            return self.table.history(newest)

    def commits_after(self, version: int) -> str:
        """The commits of other writers since ``version``, newest first, in words."""
        return "; ".join(map(in_words, self.history(max(self.version - version, 1))))

    def history_after(self, version: int) -> list[dict[str, Any]]:
        """The infos of the commits after ``version`` that the log still has, newest first."""
        return self.history(self.version - version) if self.version > version else []


@dataclass(frozen=True)
class DeltaLog:
    """:param home: where the table lies."""

    home: Home

    def open(self) -> Snapshot | None:
        """Read the table as it is now; None if there is no table.

        :raises SinkError: if the table cannot be read.
        """
        if not self.home.has_log():
            return None
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with reporting("read", self.home):
            try:
                return Snapshot(DeltaTable(self.home.uri, storage_options=self.home.options()), self)
            except TableNotFoundError:
                return None  # its maker has not committed yet

    def at(self, version: int) -> Snapshot | None:
        """The table as of a version; None if the log does not have that any more, or lists it and cannot rebuild it.

        :raises SinkError: if the table cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        with reporting("read", self.home):
            try:
                table = DeltaTable(self.home.uri, version=version, storage_options=self.home.options())
                return Snapshot(table, self)
            except TableNotFoundError:
                return None
            except DeltaError as error:
                if _CUT.search(str(error)):
                    return None
                raise

    def snapshots(self) -> Iterator[Snapshot | None]:
        """The table as it is now, read again and again as long as another try of a commit is worthwhile. The first try
        takes what time it takes: what it has read of the table's files, no later one reads again."""
        yield self.open()
        end, pause = time.monotonic() + PATIENCE_SECONDS, 0.005
        while time.monotonic() < end:
            time.sleep(random.uniform(0, pause))  # writers that collided should not collide again
            pause = min(pause * 2, _LONGEST_PAUSE)
            yield self.open()

    def commit(
        self,
        before: Snapshot,
        actions: Sequence[AddAction | RemoveAction],
        *,
        key: BatchKey,
        number: int,
        info: Mapping[str, Any],
        transactions: Mapping[str, int] | None = None,
    ) -> bool:
        """Commit files, and the number of a batch, as the version after ``before``.

        :param info: JSON values for the commit info.
        :param transactions: further application transactions.
        :return: False if another writer has committed that version.
        """
        return self._append(before, actions, _properties(info, {transaction_of(key): number, **(transactions or {})}))

    def rearrange(
        self, before: Snapshot, actions: Sequence[AddAction | RemoveAction], *, info: Mapping[str, Any]
    ) -> bool:
        """Commit files in place of others with the same rows, or no change at all, as the version after ``before``.

        :param info: JSON values for the commit info.
        :return: False if another writer has committed that version.
        """
        return self._append(before, actions, _properties(info, {}))

    def _append(
        self, before: Snapshot, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> bool:
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        with reporting("commit to", self.home):
            try:
                before.table.create_write_transaction(
                    list(actions),
                    "append",
                    Schema.from_json(json.dumps(before.schema)),
                    list(before.partition_columns),
                    commit_properties=properties,
                )
            except CommitFailedError:
                return False
        return True

    def create(
        self,
        adds: Sequence[AddAction],
        *,
        schema: Mapping[str, Any],
        partition_by: Sequence[str],
        info: Mapping[str, Any],
        transactions: Mapping[str, int],
    ) -> bool:
        """Make the table, with its first batch or without a row.

        :param info: JSON values for the commit info.
        :param transactions: application transactions: none of a batch that is not in.
        :return: False if another writer has made it.
        """
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        with reporting("make", self.home):
            try:
                create_table_with_add_actions(
                    self.home.uri,
                    Schema.from_json(json.dumps(schema)),
                    list(adds),
                    mode="error",
                    partition_by=list(partition_by),
                    storage_options=self.home.options(),
                    commit_properties=_properties(info, transactions),
                )
            except DeltaError:
                if self.open() is None:
                    raise
                return False
        return True

    def add_columns(self, before: Snapshot, fields: Sequence[Mapping[str, Any]]) -> None:
        """Add columns that may be null. If two writers add the same ones, the refused writer finds them there."""
        from deltalake import CommitProperties, Field
        from deltalake.exceptions import CommitFailedError, DeltaError

        with reporting("add columns to", self.home):
            try:
                before.table.alter.add_columns(
                    [Field.from_json(json.dumps(one)) for one in fields],
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except (CommitFailedError, DeltaError):
                now = self.open()
                if now is None or now.version == before.version:
                    raise

    def sync(self, *, since_ns: int) -> None:
        """Bring the log's entries that were written since ``since_ns`` to disk, so that they survive a power cut."""
        self.home.sync_log(since_ns=since_ns)


def _properties(info: Mapping[str, Any], transactions: Mapping[str, int]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={"microbatch": dict(info)},
        # No rebase: the snapshot that was checked may be outdated, and two attempts at one batch would both append.
        max_commit_retries=0,
        app_transactions=[Transaction(name, number) for name, number in transactions.items()],
    )


@contextmanager
def reporting(doing: str, home: Home) -> Iterator[None]:
    """Raise errors of delta-rs as errors of the sink."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        # The text of the original error may hold secrets.
        raise SinkError(f"cannot {doing} the Delta table {home.where}: {home.told(error)}") from None
