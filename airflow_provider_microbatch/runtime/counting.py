"""Counts of rows by ``Observation``: they cost no second pass over the data, and Spark Connect has them too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE = 2.0
"""Seconds to wait for a count once Spark has ended the write: Spark delivers counts from a thread of its own."""

_DELIVERY = 0.05


class RowCount:
    """The number of rows that pass through a frame during its first action.

    A frame that is used several times in one query is counted by one of its uses. A column that nobody selects is
    still read: Spark does not prune columns through an observation.
    """

    def __init__(self) -> None:
        from pyspark.sql import Observation

        self._observation: Any = Observation()
        self._metrics: dict[str, Any] = {}
        self._spoilt = False
        # Outside of Connect, Observation.get blocks for ever if the frame takes part in no action: hence a thread.
        self._waiter = threading.Thread(target=self._look, daemon=True, name="row-count")

    def on(self, frame: DataFrame) -> DataFrame:
        """The same rows, counted while they pass."""
        from pyspark.sql import functions as F

        observed = frame.observe(self._observation, F.count(F.lit(1)).alias("rows"))
        self._waiter.start()
        return observed

    def spoil(self) -> None:
        """Called before the action that shall be counted: if one has been counted already, such as a ``first()`` in
        the transform, its number may be that of a part of the rows and is not used."""
        self._spoilt = self.get(patience=_DELIVERY) is not None

    def get(self, *, patience: float = PATIENCE) -> int | None:
        """The count; None if it is spoilt, or if Spark did not deliver it in ``patience`` seconds, as for a frame that
        was not used."""
        self._waiter.join(patience)
        if not self._waiter.is_alive() and not self._metrics:
            self._look()  # Connect: get does not block, and is empty before the action
        rows = self._metrics.get("rows")
        return None if rows is None or self._spoilt else int(rows)

    def _look(self) -> None:
        self._metrics = self._observation.get
