"""SQL conditions for the rows in a range of a table that is read by time: for the plan, and for Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.moment import Had, Moment, may_have, written
from airflow_provider_microbatch.sources.jdbc.session import quoted_column
from airflow_provider_microbatch.sources.jdbc.taken import planned_before
from airflow_provider_microbatch.sources.jdbc.transactions import seen


class Ranges:
    """:param time: the column of timestamps, as SQL has it.
    :param key: the column that orders rows of one timestamp, as the user wrote it; None for none.
    :param intervals: the batches of data intervals in the order in which they were planned. No later range of the live
        lane has their rows.
    :param untold: those of them whose rows cannot be told from others, each with the reason.
    """

    def __init__(
        self,
        *,
        time: str,
        key: str | None,
        intervals: Sequence[Moment] = (),
        untold: Mapping[Moment, str] = MappingProxyType({}),
    ) -> None:
        self.time, self.intervals, self.bare_key, self._untold = time, intervals, key, untold
        self.key = None if key is None else quoted_column(key)

    @property
    def order(self) -> list[str]:
        """The columns that order the rows."""
        return [self.time] if self.key is None else [self.time, self.key]

    def up_to(self, end: Moment) -> str:
        """Rows at or before ``end``, visible or not; of a data interval, those of its times."""
        if end.spans:
            times = (f"{self.time} >= '{written(a)}+00' AND {self.time} < '{written(b)}+00'" for a, b in end.spans)
            return f"({' OR '.join(times)})"
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
        late = f"isfinite({self.time}) AND {self.up_to(start)} AND NOT ({self.seen(start)}){bound}"
        return late + self._but(self.intervals, since, start.time)

    def ahead(self, start: Moment, now: str) -> str:
        """Rows behind ``start`` whose time has come.

        :param now: the clock, as SQL has it.
        """
        ahead = f"isfinite({self.time}) AND {self.after(start)} AND {self.time} <= {now}"
        return ahead + self._but(self.intervals, start.time, None)

    def between(self, start: Moment, end: Moment, *, replayed: bool = True) -> str:
        """Rows of the range.

        :param replayed: leave out rows that were not visible when the range was planned; False for the plan itself,
            which is made from the rows that are visible now.
        :raises SourceError: if its rows cannot be told from others.
        """
        if end in self._untold:
            raise SourceError(self._untold[end])
        visible = f" AND {self.seen(end)}" if replayed else ""
        read = f" AND NOT ({self.up_to(start)} AND {self.seen(start)})" if start.time is not None else ""
        by = Ranges(time=self.time, key=end.key_column(self.bare_key))
        others = "".join(f" AND NOT ({by.had(one)})" for one in end.had)
        others = others if end.spans else self._but(planned_before(end, self.intervals), end.since, end.time)
        return f"{self.times(end)}{visible}{read}{others}"

    def had(self, one: Had) -> str:
        """Rows that a lane had taken."""
        return f"{self.began(one)} AND {self.up_to(one.end)} AND {self.seen(one.end)}"

    def began(self, one: Had) -> str:
        """Rows behind the place where the lane began."""
        return self.after(one.after) if one.since is None else f"{self.time} >= '{one.since}'"

    def _but(self, intervals: Sequence[Moment], first: str | None, last: str | None) -> str:
        """The condition that no data interval has a row.

        :param first: the rows are of no earlier time; None for no bound.
        :param last: the rows are of no later time; None for no bound.
        """
        of = (one for one in intervals if may_have(one, first, last))
        return "".join(f" AND NOT ({self.between(Moment(), one)})" for one in of)
