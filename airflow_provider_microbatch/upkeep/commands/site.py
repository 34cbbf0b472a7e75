"""What a checkpoint tells of its pipeline when nobody has the DAG file: sources, sinks, who is alive."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    MaintenanceError,
    SinkError,
)
from airflow_provider_microbatch.execution.identity import expected_on_record, found_in, is_of_one_attempt
from airflow_provider_microbatch.execution.liveness import EngineOf, sign_of_life
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sources import OpenSource, Source


@dataclass(frozen=True, kw_only=True)
class Published:
    """A batch as the sink has it.

    :param manifest: what is published.
    :param sink: the sink it is in.
    """

    manifest: Manifest
    sink: OpenSink


class Recorded:
    """The pipeline as its attempts ran it. A sink on record that cannot be used from here (of a class that is gone, or
    that nobody trusts) is in the way only of who has to ask it.

    :param checkpoint: where the definitions lie.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._tables = checkpoint.tables.following_moves

    def published(self, key: BatchKey) -> Published | None:
        """The batch in the table, or None: it is in no sink that any attempt has ever written to, or in some of its
        tables only. What another checkpoint, or another plan, put at its place is not the batch.

        :raises MaintenanceError: if no pipeline is on record, so that nobody knows the sink; or if a sink that an
            attempt of the batch wrote to cannot be asked from here.
        :raises SinkError: if the sink cannot tell.
        :raises CorruptEntryError: if that is since an entry cannot be read, of a table's id or of an attempt.
        """
        batch = expected_on_record(self._checkpoint, key, tables=self._tables)
        unknown: SinkError | CorruptEntryError | None = None
        for sink in self.usable():
            try:
                manifest = found_in(sink, batch)
            except (SinkError, CorruptEntryError) as error:
                unknown = error  # it may be in another one
                continue
            if manifest is not None and not self.is_part(sink, manifest):
                return Published(manifest=manifest, sink=sink)
        if unknown is not None:
            raise unknown
        may_be_in = self._definitions_of(key)
        self._check_usable(self._unusable if may_be_in is None else self._unusable.keys() & may_be_in)
        return None

    def is_part(self, sink: OpenSink, found: Manifest) -> bool:
        """Whether the attempt that made what ``sink`` has wrote to more tables than this one is of: to those of a
        definition of before, or of after it. That all of these have the batch says nothing of the others."""
        try:
            attempt = self._checkpoint.attempts.get(found.key, found.epoch)
        except CheckpointError:
            return False
        wrote = None if attempt is None else self._usable.get(attempt.definition or "")
        return wrote is not None and len(sink.tables) < len(wrote.tables)

    def is_of_one_attempt(self, found: Published) -> bool:
        """Whether all tables of the sink have the batch of the attempt that was found: a replay may have been cut off
        between two of them."""
        batch = expected_on_record(self._checkpoint, found.manifest.key, tables=self._tables)
        return is_of_one_attempt(found.sink, batch, found.manifest)

    def everywhere(self, key: BatchKey) -> list[Published]:
        """The batch in each table that has it, in the order in which they are published, whether or not the other
        tables of their sink have it. Empty if it is nowhere; raises as :meth:`published`, which asks for all of it.
        """
        whole = self.published(key)
        sinks = self.usable() if whole is None else [whole.sink, *self.usable()]
        batch = expected_on_record(self._checkpoint, key, tables=self._tables)
        found = list[Published]()
        for sink in sinks:
            # A table beside those that have it already is another one, or a copy that nobody goes by any more.
            if found and not any(_is_one(table, one.sink) for table in sink.tables for one in found):
                continue
            for table in sink.tables:
                manifest = None if any(_is_one(table, one.sink) for one in found) else found_in(table, batch)
                if manifest is not None:
                    found.append(Published(manifest=manifest, sink=table))
        return found

    def whatever_is_at(self, key: BatchKey) -> list[Published]:
        """What the sinks have under the batch's number, whosever it is.

        :raises MaintenanceError: if no pipeline is on record, or a sink cannot be asked from here.
        """
        found = list[Published]()
        # A table may be that of two definitions, as where another one was added to it later: the one of more counts.
        for one in sorted(_at(key, self.sinks(), self._tables), key=lambda one: -len(one.sink.tables)):
            known = [table for other in found for table in other.sink.tables]
            if not all(any(_is_one(table, other) for other in known) for table in one.sink.tables):
                found.append(one)
        return found

    def of_another_life(self, key: BatchKey) -> list[Published]:
        """What this checkpoint published under the number by a plan that it does not know any more, in each table: it
        was restored from an older backup. Empty if there is nothing of the kind."""
        own = self._checkpoint.identity()
        # Attempts may be on record that the logs know nothing of: of a backup's files these alone were put back.
        is_planned = self._checkpoint.lane(key.lane).offset_log.has(key.id)
        made_here = [
            found
            for found in _at(key, tables_of(self.usable()), self._tables)
            if found.manifest.identity is not None
            and own is not None
            and found.manifest.identity.checkpoint == own.query_id
        ]
        return [] if made_here and is_planned and self.everywhere(key) else made_here

    def of_another_here(self, key: BatchKey) -> Published | None:
        """What another checkpoint published under the number while it lay where this one lies now. It was moved away,
        or removed, and what the table has of it stands in no log. None if there is nothing of the kind."""
        own = self._checkpoint.identity()
        for found in _at(key, tables_of(self.usable()), self._tables):
            made = found.manifest.identity
            if made is None or own is None or made.checkpoint == own.query_id:
                continue
            if made.location == self._checkpoint.location:
                return found
        return None

    def batches(self, lane: str) -> list[int]:
        """Ids that something is published under in any sink that can be asked, whosever it is, ascending.

        :raises SinkError: if a sink cannot tell.
        """
        return sorted({number for sink in self.usable() for number in sink.batches(lane, self._tables)})

    def sinks_of(self, key: BatchKey) -> list[OpenSink]:
        """Those usable sinks that attempts of the batch wrote to; all, if that is not known. It is in no other, unless
        somebody has moved or copied the table."""
        names = self._definitions_of(key)
        wrote = [sink.definition for name, sink in self._usable.items() if names is None or name in names]
        return [sink for sink in self.usable() if sink.definition in wrote]

    def sinks(self) -> list[OpenSink]:
        """All sinks of the checkpoint, each once.

        :raises MaintenanceError: if none is on record, or one cannot be used from here.
        """
        found = self.usable()
        self._check_usable(self._unusable)
        return found

    def usable(self) -> list[OpenSink]:
        """Those sinks that can be used from here, each once. Today's comes first: of a table that was copied it is that
        one that readers go by.

        :raises MaintenanceError: if none is on record.
        """
        found = list({str(sink.definition.to_dict()): sink for sink in self._usable.values()}.values())
        if not found and not self._unusable:
            raise MaintenanceError(
                f"{self._checkpoint.location} has no pipeline on record: none of this package has run an attempt here, "
                "so nobody can ask the sink which batches are in it."
            )
        return found

    def unusable(self) -> list[str]:
        """What is the matter with the sinks that cannot be used from here, in words, each with its definition."""
        return [self._unusable[name] for name in sorted(self._unusable)]

    def sink_of(self, attempt: Attempt) -> OpenSink | None:
        """The sink that the attempt wrote to; None if that is not on record.

        :raises MaintenanceError: if it cannot be used from here.
        """
        name = attempt.definition or ""
        self._check_usable(self._unusable.keys() & {name})
        return self._usable.get(name)

    @property
    def _usable(self) -> Mapping[str, OpenSink]:
        return self._loaded[0]

    @property
    def _unusable(self) -> Mapping[str, str]:
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[dict[str, OpenSink], dict[str, str]]:
        """Sinks, and what is the matter with those that cannot be used, by the names of their definitions."""
        found: dict[str, OpenSink] = {}
        refused: dict[str, str] = {}
        definitions, newest = self._checkpoint.definitions, self._newest_definition()
        for name in sorted(definitions.names(), key=lambda name: name != newest):
            try:
                recorded = definitions.sink(name)
                if recorded is not None:
                    found[name] = Sink.from_dict(recorded).open(SinkContext())
            except (DefinitionError, CheckpointError) as error:
                refused[name] = f"The sink of {definitions.where(name)} cannot be used from here: {error}"
        return found, refused

    def _newest_definition(self) -> str | None:
        """What the attempt ran that began last, of all lanes; None if none is on record."""
        attempts = self._checkpoint.attempts
        lanes = ((lane, attempts.epochs.ids(lane)) for lane in attempts.epochs.lanes())
        begun = [found for lane, ids in lanes if (found := self._newest_attempt(lane, ids)) is not None]
        newest = max(begun, key=lambda attempt: attempt.started_ms, default=None)
        return None if newest is None else newest.definition

    def _newest_attempt(self, lane: str, ids: Sequence[int]) -> Attempt | None:
        attempts = self._checkpoint.attempts
        for key in (BatchKey(lane, number) for number in reversed(ids)):
            for epoch in reversed(attempts.epochs.all(key)):
                with suppress(CheckpointError):
                    attempt = attempts.get(key, epoch)
                    if attempt is not None and attempt.definition is not None:
                        return attempt
        return None

    def _check_usable(self, names: Collection[str]) -> None:
        if names:
            told = " ".join(self._unusable[name] for name in sorted(names))
            raise MaintenanceError(
                f"{told} What is in its table decides here. Make it usable as said, or run the command where its "
                "pipeline ran: with the packages that were installed there. If it is none of yours, look who wrote it, "
                "and remove the file."
            )

    def _definitions_of(self, key: BatchKey) -> set[str] | None:
        """Definitions that attempts of the batch ran; None if that is not known, so that it may be any."""
        attempts, found = self._checkpoint.attempts, set[str]()
        for epoch in attempts.epochs.all(key):
            try:
                attempt = attempts.get(key, epoch)
            except CheckpointError:
                return None
            if attempt is not None and attempt.definition is not None:
                found.add(attempt.definition)
            elif attempt is None or not attempt.is_fence:
                return None  # of before pipelines were on record
        return found or None

    def source(self, name: str, *, lane: str) -> OpenSource | None:
        """The source beside the checkpoint, as the lane reads it; None if the newest attempt on record had none of that
        name."""
        sources = self.arguments(of_letters=lane == LETTERS).get("sources", {}).items()
        recorded = {self._checkpoint.names.of(one): found for one, found in sources}.get(name)
        if recorded is None:
            return None
        defined = {name: Source.from_dict(recorded)}
        return OpenedSources(defined, checkpoint=self._checkpoint, lane=lane, clock_ms=now_ms).open(name)

    def source_names(self) -> list[str]:
        """Names of the pipeline's sources, as they are called now."""
        return [self._checkpoint.names.of(name) for name in self.arguments().get("sources", {})]

    def arguments(self, *, of_letters: bool = False) -> Mapping[str, Any]:
        """Arguments of the pipeline as the newest attempt that can be read ran it; empty if there is none.

        :param of_letters: of the pipeline that runs its dead letters again, which has these as its source.
        """
        attempts, definitions = self._checkpoint.attempts, self._checkpoint.definitions
        lanes = (lane for lane in attempts.epochs.lanes() if (lane == LETTERS) == of_letters)
        for lane in sorted(lanes, key=lambda name: name != LIVE):
            for number in reversed(attempts.epochs.ids(lane)):
                key = BatchKey(lane, number)
                for epoch in reversed(attempts.epochs.all(key)):
                    try:
                        attempt = attempts.get(key, epoch)
                        found = definitions.get(attempt.definition) if attempt and attempt.definition else None
                    except CheckpointError:
                        continue
                    if found is not None:
                        arguments: Mapping[str, Any] = found["arguments"]
                        return arguments
        # No attempt was ever opened: then a plan that was refused has left the pipeline.
        left = [definitions.get(name) for name in definitions.names()]
        return next((found["arguments"] for found in left if found is not None), {})


