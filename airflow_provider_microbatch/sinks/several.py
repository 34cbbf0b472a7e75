"""Several sinks of one batch. All are staged by one job; then they are published one by one in the declared order, and
the batch is in when all of them contain it.

No two tables change in one step. Until the batch is committed, readers of an earlier sink may see the batch while a
later sink does not have it yet. The first sink decides which attempt's output the batch is: the next attempt makes the
other sinks follow, from that attempt's stages or, if those are gone, by replacing the output in all sinks with its own.
So each table has the batch once, and all have it from one attempt, whichever process died between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey, check_name
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.definition import Definition, is_read_back
from airflow_provider_microbatch.exceptions import (
    DefinitionError,
    PartlyRemovedError,
    PublishConflictError,
    SinkError,
)
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.manifest import ADOPTED
from airflow_provider_microbatch.sinks.overlap import first_overlap

_OF_ITS_OWN = "Give each sink a table of its own; rows for one table are one frame (union)."


def check_sinks(sinks: Mapping[str, Sink], *, unnamed: bool = False) -> None:
    """Check that each sink is a sink of one table, and that no two share a table.

    :param unnamed: whether one of them is a pipeline's only sink, which has the empty name.
    :raises DefinitionError: if the check fails.
    """
    for name, sink in sinks.items():
        if name or not unnamed:
            check_name(name, what="sink")
        if not isinstance(sink, Sink) or len(sink.tables) > 1:
            raise DefinitionError(f"sink {name!r} is a {type(sink).__name__}, not a sink of one table.")
    overlap = None if is_read_back() else first_overlap(sinks)
    if overlap is not None:
        one, other = (sinks[name].location() for name in overlap)
        first, second = (repr(name) if name else "sink=…" for name in overlap)
        raise DefinitionError(
            f"sinks {first} and {second} write to one table, or one within the other's: {one!r} and {other!r}. "
            f"{_OF_ITS_OWN}"
        )


@dataclass(frozen=True)
class Sinks(Sink):
    """The sinks of a pipeline with ``Pipeline(sinks={…})``.

    :param sinks: by the name under which the transform returns the frame, in the order in which they are published.
    :raises DefinitionError: for fewer than two sinks, for a value that is no sink, or for two sinks of one table.
    """

    sinks: Mapping[str, Sink]

    def __post_init__(self) -> None:
        if not isinstance(self.sinks, Mapping) or len(self.sinks) < 2:
            raise DefinitionError("sinks must be a dict of at least two names and sinks; a single one is sink=….")
        check_sinks(self.sinks)

    def open(self, context: SinkContext) -> OpenSink:
        return OpenSinks(self, {name: sink.open(context) for name, sink in self.sinks.items()})

    def location(self) -> str:
        return " and ".join(sink.location() for sink in self.sinks.values())

    def of_pipeline(self, pipeline: str) -> Sinks:
        return replace(self, sinks={name: sink.of_pipeline(pipeline) for name, sink in self.sinks.items()})

    def hooks(self) -> Sequence[Definition]:
        return tuple(hook for sink in self.sinks.values() for hook in sink.hooks())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sinks)

    @property
    def tables(self) -> Sequence[Sink]:
        return tuple(self.sinks.values())

    @property
    def keeps_batches(self) -> bool:
        return all(sink.keeps_batches for sink in self.sinks.values())

    @property
    def can_withdraw(self) -> bool:
        return all(sink.can_withdraw for sink in self.sinks.values())

    def not_replaceable(self) -> str | None:
        return next(filter(None, (sink.not_replaceable() for sink in self.sinks.values())), None)

    @property
    def keeps_replaced(self) -> bool:
        return any(sink.keeps_replaced for sink in self.sinks.values())

    @property
    def is_cheap_to_ask(self) -> bool:
        return all(sink.is_cheap_to_ask for sink in self.sinks.values())


class OpenSinks(OpenSink):
    """Several sinks, opened. An error of one sink goes on to the caller, and leaves the batch to the next attempt.

    :param definition: definition of all the sinks.
    :param sinks: by name, in the order in which they are published.
    """

    def __init__(self, definition: Sinks, sinks: Mapping[str, OpenSink]) -> None:
        self._definition = definition
        self._sinks = dict(sinks)
        self._first, *self._rest = self._sinks.values()

    @property
    def definition(self) -> Sinks:
        return self._definition

    @property
    def tables(self) -> Sequence[OpenSink]:
        return tuple(self._sinks.values())

    def check(self) -> None:
        for sink in self._sinks.values():
            sink.check()
        kinds, known = [type(sink) for sink in self._sinks.values()], dict[tuple[type, str], OpenSink]()
        several = [(sink, sink.known_as()) for sink in self._sinks.values() if kinds.count(type(sink)) > 1]
        for sink, names in several:
            for own in names[:1]:
                if (other := known.setdefault((type(sink), own), sink)) is not sink:
                    raise SinkError(self._is_one(other, sink))
        for sink, names in several:
            for other in (known[type(sink), part] for part in names[1:] if (type(sink), part) in known):
                raise SinkError(
                    f"{sink.location()} and {other.location()} have rows in common: one table is a part of the other. "
                    f"Readers would find rows of both sinks there, and a batch would be in twice. {_OF_ITS_OWN}"
                )

    def admits(self, batch: BatchIdentity) -> bool:
        return all(sink.admits(batch) for sink in self._sinks.values())

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:
        for sink in self._sinks.values():
            sink.make_ready(tables, is_there=is_there)

    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        """The stage of the first sink."""
        return self._first.stage(batch, epoch)

    def stages_by_name(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Stage]:
        return {name: sink.stage(batch, epoch) for name, sink in self._sinks.items()}

    def intakes_by_name(self) -> Mapping[str, Intake]:
        letters = self._definition.dead_letters
        asked = {name: sink for name, sink in self._sinks.items() if sink.definition is not letters}
        return {name: found for name, sink in asked.items() if (found := sink.intake()) is not None}

    def secrets(self) -> dict[str, str]:
        return {name: value for sink in self._sinks.values() for name, value in sink.secrets().items()}

    def begin(self, batch: BatchIdentity, epoch: int) -> None:
        for sink in self._sinks.values():
            sink.begin(batch, epoch)

    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        return self._whole({name: sink.manifest(batch, epoch) for name, sink in self._sinks.items()})

    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        return next(filter(None, (sink.failure(batch, epoch) for sink in self._sinks.values())), None)

    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        """Ask all sinks, so that a foreign batch in any of them is found. If a replay was interrupted, the batch counts
        as the older attempt's: the replay is not over."""
        return self._whole(self._found(batch))

    def seen(self, batch: ExpectedBatch) -> Manifest | None:
        """Like :meth:`contains`: None if readers of one of the tables find nothing."""
        return self._whole({name: sink.seen(batch) for name, sink in self._sinks.items()})

    def finish(self, batch: ExpectedBatch) -> Manifest | None:
        found = self._found(batch, finishes=True)
        first = next(iter(found.values()))
        if first is not None and all(one is None or one.epoch <= first.epoch for one in found.values()):
            self._follow(batch, first.epoch)
        return self.contains(batch)

    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        parts = self._found(batch)
        check_adopted_in_all(batch.key, [(self._sinks[name], one) for name, one in parts.items()])
        found = [one.epoch for one in parts.values() if one is not None]
        if len(set(found)) > 1 and epoch > max(found):
            # The sinks hold two attempts, neither of which can be completed any more: this attempt replaces both.
            return self.replace(batch, epoch)
        if len(found) < len(self._sinks):
            # An attempt that lacks a stage in any sink is not published at all. If it is published in the first sink
            # already, its other stages may have become output too.
            self._check_complete(batch, epoch)
        first = self._first.publish(batch, epoch)
        if not self._follow(batch, first.epoch):
            if first.epoch == epoch:
                raise self._no_stage(batch, epoch)
            # The attempt died between two tables, and its stages for the other tables are gone.
            return self.replace(batch, epoch)
        return self._published(batch)

    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        self._check_complete(batch, epoch)
        first = self._first.replace(batch, epoch)
        if not self._follow(batch, first.epoch):
            raise self._no_stage(batch, epoch)
        return self._published(batch)

    def _follow(self, batch: ExpectedBatch, epoch: int) -> bool:
        """Publish, in the other sinks, the attempt that the first sink holds.

        :return: False if one of the other sinks has no stage of it any more.
        :raises PublishConflictError: if a later attempt has gone on meanwhile: that attempt finishes its own publish.
        :raises SinkError: if a sink has what another one has published: they are one table, and the batch's frame for
            the later one is nowhere.
        """
        first = self._first.contains(batch)
        frames = {} if first is None else {first.result.get("sink"): self._first}
        for sink in self._rest:
            found = sink.contains(batch)
            if found is None or found.epoch < epoch:
                if sink.manifest(batch.staged, epoch) is None:
                    found = sink.contains(batch)  # another process may have published it just now
                    if found is None or found.epoch < epoch:
                        return False
                else:
                    self._check_held_beside(sink, batch, epoch)
                    found = sink.publish(batch, epoch)
                    if found.epoch < epoch:
                        found = sink.replace(batch, epoch)
            if found.epoch > epoch:
                raise PublishConflictError(
                    f"batch {batch.key}: attempt {found.epoch} is published in {sink.location()}, which is later than "
                    f"attempt {epoch}. Nothing was replaced there."
                )
            frame = found.result.get("sink")
            if frame is not None and (other := frames.setdefault(frame, sink)) is not sink:
                raise SinkError(f"batch {batch.key} is in by the frame {frame!r} alone: {self._is_one(other, sink)}")
        return True

    @staticmethod
    def _is_one(one: OpenSink, other: OpenSink) -> str:
        return f"{one.location()} and {other.location()} are one table, by two addresses or connections. {_OF_ITS_OWN}"

    def _check_complete(self, batch: ExpectedBatch, epoch: int) -> None:
        """Check that each sink has a stage of the attempt, or its output; and, where one keeps what it gets for good,
        that the others take the stage: refused behind that one, the batch would come to its end in no attempt."""
        for sink in self._sinks.values():
            if sink.manifest(batch.staged, epoch) is None:
                found = sink.contains(batch)
                if found is None or found.epoch < epoch:
                    raise self._no_stage(batch, epoch)
        replaced = [sink for sink in self._sinks.values() if not sink.definition.keeps_for_good]
        for sink in replaced if len(replaced) < len(self._sinks) else ():
            found = sink.contains(batch)
            if found is None or found.epoch < epoch:
                sink.check_held(batch.staged, epoch)

    def _check_held_beside(self, sink: OpenSink, batch: ExpectedBatch, epoch: int) -> None:
        """Check that a sink takes an attempt, if another one has it for good: no later attempt replaces it."""
        for other in self._sinks.values():
            found = other.contains(batch) if other.definition.keeps_for_good else None
            if found is not None and found.epoch == epoch:
                sink.check_held(batch.staged, epoch, kept_in=other.location())

    def _no_stage(self, batch: ExpectedBatch, epoch: int) -> SinkError:
        return SinkError(
            f"batch {batch.key} attempt {epoch} has no complete stage for each of {self.location()}. Run the batch "
            "again."
        )

    def _published(self, batch: ExpectedBatch) -> Manifest:
        found = self.contains(batch)
        if found is None:
            raise SinkError(f"batch {batch.key} was taken out of {self.location()} while it was published.")
        return found

    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        dropped = [sink.drop_stage(batch, epoch) for sink in self._sinks.values()]
        return any(dropped)

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:
        """Write the fence mark beside the first stage, where the job looks for it."""
        self._first.fence(batch, epoch, by=by)

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        return self._first.drop_fences(checkpoint, older_seconds=older_seconds, dry_run=dry_run)

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        """Withdraw from the last sink first: after an interrupted withdrawal the first sink still holds the batch,
        which :meth:`finish` needs."""
        withdrawn = [sink.withdraw(batch, epoch) for sink in reversed(self.tables)]
        return any(withdrawn)

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        removed, failed = list[str](), list[PartlyRemovedError]()
        for sink in self._sinks.values():
            try:
                removed += sink.drop_replaced(checkpoint, older_seconds=older_seconds, dry_run=dry_run)
            except PartlyRemovedError as error:
                removed += error.removed
                failed.append(error)
        if failed:
            partly = PartlyRemovedError(str(failed[0]))
            partly.removed = tuple(removed)
            raise partly from failed[0]
        return removed

    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        return sorted({stage for sink in self._sinks.values() for stage in sink.stages(checkpoint)})

    def seems_away(self, tables: KnownTables) -> str | None:
        return next(filter(None, (sink.seems_away(tables) for sink in self._sinks.values())), None)

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        return sorted({number for sink in self._sinks.values() for number in sink.batches(lane, tables)})

    def strays(self, tables: KnownTables) -> list[str]:
        return [stray for table in self.tables for stray in table.strays(tables)]

    def lanes(self, tables: KnownTables) -> list[str] | None:
        told = [sink.lanes(tables) for sink in self._sinks.values()]
        return sorted({lane for lanes in told for lane in lanes or ()}) if None not in told else None

    def _found(self, batch: ExpectedBatch, *, finishes: bool = False) -> dict[str, Manifest | None]:
        """By name, in the order in which the sinks are published; asked in that of :func:`for_good_first`.

        :param finishes: whether what was cut off in one of them is completed there.
        """
        found = [(one, one.finish(batch) if finishes else one.contains(batch)) for one in for_good_first(self.tables)]
        return {name: next(part for one, part in found if one is sink) for name, sink in self._sinks.items()}

    def _whole(self, found: Mapping[str, Manifest | None]) -> Manifest | None:
        parts = dict(_known(found))
        if len(parts) < len(found):
            return None
        oldest = min(parts.values(), key=lambda one: one.epoch)
        files = {f"{name}/{file}": size for name, part in parts.items() for file, size in part.files.items()}
        return replace(oldest, files=files)


