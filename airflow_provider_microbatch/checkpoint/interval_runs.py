"""Which data intervals have had their run, for pipelines that plan by intervals.

A run that found no data counts too: without its record, data that came late for its interval could not be told from
data that the run is still going to read.
"""

from __future__ import annotations

from airflow_provider_microbatch.stores import Store

_BEFORE = "before."


class IntervalRuns:
    """Empty files, one for each lane whose interval had its run. An older version kept no such record:
    ``before.<lane>`` says that all intervals that end no later than that lane's count as run.

    :param store: scoped to ``microbatch/intervals``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, newest: str | None) -> None:
        """Record which intervals an older version ran. Called before this version plans any interval.

        :param newest: the lane with the latest end of its interval that an older version planned; None if there is
            none.
        """
        if not self._store.list(""):
            self._store.put_if_absent(f"{_BEFORE}{newest or ''}", b"v1")

    def had(self, lane: str) -> None:
        """Record that the run of the lane's interval has decided what to read. Durable on return, idempotent."""
        self._store.put_if_absent(lane, b"v1")

    def lanes(self) -> list[str]:
        """Lanes whose interval had its run."""
        return [name for name in self._store.list("") if not name.startswith(_BEFORE)]

    def older(self, newest: str | None) -> list[str]:
        """Lanes that an older version ran: every interval that ends no later than theirs counts as run.

        :param newest: as for :meth:`begin`, which a sensor does not call.
        """
        names = self._store.list("") or [f"{_BEFORE}{newest or ''}"]
        return [name.removeprefix(_BEFORE) for name in names if name.startswith(_BEFORE)]
