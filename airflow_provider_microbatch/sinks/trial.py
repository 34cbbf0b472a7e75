"""Tries a user's own sink against the promises of every such sink, on the real target that its fields name, without
Spark or a checkpoint. For ``microbatch check-sink``; :data:`CASES` lists what is tried.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import verdict
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.layout import MANIFEST
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, SinkContext
from airflow_provider_microbatch.sinks.foreach import ForeachBatch, ForeachSink, StagedRows
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.verdict import Broken, NotTried, Verdict, check_travels

LANE = "check-sink"
"""Lane of the batches that are written here; no pipeline has a lane of this name."""

Row = Mapping[str, Any]


class _CutOff(Exception):
    """The error that the trial raises half way through the rows of a stage."""


@dataclass(frozen=True)
class _CutOffRows(StagedRows):
    """Rows of which only the first can be read."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield next(super().__iter__())
        raise _CutOff

    @property
    def frame(self) -> Any:
        """Raises the error: a function that takes a frame takes all of its rows at once."""
        raise _CutOff


class Trial:
    """A sink under trial.

    :param sink: the sink.
    :param rows: rows that the sink can take, two at least.
    """

    def __init__(self, sink: ForeachSink, *, rows: Sequence[Row]) -> None:
        self.sink = sink
        self.rows = _of_one_type(rows)
        self.checkpoint = str(uuid.uuid4())
        self._next = 0
        self._written: list[ForeachBatch] = []

    def open(self) -> OpenSink:
        """The sink, opened anew as another process would open it."""
        return self.sink.open(SinkContext())

    def batch(self) -> ExpectedBatch:
        """A new batch, of which nothing exists yet."""
        key = BatchKey(LANE, self._next)
        self._next += 1
        whose = BatchIdentity(
            checkpoint=self.checkpoint, pipeline="check_sink", key=key, digest="d", location="check-sink"
        )
        # The checkpoint has no table's id on record.
        return ExpectedBatch(identity=whose, tables=KnownTables(PosixStore(str(self.sink.files.root / "_none"))))

    def told(
        self, batch: ExpectedBatch, epoch: int, *, is_replay: bool = False, checkpoint: str | None = None
    ) -> ForeachBatch:
        """The batch as the sink's function is given it; it is noted for :meth:`tidy_up`.

        :param checkpoint: id of another checkpoint, whose batch of that key it is.
        """
        found = ForeachBatch(
            key=batch.key,
            checkpoint=checkpoint or self.checkpoint,
            pipeline="check_sink",
            epoch=epoch,
            is_replay=is_replay,
        )
        self._written.append(found)
        return found

    def stage(self, batch: ExpectedBatch, epoch: int, rows: Sequence[Row]) -> StagedRows:
        """Write a stage with these rows, as Spark would."""
        path = Path(self.open().stage(batch.identity, epoch).arguments["path"].removeprefix("file://"))
        path.mkdir(parents=True)
        files = []
        for number, part in enumerate((rows[:1], rows[1:])):
            if part:
                files.append(path / f"part-{number:05}.{self.sink.format}")
                _write(files[-1], part, like=rows, format=self.sink.format)
        result = {"batchId": batch.key.id, "epoch": epoch, "numOutputRows": len(rows)}
        lines: list[dict[str, Any]] = [{"result": {**result, "identity": batch.identity.to_dict()}}]
        lines += [{"file": file.name, "bytes": file.stat().st_size} for file in files]
        (path / MANIFEST).mkdir()
        (path / MANIFEST / "part-00000.txt").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.told(batch, epoch)
        return StagedRows(tuple(files), self.sink.format)

    def published(self, rows: Sequence[Row]) -> ExpectedBatch:
        """Publish a batch with these rows as its first attempt."""
        batch = self.batch()
        self.stage(batch, 1, rows)
        self.open().publish(batch, 1)
        return batch

    def check(self, batch: ExpectedBatch, rows: Sequence[Row], when: str) -> None:
        """:raises Broken: if the target does not have exactly these rows of the batch."""
        found, wanted = _counted(self._held(batch)), _counted(rows)
        if found != wanted:
            parts = [
                f"{word}: {left.total()} row(s), such as {next(iter(left))}"
                for word, left in (("missing", wanted - found), ("too many", found - wanted))
                if left
            ]
            raise Broken(f"{when}, held gives {found.total()} rows of batch {batch.key}: {'; '.join(parts)}")

    def tidy_up(self) -> None:
        """Take the trial's batches out of the target, if the sink can do so, and remove all stages."""
        if self.sink.can_withdraw:
            for batch in {one.name: one for one in self._written}.values():
                self.sink.take_out(batch)
        for folder in (self.sink.files.root / f"lane={LANE}", self.sink.files.root / "_staging" / self.checkpoint):
            shutil.rmtree(folder, ignore_errors=True)

    def _held(self, batch: ExpectedBatch) -> list[Row]:
        try:
            return self.sink.held(self.told(batch, 1))
        except NotImplementedError:
            raise NotTried("without a method held(batch) nobody sees what write has done") from None


