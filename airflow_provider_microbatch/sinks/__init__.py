"""Sinks: where batches are published. One module per system, loaded when used.

An attempt writes into a stage of its own; :meth:`Sink.publish` makes the stage visible in one atomic step and may be
called twice. Readers of the sink never see a stage. A sink is asked for a batch by the batch's identity, never by its
number alone: output of another checkpoint, another pipeline or another plan at a batch's place is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.connections import Connect, connect_sink
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.lifetime import Close, at_end
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.compaction import Compacted, Compaction
from airflow_provider_microbatch.sinks.manifest import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.published_rows import PublishedRows
from airflow_provider_microbatch.sinks.subtasks import SubtaskStages

__all__ = [
    "Compacted",
    "Compaction",
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
    """The surroundings that a sink may use.

    :param clock_ms: the time, milliseconds since the epoch.
    :param connect: finds a connection by its id, when the sink needs the connection.
    :param at_end: takes a function to be called at the end of the task, look or command that the sink was opened for:
        the function closes what the sink holds.
    :param rows_are_judged: whether rows that the table cannot take are kept out of it one by one, by
        :meth:`OpenSink.intake`: a table may then have rules that files have to be written by, such as NOT NULL.
    """

    clock_ms: Callable[[], int] = now_ms
    connect: Connect = connect_sink
    at_end: Callable[[Close], None] = at_end
    rows_are_judged: bool = False


class Sink(Definition, ABC):
    """Definition of a sink: its properties that are known without its table. The constructor touches nothing."""

    keeps_form: ClassVar[bool] = False
    """Whether the table keeps the form by which :meth:`unlike` goes, also when all of its batches are out."""

    @abstractmethod
    def open(self, context: SinkContext) -> OpenSink:
        """Open the sink in its surroundings. Nothing is touched, and no connection looked up, before it is used.

        :raises DefinitionError: if the sink cannot be used with what is installed here.
        """

    @abstractmethod
    def location(self) -> str:
        """The table's address, in Spark's form, for messages and tables."""

    def of_pipeline(self, pipeline: str) -> Self:
        """The sink as the given pipeline's; a sink whose marks name their owner keeps the pipeline's name."""
        return self

    def hooks(self) -> Sequence[Definition]:
        """Job status hooks that the sink needs; the pipeline calls them before its own."""
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which a transform returns the frames to write, in the order in which they are published; empty
        for a sink that takes a single frame."""
        return ()

    @property
    def dead_letters(self) -> Sink | None:
        """The sink of the table that has the rows which the other tables do not get; None if there is none."""
        return None

    @property
    def tables(self) -> Sequence[Sink]:
        """The sinks of one table each that this sink consists of, in the order in which they are published."""
        return (self,)

    @property
    def keeps_batches(self) -> bool:
        """Whether a batch stays in the table when the next one is published; False if each batch replaces the table."""
        return True

    @property
    def can_withdraw(self) -> bool:
        """Whether :meth:`OpenSink.withdraw` can take a batch out. Only then does a command that withdraws begin."""
        return False

    @property
    def keeps_for_good(self) -> bool:
        """Whether a batch that is in stays in: no later one takes its place, and nobody can take it out."""
        return self.keeps_batches and not self.can_withdraw

    def not_replaceable(self) -> str | None:
        """Why a batch that is in cannot be replaced by a replay, in words that go on from the batch and say what to do
        about it; None if it can. Asked before a replay begins."""
        return None

    @property
    def keeps_replaced(self) -> bool:
        """Whether an attempt's output stays in the table whatever is published after it, so that no other's takes its
        place: all tables of the batch have to get the output of that attempt."""
        return self.not_replaceable() is not None

    def not_compactable(self) -> str | None:
        """Why :meth:`OpenSink.compact` cannot join the table's small files, in words that say what to do instead; None
        if it can. A sink of several tables is asked for each."""
        return f"{type(self).__name__} has no files that this package could join: use the system's own way"

    @property
    def remembers_batches(self) -> bool:
        """Whether the table itself records for ever which batches were published, even after their rows were deleted.
        Only then does a missing record mean that the table has lost the batch."""
        return False

    @property
    def is_cheap_to_ask(self) -> bool:
        """Whether :meth:`OpenSink.contains` needs neither Spark nor a server."""
        return True

    @property
    def only_folder(self) -> Path | None:
        """The local folder that is the table, if :meth:`is_same_place` and :meth:`would_show` depend on this folder
        alone; None if these methods have to be called for every other sink."""
        return None

    def is_same_place(self, other: Sink) -> bool:
        """Whether both sinks write to one table, as the file system is now: through a link, one address may be another
        spelling of the other."""
        return self.location() == other.location()

    def would_show(self, location: str) -> bool:
        """Whether files written at an address would disturb readers: be taken for rows, or fail the reading at all."""
        return False

    def unlike(self, before: Sink) -> str | None:
        """Why readers could not read batches that this sink writes together with batches that ``before`` has written
        into the same table, in words; None if they can."""
        return None


