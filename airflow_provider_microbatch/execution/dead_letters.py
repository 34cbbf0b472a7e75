"""Runs dead letters again, through mended code: a pipeline of its own in a lane of its own, into the same tables.

A batch of that lane has all letters of some batches, which no other batch of the lane has, so no letter comes twice.
Rows that it refuses again are letters that a later batch may have.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    DefinitionError,
    MaintenanceError,
    SinkError,
    SourceChangedError,
)
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.identity import expected, found_in
from airflow_provider_microbatch.execution.letters_taken import SOURCE, batches_of, taken
from airflow_provider_microbatch.execution.planned import load_batch
from airflow_provider_microbatch.execution.summary import BatchSummary, summaries, summarize
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink, Sink, SinkContext
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


class OpenLetters(OpenSource):
    """A position is ``{"batches": ["live/3", "live/7"]}``, and its range is the letters of these batches. The source
    keeps no log: the entries of the lane say which letters were taken.

    :param source: the source's definition.
    :param context: gives the clock.
    """

    def __init__(self, source: LettersSource, context: SourceContext) -> None:
        self._source = source
        self._checkpoint = Checkpoint(open_store(source.checkpoint))
        self._clock_ms = context.clock_ms

    @property
    def splits(self) -> str:
        return "batches"

    def check(self) -> None:
        self._open(self._source.letters).check()

    def has_new(self, position: Offset | None) -> bool:
        return bool(self._not_taken())

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        found = self._not_taken()
        return json.dumps({"batches": list(map(str, found))}) if found else start

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Read the range's letters. :raises SourceChangedError: if those of one of its batches cannot be read."""
        keys = [] if start == end else batches_of(end)
        parts = []
        for key in keys:
            try:
                batch = expected(self._checkpoint, load_batch(self._checkpoint, key).identity)
                rows = self._sink_of(batch).published_rows(batch)
            except (SinkError, CheckpointError, DefinitionError) as error:
                raise SourceChangedError(f"the dead letters of batch {key} cannot be read: {error}") from error
            parts.append({**dataclasses.asdict(rows), "lane": key.lane, "batch_id": key.id})
        return Read(reader="airflow_provider_microbatch.runtime.letters:read", arguments={"parts": parts})

    def _sink_of(self, batch: ExpectedBatch) -> OpenSink:
        """Where the batch's letters are. They are not moved with the pipeline's ``dead_letters``, but somebody may have
        moved their table, more than once: where the attempt had them whose output the batch is, unless they are only at
        another place that a pipeline on record has for letters."""
        epoch = summarize(self._checkpoint, batch.key).epoch
        attempt = self._checkpoint.attempts.get(batch.key, epoch)
        name = None if attempt is None else attempt.definition
        wrote = None if name is None else self._letters_of(name)
        if wrote is None:
            return self._open(self._source.letters)
        return next((sink for sink in self._places(wrote) if _has(sink, batch, epoch)), self._open(wrote))

    def _places(self, wrote: Sink) -> Iterator[OpenSink]:
        yield self._open(wrote)
        yield self._open(self._source.letters)
        for name in self._checkpoint.definitions.names():
            with suppress(CheckpointError, DefinitionError):  # whatever else is on record, one that is of use is enough
                letters = self._letters_of(name)
                if letters is not None:
                    yield self._open(letters)

    def _letters_of(self, definition: str) -> Sink | None:
        recorded = self._checkpoint.definitions.sink(definition)
        return None if recorded is None else Sink.from_dict(recorded).dead_letters

    def _open(self, sink: Sink) -> OpenSink:
        return sink.open(SinkContext(clock_ms=self._clock_ms))

    def check_offset(self, offset: Offset) -> None:
        batches_of(offset)

    def in_words(self, start: Offset | None, end: Offset | None) -> dict[str, int]:
        return {self.splits: 0 if start == end else len(batches_of(end))}

    def _not_taken(self) -> list[BatchKey]:
        found = taken(self._checkpoint)
        return [batch.key for batch in with_letters(self._checkpoint) if batch.key not in found]


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
