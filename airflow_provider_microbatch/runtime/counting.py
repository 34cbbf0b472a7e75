"""Counts of rows by ``Observation``: they cost no second pass over the data, and Spark Connect has them too."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE = 2.0
"""Seconds to wait for a count once Spark has ended the write: Spark delivers counts from a separate thread."""

_DELIVERY = 0.05  # seconds within which a count of the transform's own actions arrives


_frames: ContextVar[list[DataFrame] | None] = ContextVar("frames that are written", default=None)


@contextmanager
def writing(frame: DataFrame) -> Iterator[list[DataFrame]]:
    """The frames that may have been written inside: ``frame``, which a writer is given, and those that the writer names
    by :func:`wrote`."""
    frames = [frame]
    token = _frames.set(frames)
    try:
        yield frames
    finally:
        _frames.reset(token)


def wrote(frame: DataFrame) -> None:
    """Name the frame that was written. Spark Connect gives the counts to that frame alone, and not to the frame that it
    was made of: a writer that adds columns and does not name its frame leaves all counts of the batch unknown."""
    frames = _frames.get()
    if frames is not None:
        frames.append(frame)


class RowCount:
    """The number of rows that pass through a frame during its first action; with Spark Connect, during the write.

    A frame that is used several times in one query is counted by one of its uses. A column that no query selects is
    still read: Spark does not prune columns through an observation.

    :param columns: rows in which all of these columns are null are counted separately; no such count if empty.
    :param conditions: SQL conditions by name; the rows that meet each condition are counted separately.
    """

    def __init__(self, columns: Sequence[str] = (), conditions: Mapping[str, str] | None = None) -> None:
        self._columns = columns
        self._conditions = dict(conditions or {})
        self._name = f"rows-{uuid.uuid4()}"
        self._observation: Any = None
        self._metrics: dict[str, Any] = {}
        self._spoilt = False
        self._waiter: threading.Thread | None = None

    def on(self, frame: DataFrame) -> DataFrame:
        """The frame with the same rows, counted while they pass."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        counted = [F.count(F.lit(1)).alias("rows")]
        if self._columns:
            names = ("`" + name.replace("`", "``") + "`" for name in self._columns)
            empty = reduce(lambda one, other: one & other, (F.col(name).isNull() for name in names))
            counted.append(F.count(F.when(empty, 1)).alias("empty"))
        counted += [F.count(F.when(F.expr(sql), 1)).alias(name) for name, sql in self._conditions.items()]
        if "connect" in type(frame).__module__:
            # Observe by name alone: Spark Connect's client raises if one Observation occurs twice in a query, as in a
            # self-join.
            return frame.observe(self._name, *counted)
        self._observation = Observation(self._name)
        observed = frame.observe(self._observation, *counted)
        # Observation.get blocks for ever if the frame takes part in no action: hence a thread.
        self._waiter = threading.Thread(target=self._look, daemon=True, name="row-count")
        self._waiter.start()
        return observed

    def spoil(self, *, since: float) -> None:
        """Discard a count that exists before the action that shall be counted: a count of an earlier action, such as a
        ``first()`` in the transform, may cover only a part of the rows.

        :param since: when the transform returned, by ``time.monotonic``.
        """
        self._spoilt = self.get(patience=max(0.0, since + _DELIVERY - time.monotonic())) is not None

    def written(self, frames: Sequence[DataFrame]) -> None:
        """Take the counts after a write.

        :param frames: those of :func:`writing`; what was written contains the counted frame as a part or the whole.
        """
        if self._waiter is not None:
            return
        for frame in frames:
            info: Any = frame.executionInfo
            for name, pairs in info.flows if info is not None else ():
                if name == self._name:
                    self._metrics = dict(pairs)

    def get(self, *, patience: float = PATIENCE) -> int | None:
        """The count; None if the count is spoilt, or if Spark did not deliver it within ``patience`` seconds, as for a
        frame that was not used."""
        if self._waiter is not None:
            self._waiter.join(patience)
        rows = self._metrics.get("rows")
        return None if rows is None or self._spoilt else int(rows)

    def empty(self) -> int:
        """How many of the rows that :meth:`get` counts are null in all the columns. Call :meth:`get` first."""
        return int(self._metrics.get("empty") or 0)

    def of(self, condition: str) -> int | None:
        """How many of the rows that :meth:`get` counts meet a condition; None if the number is unknown. Call
        :meth:`get` first."""
        found = None if self._spoilt else self._metrics.get(condition)
        return None if found is None else int(found)

    def _look(self) -> None:
        # If Spark finds a frame to be empty before running it, there are no counts, and PySpark raises.
        with suppress(Exception):
            self._metrics = self._observation.get
