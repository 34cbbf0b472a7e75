"""What was read of the marks so far: of each batch the newest record, since a later one takes its place.

Marks are read backwards, and on from where they ended before; in whatever order records come, the same is known of
them. Whoever asks for one batch after the other reads no record twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """:param newest: offset of the newest mark of the lane, of those that can be read.
    :param top: the highest number that it says the lane has; -1 for none.
    :param topic_id: the topic that it was published to.
    :param least_top: no batch of a higher number has a mark before those that were read.
    """

    found: dict[int, Found] = field(default_factory=dict)
    bad: dict[int, Found] = field(default_factory=dict)
    newest: int = -1
    top: int = -1
    topic_id: str | None = None
    least_top: float = inf


class MarkIndex:
    """:param where: name of the topic of the marks, for messages.
    :param end: offset behind the newest record that is to be read.
    """

    def __init__(self, where: str, *, end: int) -> None:
        self._where = where
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
            lane.least_top = min(lane.least_top, mark.top)
            if offset > lane.newest:
                lane.newest, lane.top, lane.topic_id = offset, mark.top, mark.topic_id
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
        lane = self._lanes[key.lane]
        return lane.newest >= 0 and (key.id in lane.found or self.is_whole(key.lane, above=key.id - 1))

    def is_whole(self, lane: str, *, above: int) -> bool:
        """Whether no mark of a higher number than ``above`` lies before what was read: each mark has the highest number
        of its lane so far, and the marks of a lane are written by one producer at a time."""
        return self._lanes[lane].least_top <= above

    def newest(self, lane: str) -> tuple[int, str | None]:
        """The highest number of the lane that is in, -1 for none; and the id of the topic that its newest batch was
        published to.

        :raises SinkError: if a later record than the newest mark is none: nobody knows what is in.
        """
        known = self._lanes[lane]
        self._check(found for found in known.bad.values() if found.offset > known.newest)
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
