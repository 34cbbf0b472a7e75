"""Runs dead letters again, through mended code: a pipeline of its own in a lane of its own, into the same tables.

A batch of that lane has all letters of some batches, which no other batch of the lane has, so no letter comes twice.
Rows that it refuses again are letters that a later batch may have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import or_
from shlex import quote
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    DefinitionError,
    MaintenanceError,
    RolledBackError,
    SinkError,
    SourceChangedError,
    SourceError,
)
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.identity import expected, found_in, seen_in
from airflow_provider_microbatch.execution.letters_taken import (
    SOURCE,
    batches_of,
    leave_as_it_is,
    offset_of,
    replay_command,
    taken,
)
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.summary import BatchSummary, summaries, summarize
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.access import ACCESS
from airflow_provider_microbatch.runtime.job import NOTHING as NO_REQUIREMENTS
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, PublishedRows, Sink, SinkContext
from airflow_provider_microbatch.sources import UNLIMITED, OpenSource, ReadLimit, Source, SourceContext
from airflow_provider_microbatch.stores.location import open_store


@dataclass(frozen=True)
class LettersSource(Source):
    """The dead letters of a pipeline's batches. A transform finds them as ``batch.sources["dead_letters"]``, with the
    columns of :data:`~airflow_provider_microbatch.runtime.letters.COLUMNS`.

    :param checkpoint: the pipeline's checkpoint.
    :param letters: the sink with the letters.
    """

    checkpoint: str
    letters: Sink

    def open(self, context: SourceContext) -> OpenSource:
        return OpenLetters(self, context)

    def location(self) -> str:
        return self.letters.location()


@dataclass(frozen=True)
class _Part:
    """The letters of one batch.

    :param epoch: the attempt that they are of.
    :param rows: where they are.
    """

    key: BatchKey
    epoch: int | None
    rows: PublishedRows

    @property
    def arguments(self) -> dict[str, Any]:
        """How Spark reads them."""
        rows = self.rows
        return {
            "format": rows.format,
            "base": rows.base,
            "paths": list(rows.paths),
            "options": dict(rows.options),
            ACCESS: None if rows.access is None else f"{SOURCE}/{rows.access}",
            "lane": self.key.lane,
            "batch_id": self.key.id,
            "epoch": self.epoch,
        }


class OpenLetters(OpenSource):
    """A position is ``{"batches": ["live/3", "live/7"]}``, and its range is the letters of these batches. The source
    keeps no log: the entries of the lane say which letters were taken.

    :param source: the source's definition.
    :param context: gives the clock, and the checkpoint: the definition on record has the address at which the
        checkpoint was then, and nothing may be there any more.
    """

    def __init__(self, source: LettersSource, context: SourceContext) -> None:
        self._source = source
        self._checkpoint = Checkpoint(open_store(context.checkpoint))
        self._clock_ms = context.clock_ms
        self._opened = dict[str, OpenSink]()

    @property
    def splits(self) -> str:
        return "batches"

    def check(self) -> None:
        self._open(self._source.letters).check()

    def has_new(self, position: Offset | None) -> bool:
        return bool(self._to_take()[0])

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """All letters that no batch has taken, but for those that cannot be had now: a later batch has these.

        :raises SourceError: if there are none but those.
        """
        found, left = self._to_take()
        if left and not found:
            raise SourceError(" ".join(left.values()))
        return offset_of(found) if found else start

    def left(self) -> dict[BatchKey, str]:
        """Batches whose letters no batch has taken and none can have now; for each the reason, and what to do."""
        return self._to_take()[1]

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Read the range's letters.

        :raises SourceChangedError: if those of one of its batches cannot be read.
        :raises CheckpointError: if one of its batches is replayed at this moment, or waits for that.
        """
        parts = [] if start == end else list(map(self._part, batches_of(end)))
        return Read(
            reader="airflow_provider_microbatch.runtime.letters:read",
            arguments={"parts": [part.arguments for part in parts]},
            requires=reduce(or_, (part.rows.requires for part in parts), NO_REQUIREMENTS),
        )

    def secrets(self) -> Mapping[str, str]:
        """Those by which Spark reads letters, wherever a batch may have left them. A table whose connection is gone has
        none: its letters are refused before."""
        found: dict[str, str] = {}
        for sink in self._known_places():
            with suppress(SinkError):
                found |= sink.secrets()
        return found

    def _part(self, key: BatchKey) -> _Part:
        """The letters of one batch; raises as :meth:`read`."""
        try:
            batch = expected(self._checkpoint, load_batch(self._checkpoint, key).identity)
            sink = self._sink_of(batch)
            published, rows = sink.contains(batch), sink.published_rows(batch)
            if published is not None:
                self._check_of_one_attempt(batch, published.epoch)
        except (SinkError, CheckpointError, DefinitionError) as error:
            raise SourceChangedError(f"the dead letters of batch {key} cannot be read: {error}") from error
        epoch = None if published is None else published.epoch
        # After the look at the table, which has others once the replay's request is answered. Requests and attempts
        # are both on record before either side looks for the other's, so that one of the two at least is refused.
        check_not_replayed(self._checkpoint, key, epoch)
        return _Part(key, epoch, rows)

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check that the letters that were read are those that their batches have now, and will have: what a replay of
        such a batch has made of its rows meanwhile, or is about to publish, would be in the table twice."""
        now = self._epochs(self.read(start, end))
        epochs = (told or {}).get("epochs")
        if not isinstance(epochs, Mapping):
            return  # an older version's reader
        others = sorted(batch for batch, epoch in now.items() if epochs.get(batch, epoch) != epoch)
        if others:
            raise SourceChangedError(
                f"batch {', '.join(others)} was replayed while its dead letters were read, and has others now. Nothing "
                f"was published. Go on with those: {replay_command(self._checkpoint)}."
            )

    @staticmethod
    def _epochs(read: Read) -> dict[str, Any]:
        return {f"{part['lane']}/{part['batch_id']}": part["epoch"] for part in read.arguments["parts"]}

    def _sink_of(self, batch: ExpectedBatch) -> OpenSink:
        """Where the batch's letters are. They are not moved with the pipeline's ``dead_letters``, but somebody may have
        moved their table, more than once: where the attempt had them whose output the batch is, unless they are only at
        another place that a pipeline on record has for letters."""
        epoch = summarize(self._checkpoint, batch.key).epoch
        wrote = self._wrote(batch.key, epoch)
        if wrote is None:
            return self._open(self._source.letters)
        return next((sink for sink in self._places(wrote) if _has(sink, batch, epoch)), self._open(wrote))

    def _check_of_one_attempt(self, batch: ExpectedBatch, epoch: int) -> None:
        """Check that the tables which have the batch have it of the attempt that the letters are of. In one of a later
        attempt, a replay that was cut off between them, and whose clear was withdrawn, has made rows of them already;
        in one that was put back to before a clear, rows are still what that has made letters of.

        :raises SinkError: if one has it of another.
        """
        wrote = self._recorded(batch.key, epoch)
        for sink in () if wrote is None else wrote.tables:
            at = None if wrote is None or sink is wrote.dead_letters else self._seen(sink, batch)
            if at is None:
                continue
            table, found = at
            told, where = f"they are attempt {epoch}'s, and", table.location()
            if found.epoch > epoch:
                raise SinkError(
                    f"{told} {where} has the batch of attempt {found.epoch}: a replay was cut off between them, and "
                    "what it made of them would be there twice."
                )
            is_older = found.epoch < epoch
            back = f"it has the batch of attempt {found.epoch}" if is_older else table.put_back(batch, found)
            if back is not None:
                raise SinkError(
                    f"{told} {where} was put back to before that ({back}): rows of which a clear has made dead letters "
                    "are there, and would be there twice."
                )

    def _seen(self, wrote: Sink, batch: ExpectedBatch) -> tuple[OpenSink, Manifest] | None:
        """What readers find of the batch in a table, and where that is now; None if nothing. A table that is away tells
        nothing.

        :param wrote: the table as an attempt wrote to it.
        :raises RolledBackError: if the table was set back to before the batch.
        """
        for table in self._at(wrote):
            try:
                found = seen_in(table, batch)
            except RolledBackError:
                raise
            except SinkError:
                continue
            if found is not None:
                return table, found
        return None

    def _at(self, wrote: Sink) -> Iterator[OpenSink]:
        """A table where it was, and where any pipeline on record has it since it was moved."""
        yield self._open(wrote)
        for sink in self._on_record():
            for table in sink.tables:
                with suppress(SinkError, DefinitionError):
                    if self._open(table).is_table_of(wrote, self._checkpoint.tables):
                        yield self._open(table)

    def _recorded(self, key: BatchKey, epoch: int) -> Sink | None:
        """Where the attempt wrote to; None if that is not on record."""
        attempt = self._checkpoint.attempts.get(key, epoch)
        name = None if attempt is None else attempt.definition
        recorded = None if name is None else self._checkpoint.definitions.sink(name)
        return None if recorded is None else Sink.from_dict(recorded)

    def _wrote(self, key: BatchKey, epoch: int) -> Sink | None:
        """Where the attempt had its letters; None if that is not on record."""
        sink = self._recorded(key, epoch)
        return None if sink is None else sink.dead_letters

    def _places(self, wrote: Sink) -> Iterator[OpenSink]:
        yield self._open(wrote)
        yield from self._known_places()

    def _known_places(self) -> Iterator[OpenSink]:
        """Where letters are, or were, as the pipeline and the definitions on record say."""
        yield self._open(self._source.letters)
        yield from (self._open(sink.dead_letters) for sink in self._on_record() if sink.dead_letters is not None)

    def _on_record(self) -> Iterator[Sink]:
        for name in self._checkpoint.definitions.names():
            with suppress(CheckpointError, DefinitionError):  # whatever else is on record, one that is of use is enough
                recorded = self._checkpoint.definitions.sink(name)
                if recorded is not None:
                    yield Sink.from_dict(recorded)

    def _open(self, sink: Sink) -> OpenSink:
        """Opened once for all batches: what a table reads of its log for one serves the others."""
        form = str(sink.to_dict())
        if form not in self._opened:
            self._opened[form] = sink.open(SinkContext(clock_ms=self._clock_ms))
        return self._opened[form]

    def check_offset(self, offset: Offset) -> None:
        batches_of(offset)

    def in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        return {self.splits: 0 if start == end else len(batches_of(end))}

    def _to_take(self) -> tuple[list[BatchKey], dict[BatchKey, str]]:
        """Batches whose letters no batch has taken, and of these the ones whose letters cannot be had, as :meth:`left`
        has them: one of them must not keep all the others from being run again."""
        by, found, left = taken(self._checkpoint), list[BatchKey](), dict[BatchKey, str]()
        for batch in with_letters(self._checkpoint):
            if batch.key in by:
                continue
            try:
                self._part(batch.key)
            except SourceChangedError as error:
                left[batch.key] = f"{error} Then run this again. {self._anew(batch)}"
            except CheckpointError as error:
                left[batch.key] = str(error)
            else:
                found.append(batch.key)
        return found, left

    def gone(self, end: Offset | None) -> dict[BatchKey, str | None]:
        """Batches of a position whose letters cannot be read now; for each the clear that makes them anew, in words, as
        :meth:`_clear` has it."""
        found: dict[BatchKey, str | None] = {}
        for key in batches_of(end):
            try:
                self._part(key)
            except (SourceChangedError, CheckpointError):
                found[key] = None
                with suppress(CheckpointError):  # retention may have removed the batch: no clear makes it anew
                    found[key] = self._clear(summarize(self._checkpoint, key))
        return found

    def _anew(self, batch: BatchSummary) -> str:
        """How a batch is made anew with its letters, in words, if that is possible."""
        clear = self._clear(batch)
        if clear is not None:
            return f"Or {clear}"
        if batch.key.lane == LETTERS:  # whom no task of Airflow's has run
            rewind = command(self._checkpoint.lane(LETTERS), f"rewind --to {batch.key.id - 1} --drop-output")
            return f"Or {rewind}: then this runs the letters again that it had, and those of what came after it."
        letters = self._tables(batch)[0]
        they = f"They stay in {letters.location()}, and are" if letters.not_replaceable() else "They are"
        return f"No clear makes them anew: {self._refusal(batch)}. {they} named here as long as the log has the batch."

    def _clear(self, batch: BatchSummary) -> str | None:
        """The clear that makes a batch anew with its letters, in words; None if no clear does."""
        if batch.key.lane == LETTERS or self._refusal(batch) is not None:
            return None
        run = batch.planned_by
        whose = "its task" if run is None else run.in_words
        return f"clear {whose}: that makes the batch's rows and its dead letters anew."

    def _refusal(self, batch: BatchSummary) -> str | None:
        """Why a clear of the batch is refused, which replaces it in all its tables; None if it is not."""
        return next(filter(None, (table.not_replaceable() for table in self._tables(batch))), None)

    def _tables(self, batch: BatchSummary) -> Sequence[Sink]:
        """The tables that the batch was written to, that of its letters first: as far as is on record, that alone."""
        with suppress(CheckpointError, DefinitionError):  # it may be the very reason why letters cannot be read
            wrote = self._recorded(batch.key, batch.epoch)
            if wrote is not None and wrote.dead_letters is not None:
                return (wrote.dead_letters, *wrote.tables)
        return (self._source.letters,)


def check_not_replayed(checkpoint: Checkpoint, key: BatchKey, epoch: int | None) -> None:
    """Check that no replay of the batch is asked for, nor is one under way that may still replace its rows and letters:
    what it makes of the letters would be in the table twice.

    :param epoch: of the attempt whose letters the table has.
    :raises CheckpointError: if there is one, with the ways on.
    """
    attempts = checkpoint.attempts
    waiting = checkpoint.replays.pending(key)
    if waiting:
        by = waiting[-1].run
        whose = "" if by is None else f" (of run {by.run_id!r} of DAG {by.dag_id!r})"
        raise CheckpointError(
            f"the dead letters of batch {key} are not run again now: a clear of it{whose} waits for its answer, and "
            "its replay makes them anew. Let that run end, or clear its task again, and then run this again. Or "
            f"{leave_as_it_is(checkpoint, key)}."
        )
    # A clear that was withdrawn may have left one, whose process sleeps right before it publishes.
    for later in attempts.epochs.all(key):
        made = attempts.get(key, later) if later > (epoch or 0) and attempts.ended(key, later) is None else None
        if made is not None and made.request is not None:
            raise CheckpointError(
                f"the dead letters of batch {key} are not run again now: attempt {later} at it has not ended, and may "
                "replace them. If its process is dead, "
                f"`microbatch janitor {quote(checkpoint.location)}` ends it; then run this again."
            )


def _has(sink: OpenSink, batch: ExpectedBatch, epoch: int) -> bool:
    """Whether the sink has the batch as that attempt made it: a copy of before a replay has other letters. A sink that
    cannot tell, as the old place of a table that was moved cannot, has not."""
    with suppress(SinkError):
        found = found_in(sink, batch)
        return found is not None and found.epoch == epoch
    return False


def with_letters(checkpoint: Checkpoint) -> Iterator[BatchSummary]:
    """Batches of all lanes that have dead letters, in their order. Reads all entries that are kept."""
    for lane in checkpoint.lanes():
        yield from (batch for batch in summaries(checkpoint, lane=lane) if batch.dead_letters)


def replaying(pipeline: Pipeline, transform: str) -> Pipeline:
    """The pipeline that runs its dead letters again.

    :param transform: ``path/to/file.py:function``; gets ``batch.sources["dead_letters"]``, and returns what the
        pipeline's own transform returns.
    :raises MaintenanceError: if the pipeline keeps no dead letters, or has another source of their name.
    """
    letters = pipeline.sink.dead_letters
    if letters is None:
        raise MaintenanceError(f"pipeline {pipeline.name!r} has no dead_letters=…, so there are none to replay.")
    if SOURCE in pipeline.sources and not isinstance(pipeline.sources[SOURCE], LettersSource):
        raise MaintenanceError(f"pipeline {pipeline.name!r} has a source called {SOURCE!r}, as its letters would be.")
    return dataclasses.replace(
        pipeline,
        sources={SOURCE: LettersSource(pipeline.checkpoint, letters)},
        transform=transform,
        plan=LIVE,
        lookback=None,
        target_seconds=None,
        on_failure="fail",
    )


def letters_left(execution: Execution) -> dict[BatchKey, str]:
    """What the execution of :func:`execution_of` has left, as :meth:`OpenLetters.left` has it."""
    letters = execution.planner.sources.open(SOURCE)
    return letters.left() if isinstance(letters, OpenLetters) else {}


def execution_of(pipeline: Pipeline, checkpoint: Checkpoint, *, clock_ms: Callable[[], int] = now_ms) -> Execution:
    """The execution of the batches of :func:`replaying`, beside the pipeline's own.

    :raises MaintenanceError: if the checkpoint has sources by their positions: its entries could not name another
        source.
    """
    identity = checkpoint.identity()
    if identity is None or identity.format == "v1":
        raise MaintenanceError(
            f"{checkpoint.location} is of format v1, whose entries have the pipeline's own sources by their positions. "
            "Dead letters are replayed from a checkpoint of format v2."
        )
    checkpoint.names.add(SOURCE, by="dead-letters")
    return Execution(pipeline=pipeline, checkpoint=checkpoint, lane=LETTERS, clock_ms=clock_ms)
