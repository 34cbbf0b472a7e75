"""Batches that are in a table by its log, which names each batch's manifest by a number."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.sinks.file.arguments import RESERVED_COLUMNS
from airflow_provider_microbatch.sinks.placed.records import Records

log = logging.getLogger(__name__)

WRITER = "airflow_provider_microbatch.runtime.write:write_marked"
"""Writes the stages of such tables: each row says which batch it belongs to."""


def constants_of(key: BatchKey) -> dict[str, str | int]:
    """The columns by which a row says so."""
    return dict(zip(RESERVED_COLUMNS, (key.lane, key.id), strict=True))


@dataclass(frozen=True)
class Published:
    """A batch's output that the log says is in.

    :param number: number of its manifest.
    :param manifest: the manifest as it was written.
    :param own: the manifest as the asking checkpoint counts it.
    """

    number: int
    manifest: Manifest
    own: Manifest


class OpenLogged(OpenSink):
    """What sinks of such tables ask of a batch that the log names, wherever the table lies."""

    _records: Records
    _rows_are_judged: bool

    @property
    @abstractmethod
    def _where(self) -> str:
        """A name for the table, for people."""

    @abstractmethod
    def _put(self, batch: ExpectedBatch, epoch: int, *, replaces: bool) -> Manifest:
        """Commit the attempt's files to the table, or find that some attempt's files are in it."""

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        return self.contains(batch) or self._put(batch, epoch, replaces=False)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        self.contains(batch)
        return self._put(batch, epoch, replaces=True)

    def _published_as(self, number: int | None, batch: ExpectedBatch) -> Published | None:
        """The output that the log names by that number; None if the log names none.

        :raises ForeignBatchError: if other output is at the batch's place.
        """
        if number is None:
            return None
        manifest = self._records.get(batch.key, number)
        return Published(number, manifest, batch.check(manifest, where=self.location()))

    def _stands(self, found: Published, epoch: int, *, replaces: bool) -> bool:
        """Whether the published output stays, and the attempt's files are not put in its place.

        :raises PublishConflictError: if a later replay than this one has been published.
        """
        if replaces and found.own.epoch > epoch:
            raise PublishConflictError(
                f"batch {found.own.key}: attempt {found.own.epoch} is published, which is later than attempt {epoch}. "
                "Nothing was replaced."
            )
        return not replaces or found.own.epoch == epoch

    def _check_is_of(self, found: Published, epoch: int) -> None:
        """:raises SinkError: if the output to be taken out is not that attempt's."""
        if found.own.epoch != epoch:
            raise SinkError(
                f"batch {found.own.key} of {self._where} is attempt {found.own.epoch}'s, not {epoch}'s: replaced "
                "meanwhile. Nothing was taken out; run the command again."
            )

    def check_held(self, batch: BatchIdentity, epoch: int, *, kept_in: str | None = None) -> None:
        staged, now = self.manifest(batch, epoch), self.intake() if self._rows_are_judged else None
        if staged is not None and now is not None:
            self._check_held(now, staged.held_to, kept_in=kept_in)

    def _check_held(self, now: Intake, held: Collection[str], *, kept_in: str | None = None) -> None:
        """:param held: the rules that the rows of a stage were held against."""
        new = [rule for rule in now.rules if rule not in held]
        if new:
            ways_on = "Nothing was published; run the batch again."
            if kept_in is not None:
                ways_on = (
                    f"The attempt is in {kept_in} for good: take them off the table (ALTER TABLE … DROP CONSTRAINT, or "
                    "ALTER COLUMN … DROP NOT NULL), run the batch, and put them on again."
                )
            raise SinkError(
                f"{self._where} takes rows by {', '.join(new)}, which the rows of this attempt were not held against: "
                f"the table was changed since the attempt began. {ways_on}"
            )

    def _deleted_meanwhile(self, key: BatchKey, commits: str) -> SinkError:
        return SinkError(
            f"somebody else has deleted or overwritten rows of batch {key} of {self._where} while they were about to "
            f"be replaced ({commits}). Nothing was replaced. If the batch's rows are wanted, clear its task once more."
        )

    def _warn_of_deleted(self, found: Published, rows: int) -> None:
        """:param rows: how many of the batch's rows are in now."""
        wrote = rows_written(found.manifest)
        if wrote is not None and rows < wrote:
            log.warning(
                "batch %s of %s had %s rows when it was published, and has %s now: somebody has deleted the others. "
                "The replay brings them back.", found.manifest.key, self._where, wrote, rows,
            )  # fmt: skip


def check_tells_batches(names: Collection[str], batches: Iterable[BatchKey], *, where: str, back: str) -> None:
    """Check that the rows of a table say which batch they are of, where it has batches. Else a replay finds no rows to
    replace, and a removal none to take out: both would leave them, and the rows that are read again would be doubled.

    :param names: the table's columns.
    :param batches: those that are in; asked for one where the columns are gone.
    :param where: the table.
    :param back: the way to have the columns again.
    :raises SinkError: if they do not, with the ways on.
    """
    gone = [name for name in RESERVED_COLUMNS if name not in names]
    key = next(iter(batches), None) if gone else None
    if key is not None:
        raise SinkError(
            f"{where} has batches, such as {key}, and no column {' and '.join(map(repr, gone))} any more: somebody has "
            "written it anew with other columns, and which of its rows are of which batch cannot be known. A replay "
            f"would double them, and nothing could be taken out. Nothing was done there. {back}, and write nothing "
            "without these columns; or give the pipeline a new checkpoint and a new table."
        )


def rows_written(manifest: Manifest) -> int | None:
    """How many rows the batch brought to this table; None if that is not known."""
    result = manifest.result
    by_sink = result.get("numOutputRowsBySink")
    # Where a batch has several tables, manifests of older versions do not say which figure is this table's.
    wrote = result.get("numOutputRows") if by_sink is None else by_sink.get(result.get("sink"))
    return wrote if isinstance(wrote, int) else None
