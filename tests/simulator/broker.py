"""Brokers in memory: topics to which records are appended, transactions of several partitions, and what both become as
time passes. Nothing here knows what the package writes there."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.world import World

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
"""States of a transaction."""
UNDONE, UNANSWERED, LATE = "not done", "done without an answer", "late"
"""What may become of the next request to commit: lost on its way, or its answer, or under way for minutes, whatever has
become of who sent it."""
COMPACT = "compact"

Place = tuple[str, int]
"""Topic and partition."""
Header = tuple[str, bytes | None]


class FencedError(Exception):
    """Another producer of the transactional id has begun, or the brokers have ended the transaction."""


@dataclass(eq=False)
class Transaction:
    """:param id: transactional id.
    :param epoch: of its producer: each that begins with the id has a greater one.
    :param ends_ms: when the brokers end it, if nobody does.
    :param unmarked: its partitions that have no marker of its end yet, and where its records begin there: readers of
        committed records get no further.
    :param marked_ms: when they have one, once it is decided.
    """

    id: str
    epoch: int
    ends_ms: int
    state: str = OPEN
    unmarked: dict[Place, int] = field(default_factory=dict)
    marked_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """:param by: its transaction; None if it is of none.
    :param is_marker: whether it only says that a transaction has ended: no reader is shown it.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    by: Transaction | None = None
    is_marker: bool = False

    @property
    def is_committed(self) -> bool:
        return not self.is_marker and (self.by is None or self.by.state == COMMITTED)


@dataclass
class Log:
    """A partition: a record's offset is its place in the list.

    :param start: retention has removed what lies before.
    :param compacted: offsets that compaction has removed.
    """

    records: list[Record] = field(default_factory=list)
    start: int = 0
    compacted: set[int] = field(default_factory=set)

    def copy(self) -> Log:
        return Log(list(self.records), self.start, set(self.compacted))


@dataclass
class Topic:
    """:param id: a topic that is removed and made again has another one.
    :param policy: ``cleanup.policy``.
    """

    id: str
    logs: list[Log]
    policy: str = "delete"


@dataclass(eq=False)
class Request:
    """A request to commit that is under way.

    :param answer: None as long as there is none; ``done``, or ``fenced``.
    """

    id: str
    epoch: int
    arrives_ms: int
    answer: str | None = None


