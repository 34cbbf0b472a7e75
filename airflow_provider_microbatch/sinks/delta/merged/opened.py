"""A Delta table into which changes are merged, opened, wherever it lies."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.changes import DELETED
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest, OpenSink, PublishedRows
from airflow_provider_microbatch.sinks.delta import protocol
from airflow_provider_microbatch.sinks.delta.columns import OURS, Columns
from airflow_provider_microbatch.sinks.delta.log import MERGED, Snapshot
from airflow_provider_microbatch.sinks.delta.merged.history import History
from airflow_provider_microbatch.sinks.delta.merged.merging import Merging
from airflow_provider_microbatch.sinks.delta.merged.newest import NewestRecords
from airflow_provider_microbatch.sinks.delta.merged.put_back import put_back
from airflow_provider_microbatch.sinks.delta.table import Change, OpenDeltaTable, Ready
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.placed.logged import Published

WRITER = "airflow_provider_microbatch.runtime.changes:write"


class OpenMerged(OpenDeltaTable):
    """The operations that such tables share."""

    _merge: Merge
    """How changes are merged."""
    _newest: NewestRecords
    _history: History

    @abstractmethod
    def _mark_out(self, found: Published) -> None:
        """Record, durably, that the changes of an attempt that is in may go out: from the commit on that takes it out,
        nothing but this mark tells that they are there. Whoever finds the mark, and the attempt in, removes nothing."""

    @abstractmethod
    def _remove_out(self, found: Published) -> None:
        """Remove the changes of an attempt that is out for good, and their mark."""

    def _as_changes(self, stage: Stage) -> Stage:
        """A stage of rows as one of changes."""
        needed = list(dict.fromkeys((*self._merge.keys, *self._merge.sequence_by)))
        return replace(
            stage,
            writer=WRITER,
            arguments={**stage.arguments, "needed": needed, "delete_when": self._merge.delete_when},
            reserved_columns=(*stage.reserved_columns, DELETED),
        )

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        return OpenSink.published_rows(self, batch)

    def compact(self, wanted: Compaction) -> Compacted:
        return OpenSink.compact(self, wanted)

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with self._telling("look into", batch.key):
            snapshot = self._log.open()
            number = None if snapshot is None else snapshot.number(batch.key)
            try:
                if number is not None:
                    self._history.files_of(batch.key, number)
            except FileNotFoundError as error:
                return f"a file of its changes is gone ({error})"
            except SinkError as error:
                return str(error)
        return None

    def intake(self) -> Intake | None:
        return None  # a change that deletes its key has no values: which rows the table takes, a change does not tell

    def _check_writable(self, snapshot: Snapshot, *, held: Collection[str]) -> None:
        protocol.check(snapshot, partition_by=(), where=self._where)
        protocol.check_may_merge(snapshot, where=self._where)
        if snapshot.merged is None:
            if any(self._history.batches(snapshot)):
                raise SinkError(
                    f"the Delta table {self._where} has batches of rows, and the sink merges changes (merge=…). Give "
                    "the pipeline another table. Nothing was written."
                )
            return
        self._check_kept(snapshot)

    def check_whole(self) -> None:
        with self._telling("check the rows"):
            snapshot = self._log.open()
            if snapshot is not None:
                self._check_kept(snapshot)

    def _check_kept(self, snapshot: Snapshot) -> None:
        if snapshot.merged is None:
            return
        try:
            before, since = self._newest.get(snapshot.merged), self._newest.version(snapshot.merged)
        except FileNotFoundError as error:
            if self._is_outdated(snapshot):
                return  # the publish that has replaced it was checked
            raise self._lacks(error) from error
        had, has = (before.keys, before.sequence_by), (self._merge.keys, self._merge.sequence_by)
        if tuple(map(list, had)) != tuple(map(list, has)):
            raise SinkError(
                f"changes are merged into the Delta table {self._where} by keys={list(had[0])} and "
                f"sequence_by={list(had[1])}, and the sink says {list(has[0])} and {list(has[1])}: which of two "
                "changes is newer nobody could say. Nothing was written; go on by those of before, or write to "
                "another table."
            )
        away = put_back(snapshot, since=since)
        if away is not None:
            code = f"from deltalake import DeltaTable; {self._home.in_python}.restore({away.good})"
            raise SinkError(
                f"somebody has put the rows of the Delta table {self._where} back as a whole ({away.by}), and not the "
                "newest changes, by which the next change of a key is judged: keys would keep wrong rows. Nothing was "
                f"changed. Bring version {away.good} back: python -c {shlex.quote(code)} (where VACUUM has removed its "
                "files, have another table made by all batches again). To take batches out, use `microbatch rewind … "
                "--drop-output` after that."
            )

    def _shown(self, columns: Columns) -> Columns:
        kinds = {one["name"]: one["type"] for one in columns.fields}
        if set(kinds) > set(RESERVED_COLUMNS):
            self._check_order(kinds)
        aside = (DELETED, *self._merge.leave_out)
        return Columns([one for one in columns.fields if one["name"] not in aside])

    def _check_order(self, kinds: dict[str, object]) -> None:
        """:raises SinkError: if changes of these columns have no order, or no key."""
        for name in (*self._merge.keys, *self._merge.sequence_by):
            kind = kinds.get(name)
            what = None
            if kind is None:
                what = f"has no column {name!r}"
            elif not isinstance(kind, str):
                what = f"has the column {name!r} of nested values"
            elif name in self._merge.keys and kind in ("float", "double"):
                what = f"has the column {name!r} of the type {kind}, which equals itself not always"
            if what is not None:
                raise SinkError(
                    f"the result {what}, by which changes are merged into the Delta table {self._where}. Nothing was "
                    "published; change the transform, or the merge."
                )

    def _change(
        self,
        snapshot: Snapshot | None,
        batch: ExpectedBatch,
        *,
        out: Published | None,
        ready: Ready | None,
        before: tuple[int, int] | None,
    ) -> Change | None:
        columns = Columns(OURS) if ready is None else self._columns(ready.schema, ready.manifest)
        merging = Merging(
            home=self._home,
            merge=self._merge,
            records=self._newest,
            history=self._history,
            snapshot=snapshot,
            shown=self._shown(columns),
        )
        number = None if out is None else out.number
        try:
            change = merging.change(batch.key, columns, files=self._files_of(ready), out=number)
        except FileNotFoundError as error:
            if self._is_outdated(snapshot):
                return None  # another publish has removed what it has replaced
            raise self._lacks(error) from error
        if out is not None:
            self._mark_out(out)
        return change

    def _is_outdated(self, snapshot: Snapshot | None) -> bool:
        now = self._log.open()
        return now is not None and (snapshot is None or now.version > snapshot.version)

    def _lacks(self, error: FileNotFoundError) -> SinkError:
        return SinkError(
            f"a file is gone that the Delta table {self._where} needs to merge changes ({error}): somebody has removed "
            "it, or put back the log alone. Nothing was changed. Bring the folder _microbatch of the table back from "
            "its backup, or the whole table, of one moment; or have another table made by all batches again."
        )

    def _files_of(self, ready: Ready | None) -> Sequence[str]:
        return [] if ready is None else [f"{ready.below}/{now}" for _, now in self._in_place(ready)]

    def _let_go(self, out: Published | None, change: Change) -> None:
        if out is not None:
            self._remove_out(out)
        if MERGED in change.transactions:
            self._newest.sweep(change.transactions[MERGED])
