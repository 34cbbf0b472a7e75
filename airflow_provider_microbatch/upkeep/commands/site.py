"""The pipeline as its checkpoint records it, for commands without the DAG file: sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.checkpoint.refused_plans import RefusedPlan
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import (
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
    MaintenanceError,
    SinkError,
)
from airflow_provider_microbatch.execution.identity import expected_on_record, found_in, is_of_one_attempt, seen_in
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.ran_last import newest_first, newest_pipeline
from airflow_provider_microbatch.execution.refused_plan import refused_plan
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.sources import OpenSource, Source
from airflow_provider_microbatch.upkeep.commands.gone import Answering, is_gone, never_had, not_reached
from airflow_provider_microbatch.upkeep.commands.sinks_on_record import SinksOnRecord
from airflow_provider_microbatch.upkeep.commands.told import Told, told_by

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A batch as the sink has it.

    :param manifest: manifest of the published batch.
    :param sink: the sink that has the batch.
    """

    manifest: Manifest
    sink: OpenSink


class Recorded:
    """The pipeline as its attempts ran it. A sink on record that cannot be used from here (its class is gone, or is not
    trusted) only stops commands that have to ask this sink.

    :param checkpoint: the checkpoint that has the definitions.
    :param abandons: a lane, of which tables of before (:func:`is_left`) count as gone where they cannot be asked:
        whoever gives the command says that they are gone for good. None: no table is abandoned.
    """

    def __init__(self, checkpoint: Checkpoint, *, abandons: str | None = None) -> None:
        self._checkpoint = checkpoint
        self._tables = checkpoint.tables.following_moves
        self._sinks = SinksOnRecord(checkpoint)
        self._abandons = abandons
        self._answering = Answering(self._tables)
        self._gone: dict[str, bool] = {}
        self._refused: dict[str, RefusedPlan | None] = {}
        self._pipelines: dict[bool, tuple[str, Mapping[str, Any]] | None] = {}

    def published(self, key: BatchKey) -> Published | None:
        """The batch in the table, or None: no sink that any attempt has ever written to has the batch, or only some of
        its tables have it. Output of another checkpoint, or of another plan, at the batch's place is not the batch.

        :raises MaintenanceError: if no pipeline is on record, so that the sink is unknown; or if a sink that an attempt
            of the batch wrote to cannot be asked from here.
        :raises SinkError: if the sink cannot tell.
        :raises CorruptEntryError: if the sink cannot tell because an entry, of a table's id or of an attempt, cannot be
            read.
        """
        batch = expected_on_record(self._checkpoint, key, tables=self._tables)
        unknown: SinkError | CorruptEntryError | None = None
        for sink in self.usable():
            try:
                manifest = self.asked(found_in, sink, batch)
            except (SinkError, CorruptEntryError) as error:
                unknown = error  # another sink may have the batch
                continue
            if manifest is not None and not self.is_part(sink, manifest):
                return Published(manifest=manifest, sink=sink)
        if unknown is not None:
            raise unknown
        may_be_in = self._definitions_of(key)
        self._sinks.check(self._sinks.unusable if may_be_in is None else self._sinks.unusable.keys() & may_be_in)
        return None

    def is_part(self, sink: OpenSink, found: Manifest) -> bool:
        """Whether the attempt that made the batch in ``sink`` wrote to more tables than those of this sink: to those of
        an earlier or later definition. If all tables of this sink have the batch, that tells nothing about the other
        tables."""
        try:
            attempt = self._checkpoint.attempts.get(found.key, found.epoch)
        except CheckpointError:
            return False
        wrote = None if attempt is None else self._sinks.usable.get(attempt.definition or "")
        return wrote is not None and len(sink.tables) < len(wrote.tables)

    def is_of_one_attempt(self, found: Published) -> bool:
        """Whether all tables of the sink have the batch of the attempt that was found: a replay may have been cut off
        between two tables."""
        batch = expected_on_record(self._checkpoint, found.manifest.key, tables=self._tables)
        return is_of_one_attempt(found.sink, batch, found.manifest)

    def everywhere(self, key: BatchKey) -> list[Published]:
        """The batch in each table that has it, in the order in which the tables are published, whether or not the other
        tables of the sink have it, or readers find all of it. Empty if no table has it; raises as
        :meth:`published`, which looks for the whole batch."""
        whole = self.published(key)
        sinks = self.usable() if whole is None else [whole.sink, *self.usable()]
        batch = expected_on_record(self._checkpoint, key, tables=self._tables)
        found = list[Published]()
        for sink in sinks:
            # A table besides those that have the batch already is another table, or a copy that readers no longer use.
            if found and not any(is_among(table, [one.sink for one in found]) for table in sink.tables):
                continue
            for table in sink.tables:
                is_known = is_among(table, [one.sink for one in found])
                manifest = None if is_known else self.asked(seen_in, table, batch)
                if manifest is not None:
                    found.append(Published(manifest=manifest, sink=table))
        return found

    def asked(
        self, question: Callable[[OpenSink, ExpectedBatch], Answer | None], table: OpenSink, batch: ExpectedBatch
    ) -> Answer | None:
        """What a table, or a sink of several, tells of the batch; None, too, if it cannot tell and never had it, or is
        gone."""
        try:
            return question(table, batch)
        except (SinkError, CorruptEntryError):
            if not (self._never_had(table, batch.key) or self.is_gone(table) or self.abandoned([table])):
                raise
            return None

    def _never_had(self, sink: OpenSink, key: BatchKey) -> bool:
        """See :func:`never_had`."""
        with suppress(CheckpointError):
            names = self._definitions_of(key)
            # Nobody knows where adopted output was, nor where a sink wrote to that cannot be used from here.
            if names is None or names & self._sinks.unusable.keys() or self._checkpoint.adoptions.get(key) is not None:
                return False
            return never_had(self._checkpoint, sink, key, wrote=tables_of(self.sinks_of(key)))
        return False

    def refused(self, lane: str) -> RefusedPlan | None:
        """The plan of the lane that was refused last, as :func:`refused_plan` has it. Looked up once: a fence that a
        command drafts meanwhile would count as an attempt of a plan since.

        :raises CorruptEntryError: if an entry that tells cannot be read.
        """
        if lane not in self._refused:
            self._refused[lane] = refused_plan(self._checkpoint, lane)
        return self._refused[lane]

    def whatever_is_at(self, key: BatchKey, *, partly: bool = False) -> list[Published]:
        """The batches in the sinks under this number, of any checkpoint.

        :param partly: whether those count of which readers find only a part.
        :raises MaintenanceError: if no pipeline is on record, or a sink cannot be asked from here.
        """
        found = list[Published]()
        # A table may belong to two definitions, if a second table was added later: the definition with more tables
        # counts.
        at = _at(key, self.sinks(), self._tables, partly=partly)
        for one in sorted(at, key=lambda one: -len(one.sink.tables)):
            known = [table for other in found for table in other.sink.tables]
            if not all(is_among(table, known) for table in one.sink.tables):
                found.append(one)
        return found

    def in_one_table(self, key: BatchKey) -> list[Published]:
        """Like :meth:`whatever_is_at`, of each table alone, whether or not the others of its sink have the batch."""
        return _at(key, tables_of(self.sinks()), self._tables)

    def of_another_life(self, key: BatchKey, *, tables: Sequence[OpenSink] | None = None) -> list[Published]:
        """The batch in each table that this checkpoint published under the number by a plan that it no longer knows,
        since it was restored from an older backup. Empty if there is none.

        :param tables: the tables to look in; None: all that can be used from here.
        """
        own = self._checkpoint.identity()
        # Attempts may be on record that the logs do not know, if a restore put back attempts alone.
        is_planned = self._checkpoint.lane(key.lane).offset_log.has(key.id)
        made_here = [
            found
            for found in _at(key, tables_of(self.usable()) if tables is None else tables, self._tables)
            if found.manifest.identity is not None
            and own is not None
            and found.manifest.identity.checkpoint == own.query_id
        ]
        return [] if made_here and is_planned and self.everywhere(key) else made_here

    def of_another_here(self, key: BatchKey) -> Published | None:
        """The batch that another checkpoint published under the number while it lay at this checkpoint's location. That
        checkpoint was moved away or removed, and no log has the batch. None if there is no such batch."""
        own = self._checkpoint.identity()
        for found in _at(key, tables_of(self.usable()), self._tables):
            made = found.manifest.identity
            if made is None or own is None or made.checkpoint == own.query_id:
                continue
            if made.location == self._checkpoint.location:
                return found
        return None

    def batches(self, lane: str) -> list[int]:
        """Ids under which any sink that can be asked has a batch, of any checkpoint, ascending.

        :raises SinkError: if a sink cannot tell.
        """
        return sorted({number for sink in self.usable() for number in sink.batches(lane, self._tables)})

    def told(self, lane: str) -> Told:
        """What each table that can be used from here tells of a lane. The others may keep what they have.

        :raises MaintenanceError: if no sink is on record.
        """
        found = told_by(tables_of(self.usable()), lane, self._tables)
        others = [f"{why} If it is none of yours, look who wrote it, and remove the file." for why in self.unusable()]
        return replace(found, keeping=(*found.keeping, *others))

    def sinks_of(self, key: BatchKey) -> list[OpenSink]:
        """The usable sinks that attempts of the batch wrote to; all usable sinks, if that is unknown. No other sink has
        the batch, unless a user has moved or copied the table."""
        names = self._definitions_of(key)
        wrote = [sink.definition for name, sink in self._sinks.usable.items() if names is None or name in names]
        return [sink for sink in self.usable() if sink.definition in wrote]

    def sinks(self) -> list[OpenSink]:
        """All sinks of the checkpoint, each once.

        :raises MaintenanceError: if none is on record, or one cannot be used from here.
        """
        found = self.usable()
        self._sinks.check(self._sinks.unusable)
        return found

    def usable(self) -> list[OpenSink]:
        """The sinks that can be used from here, each once, without those that are gone, unless all are. The current
        sink comes first: if a table was copied, readers use the current sink's table.

        :raises MaintenanceError: if none is on record.
        """
        found = self.on_record()
        return [sink for sink in found if not self.is_gone(sink)] or found

    def is_gone(self, sink: OpenSink) -> bool:
        """Whether all that the sink wrote to was dropped from tables that are there (a branch that was merged, say), or
        goes by other names now. It can be asked for nothing, and would stop every command that asks all sinks on
        record."""
        return all(self._is_gone(table) or self.abandoned([table]) for table in sink.tables)

    def _is_gone(self, table: OpenSink) -> bool:
        place = str(table.definition.to_dict())
        if place not in self._gone:
            self._gone[place] = False
            with suppress(SinkError, DefinitionError):  # whoever asks it for batches is told that
                others = [
                    one for one in tables_of([*self._sinks.usable.values()]) if one.location() != table.location()
                ]
                self._gone[place] = is_gone(table, now=self._sinks.now, others=others, answering=self._answering)
        return self._gone[place]

    def abandoned(self, sinks: Sequence[OpenSink]) -> Mapping[str, SinkError]:
        """Tables of these that are abandoned, by their addresses, and why they cannot be asked."""
        if self._abandons is None:
            return {}
        found = dict[str, SinkError]()
        for table in tables_of(sinks):
            why = not_reached(self._checkpoint, table, self._abandons, answering=self._answering)
            if why is not None:
                found[table.location()] = why
        return found

    def on_record(self) -> list[OpenSink]:
        """The sinks that can be used from here, each once, also those that are gone.

        :raises MaintenanceError: if none is on record.
        """
        found = list({str(sink.definition.to_dict()): sink for sink in self._sinks.usable.values()}.values())
        if not found and not self._sinks.unusable:
            raise MaintenanceError(
                f"{self._checkpoint.location} has no pipeline on record: none of this package has run an attempt here, "
                "so nobody can ask the sink which batches are in it."
            )
        return found

    def today(self, lane: str) -> list[OpenSink]:
        """The sinks that the lane writes to: that in force, and of another lane than the live one that of its newest
        attempt. Dead letters are run again as the live lane's newest attempt had it; and where no run has said which
        sink is in force, that attempt tells it.

        :raises MaintenanceError: if no sink is on record, or one of these cannot be used from here.
        """
        said = self._sinks.in_force
        lanes = [one for one in (lane, LIVE) if said is None or lane == LETTERS or one != LIVE]
        return self._named([said, *map(self.ran_last, dict.fromkeys(lanes))])

    def wrote_last(self, lane: str) -> list[OpenSink]:
        """The sinks that the newest attempts of the lane and of the live one wrote to. In place of one with a table
        that is gone, its other tables, and the sink of now, where that table may go by another name. Within a lane
        :func:`newest_first` tells which attempt is the newest. Between lanes only the clocks of workers would tell, and
        one may be ahead.

        :raises MaintenanceError: as :meth:`today`.
        """
        wrote = self._named([self.ran_last(name) for name in dict.fromkeys((lane, LIVE))])
        whole = [sink for sink in wrote if not any(map(self.is_gone, sink.tables))]
        if len(whole) == len(wrote):
            return whole
        now = [] if self._sinks.now is None or self.is_gone(self._sinks.now) else [self._sinks.now]
        known = tables_of([*whole, *now])
        others = [one for one in tables_of(wrote) if not (is_among(one, known) or self.is_gone(one))]
        return [*whole, *(sink for sink in now if sink not in whole), *others]

    def _named(self, definitions: Sequence[str | None]) -> list[OpenSink]:
        return self._sinks.named(definitions) or self.sinks()[:1]

    @cached_property
    def never_written(self) -> tuple[list[OpenSink], list[str]]:
        """The sinks that no attempt on record wrote to, each once: a plan that was refused has left its pipeline on
        record, or retention has removed the attempts. And the reasons, in words, of those that cannot be used from
        here. Attempts of a batch one of which cannot be read do not count.
        """
        epochs = self._checkpoint.attempts.epochs
        keys = (BatchKey(lane, number) for lane in epochs.lanes() for number in epochs.ids(lane))
        named = {name for key in keys for name in self._definitions_of(key) or ()}
        written = [self._sinks.usable[name].definition for name in named if name in self._sinks.usable]
        found = [sink for sink in self.usable() if sink.definition not in written]
        return found, [self._sinks.unusable[name] for name in sorted(self._sinks.unusable.keys() - named)]

    def unusable(self) -> list[str]:
        """For each sink that cannot be used from here, the definition and the reason, in words."""
        return [self._sinks.unusable[name] for name in sorted(self._sinks.unusable)]

    def sink_of(self, attempt: Attempt) -> OpenSink | None:
        """The sink that the attempt wrote to; None if it is not on record.

        :raises MaintenanceError: if the sink cannot be used from here.
        """
        return self.named(attempt.definition or "")

    def named(self, definition: str) -> OpenSink | None:
        """The sink of the definition; None if it is not on record. Raises as :meth:`sink_of`."""
        return next(iter(self._sinks.named([definition])), None)

    @property
    def newest(self) -> Attempt | None:
        """See :func:`ran_last`."""
        return self._sinks.newest

    def ran_last(self, lane: str) -> str | None:
        """The definition that the lane's newest attempt ran; None if none is on record."""
        return next((attempt.definition for attempt in newest_first(self._checkpoint, lane)), None)

    def _definitions_of(self, key: BatchKey) -> set[str] | None:
        """Definitions that attempts of the batch ran; None if they are unknown, so that any definition is possible."""
        attempts, found = self._checkpoint.attempts, set[str]()
        for epoch in attempts.epochs.all(key):
            try:
                attempt = attempts.get(key, epoch)
            except CheckpointError:
                return None
            if attempt is not None and attempt.definition is not None:
                found.add(attempt.definition)
            elif attempt is None or not attempt.is_fence:
                return None  # from a version that recorded no pipelines
        return found or None

    def source(self, name: str, *, lane: str) -> OpenSource | None:
        """The source, opened with the checkpoint, as the lane reads it; None if the newest attempt on record had no
        source of that name."""
        return self._source_of(self._sources_run(lane), name, lane=lane)

    def source_to_come(self, name: str, *, lane: str) -> OpenSource | None:
        """The source as the next plan will read it, as far as is known: as the plan that was refused last defines it,
        if none has been made since; else as :meth:`source`. What makes a plan refuse (a table that was renamed, a
        database that was moved) is in its own definition alone, which no attempt has run.

        :raises CorruptEntryError: if the record of the plan that was refused cannot be read.
        """
        return self._source_of(self._sources_to_come(lane), name, lane=lane)

    def names_to_come(self, lane: str) -> list[str]:
        """Current names of the sources that :meth:`source_to_come` knows."""
        return [self._checkpoint.names.of(name) for name in self._sources_to_come(lane)]

    def who_defines(self, lane: str) -> str:
        """By which definition :meth:`source_to_come` opens a source, in words, and what to do if that is not the
        pipeline's."""
        checkpoint, refused = self._checkpoint, refused_plan(self._checkpoint, lane)
        if refused is None:
            return (
                f"as the newest attempt ran it: lane {lane} has no plan that was refused since on record. If the "
                "pipeline is defined otherwise by now, let it run first."
            )
        return (
            f"as the plan that was refused last defines it ({checkpoint.definitions.where(refused.definition)}). If "
            "the pipeline is defined otherwise by now, let it run first; where it finds nothing new, remove "
            f"{checkpoint.refused_plans.where(lane)}."
        )

    def _sources_to_come(self, lane: str) -> Mapping[str, Any]:
        refused = refused_plan(self._checkpoint, lane)
        if refused is not None:
            return self._sources_in(refused.definition)
        return self._sources_run(lane)

    def _sources_run(self, lane: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.arguments(of_letters=lane == LETTERS).get("sources", {})
        return found

    def _sources_in(self, definition: str) -> Mapping[str, Any]:
        found = self._checkpoint.definitions.get(definition)
        return {} if found is None else found["arguments"].get("sources", {})

    def _source_of(self, sources: Mapping[str, Any], name: str, *, lane: str) -> OpenSource | None:
        recorded = {self._checkpoint.names.of(one): found for one, found in sources.items()}.get(name)
        if recorded is None:
            return None
        return self._opened(name, recorded, lane=lane)

    def _opened(self, name: str, recorded: Mapping[str, Any], *, lane: str) -> OpenSource:
        defined = {name: Source.from_dict(recorded)}
        return OpenedSources(defined, checkpoint=self._checkpoint, lane=lane, clock_ms=now_ms).open(name)

    def source_names(self) -> list[str]:
        """Current names of the pipeline's sources."""
        return [self._checkpoint.names.of(name) for name in self.arguments().get("sources", {})]

    def other_sources(self) -> Iterator[tuple[str, OpenSource]]:
        """Sources, by their current names, of pipelines on record that the newest attempt did not run: a plan that was
        refused has left its pipeline, and older ones may be there. A source that cannot be loaded here is left out."""
        told = list(self.arguments().get("sources", {}).items())
        for found in self._checkpoint.definitions.names():
            with suppress(CheckpointError, DefinitionError):
                for name, recorded in self._sources_in(found).items():
                    if (name, recorded) not in told:
                        told.append((name, recorded))
                        present = self._checkpoint.names.of(name)
                        yield present, self._opened(present, recorded, lane=LIVE)

    def arguments(self, *, of_letters: bool = False) -> Mapping[str, Any]:
        """Arguments of the pipeline as the newest readable attempt ran it; empty if there is none.

        :param of_letters: whether to return those of the pipeline that runs the dead letters again, with the letters as
            its source.
        """
        found = self._newest_pipeline(of_letters=of_letters)
        return {} if found is None else found[1]["arguments"]

    def where(self) -> str:
        """The address of the definition that :meth:`arguments` are of, for messages."""
        found = self._newest_pipeline()
        return self._checkpoint.location if found is None else self._checkpoint.definitions.where(found[0])

    def _newest_pipeline(self, *, of_letters: bool = False) -> tuple[str, Mapping[str, Any]] | None:
        """Looked up once: behind a rewind all attempts are read that it has left."""
        if of_letters not in self._pipelines:
            self._pipelines[of_letters] = newest_pipeline(self._checkpoint, of_letters=of_letters)
        return self._pipelines[of_letters]


def _at(key: BatchKey, sinks: Sequence[OpenSink], tables: KnownTables, *, partly: bool = True) -> list[Published]:
    anything = ExpectedBatch(identity=BatchIdentity.at(key), tables=tables, recognise=lambda found: found)
    found = [((sink.seen if partly else sink.contains)(anything), sink) for sink in sinks]
    return [Published(manifest=manifest, sink=sink) for manifest, sink in found if manifest is not None]


def is_among(table: OpenSink, tables: Sequence[OpenSink]) -> bool:
    """Whether one of the tables is this one, maybe by another definition."""
    return any(table.definition.is_same_place(one.definition) for one in tables)


def tables_of(sinks: Sequence[OpenSink]) -> list[OpenSink]:
    """The tables of the sinks, each once."""
    found = {str(table.definition.to_dict()): table for sink in sinks for table in sink.tables}
    return list(found.values())
