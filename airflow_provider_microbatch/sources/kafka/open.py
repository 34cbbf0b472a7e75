"""The Kafka source opened for its checkpoint: plans ranges of offsets and describes how to read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CorruptEntryError, IntervalError, SourceChangedError, SourceError
from airflow_provider_microbatch.kafka.access import Access
from airflow_provider_microbatch.kafka.cluster import Cluster, Partition, Position, named
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.runtime.streaming_job import Stream
from airflow_provider_microbatch.sources import (
    UNLIMITED,
    Figures,
    OpenSource,
    ReadLimit,
    SourceContext,
    digest_of_range,
)
from airflow_provider_microbatch.sources.figures import worded
from airflow_provider_microbatch.sources.intervals import HeldRange, HeldRanges, Interval, IntervalSurvey
from airflow_provider_microbatch.sources.kafka import EARLIEST, FAIL, READ_COMMITTED, KafkaSource, as_spark
from airflow_provider_microbatch.sources.kafka.begin import Beginning, beginning, entry_of_beginning
from airflow_provider_microbatch.sources.kafka.by_hand import ByHand
from airflow_provider_microbatch.sources.kafka.offsets import parse, render
from airflow_provider_microbatch.sources.kafka.pieces import Pieces
from airflow_provider_microbatch.sources.kafka.share import limited
from airflow_provider_microbatch.sources.kafka.taken import Taken
from airflow_provider_microbatch.sources.kafka.topics import Topics, first_seen, partitions_of
from airflow_provider_microbatch.sources.kafka.window import SPLITS, Times, Window, survey
from airflow_provider_microbatch.sources.naming import asked_of

T = TypeVar("T")

READER = "airflow_provider_microbatch.runtime.kafka:read"
_STREAM = "airflow_provider_microbatch.runtime.kafka:stream"


class OpenKafkaSource(OpenSource):
    """Offsets are Spark's, ``{"orders":{"0":23,"1":7}}``; range ``(a, b]`` has the records at or behind ``a`` and
    before ``b``, without those that lanes of data intervals have taken out of it.

    No log of planned ranges is kept: of two planners the offset entry's put decides. Facts that the entry cannot hold
    are put on record before it: where the first batch begins, where a topic that came later begins, and the id of each
    topic.
    """

    def __init__(self, source: KafkaSource, context: SourceContext) -> None:
        self._source = source
        self._name = context.name
        self._lane = context.lane
        self._set_offset = context.set_offset
        self._clock_ms = context.clock_ms
        self._connect = context.connect
        self._beginning = Beginning(context.log)
        self._taken = Taken(context.state)
        self._topics = Topics(
            source, name=context.name, cluster=lambda: self._cluster, state=context.state, checkpoint=context.checkpoint
        )
        self._by_hand = ByHand(self._topics, cluster=lambda: self._cluster)

    @property
    def splits(self) -> str:
        return SPLITS

    @cached_property
    def _access(self) -> Access:
        if self._source.conn_id is not None:
            return Access.of_connection(self._connect(self._source.conn_id))
        return Access.of_servers(self._source.bootstrap_servers or "")

    @cached_property
    def _cluster(self) -> Cluster:
        committed_only = self._source.isolation == READ_COMMITTED
        return Cluster(self._access, timeout=self._source.timeout, committed_only=committed_only)

    def check(self) -> None:
        """Check that the topics exist, and that this user may see them."""
        self._named(self._topics.now)
        self._access.options()
        self._access.secrets()

    def has_new(self, position: Offset | None) -> bool:
        """Takes one request if there is something new; else one more, for partitions and topics that came since."""
        return self._named(lambda: self._has_new(position))

    def _has_new(self, position: Offset | None) -> bool:
        known = self._start(position)
        if known is None:
            if self._begins_later():
                return False
            partitions = partitions_of(self._topics.now().values())
            # A start other than the earliest is determined by the first plan, so there has to be one.
            begins_elsewhere = self._source.start != EARLIEST and bool(partitions)
            return begins_elsewhere or self._latest(partitions) != self._cluster.earliest(partitions)
        ours = [one for one in known if self._is_meant(one)]
        if self._source.pattern is None and any(at > known[one] for one, at in self._latest(ours).items()):
            return True
        latest = self._latest(partitions_of(self._topics.now().values()))
        self._check_forward(known, latest)
        self._check_gone_topics(known)
        return any(at > self._topics.from_(known, one) for one, at in latest.items())

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | None:
        """Return the present ends of the partitions, as far as the limit goes. Puts on record where the first batch
        begins, and topics that are seen for the first time."""
        return self._named(lambda: self._latest_offset(start, limit))

    def _latest_offset(self, start: Offset | None, limit: ReadLimit) -> Offset | None:
        known = self._start(start)
        if known is None and self._begins_later():
            return None
        topics = self._topics.now()
        partitions = partitions_of(topics.values())
        latest, earliest = self._latest(partitions), self._cluster.earliest(partitions)
        if known is None:
            if not partitions or (self._source.start == EARLIEST and latest == earliest):
                return None
            begins = beginning(self._source, partitions, lambda: self._cluster, name=self._name)
            known = self._parsed(self._beginning.pin(begins))
        self._topics.pin(list(topics.values()), lambda new: first_seen(new, known, earliest))
        self._check_forward(known, latest)
        self._check_gone_topics(known)
        begin = self._taken.behind_intervals({one: self._topics.from_(known, one) for one in partitions})
        self._check_lost(self._lost_since(begin, latest, earliest), {**known, **begin})
        most = [one for one in (self._source.max_rows, limit.rows, limit.splits) if one is not None]
        end = {
            **known,
            **limited(begin, {one: max(begin[one], at) for one, at in latest.items()}, min(most, default=None)),
        }
        return start if start is not None and end == known else render(end)

    def _begins_later(self) -> bool:
        """Whether the first batch begins at a moment that is yet to come: where that will be nobody knows."""
        return (self._source.begins_ms or 0) > self._clock_ms()

    def initial_offset(self) -> Offset | None:
        """Return the position at which the first batch begins, as it is on record."""
        return self._beginning.get()

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Return a read of the offsets of the range, without lost ones that may be left out, by Spark's connector. It
        has all settings but secrets, of which it has only the names."""
        return self._named(lambda: self._read(start, end))

    def _read(self, start: Offset | None, end: Offset | None) -> Read:
        planned = self._pieces(start, end, claim=True)
        there = self._there(planned, start)
        options = {key: as_spark(value) for key, value in self._source.options.items()}
        return Read(
            reader=READER,
            arguments={
                "name": self._name,
                "layers": there.layers(),
                "left_out": (planned - there).to_json(),
                "headers": self._source.headers,
                "options": {
                    **options,
                    **self._access.options(),
                    "kafka.isolation.level": self._source.isolation,
                },
                "secrets": sorted(self._access.secrets()),
            },
            requires=self._source.requires(),
        )

    def stream(self, start: Offset | None, end: Offset | None) -> Stream | None:
        """Return the range as a stream of Spark's own connector, without lost records that may be left out. None if a
        lane of a data interval has a piece in the middle of the range, which no two offsets leave out."""
        return self._named(lambda: self._stream(start, end))

    def _stream(self, start: Offset | None, end: Offset | None) -> Stream | None:
        read = self._read(start, end)
        layers = read.arguments["layers"]
        if len(layers) > 1:
            return None
        pieces = Pieces.of_layers(layers)
        # Only partitions that the range has records of: of another one Spark would ask where it begins, and read it.
        first, last = (render({one: piece[at] for one, piece in pieces}) if pieces else None for at in (0, 1))
        told = {name: read.arguments[name] for name in ("layers", "left_out")}
        return Stream(
            reader=_STREAM,
            arguments={name: value for name, value in read.arguments.items() if name not in told}
            | {"partitions": pieces.to_json()},
            start=first,
            end=last,
            log={} if first is None else entry_of_beginning(first),
            told=told,
            requires=read.requires,
        )

    def gone_since(self, position: Offset | None) -> str | None:
        """Describe records, and whole topics, also of those that came later: what was in them before the next plan
        puts on record where it begins there is told by nobody else."""
        return self._named(lambda: self._gone_since(self._start(position)))

    def _gone_since(self, known: Position | None) -> str | None:
        if known is None and self._source.start != EARLIEST:
            return f"source {self._name!r}: where its first batch began is not on record"
        lost, topics = self._lost_behind(known or {}), self._gone_topics(known or {})
        told = [f"topic {', '.join(topics)}, with what came behind its position, if anything"] if topics else []
        told += [lost.in_words()] if lost else []
        return f"source {self._name!r}, from which this is gone: {'; '.join(told)}" if told else None

    def secrets(self) -> Mapping[str, str]:
        """Return the options by which Spark's connector logs in."""
        return self._named(self._access.secrets)

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Describe records that are gone, and that ``on_data_loss="record_gap"`` leaves out."""
        if self._source.on_data_loss == FAIL:
            return None
        planned = self._pieces(start, end)
        before = Pieces.from_json((told or {}).get("left_out", {}), where="what a reader told")
        lost = self._named(lambda: planned - self._there(planned, start)) - before
        return f"gone before they were read, and left out: {lost.in_words()}" if lost else None

    def known_as(self, start: Offset | None, end: Offset | None) -> str | None:
        """Return a digest of cluster, topics and offsets."""
        return digest_of_range(self._source.location(), self._pieces(start, end).to_json())

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check that the topics are still the planned ones, and that Spark has read the range."""
        planned, where = self._pieces(start, end), "what the reader told"
        left_out = Pieces.from_json((told or {}).get("left_out", {}), where=where)
        # Records that were left out may be gone together with their topic.
        self._named(lambda: self._topics.check({topic for topic, _ in (planned - left_out).of}))
        if told is None:
            return
        if Pieces.of_layers(told["layers"]) | left_out != planned:
            raise SourceChangedError(
                f"source {self._name!r}: what was read is not what was planned. Run the batch again."
            )
        # A broker that restarts may not know a topic for a moment.
        if there := self._named(lambda: self._available(left_out)):
            raise SourceChangedError(
                f"source {self._name!r}: {there.in_words()} could not be read, and are there again. Run the "
                "batch again."
            )

    def commit(self, end: Offset) -> None:
        """Set the consumer group to this position, if there is a group. Only a position of the live lane is used."""
        group = self._source.group_id
        if group is not None and self._lane == LIVE:
            self._named(lambda: self._commit(group, self._parsed(end)))

    def _commit(self, group: str, position: Position) -> None:
        there = self._cluster.topics({topic for topic, _ in position})  # a position keeps those that are gone
        self._cluster.commit(group, {one: at for one, at in position.items() if one[0] in there})

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason if records or a topic are gone; None otherwise."""
        planned = self._pieces(start, end)

        def why() -> str | None:
            try:
                self._topics.check({topic for topic, _ in planned.of})
            except SourceChangedError as error:
                return str(error)
            lost = planned - self._available(planned)
            return (
                f"source {self._name!r}: gone: {lost.in_words()}"
                if lost and self._source.on_data_loss == FAIL
                else None
            )

        return self._named(why)

    def made_again(self) -> str | None:
        """The topics that were removed and made again."""
        return self._named(self._topics.made_again)

    def check_offset(self, offset: Offset) -> None:
        """Check that a position names all partitions of its topics, and offsets that they have."""
        self._named(lambda: self._check_offset(offset))

    def _check_offset(self, offset: Offset) -> None:
        try:
            position = self._parsed(offset)
        except CorruptEntryError as error:
            raise SourceError(str(error)) from error
        self._by_hand.check(position, location=self._source.location())

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """Whether the offset is ahead in some partition and behind in none; None if that cannot be told."""
        one, two = self._start(offset) or {}, self._start(other) or {}
        return self._named(lambda: self._by_hand.is_after(one, two))

    def lag(self, position: Offset | None) -> Figures:
        """Offsets, summed over all partitions."""
        return Figures(splits=sum(self.lag_by_split(position).values()))

    def lags(self, position: Offset | None) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Asks for the newest offsets once."""
        by_split = self.lag_by_split(position)
        return worded(Figures(splits=sum(by_split.values())), splits=self.splits), by_split

    def lag_by_split(self, position: Offset | None) -> Mapping[str, int]:
        """Offsets by partition."""
        return self._named(lambda: self._lag(position))

    def _lag(self, position: Offset | None) -> Mapping[str, int]:
        partitions = partitions_of(self._topics.now().values())
        latest, known = self._latest(partitions), self._start(position)
        if known is None:
            known = beginning(self._source, partitions, lambda: self._cluster, name=self._name)
        return {named(one): max(0, latest[one] - self._topics.from_(known, one)) for one in partitions}

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """Number of offsets. There may be fewer rows: control records and aborted ones have offsets too."""
        return Figures(splits=self._pieces(start, end).count)

    def survey_interval(self, interval: Interval, held: HeldRanges) -> IntervalSurvey:
        """Survey by the records' timestamps."""

        def look() -> IntervalSurvey:
            return survey(
                self._of_interval(interval),
                lane=self._lane,
                taken=self._taken,
                held=held,
                of_live=self._of_live(held),
                range_of=self._range_of,
            )

        return self._named(look)

    def plan_interval(self, interval: Interval, held: HeldRanges) -> tuple[Offset | None, Offset | None]:
        """Take the records that no other lane has, in pieces; the range spans all of them."""

        def take() -> tuple[Offset | None, Offset | None]:
            topics = self._topics.now().values()
            earliest = self._cluster.earliest(partitions_of(topics))
            self._topics.pin(list(topics), lambda new: first_seen(new, {}, earliest))
            window, gone = self._of_interval(interval), Pieces()
            if self._taken.by_lane(self._lane) is None:
                if interval.whole and (waits := window.waits) is not None:
                    raise IntervalError(f"{waits}: they would be in no batch. Try again.")
                gone = window.gone(lambda: self._taken.by_all() | self._of_live(held), taken=self._taken)
                self._check_lost(gone, {})
            # The lane has what is gone, too: its batch tells of that, and no other one.
            pieces = self._taken.take(self._lane, window.wanted | gone, live=lambda: self._of_live(held))
            start = render({one: found[0][0] for one, found in pieces.of.items()})
            return start, render({one: found[-1][1] for one, found in pieces.of.items()}) if pieces else start

        return self._named(take)

    def taken_by(self) -> set[str]:
        """The lanes with pieces."""
        return self._taken.lanes()

    def _of_interval(self, interval: Interval) -> Window:
        partitions = partitions_of(self._topics.now().values())
        # Before the latest: what comes in between is not behind an open transaction.
        highest = self._cluster.highest(partitions) if self._source.isolation == READ_COMMITTED else None
        earliest, latest = self._cluster.earliest(partitions), self._latest(partitions)
        seen = {"earliest": earliest, "latest": latest, "highest": latest if highest is None else highest}
        return Window.of(interval, Times(lambda: self._cluster, now_ms=self._clock_ms(), **seen))

    def _of_live(self, held: HeldRanges) -> Pieces:
        """The pieces that the live lane has by its log, and from its beginning those that are older than the log."""
        ranges = held.get(LIVE, ())
        found = Pieces()
        if ranges and ranges[0].key.id > 0:
            found = self._between(None, ranges[0].start)
        for one in ranges:
            found |= self._range_of(one)
        return found

    def _range_of(self, held: HeldRange) -> Pieces:
        return self._between(held.start, held.end)

    def _pieces(self, start: Offset | None, end: Offset | None, *, claim: bool = False) -> Pieces:
        """The pieces that a batch of this lane has to read.

        :param claim: ensure that no other lane takes them from now on.
        """
        if start == end:
            return Pieces()
        if self._lane != LIVE:
            own = self._taken.by_lane(self._lane)
            if own is None:
                raise self._error(f"what lane {self._lane} has is not on record any more. Restore the checkpoint.")
            return own
        found = self._between(start, end)
        return self._taken.live_claims(found) if claim else found - self._taken.by_intervals()

    def _between(self, start: Offset | None, end: Offset | None) -> Pieces:
        last = {} if end is None else self._parsed(end)
        first = self._start(start)
        if first is None:
            first = {}
        return Pieces.between({one: self._topics.from_(first, one) for one in last}, last)

    def _start(self, position: Offset | None) -> dict[Partition, int] | None:
        """Return the position; for None the beginning that is on record, or None if there is none yet."""
        text = self._beginning.get() if position is None else position
        return None if text is None else self._parsed(text)

    def _parsed(self, offset: Offset) -> dict[Partition, int]:
        return parse(offset, where=f"source {self._name!r}")

    def _is_meant(self, partition: Partition) -> bool:
        wanted = self._source.partitions.get(partition[0])
        return partition[1] in wanted if wanted is not None else partition[0] in self._source.names

    def _latest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return self._cluster.latest(partitions)

    def _check_forward(self, known: Position, latest: Position) -> None:
        back = {one: at for one, at in latest.items() if one in known and at < known[one]}
        if not back:
            return
        # With read_committed, the end may lie before a position that was planned when all records were read.
        highest = self._cluster.highest(back)
        again = {one: 0 for one, at in highest.items() if at < known[one]}
        if again:
            one, begin, here = min(again), self._by_hand.inside({**known, **again}), self._by_hand.inside(known)
            raise self._error(
                f"{named(one)} ends at {highest[one]}, and was planned up to {known[one]}: it was made again, or has "
                "lost records by an unclean election of its leader. What is there now cannot be told from what was "
                f"read. Begin it again: `{self._set_offset(begin, skip=True, reread=True)}`; or where it goes on: "
                f"`{self._set_offset(here, skip=True, reread=True)}`."
            )

    def _check_gone_topics(self, known: Position) -> None:
        """Refuse to go on if a topic of a pattern is gone: it may have had records that were not read."""
        gone = self._gone_topics(known) if self._source.on_data_loss == FAIL else []
        if gone:
            without, lost = self._by_hand.inside(known, without=gone), self._lost_behind(known)
            too = f" It gives up {lost.in_words()} too, which are gone from topics that are there." if lost else ""
            raise SourceChangedError(
                f"source {self._name!r}: topic {', '.join(map(repr, gone))} is gone from {self._source.location()}, "
                "and with it what was not read of it, if anything. on_data_loss='record_gap' goes on without such "
                f"topics. Where nothing is missing: `{self._set_offset(without, skip=True, reread=True)}`.{too}"
            )

    def _gone_topics(self, known: Position) -> list[str]:
        pattern = self._source.pattern  # a topic that is named has to be there
        return [] if pattern is None else self._topics.gone({one for one, _ in known if re.fullmatch(pattern, one)})

    def _lost_behind(self, known: Position) -> Pieces:
        """What is gone behind a position from all topics that are there."""
        begin = {one: self._topics.from_(known, one) for one in partitions_of(self._topics.now().values())}
        latest = self._latest(begin)
        self._check_forward(known, latest)
        return self._lost_since(begin, latest, self._cluster.earliest(begin))

    def _lost_since(self, begin: Position, latest: Position, earliest: Position) -> Pieces:
        return (Pieces.between(begin, latest) - self._taken.by_intervals()).before(earliest)

    def _check_lost(self, lost: Pieces, begin: Position) -> None:
        if lost and self._source.on_data_loss == FAIL:
            raise SourceChangedError(f"source {self._name!r}: {self._lost(lost, begin)}")

    def _lost(self, lost: Pieces, begin: Position) -> str:
        # A lane of an interval has no position: its pieces are what it reads.
        behind = "" if self._lane != LIVE else self._set_offset(self._by_hand.inside(begin), skip=True)
        way = behind and f"; or set the position behind them: `{behind}`"
        return (
            f"{lost.in_words()} of {self._source.location()} are gone before they were read: retention, or somebody, "
            f"has removed them. on_data_loss='record_gap' goes on without them, and each batch says what it "
            f"lacks{way}. Keep records longer than the pipeline may stand still."
        )

    def _there(self, planned: Pieces, start: Offset | None) -> Pieces:
        """Return the pieces that can be read.

        :param start: where the range begins.
        :raises SourceChangedError: if some cannot be read, and must not be left out.
        """
        if self._source.on_data_loss == FAIL:
            self._topics.check({topic for topic, _ in planned.of})
        there = self._available(planned)
        self._check_lost(planned - there, self._start(start) or {})
        return there

    def _available(self, planned: Pieces) -> Pieces:
        found = self._cluster.topics({topic for topic, _ in planned.of})
        topics = {name: topic for name, topic in found.items() if self._topics.is_as_it_was(topic)}
        partitions = [one for one in planned.of if one[0] in topics and one[1] in topics[one[0]].partitions]
        there = Pieces({one: planned.of[one] for one in partitions})
        return there - there.before(self._cluster.earliest(partitions))

    def _named(self, question: Callable[[], T]) -> T:
        return asked_of(self._name, question)

    def _error(self, text: str) -> SourceError:
        return SourceError(f"source {self._name!r}: {text}")
