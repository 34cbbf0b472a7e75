"""Positions in channels, and which of them a batch may read: a graph whose children come after their parents.

A position is ``{"<channel>":{"after":"<place>","rows":12,"seen":1790000000000},…}``, see
:data:`airflow_provider_microbatch.runtime.channels.At`. What a position does not name is a channel that came later,
and begins at its first row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.runtime.channels import At
from airflow_provider_microbatch.sources.channels import Channel

Position = Mapping[str, At]

NEW: At = {"rows": 0}
"""Where a channel is that nobody has read: before its first row."""

_KINDS: Mapping[str, type] = {"rows": int, "seen": int, "begin": int, "after": str, "finished": bool}


def render(position: Position) -> Offset:
    """The text of a position."""
    return json.dumps(position, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def parse(offset: Offset, *, where: str) -> dict[str, At]:
    """The position of a text.

    :param where: what has the text, for messages.
    :raises CorruptEntryError: if it is no position.
    """
    try:
        found = json.loads(offset)
    except ValueError:
        found = None
    if not is_position(found):
        raise CorruptEntryError(
            f'{where}: {offset!r:.300} is no position in channels. One looks like {{"<channel>":{{"after":"<place>",'
            '"rows":12,"seen":1790000000000}}: up to where each was read.'
        )
    position: dict[str, At] = found
    return position


def is_position(value: Any) -> bool:
    """Whether it has the form of a position."""
    return isinstance(value, dict) and all(
        isinstance(at, dict)
        and "rows" in at
        and all(type(one) is _KINDS.get(key) and one is not False for key, one in at.items())
        and not any(type(one) is int and one < 0 for one in at.values())
        for at in value.values()
    )


def is_finished(position: Position, channel: str) -> bool:
    """Whether nothing will ever come after the position in the channel."""
    return bool(position.get(channel, NEW).get("finished"))


def unfinished(position: Position) -> set[str]:
    """Channels that may have more."""
    return {channel for channel in position if not is_finished(position, channel)}


def eligible(position: Position, listed: Mapping[str, Channel]) -> dict[str, At]:
    """The channels that a batch from the position on may read, and where each begins: those that have not ended, and
    all of whose parents have by the position, which is committed, or are gone from the server.

    A child before its parent's end would put newer changes of a key before older ones.
    """
    return {
        channel.id: position.get(channel.id, NEW)
        for channel in listed.values()
        if not is_finished(position, channel.id)
        and all(is_finished(position, parent) or parent not in listed for parent in channel.parents)
    }


def forgettable(position: Position, listed: Mapping[str, Channel], *, before_ms: int) -> list[str]:
    """Channels that have ended so long ago that the server can list them in no answer, however old.

    One that is forgotten while it can still be listed would return, and be read again.
    """
    return sorted(
        channel
        for channel, at in position.items()
        if is_finished(position, channel) and channel not in listed and at.get("seen", before_ms) < before_ms
    )


def merged(
    position: Position, ends: Position, *, expired: Collection[str] = (), forgotten: Collection[str] = ()
) -> dict[str, At]:
    """Where a batch from the position on ends: the record wins, and what has ended does not begin again.

    :param ends: where its channels were read up to.
    :param expired: channels that went from the server before they were read to their end.
    :param forgotten: see :func:`forgettable`.
    """
    found = {**position, **{channel: at for channel, at in ends.items() if not is_finished(position, channel)}}
    found |= {channel: {**found.get(channel, NEW), "finished": True} for channel in expired}
    return {channel: at for channel, at in found.items() if channel not in forgotten}


def moved(start: Position, end: Position) -> list[str]:
    """Channels in which one position is behind the other by rows, or by that it has ended."""
    return sorted(channel for channel in {*start, *end} if _progress(end, channel) != _progress(start, channel))


def rows_between(start: Position, end: Position) -> dict[str, int]:
    """How many rows lie between, by the channels that have some."""
    counts = {channel: at["rows"] - start.get(channel, NEW)["rows"] for channel, at in end.items()}
    return {channel: count for channel, count in counts.items() if count}


def compare(one: Position, other: Position) -> bool | None:
    """Whether the first lies after the second; None if it is farther in one channel and less far in another."""
    both = {*one, *other}
    ahead = any(_progress(one, channel) > _progress(other, channel) for channel in both)
    behind = any(_progress(one, channel) < _progress(other, channel) for channel in both)
    return None if ahead and behind else ahead


def _progress(position: Position, channel: str) -> tuple[int, bool]:
    return position.get(channel, NEW)["rows"], is_finished(position, channel)
