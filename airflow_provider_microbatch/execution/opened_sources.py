"""The sources of a pipeline beside its checkpoint; each question to all of them is asked here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import check_offset
from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CorruptEntryError, MicroBatchError, SourceChangedError, SourceError
from airflow_provider_microbatch.execution.being_read import being_read
from airflow_provider_microbatch.execution.committed import committed
from airflow_provider_microbatch.execution.position import Offsets
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.masking import HIDDEN, refusal
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources import UNLIMITED, Late, OpenSource, ReadLimit, Source, SourceContext, Split
from airflow_provider_microbatch.sources.intervals import HeldRanges, Interval, IntervalSurvey, TellsOthers
from airflow_provider_microbatch.sources.resolving import resolved

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranges:
    """Where a batch begins and ends in each source.

    :param starts: by source; None before the source's first position.
    :param ends: by source; None where the source never had data.
    :param late: sources whose end is not known yet; in ``ends`` they have their starts.
    :param begun: sources that get their first position by this plan. As in Spark, that takes a batch, though no data
        may lie behind the position: for a source that begins at its newest data, for example.
    """

    starts: Offsets
    ends: Offsets
    late: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()

    def of(self, source: str) -> tuple[Offset | None, Offset | None]:
        """Start and end in one source; None for both if the batch does not know the source."""
        return self.starts.get(source), self.ends.get(source)

    def and_of(self, others: Ranges) -> Ranges:
        """These ranges, but for the sources that the others are of."""
        starts, ends = {**self.starts, **others.starts}, {**self.ends, **others.ends}
        return Ranges(starts, ends, self.late | others.late, self.begun | others.begun)

    @property
    def are_empty(self) -> bool:
        """Whether no source has data in its range, may have data there, or begins with this plan."""
        return not self.late and not self.begun and all(end == self.starts[name] for name, end in self.ends.items())


@dataclass(frozen=True)
class Lag:
    """How much data lies after a batch, for the sources that can tell.

    :param by_source: in the words of each source, such as ``{"rows": 12}``.
    :param by_split: in the unit of each source, by split, such as by partition; only the splits with most data.
    """

    by_source: Mapping[str, Mapping[str, int]]
    by_split: Mapping[str, Mapping[str, int]]


MOST_SPLITS = 100
"""Number of a source's splits whose lag is told with a batch: every sensor reads the commit entry."""


def read_as(source: Source) -> dict[str, str | None]:
    """See :meth:`Source.reads_as`. The values stand in logs, so a value that looks like a secret is hidden."""
    return {
        setting: value if value is None or refusal(setting, value) is None else HIDDEN
        for setting, value in source.reads_as().items()
    }


