"""When a channel in which nothing comes gets a batch without rows, which says that nothing had come by then."""

from __future__ import annotations

from airflow_provider_microbatch.sources.channels.graph import NEW, Position


def is_due(candidates: Position, *, now_ms: int, retention_ms: int) -> bool:
    """Whether a channel is to get such a batch.

    :param candidates: the channels that the next batch may read.
    :param now_ms: milliseconds since the epoch.
    :param retention_ms: how long the server keeps a row now, milliseconds.
    """
    before_ms = now_ms - _after_ms(retention_ms)
    # One that is longer by now counts once a batch has looked.
    return any(
        at.get("seen", 0) < before_ms or at.get("keeps", retention_ms) < retention_ms for at in candidates.values()
    )


def is_renewed(begin: Position, end: Position, *, retention_ms: int) -> bool:
    """Whether what an attempt has come to is worth a batch though it has no rows."""
    return any(
        # Not the same threshold as that which triggers the batch: the clocks of two hosts need not agree.
        at.get("seen", 0) - begin.get(channel, NEW).get("seen", 0) >= _after_ms(retention_ms) // 2
        or at.get("keeps", 0) > begin.get(channel, NEW).get("keeps", at.get("keeps", 0))
        for channel, at in end.items()
    )


def _after_ms(retention_ms: int) -> int:
    """The time after which an idle channel gets a batch without rows: half of the server's retention. Later, when the
    last row that was read is gone too, or none was read yet, that batch proves that no row has come and gone since."""
    return retention_ms // 2