def _at(key: BatchKey, sinks: Sequence[OpenSink], tables: KnownTables) -> list[Published]:
    anything = ExpectedBatch(identity=BatchIdentity.at(key), tables=tables, recognise=lambda found: found)
    found = [(sink.contains(anything), sink) for sink in sinks]
    return [Published(manifest=manifest, sink=sink) for manifest, sink in found if manifest is not None]


def _is_one(table: OpenSink, other: OpenSink) -> bool:
    return table.definition.is_same_place(other.definition)


def tables_of(sinks: Sequence[OpenSink]) -> list[OpenSink]:
    """Their tables, each once."""
    found = {str(table.definition.to_dict()): table for sink in sinks for table in sink.tables}
    return list(found.values())


def alive(checkpoint: Checkpoint, engine_of: EngineOf, *, parked: bool = True) -> list[str]:
    """Everybody who is at a batch, in words: a lease that runs, or an engine that says so.

    :param parked: count a stage that waits for its audits.
    :raises EngineError: if an engine cannot be asked.
    """
    suspects = set(checkpoint.leases.unfinished())
    for name in checkpoint.lanes():
        lane = checkpoint.lane(name)
        for number in {lane.offset_log.latest_id(), lane.commit_log.latest_id()} - {None}:
            assert number is not None
            key = BatchKey(name, number)
            suspects.update({(key, epoch) for epoch in [checkpoint.attempts.latest_epoch(key)] if epoch})
    found = []
    for key, epoch in sorted(suspects):
        sign = _sign(checkpoint, key, epoch, engine_of, parked=parked)
        if sign is not None:
            found.append(f"{key} attempt {epoch} ({sign})")
    return found


