"""The rows of a table that lanes have taken, by time: no lane reads rows that another lane took.

One entry has both: up to where the live lane has planned, and the batch of each data interval; the older ones of these
it names only (:mod:`~airflow_provider_microbatch.sources.jdbc.packed`). It is changed only by compare-and-put, and who
changes it has looked at the table after it had read the entry: so of two lanes that want the same rows one is first,
the other looks again, and each entry saw all rows that those before it saw.

The live lane claims what it plans before its offset entry is there. A claim that no entry follows, since the planner
died, stays the live lane's, which plans it again; unless a user sets its position elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.sources.jdbc.moment import Had, Made, Moment, micros
from airflow_provider_microbatch.sources.jdbc.packed import (
    MALFORMED,
    MOST_NEWEST,
    Intervals,
    Packed,
    intervals_of,
    values_of,
)
from airflow_provider_microbatch.stores import Store

_ENTRY = "taken"
_INTERVALS, _PACKED, _NEWEST = "intervals", "packed", "newest"
"""Where some are packed the newest have another name than all had before: a version that knows of no packed ones would
take them for all, and read rows twice; so it says that the entry is torn."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lanes had taken when the entry was read.

    :param live: what the live lane has planned. A position that a user has set begins another one.
    :param intervals: the batch of each data interval, by lane, in the order in which they were planned.
    :param packed: what has the first of these, in order.
    """

    version: str | None = None
    live: tuple[Had, ...] = ()
    intervals: Intervals = ()
    packed: tuple[Packed, ...] = ()

    def of(self, lane: str) -> Moment | None:
        """The batch of a data interval; None if it is not planned."""
        return dict(self.intervals).get(lane)

    def of_table(self, now: Made) -> Found:
        """What is taken of the table as it is now: of one that was made again nothing of before is there. Of one that
        is read by another key the live lane has all rows of the times that it had come to, as the position says that
        the user is offered."""
        return replace(
            self,
            live=tuple(_by_key_of(one, now) for one in self.live if is_of(one.end, now)),
            intervals=tuple((lane, one) for lane, one in self.intervals if is_of(one, now)),
        )


@dataclass(frozen=True, kw_only=True)
class Log:
    """The live lane's batches, as far as its log has them.

    :param ranges: start and end of each, in order.
    :param is_whole: whether the log has every batch. Of what retention removed nothing tells whether a claim was
        followed.
    """

    ranges: Sequence[tuple[Moment, Moment]] = ()
    is_whole: bool = False


def _by_key_of(one: Had, now: Made) -> Had:
    """What a lane has, as far as its times tell where its key is another column's."""
    return replace(one, end=by_times(one.end, now))


def by_times(place: Moment, now: Made) -> Moment:
    """A place, as far as its time tells it where its key is another column's."""
    is_by_others = place.made is not None and place.made.is_by_others(now)
    return replace(place, key=None) if is_by_others else place


class Taken:
    """:param state: the source's own state."""

    def __init__(self, state: Store) -> None:
        self._state = state

    def find(self) -> Found:
        """Writes nothing.

        :raises CorruptEntryError: if the entry, or one that it names, is torn.
        """
        entry = self._state.get_versioned(_ENTRY)
        if entry is None:
            return Found()
        try:
            live, newest, digests = _parsed(entry.data)
            packed = tuple(Packed.of(digest, self._state) for digest in digests)
        except MALFORMED as error:
            raise CorruptEntryError(
                f"{self._state.location}/{_ENTRY} is torn: {error}. Restore it from a backup of the checkpoint."
            ) from error
        before = tuple(one for some in packed for one in some.intervals())
        return Found(version=entry.version, live=live, intervals=before + newest, packed=packed)

    def claim(self, found: Found, begin: Moment, end: Moment, *, log: Log) -> bool:
        """Claim for the live lane what it is about to plan. False if another lane has taken something since ``found``:
        look again. Durable on return.

        :param begin: where the batch begins. Behind a rewind, or a claim that no entry followed, that is amid a claim.
        :param log: looked at where the lane claims nothing yet: the first claim would hide batches of before claims
            were kept, and they would be read twice; and where it begins by hand.
        """
        live = found.live or by_log(log.ranges)
        live = followed(live, log, begin) if begin.by_hand else live
        return self._put(replace(found, live=_with_range(live, begin, end)))

    def take(self, found: Found, lane: str, end: Moment) -> bool:
        """Take the batch of a data interval. False if another lane has taken something since ``found``: look again.
        Durable on return."""
        return self._put(replace(found, intervals=(*found.intervals, (lane, end))))

    def _put(self, found: Found) -> bool:
        packed = found.packed
        newest = found.intervals[sum(len(some.intervals()) for some in packed) :]
        if len(newest) >= MOST_NEWEST:
            # Before the entry that names it: no reader looks for what is not there.
            packed, newest = (*packed, Packed.put(newest, self._state)), ()
        values: dict[str, Any] = {"live": [[one.after.values(), one.end.values()] for one in found.live]}
        if packed:
            values |= {_PACKED: [some.digest for some in packed], _NEWEST: values_of(newest)}
        else:
            values[_INTERVALS] = values_of(newest)
        data = json.dumps(values, separators=(",", ":")).encode()
        if found.version is None:
            return self._state.put_if_absent(_ENTRY, data)
        return self._state.compare_and_put(_ENTRY, data, version=found.version) is not None


@lru_cache(maxsize=4)  # a plan looks several times, and a sensor again and again
def _parsed(data: bytes) -> tuple[tuple[Had, ...], Intervals, tuple[Any, ...]]:
    """What the entry has: the live lane's, the newest of data intervals, and what names the others."""
    values: Any = json.loads(data)
    live = tuple(Had(after=_moment(after), end=_moment(end)) for after, end in values["live"])
    if _PACKED not in values:
        return live, intervals_of(values[_INTERVALS]), ()
    return live, intervals_of(values[_NEWEST]), tuple(values[_PACKED])


