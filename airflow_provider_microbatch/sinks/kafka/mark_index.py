"""What was read of the marks so far: of each batch the newest record, since a later one takes its place.

Marks are read backwards, and on from where they ended before; in whatever order records come, the same is known of
them. Whoever asks for one batch after the other reads no record twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.kafka.mark import Mark, decode

_KEPT_BYTES = 8_000_000
"""Of how many bytes of records the marks are kept, beside where each lies: they may have long lists of files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The newest record under a batch's key.

    :param mark: the mark; None if it is not kept, and has to be read again at its offset.
    :param is_there: whether the batch is in; False for a record without a value, which takes the mark out.
    :param error: why the record is no mark.
    """

    offset: int
    mark: Mark | None = None
    is_there: bool = True
    error: SinkError | None = None


@dataclass
class _Lane:
    """:param newest: of the mark that was published last, of those that can be read: where the marks ended then, and
        its offset. Another one may lie behind it, which somebody has written again.
    :param top: the highest number that a mark says the lane has; -1 for none.
    :param topic_id: the topic that the newest was published to.
    :param tops: what marks say of records that were not read yet: from which offset down, negated, and no batch of
        which higher number is there. A heap.
    :param least_top: no batch of a higher number has a mark before those that were read.
    """

    found: dict[int, Found] = field(default_factory=dict)
    bad: dict[int, Found] = field(default_factory=dict)
    newest: tuple[int, int] = (-1, -1)
    top: int = -1
    topic_id: str | None = None
    tops: list[tuple[int, int]] = field(default_factory=list)
    least_top: float = inf

    def add(self, mark: Mark, *, offset: int, behind: int) -> None:
        self.top = max(self.top, mark.top)
        heappush(self.tops, (-behind, mark.top))
        if (behind, offset) > self.newest:
            self.newest, self.topic_id = (behind, offset), mark.topic_id

    def read_to(self, lower: int) -> None:
        """All records from this offset on were read."""
        while self.tops and -self.tops[0][0] >= lower:
            self.least_top = min(self.least_top, heappop(self.tops)[1])


class MarkIndex:
    """:param where: name of the topic of the marks, for messages.
    :param id: its id. Marks that were copied there from another topic say nothing of its offsets.
    :param end: offset behind the newest record that is to be read.
    """

    def __init__(self, where: str, *, id: str | None, end: int) -> None:
        self._where, self.id = where, id
        self._lanes = defaultdict[str, _Lane](_Lane)
        self._kept = 0
        self.lower = self.upper = end
        """From which offset to which all records were read."""

    def add(self, key: BatchKey, value: bytes | None, *, offset: int) -> None:
        """Take a record in. One that was superseded by what was read before says nothing of its batch."""
        lane, mark, error = self._lanes[key.lane], None, None
        try:
            mark = None if value is None else decode(value, key, where=f"offset {offset} of {self._where}")
        except SinkError as told:
            error = told
        if mark is not None:
            lane.add(mark, offset=offset, behind=mark.behind if mark.marks_id == self.id else 0)
        before = lane.found.get(key.id)
        if before is not None and before.offset > offset:
            return
        size = len(value or b"")
        is_kept = self._kept + size <= _KEPT_BYTES
        self._kept += size if is_kept else 0
        found = Found(offset=offset, mark=mark if is_kept else None, is_there=value is not None, error=error)
        lane.found[key.id] = found
        lane.bad.pop(key.id, None)
        if error is not None:
            lane.bad[key.id] = found

    def find(self, key: BatchKey) -> Found | None:
        """The newest record of the batch; None if none was read."""
        return self._lanes[key.lane].found.get(key.id)

    def knows(self, key: BatchKey) -> bool:
        """Whether it is known if the batch is in, and what is the newest of its lane."""
        is_in = key.id in self._lanes[key.lane].found
        return self._least_top(key.lane) < inf and (is_in or self.is_whole(key.lane, above=key.id - 1))

    def is_whole(self, lane: str, *, above: int) -> bool:
        """Whether no mark of a higher number than ``above`` lies before what was read, by the marks that tell of all
        that was not."""
        return self._least_top(lane) <= above

    def _least_top(self, lane: str) -> float:
        known = self._lanes[lane]
        known.read_to(self.lower)
        return known.least_top

    def newest(self, lane: str) -> tuple[int, str | None]:
        """The highest number of the lane that is in, -1 for none; and the id of the topic that its newest batch was
        published to.

        :raises SinkError: if a later record than the newest mark is none: nobody knows what is in.
        """
        known = self._lanes[lane]
        self._check(found for found in known.bad.values() if found.offset > known.newest[1])
        return known.top, known.topic_id

    def ids(self, lane: str, *, above: int) -> list[int]:
        """Numbers of the lane that are in, ascending. :raises SinkError: if a record there is no mark."""
        known = self._lanes[lane]
        self._check(found for id, found in known.bad.items() if id > above)
        return sorted(id for id, found in known.found.items() if found.is_there and id > above)

    @staticmethod
    def _check(bad: Iterable[Found]) -> None:
        for found in bad:
            if found.error is not None:
                raise found.error
