"""Reads channels: logs that are read forward, and whose end in a range may be known only after reading.

A range that has an end is read exactly. A range without an end is read until the channel has given nothing for a while,
or enough. The first Spark task that reads a channel to its end decides the end that the attempt has reached in the
channel. Every later reading of the channel in the same attempt (a task that Spark runs again, or a frame that is used
twice) reads exactly up to that end. Each system implements :class:`Channels` for its own requests.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_microbatch.runtime import channel_ends
from airflow_provider_microbatch.runtime.files import ReadResult
from airflow_provider_microbatch.runtime.reading import own_token, reading
from airflow_provider_microbatch.runtime.secrets import secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

At = Mapping[str, Any]
"""The place up to which a channel was read: ``rows``, the number of rows read so far; ``after``, the place of the last
row, or ``begin``, where reading begins if no row was read yet (neither: at the channel's first row); ``origin``,
where the channel's first row is, if a server tells that only until its reader has said that it went on; ``seen``, the
moment, milliseconds since the epoch, up to which all arrived rows were read; ``keeps``, for how many milliseconds the
server kept a row by its settings of then; ``came``, the moment at which the last row came, if that row was there then;
``finished``, if no row will ever follow, and then ``open``, the last moment at which a row could still follow."""

FAIL, RECORD_GAP = "fail", "record_gap"
_SKEW_MS = 5 * 60 * 1000
"""The largest difference, milliseconds, that is allowed for between the clock here and the clock of the server."""
_BESIDE = ("first", "gap")  # keys of an end that do not belong to the position
_PAUSE = 0.25  # seconds between looks at a channel that has nothing


@dataclass(frozen=True, kw_only=True)
class Page:
    """The answer of the server to one request.

    :param rows: rows, each with its place.
    :param seen: the moment, milliseconds since the epoch, up to which all arrived rows have been read now.
    :param came: the moment at which the last of the rows came, milliseconds since the epoch; 0 without rows.
    :param at_tip: whether the channel has nothing behind this page as of now.
    :param ended: whether the channel will never have anything behind this page.
    :param gap: whether rows behind the place that the channel is read from are gone, or may be.
    :param last_gone: whether the last row that was read, at the place that the channel is read from, is gone.
    """

    rows: Sequence[tuple[str, Sequence[Any]]] = ()
    seen: int
    came: int = 0
    at_tip: bool
    ended: bool = False
    gap: bool = False
    last_gone: bool = False


class Channels(Protocol):
    """A system's client where Spark runs. Each task makes its own as ``function(arguments, secrets)``."""

    def pages(self, channel: str, at: At, *, most: Callable[[], int]) -> Iterator[Page]:
        """The rows of the channel from a place on, page by page, without an end; the caller stops.

        :param most: returns how many rows are still wanted; no page may have more.
        """

    def is_past(self, place: str, other: str) -> bool:
        """Whether one place of a channel lies behind another."""

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Rows as an Arrow ``RecordBatch``, in the columns of the source."""


def kept_ms(at: At, *, retention_ms: int) -> int:
    """The shortest time, milliseconds, for which the server has kept a row since the last look at a channel, as far as
    both looks tell: what was gone when the setting was raised has not come back."""
    then_ms: int = at.get("keeps", retention_ms)
    return min(then_ms, retention_ms)


def keeps_longer(at: At, *, now_ms: int, retention_ms: int) -> bool:
    """Whether the server keeps rows for longer by now, and nothing that has come since the last look at a channel can
    have gone before: judged by the setting of then, what waits to be read would count as gone later."""
    keeps_ms: int = at.get("keeps", retention_ms)
    since_ms: int = at.get("open", at.get("seen", 0))
    return keeps_ms < retention_ms and now_ms - since_ms + _SKEW_MS < keeps_ms


def may_lack(at: At, *, now_ms: int, retention_ms: int) -> bool:
    """Whether rows may have come and gone since the last look at a channel of which the last row that was read is gone,
    or none was read. Before the first look none is missed.

    :param at: the place that the last look came to.
    :param now_ms: milliseconds since the epoch.
    :param retention_ms: how long the server keeps a row now, milliseconds.
    """
    oldest_ms = now_ms - kept_ms(at, retention_ms=retention_ms)
    seen = at.get("seen", 0 if "after" in at else now_ms)
    # If the last row is gone before its time, the setting was lower between the looks, and nobody knows by how much.
    return bool(seen - _SKEW_MS < oldest_ms or at.get("came", 0) - _SKEW_MS > oldest_ms)


class ChannelError(ValueError):
    """A channel cannot be read as its range requires."""


class ChannelRead:
    """One reading of one channel: rows page by page, and afterwards the end that the reading reached.

    :param piece: ``channel``; ``at``, the place to read from; and ``end``, if the end is known.
    :param arguments: of the read: ``name`` of the source, ``max_records`` of a channel, ``idle_seconds``,
        ``on_data_loss``, and ``retention_ms``, how long the server keeps a row.
    """

    def __init__(
        self,
        channels: Channels,
        piece: Mapping[str, Any],
        arguments: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._channels = channels
        self._channel: str = piece["channel"]
        self._at: At = piece["at"]
        self._given: At | None = piece.get("end")
        self._arguments = arguments
        self._clock = clock
        self._sleep = sleep
        self._count = 0
        self.end: dict[str, Any] = {}
        """The end that this reading reached: an :data:`At`, with ``first``, the place of its first row, and ``gap`` if
        rows were gone. Empty until all pages were read."""
        self._first: str | None = None

    def pages(self) -> Iterator[list[Sequence[Any]]]:
        """The pages of rows; the caller must read all of them."""
        return self._late() if self._given is None else self._exact(self._given)

    def _late(self) -> Iterator[list[Sequence[Any]]]:
        most: int = self._arguments["max_records"]
        end, gap, idle_since = {**self._at, "keeps": self._arguments["retention_ms"]}, False, None
        open_ms: int = self._at.get("seen", 0)
        for page in self._channels.pages(self._channel, self._at, most=lambda: most - self._count):
            gap = gap or page.gap
            if page.gap and self._arguments["on_data_loss"] == FAIL:
                raise self._lost("what came after the last look is gone, or may be")
            if page.last_gone:
                end.pop("came", None)  # else that it is gone would be judged again, by other settings
            if page.rows:
                self._count += len(page.rows)
                self._first = page.rows[0][0] if self._first is None else self._first
                end["after"], end["came"], idle_since = page.rows[-1][0], page.came, None
                yield [row for _, row in page.rows]
            end["seen"] = max(page.seen, end.get("seen", 0))
            open_ms = max(open_ms, page.came, 0 if page.ended else page.seen)
            if page.ended:
                # Of a channel that was never looked at, and had no row, it is not known.
                end |= {"finished": True, **({"open": open_ms} if open_ms else {})}
            if page.ended or self._count >= most:
                break
            if page.at_tip and not page.rows:
                idle_since = self._clock() if idle_since is None else idle_since
                if self._clock() - idle_since >= self._arguments["idle_seconds"]:
                    break
            if not page.rows:
                self._sleep(_PAUSE)
        end["rows"] = self._at["rows"] + self._count
        if "after" in end:
            end.pop("begin", None)
        self.end = self._told(end, gap=gap)

    def _exact(self, end: At) -> Iterator[list[Sequence[Any]]]:
        """Read exactly up to the given end. Rows lie in the channel one after the other, so a second reading finds the
        same number of rows, or detects a difference."""
        wanted = end["rows"] - self._at["rows"]
        if wanted:
            for page in self._channels.pages(self._channel, self._at, most=lambda: wanted - self._count or 1):
                inside = [row for place, row in page.rows if not self._channels.is_past(place, end["after"])]
                self._first = page.rows[0][0] if inside and self._first is None else self._first
                self._count += len(inside)
                if inside:
                    yield inside
                beyond = len(inside) < len(page.rows)
                if beyond or page.ended or (page.rows and page.rows[-1][0] == end["after"]):
                    break
                if not page.rows:
                    if page.at_tip:
                        break
                    self._sleep(_PAUSE)
        gap = self._count != wanted
        if gap and (self._count > wanted or self._arguments["on_data_loss"] == FAIL):
            raise self._lost(f"of {wanted} records up to {end['after']} there are {self._count}")
        self.end = self._told(end, gap=gap)

    def _told(self, end: At, *, gap: bool) -> dict[str, Any]:
        first = {} if self._first is None else {"first": self._first}
        return {**end, **first, **({"gap": True} if gap else {})}

    def _lost(self, what: str) -> ChannelError:
        return ChannelError(
            f"source {self._arguments['name']!r}, {self._channel}: {what}: retention has removed it. "
            "on_data_loss='record_gap' goes on without it, and the batch says so. Keep records longer than the "
            "pipeline may stand still."
        )


def read(spark: SparkSession, arguments: Mapping[str, Any]) -> ReadResult:
    """Read one range of a source of channels, by executors.

    :param arguments: ``name``, ``schema`` (as DDL), ``client`` (``module:function`` that makes :class:`Channels`), the
        client's own arguments, ``secrets`` (names of the secrets that the client is given besides), ``groups`` (for
        each Spark partition the pieces that it reads, one after the other), ``ends`` (a folder of this attempt that
        driver and executors see), and the arguments of :class:`ChannelRead` and :func:`told`.
    """
    groups = arguments["groups"]
    if arguments["ends"] is None and any("end" not in piece for group in groups for piece in group):
        raise ChannelError(f"source {arguments['name']!r}: there is no folder for where an attempt comes to: ends_dir.")
    if not groups:
        return ReadResult(
            frame=spark.createDataFrame([], arguments["schema"]), ended=lambda: told(arguments, ends={})
        )  # fmt: skip
    given = {name: secret(f"{arguments['name']}/{name}") for name in arguments["secrets"]}
    # One Spark partition for each group; Spark never pushes a filter or a limit below ``mapInArrow``.
    frame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(
        partial(_read_groups, dict(arguments), given, own_token()), arguments["schema"]
    )
    return ReadResult(frame=frame, ended=lambda: _ended(arguments))


def read_here(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[list[Sequence[Any]], dict[str, Any]]:
    """Read the range in this process, without Spark: all rows, and what :func:`told` makes of them."""
    channels, rows, ends = _client(arguments, secrets), list[Sequence[Any]](), dict[str, Any]()
    for group in arguments["groups"]:
        for piece in group:
            one = ChannelRead(channels, piece, arguments)
            for page in one.pages():
                rows += page
            ends[piece["channel"]] = one.end
    return rows, told(arguments, ends=ends)


def told(arguments: Mapping[str, Any], *, ends: Mapping[str, At]) -> dict[str, Any]:
    """The values that the planner is told: the end of each channel, the channels that have gaps, and the planner's own
    facts about channels that need no reading.

    :raises ChannelError: if a channel was not read to its end.
    """
    channels = [piece["channel"] for group in arguments["groups"] for piece in group]
    ends = {**arguments["settled"], **ends}
    missing = sorted(set(channels) - ends.keys())
    if missing:
        raise ChannelError(
            f"source {arguments['name']!r}: {len(missing)} of {len(channels)} channels were not read to their end "
            f"({', '.join(missing[:5])}): the transform does not use the frame, or only a part of its rows, as "
            "limit(), first() and a join with an empty frame do. Where a batch ends is known only after it was "
            "read whole: write all of it, or read it by another pipeline's table."
        )
    gone = [channel for channel, at in ends.items() if at.get("gap")]
    return {
        "ends": {channel: {key: at[key] for key in at if key not in _BESIDE} for channel, at in ends.items()},
        "firsts": {channel: at["first"] for channel, at in ends.items() if "first" in at},
        "gaps": sorted({*gone, *arguments["expired"]}),
        "expired": arguments["expired"],
        "forgotten": arguments["forgotten"],
    }


def _ended(arguments: Mapping[str, Any]) -> dict[str, Any]:
    folder, ends = arguments["ends"], dict[str, At]()
    if folder is None or arguments["on_data_loss"] == FAIL:
        # A task that reads a channel up to a planned end counts its rows, and fails if the count is not as planned: so
        # the end is known though the transform leaves rows unread. With record_gap the task tells what is missing.
        pieces = (piece for group in arguments["groups"] for piece in group)
        ends = {piece["channel"]: piece["end"] for piece in pieces if "end" in piece}
    if folder is None:
        return told(arguments, ends=ends)
    found = told(arguments, ends={**ends, **channel_ends.all_of(folder)})
    channel_ends.remove(folder)
    return found


def _read_groups(
    arguments: Mapping[str, Any], secrets: Mapping[str, str], token: str, batches: Iterator[Any]
) -> Iterator[Any]:
    """Runs on an executor: read the rows of the groups whose numbers Spark hands over."""
    with reading(arguments["name"], token):
        channels = _client(arguments, secrets)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in arguments["groups"][number]:
                    yield from _read_piece(channels, piece, arguments)


def _read_piece(channels: Channels, piece: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Any]:
    folder, channel = arguments["ends"], piece["channel"]
    known = None if folder is None else channel_ends.get(folder, channel)
    # The known end has no mark of a gap, which is told already: the missing rows may be missing again.
    end = piece.get("end") if known is None else known
    one = ChannelRead(channels, piece if end is None else {**piece, "end": end}, arguments)
    for rows in one.pages():
        yield channels.batch(rows)
    if folder is None:
        return
    # Choosing the end is the task's last act: a task that dies earlier has chosen nothing.
    chosen = channel_ends.choose(folder, channel, one.end)
    if (chosen["rows"], chosen.get("after")) != (one.end["rows"], one.end.get("after")):
        raise ChannelError(
            f"source {arguments['name']!r}: {channel} was read by two tasks at once, and the other one was first to "
            "come to an end. Spark runs this one again, which then reads exactly up to there."
        )


def _client(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> Channels:
    module, _, name = arguments["client"].partition(":")
    made: Channels = getattr(importlib.import_module(module), name)(arguments, secrets)
    return made
