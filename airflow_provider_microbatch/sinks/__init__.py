"""Sinks: where batches are published. One module per system, loaded when used.

An attempt writes into a stage of its own; :meth:`Sink.publish` makes it visible in one atomic step and may be called
twice. Readers of the sink never see a stage. Batches are asked for by their identity, never by their number alone: what
another checkpoint, another pipeline or another plan put at a batch's place is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connect, connect
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.lifetime import Close, at_end
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.manifest import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.subtasks import SubtaskStages

__all__ = [
    "ExpectedBatch",
    "Manifest",
    "OpenSink",
    "PublishedRows",
    "SelfContained",
    "Sink",
    "SinkContext",
    "SubtaskStages",
]


@dataclass(frozen=True, kw_only=True)
class SinkContext:
    """What a sink may use of its surroundings.

    :param clock_ms: the time, milliseconds since the epoch.
    :param connect: finds a connection by its id, when it is needed.
    :param at_end: takes what is to be called when the task, look or command is over that the sink was opened for: what
        closes what it holds.
    """

    clock_ms: Callable[[], int] = now_ms
    connect: Connect = connect
    at_end: Callable[[Close], None] = at_end


@dataclass(frozen=True, kw_only=True)
class PublishedRows:
    """Files that hold the rows of a batch, which has the columns ``lane`` and ``batch_id``; rows of others may be there
    too.

    :param format: of the files.
    :param base: the table's folder, in Spark's form: folders below it have values of columns.
    :param paths: files or folders, in Spark's form.
    :param options: of Spark's reader.
    """

    format: str
    base: str
    paths: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)


class Sink(Definition, ABC):
    """Definition of a sink: what can be said of it without its table. Nothing is touched by the constructor."""

    @abstractmethod
    def open(self, context: SinkContext) -> OpenSink:
        """The sink in its surroundings. Nothing is touched, and no connection is asked for, before it is used.

        :raises DefinitionError: if it cannot be used with what is installed here.
        """

    @abstractmethod
    def location(self) -> str:
        """The table's address, in Spark's form, for messages and tables."""

    def of_pipeline(self, pipeline: str) -> Self:
        """The sink as that pipeline's; a sink whose marks name their owner keeps the name."""
        return self

    def hooks(self) -> Sequence[Definition]:
        """Job status hooks that the sink needs; the pipeline tells them before its own."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which a transform returns what is written, in the order in which it is published; empty for a
        sink that takes the one frame that there is."""
        return ()

    @property
    def dead_letters(self) -> Sink | None:
        """The one of its tables that has the rows which the others do not get; None if none does."""
        return None

    @property
    def tables(self) -> Sequence[Sink]:
        """The sinks of one table each that it consists of, in the order in which they are published."""
        return (self,)

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch stays in the table when the next one is published; False for a table that each replaces."""
        return True

    @property
    def can_withdraw(self) -> bool:
        """Whether :meth:`OpenSink.withdraw` can take a batch out. Only then is a command begun that has to."""
        return False

    @property
    def remembers_batches(self) -> bool:
        """Whether the table itself tells for ever which batches were published, also of rows that somebody has deleted
        since. Only then has a table that does not know one lost it."""
        return False

    @property
    def is_cheap_to_ask(self) -> bool:
        """Whether :meth:`OpenSink.contains` needs no Spark, and no server."""
        return True

    @property
    def only_folder(self) -> Path | None:
        """The local folder that is the table, if :meth:`is_same_place` and :meth:`would_show` go by this folder alone;
        None if they have to be asked of every other sink."""
        return None

    def is_same_place(self, other: Sink) -> bool:
        """Whether both write to one table, as it is now: the address of one may only be another spelling of the
        other's, by a link."""
        return self.location() == other.location()

    def would_show(self, location: str) -> bool:
        """Whether readers of the table would come upon what is written at an address, and take it for rows, or not be
        able to read the table at all."""
        return False

    def unlike(self, before: Sink) -> str | None:
        """Why readers could not read what this sink writes together with what ``before`` has written into the same
        table, in words; None if they can."""
        return None


