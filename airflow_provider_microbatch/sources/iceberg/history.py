"""The stretches of a branch after a position; and a check that the position belongs to the branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.iceberg import EARLIEST, LATEST, RECORD_GAP, IcebergSource
from airflow_provider_microbatch.sources.iceberg.branch import Branch, Commit
from airflow_provider_microbatch.sources.iceberg.offset import NO_SNAPSHOT, Place
from airflow_provider_microbatch.sources.stretch import Stretch, Unit
from airflow_provider_microbatch.sources.ways_on import SetOffset, read_all_now


class History:
    """:param branch: as it is now.
    :param set_offset: the command that sets the position.
    :param old_before_ms: snapshots of before that time are old, milliseconds since the epoch.
    """

    def __init__(self, source: IcebergSource, *, branch: Branch, set_offset: SetOffset, old_before_ms: int) -> None:
        self._source = source
        self.branch = branch
        self._set_offset = set_offset
        self._old_before_ms = old_before_ms

    def beginning(self) -> Place:
        """Return the place where the first batch would begin, as of now.

        :raises SourceError: if ``start`` of the source names a snapshot or a moment that is not there.
        """
        source, head = self._source, self.branch.head
        if head is None or source.start == LATEST:
            return self._behind(head)
        if source.start == EARLIEST:
            return Place(version=head.sequence, in_snapshot=True, snapshot=head.id)
        chain = self.branch.chain
        if isinstance(source.start, int):
            at = next((number for number, one in enumerate(chain) if one.id == source.start), None)
            if at is None:
                raise SourceError(
                    f"start={source.start}: {source.location()} has no such snapshot, or it has expired; the oldest is "
                    f"{chain[0].id}."
                )
        else:
            wanted = source.begins_ms or 0
            at = next((number for number, one in enumerate(chain) if one.time_ms >= wanted), len(chain))
            if at == 0 and not chain[0].is_first:
                raise SourceError(
                    f"start={source.start!r}: the oldest snapshot of {source.location()} that has not expired, "
                    f"{chain[0].id}, is later; what was committed between is not told. start={EARLIEST!r} begins with "
                    "all rows that the table has."
                )
        if at < len(chain) and chain[at].sequence == 0:
            raise SourceError(
                f"start={source.start!r}: snapshot {chain[at].id} of {source.location()} is of Iceberg's format 1, and "
                f"what came from it on has no sequence numbers. start={EARLIEST!r} begins with all rows of the table."
            )
        if at > 0:
            return self._behind(chain[at - 1])
        if chain[0].parent is None and not chain[0].is_first:
            raise SourceError(
                f"start={source.start}: what was before this snapshot of {source.location()} has expired, and what it "
                "has appended cannot be told from that. Begin behind it."
            )
        return self._parent(chain[0])

    def check(self, place: Place) -> None:
        """:raises SourceError: if ``place`` is not a place of the current branch."""
        branch, where = self.branch, self._source.location()
        if place.table is not None and place.table != branch.uuid:
            raise SourceError(
                f"{where} is another table than the one that was read: its uuid was {place.table}, and is "
                f"{branch.uuid}. It was dropped and made anew. {self._begin_again()}"
            )
        if place.snapshot == NO_SNAPSHOT:
            return
        if any(one.id == place.snapshot for one in branch.chain):
            self._check_order(place)
            return
        newest = branch.head
        # A history that tells the number tells the snapshot too, if it is its own: no expiry has taken it.
        tells = newest is not None and branch.chain[0].sequence <= place.sequence
        if branch.has(place.snapshot) or newest is None or tells or newest.sequence <= place.sequence:
            told = "no snapshot" if newest is None else f"snapshot {newest.id}"
            raise SourceError(
                f"{where} was rolled back, or its branch set elsewhere: snapshot {place.snapshot} was read, and is "
                f"none of its history, which ends at {told}. {self._begin_again()}"
            )

    def _check_order(self, place: Place) -> None:
        """:raises SourceError: if snapshots follow whose numbers do not tell that they come after ``place``."""
        last = next((one.id for one in reversed(self.branch.chain) if one.sequence == 0), place.snapshot)
        if place.sequence == 0 and last != place.snapshot:
            behind = f" Or, if all rows of then were read, `{self._begin_at(Place(version=1, snapshot=last))}`."
            raise SourceError(
                f"snapshot {place.snapshot} of {self._source.location()} is of Iceberg's format 1, as others are up to "
                f"{last}: they have no sequence numbers, and what came after it is not told. {self._begin_again()}"
                f"{'' if place.in_snapshot else behind}"
            )

    def stretches(self, start: Place) -> Iterator[Stretch[Unit]]:
        """Yield the stretches in order, beginning with the stretch of ``start``."""
        chain = self.branch.chain
        after = [one for one in chain if one.sequence > start.sequence]
        if start.in_snapshot:
            yield self._snapshot(start)
        gap = self._gap(start, after)
        if gap is not None:
            yield gap
            return
        before = next((one.schema for one in chain if one.id == start.snapshot), None)
        for one in after:
            found = self._of(one, is_other=before is not None and one.schema != before)
            yield replace(found, is_old=one.time_ms < self._old_before_ms)
            before = one.schema

    def commits(self, stretches: Iterable[Stretch[Unit]]) -> list[Commit]:
        """The snapshots of the stretches, without those that bring no rows."""
        wanted = {one.version for one in stretches if one.files and not one.in_snapshot}
        return [one for one in self.branch.chain if one.sequence in wanted]

    def last(self, stretches: Sequence[Stretch[Unit]], begin: Place | None) -> Commit | None:
        """The snapshot of the last stretch; None if there is none.

        :param begin: where the stretches begin.
        """
        if begin is None or not stretches:
            return None
        chain, last = self.branch.chain, stretches[-1]
        if last.in_snapshot:
            return next((one for one in chain if one.id == begin.snapshot), None)
        return next((one for one in chain if one.sequence == last.version), None)

    def _behind(self, commit: Commit | None) -> Place:
        if commit is None:
            return Place(version=1, snapshot=NO_SNAPSHOT)
        return Place(version=commit.sequence + 1, snapshot=commit.id)

    def _snapshot(self, start: Place) -> Stretch[Unit]:
        try:
            files = tuple(self.branch.files(start.snapshot))
        except SourceError:
            refused = (
                f"snapshot {start.snapshot} of {self._source.location()} is expired, before all its rows were read. "
                f"{self._begin_again()} To go on without those that were not read: "
                f"`{self._begin_at(self._after(start))}`. Keep snapshots for longer than the first rows take."
            )
            return Stretch(version=start.version, in_snapshot=True, refused=refused)
        return Stretch(version=start.version, in_snapshot=True, files=files)

    def _gap(self, start: Place, after: list[Commit]) -> Stretch[Unit] | None:
        """A refused stretch in place of snapshots that have expired before they were read; None if there are none."""
        if not after:
            return None
        first = after[0]
        if first.parent == start.snapshot or (first.is_first and start.snapshot == NO_SNAPSHOT):
            return None
        refused = (
            f"snapshots of {self._source.location()} have expired before they were read: the oldest after snapshot "
            f"{start.snapshot} is {first.id}, and is not its child. {self._begin_again()} To go on without what is "
            f"lost, which is nothing if they had no rows: `{self._begin_at(self._before(first))}`. Keep snapshots for "
            "longer than the pipeline may stand still (history.expire.max-snapshot-age-ms)."
        )
        return Stretch(version=start.version, refused=refused)

    def _after(self, start: Place) -> Place:
        """Return the place behind a snapshot that has expired, from where on the history is told."""
        first = next((one for one in self.branch.chain if one.sequence > start.sequence), None)
        if first is None or first.parent == start.snapshot:
            return Place(version=start.version + 1, snapshot=start.snapshot)
        return self._before(first)

    def _before(self, first: Commit) -> Place:
        """Return the place before the oldest snapshot; behind it, where it is not known what it was before it."""
        return self._behind(first) if first.parent is None else self._parent(first)

    @staticmethod
    def _parent(first: Commit) -> Place:
        return Place(version=first.sequence, snapshot=NO_SNAPSHOT if first.parent is None else first.parent)

    def _of(self, commit: Commit, *, is_other: bool) -> Stretch[Unit]:
        version, files = commit.sequence, (commit.added,) if commit.added.files else ()
        if commit.id in self._source.skip_snapshots:
            return Stretch(version=version, passed_over=f"{commit.words} (skip_snapshots)", is_other=is_other)
        if commit.operation == "append":
            return Stretch(version=version, files=files, is_other=is_other)
        if commit.operation == "replace":  # the same rows in other files
            return Stretch(version=version, is_other=is_other)
        if commit.operation == "delete" and self._source.on_delete == RECORD_GAP:
            return Stretch(version=version, passed_over=f"{commit.words} (on_delete)", is_other=is_other)
        refused = (
            f"snapshot {commit.id} of {self._source.location()} is no append: {commit.words}. Whoever reads appends "
            "has rows that are not in the table any more, and cannot tell which of the added ones are new. "
            f"skip_snapshots=[{commit.id}] passes over it, with all that it has added, and the batch says so; or begin "
            f"behind it with other rows: `{self._begin_at(self._behind(commit))}`."
        )
        return Stretch(version=version, refused=refused)

    def _begin_at(self, place: Place) -> str:
        return self._set_offset(place.text(), skip=True)

    def _begin_again(self) -> str:
        head = self.branch.head
        if head is None:
            return "Read it as a source of another name, or make the rows come back."
        return read_all_now(self._set_offset, Place(version=head.sequence, in_snapshot=True, snapshot=head.id).text())