def _moment(values: Any) -> Moment:
    found = Moment.of_values(values)
    if found.spans:
        raise ValueError(f"{values!s:.100} is not where a lane has come to")
    return found


def other_than(place: Moment, now: Made) -> str | None:
    """The reason why a place tells nothing of the rows of the table as it is now; None if it does, as far as can be
    known. A table that is renamed, or read by another key, has the same rows at the same times. The id tells that it
    was renamed where the cluster is known: that of MariaDB is not, and a table of another server may have the id."""
    then = place.made
    if then is None:
        return None
    if then.oid != now.oid:
        return (
            f"{now.name} is another table than the one that lanes have read, {then.name}, or was made again (id "
            f"{then.oid} then, {now.oid} now)."
        )
    differs = then.cluster.differs(now.cluster)
    if differs is not None:
        return f"{now.name} is not as it was when lanes read it: {differs}."
    if then.name != now.name and None in (then.cluster.system, now.cluster.system):
        return (
            f"lanes have read {then.name}, and {now.name} is read now: whether it is the same table, renamed, the "
            "database does not tell."
        )
    if then.is_by_other_time(now):
        by = then.time if then.time != now.time else f"another column of the name {then.time}"
        return f"lanes have read {now.name} by {by}, and it is read by {now.time} now."
    return None


def is_of(place: Moment, now: Made) -> bool:
    """Whether a place is one of the table as it is now, as far as can be known."""
    return other_than(place, now) is None


def planned_before(end: Moment, intervals: Sequence[Moment]) -> Sequence[Moment]:
    """The batches of data intervals whose rows a live batch left out when it was planned: later ones have none of its.

    :param end: the end of the live batch.
    :param intervals: all of them, in the order in which they were planned.
    :raises SourceError: if the checkpoint does not have them any more.
    """
    if end.behind > len(intervals):
        raise SourceError(
            f"{end.behind} data intervals were planned before the batch, which does not have their rows, and "
            f"{len(intervals)} are on record. Restore the checkpoint from a backup"
        )
    return intervals[: end.behind]


def by_log(ranges: Iterable[tuple[Moment, Moment]]) -> tuple[Had, ...]:
    """What the live lane has by its log, with all that is older than the log, but for what a position by hand passed
    over.

    :param ranges: start and end of its batches, in order.
    """
    live: tuple[Had, ...] = ()
    for start, end in ranges:
        # The start too: behind what retention removed, the log may begin with a position by hand.
        for place in (start, end):
            live = live if place.below is None else _with_range(live, start, place)
    return live


def followed(live: Sequence[Had], log: Log, begin: Moment) -> tuple[Had, ...]:
    """What the live lane has where a user has set its position: of what it claimed, that which entries followed. It
    plans nothing of the rest again, and no other lane would take it.

    :param live: its claims, in the order in which they were made.
    :param log: its batches up to that position.
    :param begin: that position. Of a claim that begins there the entry may be on its way.
    """
    made = by_log(log.ranges) if log.is_whole else _followed(live, log.ranges)
    return with_all(made, [one for one in live if one.after == begin])


def _followed(live: Sequence[Had], ranges: Sequence[tuple[Moment, Moment]]) -> Sequence[Had]:
    """As :func:`followed`, by the newest batches alone. A claim that was made before theirs stays as it is, followed or
    not: its rows would be read twice if its batch was one that retention removed."""
    places = [place for start, end in ranges for place in (start, end) if place.below is not None]
    last = max((number for number, one in enumerate(live) if any(_is_in(one, place) for place in places)), default=None)
    # Where the log begins the user may have set the position, too: without a batch behind that nothing is told.
    if last is None or not any(end.below is not None and end != start for start, end in ranges):
        return live
    ends = [place for place in places if _is_in(live[last], place)]
    return [*live[:last], replace(live[last], end=max(ends, key=_order))]


def _with_range(live: Sequence[Had], begin: Moment, end: Moment) -> tuple[Had, ...]:
    """What the live lane has with a batch more. Behind a position by hand it begins there; else it goes on with what
    the lane has."""
    after = next((one.after for one in reversed(live) if _is_in(one, begin)), Moment())
    return with_all(live, [Had(after=begin if begin.by_hand else after, end=end)])


def _order(place: Moment) -> tuple[int, bool, int, int]:
    return micros(place.time) or 0, place.key is None, place.key or 0, place.below or 0


def with_all(had: Iterable[Had], more: Iterable[Had]) -> tuple[Had, ...]:
    """What both have, without what a later one has too."""
    found = list(had)
    for one in more:
        found = [other for other in found if not _has(one, other)] + [one]
    return tuple(found)


def _has(one: Had, other: Had) -> bool:
    """Whether the one has all rows of the other, as far as is known."""
    one_at, other_at = micros(one.end.time), micros(other.end.time)
    if one.after != other.after or one_at is None or other_at is None or one_at < other_at:
        return False
    key, other_key = one.end.key, other.end.key
    is_further = one_at > other_at or key is None or (other_key is not None and other_key <= key)
    return is_further and (one.end.below or 0) >= (other.end.below or 0)


def _is_in(one: Had, begin: Moment) -> bool:
    """Whether a batch that begins there goes on with what the lane has. A place in a table tells nothing of one that
    was made again."""
    if one.end.made is not None and not is_of(begin, one.end.made):
        return False
    after_at, begin_at, end_at = (micros(place.time) for place in (one.after, begin, one.end))
    if begin_at is None or end_at is None:
        return begin == one.end
    return (after_at is None or after_at <= begin_at) and begin_at <= end_at
