"""SQL conditions for the rows in a range of a table that is read by time: for the plan, and for Spark."""

from __future__ import annotations

from airflow_provider_microbatch.sources.jdbc.moment import Moment
from airflow_provider_microbatch.sources.jdbc.transactions import seen


class Ranges:
    """:param time: the column of timestamps, as SQL has it.
    :param key: the column that orders rows of one timestamp, as SQL has it; None for none.
    """

    def __init__(self, *, time: str, key: str | None) -> None:
        self.time, self.key = time, key

    @property
    def order(self) -> list[str]:
        """The columns that order the rows."""
        return [self.time] if self.key is None else [self.time, self.key]

    def up_to(self, end: Moment) -> str:
        """Rows at or before ``end``, visible or not."""
        if end.time is None:
            return "false"
        if self.key is None or end.key is None:
            return f"{self.time} <= '{end.time}'"
        return f"({self.time}, {self.key}) <= ('{end.time}', {end.key})"

    def times(self, end: Moment) -> str:
        """Rows of the times of the batch that ends at ``end``, visible or not."""
        bound = "" if end.since is None else f" AND {self.time} >= '{end.since}'"
        return f"isfinite({self.time}) AND {self.up_to(end)}{bound}"

    def after(self, start: Moment) -> str:
        """Rows behind ``start``."""
        if start.time is None:
            return "true"
        if self.key is None or start.key is None:
            return f"{self.time} > '{start.time}'"
        return f"({self.time}, {self.key}) > ('{start.time}', {start.key})"

    def seen(self, place: Moment) -> str:
        """Rows that were visible when ``place`` was planned, before it or behind it."""
        if place.below is None:
            return "true"
        return seen(place.below, [(one.first, one.last) for one in place.running])

    def late(self, start: Moment, since: str | None) -> str:
        """Rows before ``start`` that were not visible when it was planned, from the timestamp ``since`` on."""
        bound = "" if since is None else f" AND {self.time} >= '{since}'"
        return f"isfinite({self.time}) AND {self.up_to(start)} AND NOT ({self.seen(start)}){bound}"

    def ahead(self, start: Moment, now: str) -> str:
        """Rows behind ``start`` whose time has come.

        :param now: the clock, as SQL has it.
        """
        return f"isfinite({self.time}) AND {self.after(start)} AND {self.time} <= {now}"

    def between(self, start: Moment, end: Moment, *, replayed: bool = True) -> str:
        """Rows of the range.

        :param replayed: leave out rows that were not visible when the range was planned; False for the plan itself,
            which is made from the rows that are visible now.
        """
        visible = f" AND {self.seen(end)}" if replayed else ""
        read = f" AND NOT ({self.up_to(start)} AND {self.seen(start)})" if start.time is not None else ""
        return f"{self.times(end)}{visible}{read}"
