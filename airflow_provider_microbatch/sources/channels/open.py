"""A source of channels, opened for its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.channels import FAIL, RECORD_GAP, At
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sources import LATE, UNLIMITED, Figures, Late, OpenSource, ReadLimit, SourceContext
from airflow_provider_microbatch.sources.channels import Channel, ChannelSource, Server
from airflow_provider_microbatch.sources.channels.begin import Beginning, Origin, Origins
from airflow_provider_microbatch.sources.channels.ends_folder import EndsFolder
from airflow_provider_microbatch.sources.channels.gone import first_to_go, gone_behind, gone_up_to, read_by_others
from airflow_provider_microbatch.sources.channels.graph import (
    NEW,
    Position,
    compare,
    eligible,
    forgettable,
    from_its_origin,
    is_finished,
    is_position,
    is_unread,
    kept_longer,
    merged,
    moved,
    parse,
    render,
    rows_between,
    unfinished,
)
from airflow_provider_microbatch.sources.channels.identity import Identity
from airflow_provider_microbatch.sources.channels.renewing import is_due, is_renewed
from airflow_provider_microbatch.sources.naming import asked_of

log = logging.getLogger(__name__)

T = TypeVar("T")

READER = "airflow_provider_microbatch.runtime.channels:read"


class OpenChannels(OpenSource):
    """Offsets are positions in channels (:mod:`airflow_provider_microbatch.sources.channels.graph`). A batch is planned
    without an end. Its start, which is committed, and the server's listing decide which channels it may read; its
    attempt tells where it ended in each channel, and the first attempt to tell decides. The plan needs no identifier of
    its own: the digest of its offset entry serves as one, and the end is put on record under it."""

    may_move_alone = True

    def __init__(self, source: ChannelSource, context: SourceContext) -> None:
        self._source = source
        self._context = context
        self._name = context.name
        self._beginning = Beginning(context.state)
        self._origins = Origins(context.state)
        self._identity = Identity(
            context.state, name=context.name, location=source.location(), checkpoint=context.checkpoint
        )
        self._ends = EndsFolder.of(context, ends_dir=source.ends_dir)

    @cached_property
    def _server(self) -> Server:
        return self._source.server(self._context)

    @property
    def splits(self) -> str:
        return self._server.splits

    def check(self) -> None:
        """Check that the system is reachable, that this user may read it, and that there is a folder for ends."""
        self._named(self._listed)
        if self._ends is None:
            raise self._error(
                f"Spark's executors cannot write where attempts come to into {self._context.state.location}. Give the "
                "source ends_dir, a folder that the driver and all executors see as a file system."
            )
        self._named(self._server.secrets)

    def initial_offset(self) -> Offset | None:
        """Return the position at which the first batch begins, as it is on record."""
        return self._beginning.get()

    def has_new(self, position: Offset | None) -> bool:
        """Look at each channel that a batch could read, until one has something."""
        return self._named(lambda: self._has_new(position))

    def _has_new(self, position: Offset | None) -> bool:
        start = self._start(position)
        if start is None:
            listed = self._listed()
            # A beginning other than the first row takes a plan, which puts the beginning on record.
            if self._server.beginning(listed) is not None:
                return bool(listed)
            start = {}
        listed, expired = self._listed_for(start)
        candidates = self._candidates(start, listed)
        return (
            bool(expired)
            or self._is_to_be_renewed(start, candidates)
            or self._is_untold(start, listed)
            or any(self._server.look(channel, at).is_new for channel, at in candidates.items())
        )

    def _is_untold(self, position: Position, listed: Mapping[str, Channel]) -> bool:
        """Whether the server has not taken in that channels have ended, which it must before it opens their children. A
        task that died behind its commit has not said so; the next plan does."""
        ended = {one.id: position[one.id] for one in listed.values() if is_finished(position, one.id)}
        return any(not listed[one].closed for one in ended) and bool(self._server.lacks(ended))

    def latest_offset(self, start: Offset | None, limit: ReadLimit = UNLIMITED) -> Offset | Late | None:
        """Return LATE if there is something to read. Puts the beginning of the first batch on record."""
        return self._named(lambda: self._latest_offset(start))

    def _latest_offset(self, start: Offset | None) -> Offset | Late | None:
        self._listed()
        self._identity.pin(self._server.identity())
        position = self._beginning.get() if start is None else start
        if position is None:
            listed = self._listed()
            begins = self._server.beginning(listed)
            if begins is None and not self._has_new(None):
                return None
            begins, now_ms = dict.fromkeys(listed, NEW) if begins is None else begins, self._context.clock_ms()
            look = {"seen": now_ms, "keeps": self._server.retention_ms()}
            position = self._beginning.pin({channel: {**look, **at} for channel, at in begins.items()})
        begin = self._parsed(position)
        if start is not None and self._beginning.get() is None:
            # A position by hand, before the first plan: a channel that it does not name came later here too.
            self._beginning.pin(begin)
        self._tell_ends(begin)
        if not self._has_new(position):
            return position
        self._candidates(begin, self._listed_for(begin)[0], pins=True)
        return LATE

    def _tell_ends(self, position: Position) -> None:
        """Tell the server of ends that a commit could not tell. A commit fails no batch; if no plan failed either, a
        server that takes no word would open no child, and their rows would be read by nobody while all is green."""
        listed, _ = self._listed_for(position)
        if self._context.lane != LIVE or not self._is_untold(position, listed):
            return
        ended = {name: position[name] for name in sorted(listed) if is_finished(position, name)}
        try:
            self._push(ended)
        except SourceError as error:
            raise self._error(
                f"{self._source.location()} opens the channels that come after {', '.join(list(ended)[-5:])} when it "
                f"was told that those are read to their end, and does not take it in: {error}"
            ) from error

    def _candidates(self, start: Position, listed: Mapping[str, Channel], *, pins: bool = False) -> dict[str, At]:
        """The channels that a batch from there on may read, with the place where each begins.

        :param pins: put on record where channels begin that no batch has read.
        """
        if not self._server.has_origins:
            return eligible(start, listed)
        known = {
            name: found
            for name in listed
            if is_unread(start.get(name, NEW)) and (found := self._origins.get(name)) is not None
        }
        self._check_places({name: {**NEW, "origin": found.place} for name, found in known.items()})
        behind = {name: tuple(found.behind) for name, found in known.items()}
        # A server opens a channel when it has heard that the parents have ended. It may have heard that from batches
        # behind this position, if the position was set back since: so a channel that no plan has read waits for all
        # that have ended there and not here. Otherwise it would be read beside its parents.
        ended_there = tuple(name for name, one in listed.items() if one.closed and not is_finished(start, name))
        ended = sorted(name for name in start if is_finished(start, name))
        for name, one in listed.items():
            if not one.closed and name not in known and is_unread(start.get(name, NEW)):
                behind[name] = (*ended, *ended_there)
        parents = {name: replace(listed[name], parents=names) for name, names in behind.items()}
        candidates = eligible(start, {**listed, **parents})
        if pins:
            for name in (name for name, at in candidates.items() if is_unread(at) and name not in known):
                known[name] = self._origins.pin(name, self._origin(name, behind=ended))
        return {name: {**at, **known[name].at} if name in known else at for name, at in candidates.items()}

    def _origin(self, channel: str, *, behind: list[str]) -> Origin:
        place, has_rows_before = self._server.origin(channel)
        self._check_places({channel: {**NEW, "origin": place}})
        begins = self._start(None)
        # The first batch begins where the server says that its reader is; a channel that came later at its first row.
        gap = has_rows_before and begins is not None and channel not in begins
        if gap and self._source.on_data_loss == FAIL:
            raise SourceChangedError(
                f"source {self._name!r}: {channel} of {self._source.location()} was read up to a place, and no batch "
                "of this checkpoint has read it: somebody else reads there too, or the checkpoint is an older one. "
                "on_data_loss='record_gap' goes on from that place, and the batch says so; read what lies before it "
                "from elsewhere."
            )
        return Origin(place=place, behind=behind, gap=gap)

    def read_late(self, start: Offset | None) -> Read:
        """Return a read of all channels that may be read from there, each up to the end that its read reaches."""
        return self._named(lambda: self._read_late(self._start(start) or {}))

    def _read_late(self, start: Position) -> Read:
        listed, expired = self._listed_for(start)
        # By the orchestrator's clock: rows of a forgotten channel have been gone for long.
        now_ms, retention_ms = self._context.clock_ms(), self._server.retention_ms()
        candidates = self._candidates(start, listed, pins=True)
        return self._read(
            [{"channel": channel, "at": at} for channel, at in sorted(candidates.items())],
            expired=expired,
            forgotten=forgettable(start, listed, before_ms=now_ms - self._server.keeps_ms),
            settled=kept_longer(start, read={*candidates, *expired}, now_ms=now_ms, retention_ms=retention_ms),
        )

    def read(self, start: Offset | None, end: Offset | None) -> Read:
        """Return a read of the rows between both positions, as many as there were."""
        first, last = self._start(start) or {}, self._start(end) or {}
        counts = rows_between(first, last)
        if any(count < 0 for count in counts.values()):
            raise self._error(f"{end} lies before {start} in {min(counts, key=lambda one: counts[one])}.")
        pieces = [
            {"channel": channel, "at": from_its_origin(first.get(channel, NEW), last[channel]), "end": last[channel]}
            for channel in sorted(counts)
        ]
        settled = {channel: at for channel, at in last.items() if channel not in counts and first.get(channel) != at}

        def read() -> Read:
            # Not by the plan alone: the reader must tell the first row of each channel, by which a rewind sees that
            # rows of the batch are gone, and with record_gap what is missing.
            self._check_identity()
            return self._read(pieces, settled=settled, forgotten=sorted(first.keys() - last.keys()))

        return self._named(read)

    def _read(self, pieces: list[dict[str, Any]], **known: Any) -> Read:
        count = min(len(pieces), self._source.max_partitions or len(pieces))
        client, arguments = self._server.client()
        return Read(
            reader=READER,
            arguments={
                "name": self._name,
                "schema": self._source.schema,
                "client": client,
                **arguments,
                "secrets": sorted(self._server.secrets()),
                "groups": [pieces[number::count] for number in range(count)],
                "max_records": self._source.max_records,
                "idle_seconds": self._source.idle_seconds,
                "on_data_loss": self._source.on_data_loss,
                "retention_ms": self._server.retention_ms(),
                "ends": None if self._ends is None else self._ends.of_attempt(),
                "settled": {},
                "expired": [],
                **known,
            },
        )

    def resolve(self, start: Offset | None, told: Mapping[str, Any]) -> Offset | None:
        """The position that an attempt has reached in all channels; ``start`` if it has advanced nowhere."""
        begin, end, has_moved = self._reached(start, told)
        renewed = self._context.moves_alone and is_renewed(begin, end, retention_ms=self._server.retention_ms())
        return render(end) if renewed or has_moved else start

    def comes_to(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any]) -> bool:
        """Whether an attempt has reached that end, whether or not idle channels would count as renewed by now: the
        server's retention may have been changed since the end was chosen."""
        _, reached, has_moved = self._reached(start, told)
        return (end == start and not has_moved) or self._start(end) == reached

    def _reached(self, start: Offset | None, told: Mapping[str, Any]) -> tuple[Position, Position, bool]:
        """The start, the position that an attempt has reached, and whether there is a row, or an end, between them."""
        begin = self._start(start) or {}
        found: list[Any] = [told.get(name) for name in ("ends", "expired", "forgotten")]
        ends, expired, forgotten = found
        if not is_position(ends) or not _are_names(expired) or not _are_names(forgotten):
            raise self._error("the reader did not tell how far it came.")
        self._check_places(ends)
        end = merged(begin, ends, expired=expired, forgotten=forgotten)
        back = [one for one, count in rows_between(begin, end).items() if count < 0]
        if back:
            raise self._error(f"the reader tells an end of {back[0]} that lies before its start.")
        return begin, end, bool(set(moved(begin, end)) - {*forgotten})

    def _is_to_be_renewed(self, position: Position, candidates: Position) -> bool:
        if not position or not self._context.moves_alone:
            return False  # before the first batch nobody was promised any row yet
        return is_due(candidates, now_ms=self._context.clock_ms(), retention_ms=self._server.retention_ms())

    def secrets(self) -> Mapping[str, str]:
        """Return the secrets for requests to the server."""
        return self._named(self._server.secrets)

    def verify(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any] | None = None) -> None:
        """Check that Spark has read up to the end, and log the rows that were missing."""
        if told is None or start == end:
            return
        if not self.comes_to(start, end, told):
            raise SourceChangedError(
                f"source {self._name!r}: what was read is not what was planned. Run the batch again."
            )
        if gaps := told.get("gaps"):
            log.warning(
                "source %s: rows of %s were gone before they were read, and are left out: %s",
                self._name, self._source.location(), ", ".join(map(str, gaps)),
            )  # fmt: skip

    def commit(self, end: Offset) -> None:
        """Push the position to a server that keeps its reader's position and shows it to people. Once the first batch
        has begun, the source never reads the position back to plan by it."""
        if self._context.lane == LIVE:
            self._named(lambda: self._push(self._parsed(end)))
        if self._ends is not None:
            self._named(self._ends.sweep)

    def _push(self, position: Position) -> None:
        self._check_identity()
        self._server.push(position)
        lost = sorted(self._server.lacks(position))
        if lost:
            raise self._error(f"the server was told how far {', '.join(lost[:5])} is read, and does not show it.")

    def not_replayable(self, start: Offset | None, end: Offset | None) -> str | None:
        """The reason if rows are gone; None otherwise."""
        if self._source.on_data_loss == RECORD_GAP:
            return None
        first, last = self._start(start) or {}, self._start(end) or {}

        def why() -> str | None:
            places = {channel: last[channel] for channel in rows_between(first, last)}
            gone = gone_up_to(places, self._listed(), self._server)
            return next((f"source {self._name!r}, {channel}: {reason}." for channel, reason in gone), None)

        return self._named(why)

    def left_out(
        self, start: Offset | None, end: Offset | None, *, told: Mapping[str, Any] | None = None
    ) -> str | None:
        """Describe rows that are gone since they were read, and that ``on_data_loss="record_gap"`` would go on
        without."""
        return None if self._source.on_data_loss == FAIL else self._lost(start, end, told or {}, or_before=False)

    def lost_anew(
        self, start: Offset | None, end: Offset | None, *, told: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        """Describe rows that are gone since they were read, whatever the source is set to: a plan made anew begins at
        the first row that is there."""
        return self._lost(start, end, *told, or_before=True)

    def _lost(self, start: Offset | None, end: Offset | None, *told: Mapping[str, Any], or_before: bool) -> str | None:
        places = first_to_go(self._start(start) or {}, self._start(end) or {}, told, or_before=or_before)
        self._check_places(places)
        gone = self._named(lambda: dict(gone_up_to(places, self._listed(), self._server)))
        return f"gone since they were read: rows of {', '.join(gone)}" if gone else None

    def gone_since(self, position: Offset | None) -> str | None:
        """Describe rows that are gone, or may be, by the rule that readers go by; and channels that were read, by a
        server that does not tell any more from where on."""
        return self._named(lambda: self._gone_since(self._start(position)))

    def why_not_from(self, start: Offset | None) -> str | None:
        """The reason; also why a read from there stops, by the rule that readers go by, though all that batches have
        read is there. Puts nothing on record."""
        try:
            self._named(self._listed)
            gone = None if self._start(start) is None else self.gone_since(start)
        except SourceError as error:
            return str(error)
        if gone is None or self._source.on_data_loss == RECORD_GAP:
            return None
        return (
            f"{gone}, of {self._source.location()}, and a read from there stops. on_data_loss={RECORD_GAP!r} goes on "
            "with what is there, and the batch says so."
        )

    def _gone_since(self, start: Position | None) -> str | None:
        if start is None:
            return f"source {self._name!r}: where its first batch began is not on record"
        listed, expired = self._listed_for(start)
        behind = gone_behind(self._candidates(start, listed), self._server, now_ms=self._context.clock_ms())
        gone = sorted({*expired, *behind, *read_by_others(start, listed, self._server, self._origins)})
        return f"source {self._name!r}: rows are gone, or may be, of {', '.join(gone[:5])}" if gone else None

    def check_offset(self, offset: Offset) -> None:
        """Check that a position names channels that exist, or have ended, and places that are possible."""
        try:
            position = self._parsed(offset)
        except CorruptEntryError as error:
            raise SourceError(str(error)) from error
        unknown = unfinished(position) - self._named(self._listed).keys()
        if unknown:
            raise self._error(f"{offset} names {sorted(unknown)[0]}, which {self._source.location()} does not have.")

    def is_after(self, offset: Offset | None, other: Offset | None) -> bool | None:
        """Whether the offset is ahead in some channel and behind in none; None if it is also behind in another."""
        if offset is None or other is None:
            return offset is not None
        return compare(self._parsed(offset), self._parsed(other))

    def lag_by_split(self, position: Offset | None) -> Mapping[str, int]:
        """Milliseconds by channel, for channels that the next batch may read: the age of the first row that it would
        read."""
        start = self._start(position) or {}

        def look() -> Mapping[str, int]:
            found = {
                channel: self._server.look(channel, at).behind_ms
                for channel, at in self._candidates(start, self._listed()).items()
            }
            return {channel: behind for channel, behind in found.items() if behind is not None}

        return self._named(look)

    def lag_in_words(self, position: Offset | None) -> dict[str, int]:
        """Milliseconds of the channel that is farthest behind."""
        return _farthest(self.lag_by_split(position))

    def lags(self, position: Offset | None) -> tuple[dict[str, int], Mapping[str, int]]:
        """Looks at each channel once."""
        by_split = self.lag_by_split(position)
        return _farthest(by_split), by_split

    def describe(self, start: Offset | None, end: Offset | None) -> Figures:
        """Rows, which are counted when they are read, and channels that had some."""
        counts = rows_between(self._start(start) or {}, self._start(end) or {})
        return Figures(rows=sum(counts.values()), splits=len(counts))

    def _start(self, position: Offset | None) -> dict[str, At] | None:
        """Return the position; for None the beginning that is on record, or None if there is none yet."""
        text = self._beginning.get() if position is None else position
        return None if text is None else self._parsed(text)

    def _parsed(self, offset: Offset) -> dict[str, At]:
        position = parse(offset, where=f"source {self._name!r}")
        self._check_places(position)
        return position

    def _check_places(self, position: Position) -> None:
        """Check that only places are sent to the server, since other users may write to the checkpoint."""
        for channel, at in position.items():
            why = self._server.why_no_place(at)
            if why is not None:
                raise self._error(f"{channel} is at no place that there can be: {why}.")

    def made_again(self) -> str | None:
        """What is there instead of what was read."""

        def look() -> str | None:
            self._server.channels(max_age=self._source.discover_seconds)
            return self._identity.another(self._server.identity())

        return self._named(look)

    def _listed(self, *, max_age: float | None = None) -> Mapping[str, Channel]:
        listed = self._server.channels(max_age=self._source.discover_seconds if max_age is None else max_age)
        self._check_identity()
        return listed

    def _check_identity(self) -> None:
        """Check that what was listed last is what was read before, whatever ``on_data_loss`` says: what another one has
        are other rows."""
        if (another := self._identity.another(self._server.identity())) is not None:
            raise SourceChangedError(f"source {self._name!r}: {another}")

    def _listed_for(self, position: Position) -> tuple[Mapping[str, Channel], list[str]]:
        """Return the server's listing, and the channels of the position that it lacks although they had not ended. A
        listing that is newer than the position is checked before a channel counts as gone."""
        listed = self._listed()
        expired = unfinished(position) - listed.keys()
        if expired:
            listed = self._listed(max_age=0)
            expired = unfinished(position) - listed.keys()
        if expired and self._source.on_data_loss == FAIL:
            # What came of them is named too: it begins at the first row that is there, whatever went before.
            there = {**dict.fromkeys(listed, NEW), **merged(position, {}, expired=expired)}
            behind = self._context.set_offset(render(there), skip=True)
            raise SourceChangedError(
                f"source {self._name!r}: {', '.join(sorted(expired)[:5])} of {self._source.location()} went before "
                "they were read to their end: retention has removed them. on_data_loss='record_gap' goes on without "
                f"them, and the batch says so; or set the position behind them: `{behind}`."
            )
        return listed, sorted(expired)

    def _named(self, question: Callable[[], T]) -> T:
        return asked_of(self._name, question)

    def _error(self, text: str) -> SourceError:
        return SourceError(f"source {self._name!r}: {text}")


def _farthest(behind: Mapping[str, int]) -> dict[str, int]:
    return {"milliseconds": max(behind.values())} if behind else {}


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
