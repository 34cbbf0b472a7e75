"""Which data intervals have had their run, of pipelines that plan by them. Also one that found nothing: without that
nobody could tell data that came late for it from data that it is still going to read."""

from __future__ import annotations

from airflow_provider_microbatch.stores import Store

_BEFORE = "before."


class IntervalRuns:
    """Empty files, one for each lane whose interval had its run, and ``before.<lane>`` for those that an older version
    ran, which kept no such record: all that ends no later than that lane's.

    :param store: scoped to ``microbatch/intervals``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, newest: str | None) -> None:
        """Called before any interval is planned by this version.

        :param newest: the lane that an older version planned whose interval ends last; None if there is none.
        """
        if not self._store.list(""):
            self._store.put_if_absent(f"{_BEFORE}{newest or ''}", b"v1")

    def had(self, lane: str) -> None:
        """The run of the lane's interval has decided what it reads. Durable on return, idempotent."""
        self._store.put_if_absent(lane, b"v1")

    def lanes(self) -> list[str]:
        """Lanes whose interval had its run."""
        return [name for name in self._store.list("") if not name.startswith(_BEFORE)]

    def older(self, newest: str | None) -> list[str]:
        """Lanes up to whose interval's end all counts as run.

        :param newest: as for :meth:`begin`, which a sensor does not call.
        """
        names = self._store.list("") or [f"{_BEFORE}{newest or ''}"]
        return [name.removeprefix(_BEFORE) for name in names if name.startswith(_BEFORE)]