class OpenSink(ABC):
    """A sink in its surroundings, with the operations that the orchestrator calls."""

    @property
    @abstractmethod
    def definition(self) -> Sink:
        """The definition that was opened."""

    def location(self) -> str:
        """The table's address; see :meth:`Sink.location`."""
        return self.definition.location()

    @property
    def tables(self) -> Sequence[OpenSink]:
        """The sinks of :attr:`Sink.tables`, opened."""
        return (self,)

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`~airflow_provider_microbatch.exceptions.SinkError` if the sink cannot be written at all."""

    def known_as(self) -> Sequence[str]:
        """What tells the table from all others, as its server knows it, by whichever address or connection it is
        reached; behind that, what tells tables that have rows in common with it. Empty if nothing does, or a definition
        tells as much. Two sinks of a pipeline may not write to one table, nor one of them to a part of the other's.
        Asked if a pipeline has several sinks of a kind.

        :raises SinkError: if the server cannot be asked.
        """
        return ()

    def admits(self, batch: BatchIdentity) -> bool:
        """Whether the batch may be planned, or run, given the sink's present state; asked before anything is written.

        :return: False if the sink accepts no more batches: nothing is done then, and nothing has failed.
        :raises SinkError: if the batch could only fail.
        """
        return True

    def make_ready(self, tables: KnownTables, *, is_there: Callable[[], bool]) -> None:  # noqa: B027
        """Make what must exist before Spark writes a stage, so that no other user sees the stage. Idempotent; called
        before each attempt. A sink whose stages are hidden anyway has nothing to do.

        A table that can be away unnoticed (its file system is not mounted) gets an id. The checkpoint has this id on
        record from then on, and each method that is given ``tables`` can look for the table by its id.

        :param tables: the checkpoint's knowledge of its tables.
        :param is_there: whether it is certain that the table is there; called if the table has no id on record yet.
        :raises SinkError: if the table cannot be prepared, if it is away, or if it is not certain to be there.
        """

    @abstractmethod
    def stage(self, batch: BatchIdentity, epoch: int) -> Stage:
        """Where and how the runtime writes this attempt. A pure function. Attempts of two checkpoints never share a
        stage, even if lane and id of their batches are equal."""

    def stages_by_name(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Stage]:
        """The stages that the runtime writes for an attempt, by :attr:`Sink.names`; a single one by the empty name."""
        return {"": self.stage(batch, epoch)}

    def intake(self) -> Intake | None:
        """What the table takes of a row, as it is now; None if there is no table yet, or none with columns of its own.
        Asked for each attempt of a pipeline with dead letters, before Spark begins. The table may change until the
        attempt is published: :meth:`publish` has to refuse a stage that does not fit the table of then.

        :raises SinkError: if the table cannot be looked at.
        """
        return None

    def check_held(self, batch: BatchIdentity, epoch: int, *, kept_in: str | None = None) -> None:  # noqa: B027
        """Check that the rows of a stage were held against the rules that the table has now.

        :param kept_in: the table that has the attempt's output for good; None if none has.
        :raises SinkError: if the table has got rules since, with the way on.
        """

    def intakes_by_name(self) -> Mapping[str, Intake]:
        """The intakes of the tables by the names of their stages; of a table that has none there is no entry."""
        found = self.intake()
        return {} if found is None else {"": found}

    @property
    def subtasks(self) -> SubtaskStages | None:
        """How finished output passes from a failed attempt to the next one; None if the sink does not support it. A
        batch is then run as a whole, whether or not its pipeline has subtasks."""
        return None

    def secrets(self) -> dict[str, str]:
        """Secrets that writers need and that must be in no job, argument list or log, by names that no other sink uses;
        see :attr:`~airflow_provider_microbatch.execution.engine.Code.secrets`.

        :raises SinkError: if the connection does not exist, or cannot be used.
        """
        return {}

    def begin(self, batch: BatchIdentity, epoch: int) -> None:  # noqa: B027
        """Record that Spark is about to write the stage of an attempt. Idempotent. For a sink that could not find a
        half-written stage again without the record."""

    @abstractmethod
    def manifest(self, batch: BatchIdentity, epoch: int) -> Manifest | None:
        """The manifest of a stage that was completely written; None if the stage is missing or incomplete."""

    @abstractmethod
    def failure(self, batch: BatchIdentity, epoch: int) -> Mapping[str, Any] | None:
        """The runtime's record of its failure (``{"error", "traceback", "origin"}``); None if it wrote none."""

    @abstractmethod
    def contains(self, batch: ExpectedBatch) -> Manifest | None:
        """Return the manifest of the batch's published output, or None if the batch is not in the sink.

        :raises ForeignBatchError: if other output is at the batch's place.
        :raises SinkError: if the table is away: it is then unknown whether the batch is in. :meth:`publish`,
            :meth:`replace` and :meth:`withdraw` raise it too.
        """

    def seen(self, batch: ExpectedBatch) -> Manifest | None:
        """The output that readers find rows of: also where they find a part of it alone, and the batch is not in. For
        who takes it out, puts other output in its place, or goes on from it.

        :raises ForeignBatchError: as :meth:`contains` does.
        :raises SinkError: as :meth:`contains` does.
        """
        return self.contains(batch)

    def finish(self, batch: ExpectedBatch) -> Manifest | None:
        """Like :meth:`contains`, after completing a publish that was interrupted: between two tables, as far as stages
        are still there, or behind its last step that readers see. Called by a process that may run the batch, when no
        other process runs it, and before it commits what it finds. Idempotent.

        :return: as :meth:`contains` does.
        """
        return self.contains(batch)

    @abstractmethod
    def publish(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """Append-once: make the stage the batch's output, or find that some attempt's output is in already.

        :return: the manifest that is in the sink now. Its epoch is another attempt's if another attempt won; the
            caller's stage is then left for :meth:`drop_stage`.
        :raises SinkError: if there is no complete stage and the batch is not in.
        :raises ForeignBatchError: if other output is at the batch's place.
        """

    @abstractmethod
    def replace(self, batch: ExpectedBatch, epoch: int) -> Manifest:
        """Replay: put the stage in place of the batch's output in one step; readers never see half of it.

        :raises PublishConflictError: if a later attempt has replaced the output already.
        :raises ForeignBatchError: if the output to replace is not the batch's.
        """

    @abstractmethod
    def drop_stage(self, batch: BatchIdentity, epoch: int) -> bool:
        """Remove the attempt's stage, or the rest of it. False if there was none. Never touches published data."""

    def fence(self, batch: BatchIdentity, epoch: int, *, by: str) -> None:  # noqa: B027
        """Write a fence mark beside the stage: the attempt's Spark sees no checkpoint, and learns from the mark that
        the attempt is fenced. The mark only saves work: :meth:`publish` decides without it. Idempotent.

        :param by: the reason for the fence, in words.
        """

    def drop_fences(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove fence marks that :meth:`fence` wrote at least ``older_seconds`` ago.

        :param checkpoint: id of the checkpoint whose marks are removed; marks of other checkpoints stay.
        :param dry_run: only return what would be removed.
        :return: addresses of the removed marks.
        """
        return []

    def withdraw(self, batch: ExpectedBatch, epoch: int) -> bool:
        """Take a batch out of the table in one step; readers never see half of it. The output is kept as replaced
        output is. Only ``microbatch rewind`` calls it, also where :meth:`came_back` has the batch.

        :param epoch: the attempt whose output is to be taken out.
        :return: False if the batch is not in, so that a call may be repeated.
        :raises SinkError: if another attempt's output is in, or if the sink cannot withdraw.
        """
        raise SinkError(f"{type(self).__name__} cannot take batch {batch.key} out of {self.location()}; do it there.")

    def drop_replaced(self, checkpoint: str, *, older_seconds: float, dry_run: bool = False) -> list[str]:
        """Remove output that a replay replaced at least ``older_seconds`` ago. A sink that keeps none does nothing.

        :param checkpoint: id of the checkpoint whose output is removed; output of other checkpoints stays.
        :param dry_run: only return what would be removed.
        :return: addresses of the removed output.
        :raises PartlyRemovedError: naming what was removed, if the rest could not be.
        """
        return []

    def compact(self, wanted: Compaction) -> Compacted:
        """Join small files, so that readers find the same rows in fewer files, each batch as one of its attempt's: they
        see the old files or the new, never both. Batches of others, and whatever changes meanwhile, stay as they are.

        :raises SinkError: if the table is away, or cannot be compacted; batches that were done stay so.
        """
        raise SinkError(f"{self.location()} cannot be compacted: {self.definition.not_compactable()}.")

    @abstractmethod
    def stages(self, checkpoint: str) -> list[tuple[BatchKey, int]]:
        """All stages of a checkpoint that exist, for the janitor.

        :param checkpoint: the checkpoint's id; empty for attempts of older versions, which had no batch identities.
        """

    def seems_away(self, tables: KnownTables) -> str | None:
        """Why the table seems to be away, as a file system that is not mounted is, and what to do about it; None if the
        table does not seem away. Called at each plan."""
        return None

    def is_gone(self) -> bool:
        """Whether what the sink wrote to was dropped from a table that is there, as a branch is: readers find no batch
        of it, and no output can be in two places by it. A table that is not there at all may be away, and come back.

        :raises SinkError: if the sink cannot tell.
        """
        return False

    def is_table_of(self, before: Sink, tables: KnownTables) -> bool:
        """Whether this table is the one that ``before`` wrote at another address: it was moved, and has the id by which
        ``tables`` knows the table."""
        return False

    def is_written_by(self, before: Sink, tables: KnownTables) -> bool:
        """Whether this is the table that ``before`` wrote to, at the same address or at another one."""
        return self.definition.is_same_place(before) or self.is_table_of(before, tables)

    def unmerged(self, batch: ExpectedBatch, wrote: Sink) -> str | None:
        """Why readers of this table would never see a batch that ``wrote`` has published, if the next one is published
        here, and what to do about it, in words that go on from the batch; None if nothing is known against it. For a
        table of which there are several branches; called if :meth:`contains` does not find the batch.

        :raises SinkError: if the sink cannot tell.
        """
        return None

    def batches(self, lane: str, tables: KnownTables) -> list[int]:
        """Ids under which batches of the lane are published, by any checkpoint, ascending.

        :param tables: the checkpoint's knowledge of its tables.
        :raises SinkError: if the sink cannot list them, or the table is away.
        """
        raise SinkError(f"{type(self).__name__} cannot list what {self.location()} holds.")

    def published_rows(self, batch: ExpectedBatch) -> PublishedRows:
        """How Spark reads the rows that a batch has in the table, for readers that go batch by batch: dead letters.

        :raises SinkError: if the batch, a file or all rows of it are not in, or none can be read by itself.
        """
        raise SinkError(
            f"{type(self).__name__} does not tell which rows of {self.location()} are a batch's. Use a DeltaSink, or "
            "a FileSink on a file system, for dead letters that are to be replayed."
        )

    def batches_after(self, lane: str, number: int, tables: KnownTables) -> Iterable[int]:
        """The ids of :meth:`batches` that are greater than ``number``. Called at each plan: a sink whose listing grows
        with its history overrides it with a shorter way.

        :raises SinkError: as :meth:`batches` does.
        """
        return [one for one in self.batches(lane, tables) if one > number]

    def came_back(self, lane: str, ids: Iterable[int] | None, tables: KnownTables) -> Mapping[int, frozenset[str]]:
        """Those batches of the lane of which readers find rows again that :meth:`withdraw` has taken out, since
        somebody has put the table back, each with the digests of the plans that these are of: none if nobody can tell.

        :param ids: the numbers that are looked at; None for all that were ever in.
        :raises SinkError: if the table is away.
        """
        return {}

    def damage(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        """How the published output differs from the manifest that :meth:`contains` has returned, in words: files that
        are missing, of another size or not the batch's. None if it does not differ, or the sink cannot tell."""
        return None

    def put_back(self, batch: ExpectedBatch, found: Manifest) -> str | None:
        """That readers find rows of an attempt before the one of ``found``, in words: somebody has put the table back.
        None if they do not, or the sink cannot tell."""
        return None

    def check_whole(self) -> None:  # noqa: B027
        """Check that nobody has put the table as a whole into a state that no look at one of its batches tells, or in
        which :meth:`withdraw` refuses each of them. Reads only.

        :raises SinkError: naming what was done to it, and the way on.
        """

    def unrecorded(self, batch: ExpectedBatch, wrote: Sequence[Sink]) -> str | None:
        """Rows of the batch that readers see although :meth:`contains` does not know the batch, because the sink's
        record of it was removed; in words, with the ways on. None if there are none, or there cannot be any.

        :param wrote: the tables that the batch was published to, as they are on record; for a sink whose rows do not
            tell whose they are. Empty if the batch was published nowhere.
        """
        return None

    def strays(self, tables: KnownTables) -> list[str]:
        """Files in the table that its readers see and that belong to no batch, in words; empty if the sink cannot tell.
        For ``microbatch check --table``: may be slow.

        :raises SinkError: if the table is away.
        """
        return []

    def lanes(self, tables: KnownTables) -> list[str] | None:
        """Lanes of which any batch is, or was, published, by any checkpoint, ascending; None if the sink cannot tell.
        Called at each plan.

        :param tables: the checkpoint's knowledge of its tables.
        :raises SinkError: if the table is away.
        """
        return None


class SelfContained(Sink, OpenSink):
    """A sink that needs no surroundings: opening it returns the sink itself."""

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