def the_definition_travels_as_json(trial: Trial) -> None:
    check_travels(trial.sink)


def it_can_be_used(trial: Trial) -> None:
    trial.open().check()


def rows_are_there_as_they_were_given(trial: Trial) -> None:
    trial.check(trial.published(trial.rows), trial.rows, "after a publish")


def a_batch_without_rows_is_taken(trial: Trial) -> None:
    trial.check(trial.published([]), [], "after a publish of no row")


def batches_do_not_meet(trial: Trial) -> None:
    one, other = trial.published(trial.rows), trial.published(trial.rows[:1])
    trial.check(one, trial.rows, "after another batch was published")
    trial.check(other, trial.rows[:1], "beside another batch")


def those_of_two_checkpoints_do_not_meet(trial: Trial) -> None:
    batch = trial.published(trial.rows)
    rows = trial.stage(trial.batch(), 1, trial.rows[:1])
    trial.sink.write(trial.told(batch, 1, checkpoint=str(uuid.uuid4())), rows)
    trial.check(batch, trial.rows, "after another checkpoint's batch of that key was written (batch.name differs)")


def a_write_that_nobody_heard_of_is_said_again_and_changes_nothing(trial: Trial) -> None:
    batch = trial.batch()
    trial.sink.write(trial.told(batch, 1), trial.stage(batch, 1, trial.rows))
    trial.sink.write(trial.told(batch, 2), trial.stage(batch, 2, trial.rows))
    trial.check(batch, trial.rows, "after two attempts have written the same rows")


def a_write_that_was_cut_off_is_made_good_by_the_next(trial: Trial) -> None:
    batch, rows = trial.batch(), trial.stage(trial.batch(), 1, trial.rows)
    try:
        trial.sink.write(trial.told(batch, 1), _CutOffRows(rows.files, rows.format))
    except _CutOff:
        pass
    except Exception as error:
        if not _is_caused_by_cut(error):
            raise
    else:
        raise Broken("write returned although the rows could not be read to their end: the batch would count as in")
    half = Counter[str]()
    try:
        half = _counted(trial._held(batch))
    finally:
        trial.sink.write(trial.told(batch, 2), trial.stage(batch, 2, trial.rows))
    trial.check(batch, trial.rows, "after an attempt was cut off half way, and the next one has written")
    if half:
        raise Broken(f"readers see {half.total()} of {len(trial.rows)} rows of an attempt that was cut off half way")


def a_replay_leaves_only_its_own_rows(trial: Trial) -> None:
    batch = trial.published(trial.rows)
    trial.stage(batch, 2, trial.rows[:1])
    trial.open().replace(batch, 2)
    trial.check(batch, trial.rows[:1], "after a replay with fewer rows")


def a_batch_can_be_taken_out_and_come_back(trial: Trial) -> None:
    if not trial.sink.can_withdraw:
        raise NotTried("it has no method take_out(batch): rewind --drop-output is refused")
    batch = trial.published(trial.rows)
    trial.open().withdraw(batch, 1)
    trial.check(batch, [], "after it was taken out")
    trial.sink.take_out(trial.told(batch, 1, is_replay=True))
    trial.stage(batch, 2, trial.rows)
    trial.open().publish(batch, 2)
    trial.check(batch, trial.rows, "after it came back")


CASES: Sequence[Callable[[Trial], None]] = (
    the_definition_travels_as_json,
    it_can_be_used,
    rows_are_there_as_they_were_given,
    a_batch_without_rows_is_taken,
    batches_do_not_meet,
    those_of_two_checkpoints_do_not_meet,
    a_write_that_nobody_heard_of_is_said_again_and_changes_nothing,
    a_write_that_was_cut_off_is_made_good_by_the_next,
    a_replay_leaves_only_its_own_rows,
    a_batch_can_be_taken_out_and_come_back,
)


def verdicts(trial: Trial) -> Iterator[Verdict]:
    """Try each case, in order; at the end, take out of the target whatever the sink can take out."""
    try:
        yield from verdict.verdicts(CASES, trial)
    finally:
        trial.tidy_up()


def _is_caused_by_cut(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _CutOff):
            return True
        error = error.__cause__ or error.__context__
    return False


def _of_one_type(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows as Spark types their columns: a column of whole numbers and fractions is one of fractions."""
    fractions = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    return [
        {name: float(value) if name in fractions and type(value) is int else value for name, value in row.items()}
        for row in rows
    ]


def _counted(rows: Sequence[Row]) -> Counter[str]:
    return Counter(json.dumps(dict(row), sort_keys=True, default=repr, ensure_ascii=False) for row in rows)


def _write(path: Path, rows: Sequence[Row], *, like: Sequence[Row], format: str) -> None:
    """:param like: rows from which each column gets its type, even if it is null in all of ``rows``."""
    if format == "json":
        path.write_text("".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise SinkError(f"files of parquet need pyarrow, which is not installed here ({error}).") from error
    schema = pa.Table.from_pylist([dict(row) for row in like]).schema
    parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)
