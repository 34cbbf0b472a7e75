"""The batch, as the user's transform gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Frames(dict[str, "DataFrame"]):
    """Frames by source name. A look-up of an unknown name raises KeyError with the known names; for a source without a
    frame, KeyError gives the reason.

    :param absent: by source name, the reason why the source has no frame.
    """

    def __init__(self, *, absent: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.absent = dict(absent or {})

    def __missing__(self, name: str) -> DataFrame:
        if name in self.absent:
            raise KeyError(
                f"source {name!r} has no frame in this batch: {self.absent[name]} Or ask `if {name!r} in batch.sources`"
            )
        known = ", ".join(repr(known) for known in self) or "none"
        raise KeyError(f"this pipeline has no source {name!r}; its sources are: {known}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch, as ``transform(batch)`` sees it. A replay sees the same id, timestamp and rows.

    :param id: number of the batch in its lane.
    :param lane: ``live``, or the name of a backfill's lane.
    :param epoch: the attempt; differs between tries, so rows must not depend on it.
    :param timestamp: the batch's time, aware, UTC, pinned in the offset log. Use it instead of the clock.
    :param watermark: the watermark that the offset entry pins, aware, UTC: no row of an event before the watermark is
        awaited any more. None where there is no watermark. Spark moves the watermark in a batch that keeps state, and
        the next batch sees the new value.
    :param sources: the rows of this batch by source name; an empty frame with the schema where nothing is new. A source
        that was given no schema and has never had data, or only files that hold nothing, has no frame: asking for its
        frame raises KeyError with the reason.
    :param spark: the session.
    """

    id: int
    lane: str
    epoch: int
    timestamp: datetime
    sources: Mapping[str, DataFrame]
    spark: SparkSession
    watermark: datetime | None = None
    _requests: list[str] = field(default_factory=list, repr=False)

    def require_another_batch(self) -> None:
        """Ask for one more batch after this batch, even if no new data comes (Spark's no-data batch)."""
        self._requests.append("another")

    @property
    def requires_another_batch(self) -> bool:
        """Whether :meth:`require_another_batch` was called."""
        return bool(self._requests)
