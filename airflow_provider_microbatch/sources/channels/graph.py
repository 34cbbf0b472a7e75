"""Positions in channels, and the channels that a batch may read: a graph whose children come after their parents.

A position is ``{"<channel>":{"after":"<place>","rows":12,"seen":1790000000000},…}``, see
:data:`airflow_provider_microbatch.runtime.channels.At`. A channel that the position does not name came later, and
begins at its first row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.runtime.channels import At, keeps_longer
from airflow_provider_microbatch.sources.channels import Channel

Position = Mapping[str, At]

NEW: At = {"rows": 0}
"""The place in a channel that no batch has read: before its first row."""

_KINDS: Mapping[str, type] = {
    "rows": int,
    "seen": int,
    "keeps": int,
    "begin": int,
    "origin": str,
    "after": str,
    "came": int,
    "finished": bool,
    "open": int,
}


def render(position: Position) -> Offset:
    """The text of a position."""
    return json.dumps(position, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def parse(offset: Offset, *, where: str) -> dict[str, At]:
    """Parse the text of a position.

    :param where: the place of the text, for messages.
    :raises CorruptEntryError: if the text is not a position.
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
    """Whether a value has the form of a position."""
    return isinstance(value, dict) and all(
        isinstance(at, dict)
        and "rows" in at
        and all(type(one) is _KINDS.get(key) and one is not False for key, one in at.items())
        and not any(type(one) is int and one < 0 for one in at.values())
        for at in value.values()
    )


def from_its_origin(at: At, end: At) -> At:
    """A place to read from up to an end: where no row was read before, from the first row, as the end says where that
    is."""
    return at if "after" in at or "origin" not in end else {**at, "origin": end["origin"]}


def is_finished(position: Position, channel: str) -> bool:
    """Whether no row will ever come after the position in the channel."""
    return bool(position.get(channel, NEW).get("finished"))


def is_unread(at: At) -> bool:
    """Whether no batch has read the channel."""
    return not at.keys() & {"origin", "after", "finished"}


def unfinished(position: Position) -> set[str]:
    """Channels that may have more rows."""
    return {channel for channel in position if not is_finished(position, channel)}


def eligible(position: Position, listed: Mapping[str, Channel]) -> dict[str, At]:
    """The channels that a batch from the position on may read, with the place where each begins: channels that have not
    ended, and whose parents have all ended by the position, which is committed, or are gone from the server.

    If a child were read before its parent's end, newer changes of a key would come before older ones.
    """
    return {
        channel.id: position[channel.id] if channel.id in position else _born(position, channel)
        for channel in listed.values()
        if not is_finished(position, channel.id)
        and all(is_finished(position, parent) or parent not in listed for parent in channel.parents)
    }


def _born(position: Position, channel: Channel) -> At:
    """The place of a channel that the position does not name. ``seen`` is the last moment at which it was not there
    yet, as a parent was still open: no row of it came before. Of rows that came later and are gone, nothing else would
    tell."""
    parents = [position[parent] for parent in channel.parents if parent in position]
    if channel.parents and position and not parents:
        # Its parents came and went since the position, and nobody has read them.
        return {**NEW, "seen": 0}
    opened = [(at.get("open", at["seen"]), at) for at in parents if "seen" in at]
    if not opened:
        return NEW
    # A server may not tell which of the channels that have ended are the parents: they are among those that ended last.
    newest = max(open_ms for open_ms, _ in opened)
    last = [(open_ms, at) for open_ms, at in opened if at["seen"] >= newest]
    keeps = [at["keeps"] for _, at in last if "keeps" in at]
    return {**NEW, "seen": min(open_ms for open_ms, _ in last), **({"keeps": min(keeps)} if keeps else {})}


def forgettable(position: Position, listed: Mapping[str, Channel], *, before_ms: int) -> list[str]:
    """Channels that ended so long ago that the server cannot list them in any answer, however old.

    A channel that was forgotten while it can still be listed would return, and be read again.
    """
    return sorted(
        channel
        for channel, at in position.items()
        if is_finished(position, channel) and channel not in listed and at.get("seen", before_ms) < before_ms
    )


def merged(
    position: Position, ends: Position, *, expired: Collection[str] = (), forgotten: Collection[str] = ()
) -> dict[str, At]:
    """The end of a batch from the position on: the record has precedence, and a channel that has ended does not begin
    again.

    :param ends: the places up to which its channels were read, and of others how long their rows are kept by now.
    :param expired: channels that went from the server before they were read to their end.
    :param forgotten: see :func:`forgettable`.
    """
    found = dict(position)
    for channel, at in ends.items():
        if not is_finished(position, channel):
            found[channel] = at
        elif "keeps" in at:
            found[channel] = {**position[channel], "keeps": at["keeps"]}
    found |= {channel: {**found.get(channel, NEW), "finished": True} for channel in expired}
    return {channel: at for channel, at in found.items() if channel not in forgotten}


def kept_longer(position: Position, *, read: Collection[str], now_ms: int, retention_ms: int) -> dict[str, At]:
    """The places whose rows the server keeps for longer by now, with how long; see
    :func:`~airflow_provider_microbatch.runtime.channels.keeps_longer`.

    :param read: channels that the batch reads, and tells of itself.
    """
    others = {channel: at for channel, at in position.items() if channel not in read}
    longer = [one for one in others if keeps_longer(others[one], now_ms=now_ms, retention_ms=retention_ms)]
    return {channel: {**others[channel], "keeps": retention_ms} for channel in longer}


def moved(start: Position, end: Position) -> list[str]:
    """Channels in which the positions differ by rows, or because the channel has ended."""
    return sorted(channel for channel in {*start, *end} if _progress(end, channel) != _progress(start, channel))


def rows_between(start: Position, end: Position) -> dict[str, int]:
    """Number of rows between both positions, by channel, for channels that have some."""
    counts = {channel: at["rows"] - start.get(channel, NEW)["rows"] for channel, at in end.items()}
    return {channel: count for channel, count in counts.items() if count}


def compare(one: Position, other: Position) -> bool | None:
    """Whether the first position lies after the second; None if it is ahead in one channel and behind in another."""
    both = {*one, *other}
    ahead = any(_progress(one, channel) > _progress(other, channel) for channel in both)
    behind = any(_progress(one, channel) < _progress(other, channel) for channel in both)
    return None if ahead and behind else ahead


def _progress(position: Position, channel: str) -> tuple[int, bool]:
    return position.get(channel, NEW)["rows"], is_finished(position, channel)