class Broker:
    """:param world: whose clock and chance it has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topics: dict[str, Topic] = {}
        self.unreachable = False
        self.next_commits: list[str] = []
        """What becomes of the next requests to commit."""
        self._epochs: dict[str, int] = {}
        self._newest: dict[str, Transaction] = {}
        self._unmarked: list[Transaction] = []
        self._requests: list[Request] = []

    def make(self, name: str, *, partitions: int, policy: str) -> None:
        """Make a topic, under an id that none had before."""
        id = base64.urlsafe_b64encode(self._world.uuid().bytes).rstrip(b"=").decode()
        self.topics[name] = Topic(id=id, logs=[Log() for _ in range(partitions)], policy=policy)

    def begin(self, id: str) -> int | None:
        """A producer begins: whoever had the id before is fenced, and what he had open is ended.

        :return: its epoch; None while the transaction before has partitions without a marker: it has to ask again.
        """
        self.pass_time()
        self._epochs[id] = self._epochs.get(id, 0) + 1
        before = self._newest.get(id)
        if before is not None and before.state == OPEN:
            self._decide(before, ABORTED)
        return None if before is not None and before.unmarked else self._epochs[id]

    def append(self, place: Place, records: Sequence[Record], *, id: str, epoch: int, timeout_ms: int) -> None:
        """Append records to the producer's transaction, which begins with the first.

        :raises FencedError: if another one has begun, or its transaction took too long.
        """
        self.pass_time()
        self._check(id, epoch)
        log, mine = self.log(place), self._newest.get(id)
        if mine is None or (mine.epoch, mine.state) != (epoch, OPEN):
            mine = self._newest[id] = Transaction(id, epoch, self._world.now_ms + timeout_ms)
            self._unmarked.append(mine)
        mine.unmarked.setdefault(place, len(log.records))
        log.records += [replace(record, by=mine) for record in records]

    def write(self, place: Place, record: Record) -> None:
        """Append a record without a transaction, as people do."""
        self.log(place).records.append(record)

    def commit(self, id: str, epoch: int) -> None:
        """Commit what the producer has open; done before, it is done again. :raises FencedError: as :meth:`append`."""
        self.pass_time()
        self._check(id, epoch)
        self._end(id, epoch, COMMITTED)

    def abort(self, id: str, epoch: int) -> None:
        """Abort what the producer has open. :raises FencedError: as :meth:`append`."""
        self.pass_time()
        self._check(id, epoch)
        self._end(id, epoch, ABORTED)

    def send_late(self, id: str, epoch: int) -> Request:
        """A request to commit, which is under way for a while."""
        seconds = self._world.random.choice([0.5, 5, 30, 200, 800])
        request = Request(id, epoch, self._world.now_ms + round(1000 * seconds))
        self._requests.append(request)
        return request

    def pass_time(self) -> None:
        """What has happened by now: requests that arrive, transactions that took too long, markers."""
        now = self._world.now_ms
        for request in [one for one in self._requests if one.arrives_ms <= now]:
            self._requests.remove(request)
            self._time_out(request.arrives_ms)
            try:
                self._check(request.id, request.epoch)
                self._end(request.id, request.epoch, COMMITTED)
                request.answer = "done"
            except FencedError:
                request.answer = "fenced"
        self._time_out(now)
        for one in [one for one in self._unmarked if one.state != OPEN and one.marked_ms <= now]:
            self._mark(one)

    def settle(self) -> None:
        """Nobody is at work any more, and so much time has passed that all has ended."""
        self._requests.clear()
        for one in list(self._unmarked):
            if one.state == OPEN:
                self._epochs[one.id] += 1
                self._decide(one, ABORTED)
            self._mark(one)

    def log(self, place: Place) -> Log:
        """The partition. :raises KeyError: if there is none."""
        return self.topics[place[0]].logs[place[1]]

    def end(self, place: Place, *, committed: bool) -> int:
        """The next offset; of committed records, where the first transaction begins that has no marker."""
        self.pass_time()
        ends = [one.unmarked[place] for one in self._unmarked if committed and place in one.unmarked]
        return min([len(self.log(place).records), *ends])

    def fetch(self, place: Place, offset: int, *, most: int) -> tuple[list[tuple[int, Record]], int]:
        """Committed records from an offset on, and the offset to go on at."""
        end, log, found = self.end(place, committed=True), self.log(place), list[tuple[int, Record]]()
        while offset < end and len(found) < most:
            if log.records[offset].is_committed and offset not in log.compacted:
                found.append((offset, log.records[offset]))
            offset += 1
        return found, offset

    def committed(self, name: str) -> Iterator[tuple[Place, int, Record]]:
        """What a reader of committed records has found who has kept up with the topic, or will find when all that is
        decided has its marker: no retention came before him."""
        self.pass_time()
        for number, log in enumerate(self.topics[name].logs if name in self.topics else ()):
            for offset, record in enumerate(log.records):
                if record.is_committed:
                    yield (name, number), offset, record

    def compact(self, name: str) -> int:
        """Of each key the newest record stays, and the last of all. How many were removed."""
        place, before = (name, 0), len(self.log((name, 0)).compacted)
        log, seen = self.log(place), set[bytes | None]()
        for offset in range(self.end(place, committed=True) - 1, -1, -1):
            record = log.records[offset]
            if not record.is_committed or record.key in seen:
                log.compacted.add(offset)
            seen |= {record.key} if record.is_committed else set()
        return len(log.compacted) - before

    def saved(self, names: Collection[str]) -> dict[str, Topic]:
        """The topics as they are."""
        self.settle()
        return {
            name: replace(one, logs=[log.copy() for log in one.logs])
            for name, one in self.topics.items()
            if name in names
        }

    def restore(self, saved: dict[str, Topic], names: Collection[str]) -> None:
        """The topics are as they were when they were saved."""
        self.settle()
        for name in names:
            self.topics.pop(name, None)
            if name in saved:
                self.topics[name] = replace(saved[name], logs=[log.copy() for log in saved[name].logs])

    def _check(self, id: str, epoch: int) -> None:
        if self._epochs.get(id) != epoch:
            raise FencedError

    def _end(self, id: str, epoch: int, state: str) -> None:
        mine = self._newest.get(id)
        if mine is not None and mine.epoch == epoch and mine.state == OPEN:
            self._decide(mine, state)

    def _time_out(self, now: int) -> None:
        for one in self._unmarked:
            if one.state == OPEN and one.ends_ms <= now:
                self._epochs[one.id] += 1
                self._decide(one, ABORTED)

    def _decide(self, one: Transaction, state: str) -> None:
        """Decided at once, and shown by each partition a while later."""
        one.state = state
        one.marked_ms = self._world.now_ms + self._world.random.choice([0, 0, 0, 50, 1500])
        if state == COMMITTED:
            self._world.touched = True

    def _mark(self, one: Transaction) -> None:
        self._unmarked.remove(one)
        for place in one.unmarked:
            if place[0] in self.topics:
                self.log(place).records.append(Record(by=one, is_marker=True))
        one.unmarked = {}