class OpenedSources:
    """Puts questions to each source of a pipeline, or to one of them.

    :param sources: by name, as the pipeline defines them.
    :param checkpoint: the checkpoint where the sources keep their logs and state.
    :param lane: the lane whose batches are asked about.
    :param clock_ms: the time, milliseconds since the epoch.
    :param moves_alone: see :class:`~airflow_provider_microbatch.sources.SourceContext`; for whoever plans.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        checkpoint: Checkpoint,
        lane: str,
        clock_ms: Callable[[], int],
        moves_alone: bool = True,
    ) -> None:
        self._sources = sources
        self._checkpoint = checkpoint
        self._lane = lane
        self._clock_ms = clock_ms
        self._moves_alone = moves_alone
        self._kept: dict[str, dict[str, bytes]] = {}

    @classmethod
    def on_record(
        cls, arguments: Mapping[str, Any], *, checkpoint: Checkpoint, lane: str, clock_ms: Callable[[], int]
    ) -> OpenedSources:
        """The sources of a pipeline that the checkpoint has on record, by their present names.

        :param arguments: of the pipeline's definition.
        :raises UntrustedError: if a source must not be loaded because a checkpoint names it.
        :raises DefinitionError: if this process cannot import a source.
        """
        recorded = arguments.get("sources", {}).items()
        sources = {checkpoint.names.of(name): Source.from_dict(found) for name, found in recorded}
        return cls(sources, checkpoint=checkpoint, lane=lane, clock_ms=clock_ms)

    @property
    def checkpoint(self) -> Checkpoint:
        """Where the sources keep their logs and state."""
        return self._checkpoint

    @property
    def names(self) -> list[str]:
        """Names of all sources, in the pipeline's order."""
        return list(self._sources)

    @property
    def classes(self) -> set[type]:
        """Classes of all sources."""
        return {type(source) for source in self._sources.values()}

    def read_as(self, ranges: Ranges) -> dict[str, Mapping[str, str | None]]:
        """How each source with data in the ranges makes rows of it; see :func:`read_as`."""
        names = [name for name in self.names if name in ranges.late or len({*ranges.of(name)}) > 1]
        return {name: read_as(self._sources[name]) for name in names}

    @property
    def defined(self) -> Mapping[str, Source]:
        """The sources as the pipeline defines them."""
        return self._sources

    def open(self, name: str, *, moves_alone: bool = False) -> OpenSource:
        """The named source beside the checkpoint.

        :param moves_alone: it may move its position, though it has no rows, whatever holds for the pipeline.
        """
        context = SourceContext(
            name=name,
            log=self._checkpoint.source_log(name),
            state=self._checkpoint.source_state(name),
            names_before=lambda: self._checkpoint.names.before(name),
            knows=self._knows,
            states_before=lambda: [self._checkpoint.source_state(old) for old in self._checkpoint.names.before(name)],
            clock_ms=self._clock_ms,
            checkpoint=self._checkpoint.location,
            checkpoint_id=self._checkpoint_id,
            moves_alone=moves_alone or self._moves_alone,
            lane=self._lane,
            being_read=lambda: being_read(self._checkpoint, name),
            committed=lambda lane: committed(self._checkpoint, name, lane),
            kept=self._kept.setdefault(name, {}),
        )
        return self._sources[name].open(context)

    def forget(self) -> None:
        """Forget what the sources have read: a plan begins, and a command, or a backup that was restored, may have put
        other entries in its place."""
        self._kept.clear()

    def _knows(self, name: str) -> bool:
        return name in self._sources or self._checkpoint.knows_source(name)

    def _checkpoint_id(self) -> str | None:
        identity = self._checkpoint.identity()
        return None if identity is None else identity.query_id

    def _each(self) -> Iterator[tuple[str, OpenSource]]:
        return ((name, self.open(name)) for name in self._sources)

    def check(self, committed: Offsets | None = None) -> None:
        """Check that the sources can be used. Writes nothing.

        :param committed: the committed offsets. A source that is finished there is not checked, as nothing is read of
            it any more: its folder, for example, may be gone.
        :raises SourceError: if a source cannot be used.
        """
        for name, source in self._each():
            if committed is None or not source.finished(committed.get(name)):
                source.check()

    def are_finished(self, committed: Offsets) -> bool:
        """Whether no data will ever come after the committed offsets: all sources are bounded, and read. Writes
        nothing."""
        return all(source.finished(committed.get(name)) for name, source in self._each())

    def with_new(self, committed: Offsets) -> list[str]:
        """Names of the sources that have data after the committed offsets, or no position yet and one to begin at: that
        needs a batch too. A source that begins at its newest data would have nothing new for ever. Writes nothing."""
        return [
            name
            for name, source in self._each()
            if (committed.get(name) is None and source.initial_offset() is not None)
            or (not source.finished(committed.get(name)) and source.has_new(committed.get(name)))
        ]

    def splits(self) -> dict[str, str]:
        """By source, its name for its smallest units."""
        return {name: source.splits for name, source in self._each()}

    def next_ranges(self, committed: Offsets, limits: Mapping[str, ReadLimit]) -> Ranges:
        """The ranges that the next batch reads.

        :param committed: the committed offsets, where the batch begins.
        :param limits: how much it may read of a source, beside the source's own limits.
        """
        ranges = self._asked_for(self.names, committed, limits)
        if not self._moves_alone and not ranges.are_empty:
            # The batch is made, so it moves the sources that have nothing in it too. Left where they are, however busy
            # the others, the history behind them would expire, and a slot would keep all log since. No other source is
            # asked twice: that lists a bucket, or calls somebody's API, once more with each batch.
            idle = [name for name in self.names if name not in ranges.late and len({*ranges.of(name)}) == 1]
            movable = [name for name in idle if self.open(name).may_move_alone]
            ranges = ranges.and_of(self._asked_for(movable, committed, limits, moves_alone=True))
        # A removed source keeps its position in every entry: absent from two, Spark would read it again from the start.
        removed = {name: offset for name, offset in committed.items() if name not in ranges.ends}
        return ranges.and_of(Ranges(removed, removed))

    def _asked_for(
        self, names: Collection[str], committed: Offsets, limits: Mapping[str, ReadLimit], *, moves_alone: bool = False
    ) -> Ranges:
        starts: dict[str, Offset | None] = {}
        ends: dict[str, Offset | None] = {}
        late, begun = set(), set()
        for name in names:
            source, start = self.open(name, moves_alone=moves_alone), committed.get(name)
            # Recorded as the batch's start: a source that is asked again, years later, may answer otherwise.
            starts[name] = ends[name] = start = source.initial_offset() if start is None else start
            if not source.finished(start):
                end = source.latest_offset(start, limits.get(name, UNLIMITED))
                if isinstance(end, Late):
                    late.add(name)
                else:
                    ends[name] = start if end is None else end
                if start is None and end is not None:
                    starts[name] = source.initial_offset()
            if committed.get(name) is None and starts[name] is not None:
                begun.add(name)
        return Ranges(starts, ends, frozenset(late), frozenset(begun))

    def why_not_as_before(self, ranges: Ranges) -> str | None:
        """The reason why these ranges, which were read once, cannot be planned again just so; None if they can.

        :raises SourceError: if a source is away: asked again, it may tell.
        """
        for name, source in self._each():
            start, end = ranges.of(name)
            if start == end:
                continue
            try:
                why = source.not_replayable(start, end)
                if why is not None:
                    source.check()  # some tell a table that is away so, too
                    why = source.not_replayable(start, end)
                if why is None:
                    source.read(start, end)
            except (SourceChangedError, CorruptEntryError) as changed:
                why = str(changed)
            if why is not None:
                return why
        return None

    def survey_interval(self, interval: Interval, held: Callable[[str], HeldRanges]) -> list[IntervalSurvey]:
        """The data of each source in a data interval. Writes nothing.

        :param held: by source, the ranges of it that batches of all lanes have.
        """
        return [source.survey_interval(interval, held(name)) for name, source in self._each()]

    def why_untold(self, interval: Interval) -> str | None:
        """The reason why nobody knows which data of an interval lanes have taken, as a source that may have other data
        by now tells it; None if it is known."""
        asked = (source.why_untold(interval) for _, source in self._each() if isinstance(source, TellsOthers))
        return next((why for why in asked if why is not None), None)

    def plan_interval(self, interval: Interval, held: Callable[[str], HeldRanges]) -> Ranges:
        """The ranges that the batch of a data interval reads: all of the interval that no other batch has.

        :param held: by source, the ranges of it that batches of all lanes have.
        """
        planned = {name: source.plan_interval(interval, held(name)) for name, source in self._each()}
        return Ranges(
            {name: start for name, (start, _) in planned.items()}, {name: end for name, (_, end) in planned.items()}
        )

    def reads(
        self, ranges: Ranges, *, tell_refused: bool = False, without: Collection[str] = ()
    ) -> tuple[dict[str, Read], dict[str, str]]:
        """The read of each source for the runtime; and for sources that can have no frame, the reason.

        :param tell_refused: the reads also tell the runtime which records do not parse.
        :param without: names of sources that are left out.
        :raises SourceError: if a source that has rows in the ranges is not one of the pipeline's.
        :raises SourceChangedError: if a range is no longer as it was planned.
        """
        self.check_named(ranges)
        reads, absent = {}, {}
        for name, source in self._each():
            if name in without:
                continue
            if name in ranges.late:
                reads[name] = source.read_late(ranges.starts.get(name))
                continue
            why = source.absent(*ranges.of(name))
            if why is None:
                words = source.in_words(*ranges.of(name))
                amount = ", ".join(f"{count} {word}" for word, count in words.items())
                read = source.read(*ranges.of(name))
                reads[name] = replace(source.telling_refused(read) if tell_refused else read, amount=amount)
            else:
                absent[name] = why
        return reads, absent

    def streams(self, ranges: Ranges) -> dict[str, Stream]:
        """How Spark's streaming engine reads the ranges, for the sources that it reads exactly these ranges of.

        :raises SourceError: as :meth:`reads`.
        """
        self.check_named(ranges)
        named = ((name, source) for name, source in self._each() if name not in ranges.late)
        asked = ((name, source.stream(*ranges.of(name))) for name, source in named)
        return {name: stream for name, stream in asked if stream is not None}

    def splits_of(self, ranges: Ranges) -> dict[str, list[Split]]:
        """The splits of each source's range; none for a source that is late, or can have no frame."""
        named = ((name, source) for name, source in self._each() if name not in ranges.late)
        return {
            name: list(source.splits_of(*ranges.of(name)))
            for name, source in named
            if source.absent(*ranges.of(name)) is None
        }

    def known_as(self, ranges: Ranges) -> dict[str, str]:
        """The name by which the data of each source's range is known outside of this checkpoint; see
        :meth:`OpenSource.known_as`. A range that is empty or late, or whose source cannot tell, has none."""
        named = ((name, source) for name, source in self._each() if name not in ranges.late)
        asked = ((name, source.known_as(*ranges.of(name))) for name, source in named if len({*ranges.of(name)}) > 1)
        return {name: known for name, known in asked if known is not None}

    def left_out(self, ranges: Ranges, *, told: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
        """Data of the ranges that is gone and is left out when they are read, in words.

        :param told: by source, a reader's report of an earlier read: data that was left out then does not count.
        """
        found = []
        for name, source in self._each():
            start, end = ranges.of(name)
            gone = None if start == end else source.left_out(start, end, told=(told or {}).get(name))
            found += [] if gone is None else [f"source {name!r}: {gone}"]
        return found

    def secrets(self) -> dict[str, str]:
        """Secrets that readers need beside the job, by ``<source>/<name>``."""
        return {f"{name}/{key}": value for name, source in self._each() for key, value in source.secrets().items()}

    def resolve(
        self, names: Collection[str], ranges: Ranges, *, read: Mapping[str, Any], on_record: Offsets
    ) -> dict[str, Offset | None]:
        """Where an attempt has ended in sources with a late end.

        :param names: these sources.
        :param ranges: of the batch, which has no ends of theirs, or those that are chosen.
        :param read: by source, the runtime's report of its reading.
        :param on_record: the ends that are chosen already.
        """
        ends = {name: end for name, end in ranges.ends.items() if name not in ranges.late}
        # Twice, where none may move alone: as in the plan, an idle one moves on with any other that has rows.
        for _ in range(1 if self._moves_alone else 2):
            has_rows = any(end != ranges.starts.get(name) for name, end in ends.items())
            ends |= {
                name: resolved(
                    self.open(name, moves_alone=has_rows),
                    ranges.starts.get(name),
                    read.get(name) or {},
                    on_record=[on_record[name]] if name in on_record else (),
                )
                for name in names
            }
        for name in names:
            if (end := ends[name]) is not None:
                check_offset(name, end)
        return {name: ends[name] for name in names}

    def verify(self, ranges: Ranges, *, read: Mapping[str, Any], learned: Mapping[str, Any]) -> None:
        """Check that the ranges were read as planned, and have each source keep what the runtime found out about it.

        :param read: by source, the runtime's report of its reading.
        :param learned: by source, what the runtime found out.
        :raises SourceError: if a source that has rows in the ranges is not one of the pipeline's: the pipeline could
            not have it keep, or give up, the rows that were read.
        :raises SourceChangedError: if a range changed while it was read.
        """
        self.check_named(ranges)
        for name, source in self._each():
            source.verify(*ranges.of(name), read.get(name))
            if name in learned:
                source.learned(learned[name])

    def describe(self, ranges: Ranges) -> dict[str, Mapping[str, int]]:
        """Each source's figures for a range, in the words of the source: ``{"files": 3, "bytes": 1200}``."""
        return {name: source.in_words(*ranges.of(name)) for name, source in self._each()}

    def lag(self, ends: Offsets) -> Lag:
        """How much data lies after a batch of the live lane; other lanes have no position that data lies behind. A
        source that fails, or cannot tell, is left out: a batch that is in the sink does not fail for want of a
        figure."""
        words, splits = dict[str, Mapping[str, int]](), dict[str, Mapping[str, int]]()
        for name in self._sources if self._lane == LIVE else ():
            try:
                in_words, by_split = self.open(name).lags(ends.get(name))
                words[name] = _counted(in_words)
                farthest = sorted(_counted(by_split).items(), key=lambda one: (-one[1], one[0]))
                splits[name] = dict(farthest[:MOST_SPLITS])
            except Exception as error:
                log.info("source %s does not tell its lag: %s", name, error)
        return Lag(
            {name: told for name, told in words.items() if told}, {name: told for name, told in splits.items() if told}
        )

    def not_replayable(self, ranges: Ranges) -> str | None:
        """The first source that cannot read its range again, with its reason; None if all can."""
        missing = self.missing(ranges)
        if missing is not None:
            return f"it has {missing}"
        for name, source in self._each():
            reason = source.not_replayable(*ranges.of(name))
            if reason is not None:
                return f"source {name!r} cannot be read again: {reason}"
        return None

    def keep(self, ranges: Ranges) -> None:
        """Have every source keep the range, whatever is committed after it.

        :raises SourceError: if a source cannot.
        """
        for name, source in self._each():
            source.keep(*ranges.of(name))

    def release(self, ranges: Ranges) -> None:
        """Tell every source that the batch is in the sink: its range may be given up once that is committed."""
        for name, source in self._each():
            source.release(*ranges.of(name))

    def commit(self, ends: Offsets) -> None:
        """Tell every source that has an end that the end is committed. An error of a source is logged, whatever its
        library raises: the batch is committed, and nothing of a source may make its task fail."""
        for name in self._sources:
            end = ends.get(name)
            if end is None:
                continue
            try:
                self.open(name).commit(end)
            except MicroBatchError as error:
                log.warning("source %s did not take commit(%s), it will be called again: %s", name, end, error)
            except Exception:
                log.exception("source %s failed in commit(%s), it will be called again", name, end)

    def check_named(self, ranges: Ranges) -> None:
        missing = self.missing(ranges)
        if missing is not None:
            raise SourceError(f"a batch was planned with {missing}")

    def missing(self, ranges: Ranges) -> str | None:
        """Sources that have rows in the ranges and are not the pipeline's, in words; None if there are none. If the
        batch were made without them, it would be committed, or replace its output, with their rows in no table.

        A source that was removed is carried forward with an empty range; only a removed source that has rows is needed.
        """
        ends = ranges.ends.items()
        has_rows = {name for name, end in ends if end != ranges.starts.get(name)} | ranges.late
        names = [name for name, _ in ends if name in has_rows and name not in self.names]
        if not names:
            return None
        return (
            f"rows of source {', '.join(map(repr, names))}, which the pipeline no longer names. Put it back until the "
            "batch is made, then remove it."
        )


def _counted(told: Mapping[str, int]) -> dict[str, int]:
    """The counts that JSON can hold: a source of the user's own may tell others, and the batch's commit entry must not
    fail for them."""
    return {str(word): count for word, count in told.items() if type(count) is int}