def _sign(checkpoint: Checkpoint, key: BatchKey, epoch: int, engine_of: EngineOf, *, parked: bool) -> str | None:
    try:
        attempt = checkpoint.attempts.get(key, epoch)
        if attempt is not None:
            # However long it has been an orphan: a command fences it, and stops nothing.
            return sign_of_life(checkpoint, attempt, engine_of, parked=parked, orphan_seconds=math.inf)
        seconds = checkpoint.leases.remaining_seconds(key, epoch, parked=parked)
    except CheckpointError:
        return None  # torn: what cannot be read is what `repair` is for, and its holder could not read it either
    return f"it is being opened, its lease runs for another {seconds:.0f} s" if seconds > 0 else None


def check_no_state(checkpoint: Checkpoint) -> None:
    """:raises MaintenanceError: if it would be left behind, and whoever goes on would begin with none."""
    if checkpoint.keeps_state:
        raise MaintenanceError(
            f"{checkpoint.location} keeps state of its batches (stateful=True), which cannot be taken along. Nothing "
            "was done. Begin a checkpoint and a table of their own there, which read from the beginning."
        )


def check_stateless(checkpoint: Checkpoint, recorded: Recorded) -> None:
    """See that no batch keeps state before one is counted that no run makes: it would keep none, and the next one would
    have nothing to go on from.

    :raises MaintenanceError: if batches do, or are to.
    """
    if checkpoint.keeps_state or recorded.arguments().get("stateful"):
        raise MaintenanceError(
            f"the pipeline of {checkpoint.location} keeps state (stateful=True): a batch that no run has made keeps "
            "none, and the next one would have nothing to go on from. Nothing was done. `microbatch rewind` goes back "
            "with the state; to read from elsewhere, begin a checkpoint and a table of their own."
        )