class OpenSink(ABC):
    """A sink in its surroundings, and what the orchestrator does with it."""

    @property
    @abstractmethod
    def definition(self) -> Sink:
        """What was opened."""

    def location(self) -> str:
        """The table's address; see :meth:`Sink.location`."""
        return self.definition.location()

    @property
    def tables(self) -> Sequence[OpenSink]:
        """Those of :attr:`Sink.tables`, opened."""
        return (self,)

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`~airflow_provider_microbatch.exceptions.SinkError` if the sink cannot be written at all."""

    def admits(self, batch: BatchIdentity) -> bool:
        """Whether the batch may be planned, or run, as the sink is now; asked before anything is written.

        :return: False if the sink has all it will take: nothing is done then, and nothing has failed.
        :raises SinkError: if the batch could only fail.
        """
        return True

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:  # noqa: B027
        """Make what must be there before Spark writes a stage, so that nobody else sees it. Idempotent; called before
        each attempt. A sink whose stages nobody could see anyway has nothing to do.

        A table that can be away (its file system is not mounted) without anybody seeing it gets an id, and the
        checkpoint has it on record from then on, so that each method that is given ``tables`` can look for it.

        :param tables: what the checkpoint knows of its tables.
        :param is_there: whether it is certain that the table is there; asked where it is not known by an id yet.
        :raises SinkError: if it cannot be made, or if the table is away, or not certain to be there.
        """

    @abstractmethod
    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        """Where and how the runtime writes this attempt. A pure function. Attempts of two checkpoints never share a
        stage, whatever their batches are called."""

    def stages_by_name(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Stage]:
        """All that the runtime writes for this attempt, by :attr:`Sink.names`; the only one by the empty name."""
        return {"": self.stage(batch, epoch)}

    @property
    def subtasks(self) -> SubtaskStages | None:
        """How finished output passes from a failed attempt to the next one; None if it cannot. A batch is then run as
        one, whatever its pipeline says."""
        return None

    def secrets(self) -> dict[str, str]:
        """What writers need that must be in no job, argument list or log, by a name that no other sink's has; see
        :attr:`~airflow_provider_microbatch.execution.engine.Code.secrets`.

        :raises SinkError: if there is no such connection, or none that can be used.
        """
        return {}

    def begin(self, batch: BatchIdentity, epoch: int) -> None:  # noqa: B027
        """Spark is about to write the stage of an attempt. Idempotent. For a sink that could not find one again which
        Spark has left half written."""

    @abstractmethod
    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        """The manifest of a stage that was written to its end; None if it was not."""

    @abstractmethod
    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        """What the runtime wrote about its failure (``{"error", "traceback", "origin"}``); None if it wrote nothing."""

    @abstractmethod
    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        """Is the batch in? The manifest of what is published, or None.

        :raises ForeignBatchError: if something else is at its place.
        :raises SinkError: if the table is away: nobody knows then. So do :meth:`publish`, :meth:`replace` and
            :meth:`withdraw`.
        """

    def finish(self, batch: ExpectedBatch) -> Manifest | None:
        """Is the batch in, once what was cut off between two tables has been brought to its end as far as stages are
        still there? Asked by who may run the batch, when nobody else is at it. Idempotent.

        :return: as :meth:`contains` does.
        """
        return self.contains(batch)

    @abstractmethod
    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """Append-once: make the stage the batch's output, or find that some attempt's output is in already.

        :return: the manifest that is in the sink now. Its epoch is another's if another attempt won; the own stage
            is then left for :meth:`drop_stage`.
        :raises SinkError: if there is no complete stage and the batch is not in.
        :raises ForeignBatchError: if something else is at its place.
        """

    @abstractmethod
    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """Replay: put the stage in place of the batch's output in one step that readers cannot see half of.

        :raises PublishConflictError: if a later attempt has replaced it already.
        :raises ForeignBatchError: if what would be replaced is not the batch's.
        """

    @abstractmethod
    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        """Remove the attempt's stage, whatever is left of it. False if there was none. Never touches published data."""

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:  # noqa: B027
        """Leave word beside the stage that the attempt is fenced, for its Spark, which sees no checkpoint. It only
        spares work: :meth:`publish` decides without it. Idempotent.

        :param by: what fenced it, in words.
        """

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove what :meth:`fence` left at least ``older_seconds`` ago.

        :param checkpoint: whose; what is another's stays.
        :param dry_run: only say what would be removed.
        :return: addresses of what was removed.
        """
        return []

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        """Take a batch out of the table in one step that readers cannot see half of; what is taken out is kept as
        replaced output is. Only ``microbatch rewind`` asks for it.

        :param epoch: the attempt whose output is to go; False if the batch is not in, so that it may be called again.
        :raises SinkError: if another attempt's output is in, or if the sink cannot do it.
        """
        raise SinkError(f"{type(self).__name__} cannot take batch {batch.key} out of {self.location()}; do it there.")

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove output that a replay put out at least ``older_seconds`` ago. A sink that keeps none has nothing to do.

        :param checkpoint: whose; what is another's stays.
        :param dry_run: only say what would be removed.
        :return: addresses of what was removed.
        :raises PartlyRemovedError: naming what was, if the rest could not be.
        """
        return []

    @abstractmethod
    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        """All stages of a checkpoint that exist, for the janitor.

        :param checkpoint: its id; empty for those of attempts of before identities.
        """

    def seems_away(self, tables: KnownTables) -> str | None:
        """Why the table looks as if it were away, as a file system that is not mounted is, and what to do; None if it
        does not. Asked at each plan."""
        return None

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        """Whether the table that ``before`` wrote at another address is this one: it was moved, and has the id by which
        ``tables`` knows it."""
        return False

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        """Ids of the lane that something is published under, whosever it is, ascending.

        :param tables: what the checkpoint knows of its tables.
        :raises SinkError: if the sink cannot list them, or is away.
        """
        raise SinkError(f"{type(self).__name__} cannot list what {self.location()} holds.")

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        """How Spark reads the rows that a batch has in the table, for who reads them batch by batch: dead letters.

        :raises SinkError: if the batch is not in, or the sink's batches cannot be read one by one.
        """
        raise SinkError(
            f"{type(self).__name__} does not tell which rows of {self.location()} are a batch's. Use a FileSink or a "
            "DeltaSink for dead letters that are to be replayed."
        )

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> Iterable[int]:
        """Those of :meth:`batches` with a greater id. Asked at each plan: a sink whose listing grows with its history
        has a shorter way."""
        return [one for one in self.batches(lane, tables) if one > number]

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        """How what is published differs from what :meth:`contains` has told of it, in words: files that are missing,
        of another size or not the batch's. None if it does not, or the sink cannot tell."""
        return None

    def unrecorded(self, batch: ExpectedBatch) -> str | None:
        """What of the batch readers see although :meth:`contains` knows nothing of it, since somebody has removed what
        says so; in words, with the ways on. None if there is nothing of the kind, or it cannot be."""
        return None

    def strays(self, tables: KnownTables) -> list[str]:
        """What lies in the table, is shown to its readers, and is no batch's, in words; empty if the sink cannot tell.
        For ``microbatch check --table``: may take long.

        :raises SinkError: if the table is away.
        """
        return []

    def lanes(self, tables: KnownTables) -> list[str] | None:
        """Lanes that something is published of, whosever it is, ascending; None if the sink cannot tell.

        :param tables: what the checkpoint knows of its tables.
        :raises SinkError: if the table is away.
        """
        return None


class SelfContained(Sink, OpenSink):
    """A sink that needs nothing of its surroundings: opened, it is itself."""

    def open(self, context: SinkContext) -> OpenSink:
        return self

    @property
    def definition(self) -> Self:
        return self

    @property
    def tables(self) -> Sequence[Self]:
        return (self,)

    @property
    def can_withdraw(self) -> bool:
        return type(self).withdraw is not OpenSink.withdraw
