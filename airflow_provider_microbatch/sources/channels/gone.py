"""What is gone of channels. Rows go from the front: if a row is there, all that came after it are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_microbatch.runtime.channels import may_lack
from airflow_provider_microbatch.sources.channels import Channel, Server
from airflow_provider_microbatch.sources.channels.begin import Origins
from airflow_provider_microbatch.sources.channels.graph import NEW, Position, is_unread, rows_between


def gone_up_to(places: Position, listed: Mapping[str, Channel], server: Server) -> Iterator[tuple[str, str]]:
    """Yield channels whose rows up to a place are gone, each with the reason."""
    for channel, at in places.items():
        why = "it is gone" if channel not in listed else server.why_gone(channel, at)
        if why is not None:
            yield channel, why


def first_to_go(start: Position, end: Position, told: Sequence[Mapping[str, Any]], *, or_before: bool) -> Position:
    """The row of each channel that tells whether a range is whole: its first one, as the reader told; or, where none
    told, its last one, which goes when all are gone. Of a position that was set by hand there is none.

    :param told: results of reads of the range; the later one counts of a channel that two tell of.
    :param or_before: where none told, and there is one, take the row before the range, which goes just before: a range
        may count as gone that is whole, and none counts as whole of which a part is gone.
    """
    read = [channel for channel, count in rows_between(start, end).items() if count > 0 and "after" in end[channel]]
    before = start if or_before else {}
    afters = {channel: before.get(channel, NEW).get("after", end[channel]["after"]) for channel in read}
    for one in told:
        firsts = one.get("firsts")
        if isinstance(firsts, Mapping):
            afters |= {channel: at for channel, at in firsts.items() if channel in afters and isinstance(at, str)}
    return {channel: {"after": after} for channel, after in afters.items()}


def gone_behind(candidates: Position, server: Server, *, now_ms: int) -> Iterator[str]:
    """Yield channels of which rows behind a place are gone, or may be, by the rule that readers go by: the last row
    that was read is gone, or none was, and others may have come and gone since the last look.

    :param candidates: the channels that the next batch may read. What comes after one that has not ended is younger.
    """
    retention_ms = server.retention_ms()
    for channel, at in candidates.items():
        if may_lack(at, now_ms=now_ms, retention_ms=retention_ms) and (
            "after" not in at or server.why_gone(channel, at) is not None
        ):
            yield channel


def read_by_others(
    position: Position, listed: Mapping[str, Channel], server: Server, origins: Origins
) -> Iterator[str]:  # fmt: skip
    """Yield channels that a server says are read, and that the position and the record do not know as that. The server
    does not tell any more where their first row is, so a plan begins behind what was read."""
    for channel, one in listed.items() if server.has_origins else ():
        is_known = not is_unread(position.get(channel, NEW)) or origins.get(channel) is not None
        if not is_known and (one.closed or server.origin(channel)[1]):
            yield channel
