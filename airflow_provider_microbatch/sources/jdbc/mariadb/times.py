"""Times as columns of MariaDB have them: ``TIMESTAMP`` in UTC, ``DATETIME`` in a zone that the user alone knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_AHEAD = timedelta(hours=3)
"""Longer than any clock is put back by."""

_TICK, _SECOND = timedelta(microseconds=1), timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(time: str, *, in_utc: bool) -> str:
    """A time as MariaDB writes it.

    :param time: as a position has it, perhaps with a zone.
    :param in_utc: whether a zone counts, and the result is in UTC; else it is left out.
    :raises ValueError: if it is no time that MariaDB has.
    """
    found = datetime.fromisoformat(time)
    if found.tzinfo is not None and in_utc:
        found = found.astimezone(UTC)
    return found.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def before_all_later(ms: int, zone: ZoneInfo, *, digits: int) -> str:
    """The latest time of a column such that all rows that are written from a moment on have this time, or a later one.

    :param ms: the moment, milliseconds since the epoch.
    :param zone: of the column.
    :param digits: so many digits of a second the column keeps; the rest is cut off.
    """
    moment = datetime.fromtimestamp(ms // 1000, zone).replace(microsecond=ms % 1000 * 1000)
    # Where clocks are put back soon, rows that are written then have times that have been before.
    offset = min(one.utcoffset() or timedelta() for one in (moment, (moment.astimezone(UTC) + _AHEAD).astimezone(zone)))
    local = (moment.astimezone(UTC) + offset).replace(tzinfo=None)
    unit = 10 ** (6 - digits)
    cut = local.replace(microsecond=local.microsecond // unit * unit)
    return cut.isoformat(sep=" ", timespec="microseconds")


def shown_between(start_ms: int, end_ms: int, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The first and the last time (exclusive) that a clock shows in a span of time. Where clocks are put back, two
    spans of time may have the same times; those that clocks leave out belong to the span after them.

    :param start_ms: milliseconds since the epoch.
    :param end_ms: milliseconds since the epoch; not part of the span.
    :param zone: of the clock.
    """
    start, end = (_EPOCH + timedelta(milliseconds=ms) for ms in (start_ms, end_ms))

    def shown(moment: datetime, *, before: timedelta) -> datetime:
        return (moment - before).astimezone(zone).replace(tzinfo=None) + before

    firsts, lasts = [shown(start, before=_TICK)], [shown(end, before=_TICK)]
    if zone.key != "UTC":
        # Clocks are put back at a full second: behind the start there may be earlier times than at the start, and
        # before the end later ones than at the end.
        seconds = range(min(_AHEAD, end - start) // _SECOND)
        firsts += [shown(start + at * _SECOND, before=timedelta()) for at in seconds]
        lasts += [shown(end - at * _SECOND, before=_SECOND) for at in seconds]
    return min(firsts), max(lasts)


def shown_at(ms: int, zone: ZoneInfo) -> str:
    """The time that a clock shows at a moment.

    :param ms: the moment, milliseconds since the epoch.
    :param zone: of the clock.
    """
    moment = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def latest_shown(ms: int, zone: ZoneInfo) -> str:
    """The latest time that a clock has shown up to a moment: where clocks were put back, one of before that.

    :param ms: the moment, milliseconds since the epoch.
    :param zone: of the clock.
    """
    _, end = shown_between(ms - _AHEAD // timedelta(milliseconds=1), ms + 1, zone)
    return end.isoformat(sep=" ", timespec="microseconds")


def moment_ms(time: datetime, zone: ZoneInfo) -> int:
    """The moment at which a clock shows a time, of two the earlier one; milliseconds since the epoch.

    :param zone: of the clock.
    """
    return (time.replace(tzinfo=zone) - _EPOCH) // timedelta(milliseconds=1)
