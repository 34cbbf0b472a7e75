"""A Delta table into which changes are merged, opened, wherever it lies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest, OpenSink, PublishedRows
from airflow_provider_microbatch.sinks.delta import protocol
from airflow_provider_microbatch.sinks.delta.change import Change, Ready
from airflow_provider_microbatch.sinks.delta.columns import OURS, Columns
from airflow_provider_microbatch.sinks.delta.log import MERGED, Snapshot
from airflow_provider_microbatch.sinks.delta.merged.merging import Merging
from airflow_provider_microbatch.sinks.delta.put_back import put_back, restoring, target_of
from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.checks import (
    ANEW,
    check_files,
    check_like_before,
    check_order,
    lacking,
    rows_there,
    unless_outdated,
)
from airflow_provider_microbatch.sinks.merged.columns import shown
from airflow_provider_microbatch.sinks.merged.history import History
from airflow_provider_microbatch.sinks.merged.judging import Judging
from airflow_provider_microbatch.sinks.merged.newest import NewestRecords
from airflow_provider_microbatch.sinks.merged.stage import of_changes
from airflow_provider_microbatch.sinks.placed.logged import Published
from airflow_provider_microbatch.sinks.placed.unrecorded import Asked


class OpenMerged(OpenDeltaTable):
    """The operations that such tables share."""

    _merge: Merge
    """How changes are merged."""
    _newest: NewestRecords
    _history: History

    @property
    def _named(self) -> str:
        """The table, for messages."""
        return f"the Delta table {self._where}"

    @abstractmethod
    def _mark_out(self, found: Published) -> None:
        """Record, durably, that the changes of an attempt that is in may go out: from the commit on that takes it out,
        nothing but this mark tells that they are there. Whoever finds the mark, and the attempt in, removes nothing."""

    @abstractmethod
    def _remove_out(self, found: Published) -> None:
        """Remove the changes of an attempt that is out for good, and their mark."""

    def _as_changes(self, stage: Stage) -> Stage:
        """A stage of rows as one of changes."""
        return of_changes(stage, self._merge)

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        return OpenSink.published_rows(self, batch)

    def compact(self, wanted: Compaction) -> Compacted:
        return OpenSink.compact(self, wanted)

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        with self._telling("look into", batch.key):
            snapshot = self._log.open()
            number = None if snapshot is None else snapshot.number(batch.key)
            return None if number is None else self._history.damage(batch.key, number)

    def _unrecorded(self, snapshot: Snapshot, asked: Asked) -> str | None:
        return None  # made again, its changes take the place of the rows that their keys have there

    def intake(self) -> Intake | None:
        return None  # a change that deletes its key has no values: which rows the table takes, a change does not tell

    def _check_writable(self, snapshot: Snapshot, *, held: Collection[str]) -> None:
        protocol.check(snapshot, partition_by=(), where=self._where, records=self._records)
        protocol.check_may_merge(snapshot, where=self._where)
        if snapshot.merged is None:
            if any(self._history.batches(snapshot.number)):
                raise rows_there(self._named)
            return
        self._check_kept(snapshot)

    def check_whole(self) -> None:
        with self._telling("check the rows"):
            snapshot = self._log.open()
            if snapshot is not None:
                protocol.check_whole(snapshot, partition_by=(), where=self._where, records=self._records)
                self._check_kept(snapshot, files=True)

    def _check_kept(self, snapshot: Snapshot, *, files: bool = False) -> None:
        """:param files: whether each file of the newest changes is looked for too, which a publish does as it reads."""
        if snapshot.merged is None:
            return
        try:
            before = self._newest.get(snapshot.merged)
            since = self._newest.version(snapshot.merged, up_to=snapshot.version)
            if files:
                check_files(before, self._home, where=self._named)
        except FileNotFoundError as error:
            if self._is_outdated(snapshot):
                return  # the publish that has replaced it was checked
            raise lacking(error, log="the log", where=self._named) from error
        check_like_before(before, self._merge, where=self._named)
        infos = snapshot.history_after(since)
        away = put_back(infos, at=snapshot.version, since=since, led_to=target_of)
        if away is not None:
            beside = f" That takes out what others have committed since ({away.beside})." if away.beside else ""
            raise SinkError(
                f"somebody has put the rows of the Delta table {self._where} back as a whole ({away.by}), and not the "
                "newest changes, by which the next change of a key is judged: keys would keep wrong rows. Nothing was "
                f"changed. Bring version {away.good} back: {restoring(self._home, away.good)} (where VACUUM has "
                f"removed its files, {ANEW}).{beside} To take batches out, use `microbatch rewind … --drop-output` "
                "after that."
            )

    def _shown(self, columns: Columns) -> Columns:
        kinds = {one["name"]: one["type"] if isinstance(one["type"], str) else None for one in columns.fields}
        if set(kinds) > set(RESERVED_COLUMNS):
            check_order(kinds, self._merge, where=self._named)
        fields = {one["name"]: one for one in columns.fields}
        return Columns([{**fields[of], "name": name} for name, of in shown(fields, self._merge).items()])

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
        judging = Judging(
            merge=self._merge,
            files=self._home,
            records=self._newest,
            history=self._history,
            batches=lambda: () if snapshot is None else self._history.batches(snapshot.number),
            where=self._named,
        )
        merging = Merging(home=self._home, judging=judging, snapshot=snapshot, shown=self._shown(columns))
        number = None if out is None else out.number
        change = unless_outdated(
            lambda: merging.change(batch.key, columns, files=self._files_of(ready), out=number),
            is_outdated=lambda: self._is_outdated(snapshot),
            log="the log",
            where=self._named,
        )
        if out is not None and change is not None:
            self._mark_out(out)
        return change

    def _is_outdated(self, snapshot: Snapshot | None) -> bool:
        now = self._log.open()
        return now is not None and (snapshot is None or now.version > snapshot.version)

    def _files_of(self, ready: Ready | None) -> Sequence[str]:
        return [] if ready is None else [f"{ready.below}/{now}" for _, now in self._in_place(ready)]

    def _let_go(self, out: Published | None, change: Change) -> None:
        if out is not None:
            self._remove_out(out)
        if MERGED in change.transactions:
            self._newest.sweep(change.transactions[MERGED])
