"""Reads channels: logs that are read forward, of which nobody knows where they end before they were read.

A range that has an end is read exactly. One without is read until there is nothing for a while, or enough. Where an
attempt has come to in a channel is decided by the first task of Spark that has read it to its end; whatever reads the
channel once more in the same attempt, a task that Spark runs again or a frame that is used twice, reads exactly up to
there. How a system is asked is a :class:`Channels` of its own.
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
from airflow_provider_microbatch.runtime.secrets import secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

At = Mapping[str, Any]
"""Where a channel was read up to: ``rows``, how many; ``after``, the place of the last one, ``begin``, where it begins
if there was none yet (neither: at its first row); ``seen``, the moment, milliseconds since the epoch, up to which what
had come was read; ``finished``, if nothing will ever come after it."""

FAIL, RECORD_GAP = "fail", "record_gap"
_BESIDE = ("first", "gap")  # of an end, and not of the position
_PAUSE = 0.25  # seconds between looks at a channel that has nothing


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one request to the server gave.

    :param rows: with the place of each.
    :param seen: the moment up to which what had come is read by now, milliseconds since the epoch.
    :param at_tip: nothing lies behind it as of now.
    :param ended: nothing ever will.
    :param gap: what followed the place that the channel is read from is gone, or may be.
    """

    rows: Sequence[tuple[str, Sequence[Any]]] = ()
    seen: int
    at_tip: bool
    ended: bool = False
    gap: bool = False


class Channels(Protocol):
    """A system's client where Spark runs. Made for each task as ``function(arguments, secrets)``."""

    def pages(self, channel: str, at: At, *, most: Callable[[], int]) -> Iterator[Page]:
        """What the channel has from a place on, page by page, without an end; the caller stops.

        :param most: how many rows are wanted still; no page has more.
        """

    def is_past(self, place: str, other: str) -> bool:
        """Whether one place of a channel lies behind another."""

    def batch(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Rows as a ``RecordBatch`` of Arrow, in the columns of the source."""


class ChannelError(ValueError):
    """A channel cannot be read as it has to be."""


class ChannelRead:
    """One reading of one channel: rows page by page, and then where it came to.

    :param piece: ``channel``; ``at``, where it is read from; and ``end``, if it is known.
    :param arguments: of the read: ``name`` of the source, ``max_records`` of a channel, ``idle_seconds``, and
        ``on_data_loss``.
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
        """Where it has come to: an :data:`At`, ``first``, the place of its first row, and ``gap`` if rows were gone.
        Nothing before it has come there."""
        self._first: str | None = None

    def pages(self) -> Iterator[list[Sequence[Any]]]:
        """The rows, to be asked for until there are no more."""
        return self._late() if self._given is None else self._exact(self._given)

    def _late(self) -> Iterator[list[Sequence[Any]]]:
        most: int = self._arguments["max_records"]
        end, gap, idle_since = dict(self._at), False, None
        for page in self._channels.pages(self._channel, self._at, most=lambda: most - self._count):
            gap = gap or page.gap
            if page.gap and self._arguments["on_data_loss"] == FAIL:
                raise self._lost("what came after the last record that was read is gone, or may be")
            if page.rows:
                self._count += len(page.rows)
                self._first = page.rows[0][0] if self._first is None else self._first
                end["after"], idle_since = page.rows[-1][0], None
                yield [row for _, row in page.rows]
            end["seen"] = max(page.seen, end.get("seen", 0))
            if page.ended:
                end["finished"] = True
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
        """Its rows lie in the stream one after the other, and whoever reads them again finds as many, or knows that he
        does not."""
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

    :param arguments: ``name``, ``schema`` (as DDL), ``client`` (``module:function`` that makes :class:`Channels`), what
        that needs, ``secrets`` (names of what it is given beside), ``groups`` (for each partition of Spark the pieces
        that it reads, one after the other), ``ends`` (a folder of this attempt that driver and executors see), and what
        :class:`ChannelRead` and :func:`told` need.
    """
    groups = arguments["groups"]
    if arguments["ends"] is None and any("end" not in piece for group in groups for piece in group):
        raise ChannelError(f"source {arguments['name']!r}: there is no folder for where an attempt comes to: ends_dir.")
    if not groups:
        return ReadResult(
            frame=spark.createDataFrame([], arguments["schema"]), ended=lambda: told(arguments, ends={})
        )  # fmt: skip
    given = {name: secret(f"{arguments['name']}/{name}") for name in arguments["secrets"]}
    # A partition of Spark for each group; a filter or a limit is never pushed below it.
    frame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(
        partial(_read_groups, dict(arguments), given), arguments["schema"]
    )
    return ReadResult(frame=frame, ended=lambda: _ended(arguments))


def read_here(arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> tuple[list[Sequence[Any]], dict[str, Any]]:
    """The same in this process and without Spark: all rows, and what is told of them."""
    channels, rows, ends = _client(arguments, secrets), list[Sequence[Any]](), dict[str, Any]()
    for group in arguments["groups"]:
        for piece in group:
            one = ChannelRead(channels, piece, arguments)
            for page in one.pages():
                rows += page
            ends[piece["channel"]] = one.end
    return rows, told(arguments, ends=ends)


def told(arguments: Mapping[str, Any], *, ends: Mapping[str, At]) -> dict[str, Any]:
    """What the planner is told: where each channel has come to, where something was gone, and what it had said of
    channels that nobody has to read.

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
    folder = arguments["ends"]
    if folder is None:
        # Whoever has read a channel has counted, and failed if it was not as planned.
        pieces = (piece for group in arguments["groups"] for piece in group)
        return told(arguments, ends={piece["channel"]: piece["end"] for piece in pieces})
    found = told(arguments, ends=channel_ends.all_of(folder))
    channel_ends.remove(folder)
    return found


def _read_groups(
    arguments: Mapping[str, Any], secrets: Mapping[str, str], batches: Iterator[Any]
) -> Iterator[Any]:  # fmt: skip
    """Runs on an executor: the rows of its groups, by their numbers."""
    channels = _client(arguments, secrets)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for piece in arguments["groups"][number]:
                yield from _read_piece(channels, piece, arguments)


def _read_piece(channels: Channels, piece: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Any]:
    folder, channel = arguments["ends"], piece["channel"]
    known = None if folder is None else channel_ends.get(folder, channel)
    # Without the mark of a gap, which is told already: what is missing may be missing again.
    end = piece.get("end") if known is None else known
    one = ChannelRead(channels, piece if end is None else {**piece, "end": end}, arguments)
    for rows in one.pages():
        yield channels.batch(rows)
    if folder is None:
        return
    # Its last act: whoever dies before has chosen nothing.
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
