"""An Iceberg table at one moment: what the history of its branch tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_MARK = "microbatch.last."
_MANIFEST = "microbatch.manifest"

MERGED = "microbatch.merged"
"""The property of a table into which changes are merged; :mod:`.merged` has what it names."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Whose records tell what a branch has.

    :param branch: the branch whose record tells it, as far as its history reaches: the branch itself, or another that
        it was made of, or fast-forwarded to. None if no record does.
    :param sequence: the sequence number up to which that record tells it.
    :param unsure: other branches, which have published since, the last one first: it may have been made of one, or
        fast-forwarded to it, but the snapshots that would show that have expired.
    """

    branch: str | None
    sequence: int
    unsure: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What :data:`MERGED` says.

    :param number: number of the record of the newest changes.
    :param last: id and sequence number of the last snapshot of this package, to which the record belongs.
    """

    number: int
    last: tuple[int, int]


class Look:
    """The table at one moment.

    :param table: as pyiceberg has loaded it.
    :param branch: the branch to publish to.
    :ivar recorded: the properties with the record of what the branch has, once it was asked for.
    """

    def __init__(self, table: Table, branch: str) -> None:
        self.table = table
        self.branch = branch
        self.head: Snapshot | None = table.metadata.snapshot_by_name(branch)
        # Of one look it stays the same, and it may take going through all batches: they are asked for one by one.
        self.recorded: Mapping[str, str] | None = None
        self._put_in: dict[str, set[str]] = {}

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.table.metadata.properties

    @property
    def mark(self) -> str:
        """Name of the property that has id and sequence number of the last snapshot of this package on the branch."""
        return _mark_of(self.branch)

    def chain(self) -> Iterator[Snapshot]:
        """The branch's snapshots, newest first, as far back as none has expired."""
        return self._back_from(self.head)

    def _back_from(self, at: Snapshot | None) -> Iterator[Snapshot]:
        while at is not None:
            yield at
            parent = at.parent_snapshot_id
            at = None if parent is None else self._by_id.get(parent)

    @cached_property
    def _by_id(self) -> Mapping[int, Snapshot]:
        """The snapshots by their ids: pyiceberg's own look-up goes through all of them for each one."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}

    def last_on(self, branch: str) -> tuple[int, int] | None:
        """Id and sequence number of the last snapshot of this package on a branch, which may be gone."""
        told = self.properties.get(_mark_of(branch))
        if told is None:
            return None
        try:
            id, sequence = map(int, told.split())
        except ValueError as error:
            raise SinkError(
                f"the property {_mark_of(branch)}={told!r:.80} is no snapshot: somebody changed it."
            ) from error
        return id, sequence

    @property
    def merged(self) -> Merged | None:
        """What belongs to the table's rows, if changes are merged into it."""
        told = self.properties.get(MERGED)
        if told is None:
            return None
        try:
            number, id, sequence = told.split()
            return Merged(number=int(number, 16), last=(int(id), int(sequence)))
        except ValueError as error:
            raise SinkError(
                f"the property {MERGED}={told!r:.80} names no record of newest changes: somebody changed it."
            ) from error

    def rolled_back(self, last: tuple[int, int] | None) -> str | None:
        """How the branch was set back to a state before a snapshot, in words; None if not."""
        return None if last is None else self._is_without(*last)

    def newest_with(self, id: int) -> int | None:
        """The newest of the snapshots that main was at, and whose history has that one; None if none is left."""
        for entry in reversed(self.table.metadata.snapshot_log):
            if any(one.snapshot_id == id for one in self._back_from(self._by_id.get(entry.snapshot_id))):
                return entry.snapshot_id
        return None

    def goes_on_from(self) -> Descent:
        """Whose records tell what this branch has."""
        own = self.last_on(self.branch)
        if own is not None and self._is_without(*own) is not None:
            head = 0 if self.head is None else self.head.sequence_number or 0
            return Descent(branch=self.branch, sequence=head)  # rolled back: whoever asks is told so
        sequence = -1 if own is None else own[1]
        names = (name.removeprefix(_MARK) for name in self.properties if name.startswith(_MARK))
        lasts = [(last, branch) for branch in map(unquote, names) if (last := self.last_on(branch)) is not None]
        unsure = list[str]()
        # What others had published before the branch's own last snapshot was taken over by that one's commit. To look
        # for it again, each look would walk the history down to the mark of a branch that nobody uses any more.
        since = [one for one in lasts if one[0][1] > sequence]
        for last, branch in sorted(since, key=lambda one: -one[0][1]):
            has = self._has(*last)
            if has:
                return Descent(branch=branch, sequence=last[1], unsure=tuple(unsure))
            if has is None:
                unsure.append(branch)
        return Descent(branch=None if own is None else self.branch, sequence=sequence, unsure=tuple(unsure))

    def can_follow(self, branch: str) -> int | None:
        """The snapshot to which this branch can be fast-forwarded to have what another branch has published; None if
        there is none: this branch has commits of its own since, or the other one is gone, and its last snapshot."""
        theirs = self.table.metadata.snapshot_by_name(branch)
        last = None if theirs is not None else self.last_on(branch)
        theirs = self._by_id.get(last[0]) if last is not None else theirs
        head = None if self.head is None else self.head.snapshot_id
        is_behind = head is None or any(one.snapshot_id == head for one in self._back_from(theirs))
        return theirs.snapshot_id if theirs is not None and is_behind else None

    def came_since(self, sequence: int) -> dict[BatchKey, int | None]:
        """Batches that snapshots behind that sequence number put in, with the numbers of their manifests, or took out
        (None). :raises SinkError: if such a snapshot does not say which batch."""
        found: dict[BatchKey, int | None] = {}
        for snapshot in self.chain():
            if (snapshot.sequence_number or 0) <= sequence:
                break
            told = {} if snapshot.summary is None else snapshot.summary.additional_properties
            batch, number = told.get("microbatch.batch"), told.get(_MANIFEST)
            if batch is not None and (number is not None or "microbatch.withdrawn" in told):
                try:
                    found.setdefault(BatchKey.parse(batch), None if number is None else int(number, 16))
                except ValueError as error:
                    id = snapshot.snapshot_id
                    raise SinkError(f"snapshot {id} of branch {self.branch!r} names no batch: {error}.") from error
        return found

    def was_put_in(self, branch: str, number: int) -> bool:
        """Whether a batch came into a branch by the manifest of that number, as far as its history is left."""
        if branch not in self._put_in:
            history = self._back_from(self.table.metadata.snapshot_by_name(branch))
            summaries = (one.summary.additional_properties for one in history if one.summary is not None)
            self._put_in[branch] = {told[_MANIFEST] for told in summaries if _MANIFEST in told}
        return f"{number:016x}" in self._put_in[branch]

    def _is_without(self, id: int, sequence: int) -> str | None:
        """How the branch's history does without a snapshot, in words; None if it has it, also if it has expired."""
        for snapshot in self.chain():
            if snapshot.snapshot_id == id:
                return None
            if (snapshot.sequence_number or 0) < sequence:
                return f"to snapshot {snapshot.snapshot_id}, behind snapshot {id}"
        # All snapshots left on the branch are newer. Expiring snapshots may also cut the links to their parents.
        is_expired = self.head is not None and id not in self._by_id
        return None if is_expired else f"to a history without snapshot {id}"

    def _has(self, id: int, sequence: int) -> bool | None:
        """Whether the branch's history has a snapshot of another branch; None if what would show that has expired.

        That the snapshot itself has expired shows nothing: a branch that is dropped without a merge leaves just that
        behind. Its batches would count as in here, and their rows would be in no branch.
        """
        link = None
        for snapshot in self.chain():
            if snapshot.snapshot_id == id:
                return True
            if (snapshot.sequence_number or 0) < sequence:
                return False
            link = snapshot.parent_snapshot_id
        if link == id:
            return True  # some of those who expire snapshots leave the links to their parents
        return False if self.head is None else None

    def commits_after(self, snapshot_id: int | None) -> str:
        """The commits of other writers since that snapshot, newest first, in words."""
        found = []
        for snapshot in self.chain():
            if snapshot.snapshot_id == snapshot_id:
                break
            summary = snapshot.summary
            told = {} if summary is None else summary.additional_properties
            who = told.get("engine-name") or told.get("spark.app.id") or "somebody"
            what = "?" if summary is None else summary.operation.value
            found.append(f"snapshot {snapshot.snapshot_id}: {what} by {who}")
        return "; ".join(found)


def _mark_of(branch: str) -> str:
    return _MARK + quote(branch, safe="")