def for_good_first(tables: Iterable[OpenSink]) -> list[OpenSink]:
    """The tables, those first out of which nobody can take a batch. Asked in this order, they tell of a foreign batch
    with the ways on for all tables that have it: where one keeps it, it is taken out of none."""
    return sorted(tables, key=lambda one: not one.definition.keeps_for_good)


def check_adopted_in_all(key: BatchKey, found: Sequence[tuple[OpenSink, Manifest | None]]) -> None:
    """Check that adopted output is in all tables of a batch, or in none. No attempt brings it into one that lacks it,
    and what an attempt makes for that table would take its place in the others.

    :param found: what each of the tables has of the batch.
    :raises SinkError: if only some have it, with the way on.
    """
    has = [table.location() for table, one in found if one is not None and one.epoch == ADOPTED]
    if has and len(has) < len(found):
        where = " and ".join(has)
        others = " and ".join(table.location() for table, _ in found if table.location() not in has)
        raise SinkError(
            f"batch {key} has output that was adopted in {where}, and not in {others}: made for all of them, it would "
            f"take the place of what was adopted. Nothing was published. Name {where} for this batch, and no other "
            "table (nor dead_letters=… elsewhere); the next batch may have all of them again."
        )


def _known(found: Mapping[str, Manifest | None]) -> Iterator[tuple[str, Manifest]]:
    return ((name, one) for name, one in found.items() if one is not None)
