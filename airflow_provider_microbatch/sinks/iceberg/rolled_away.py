"""The batches that a rollback of a branch took away, or brought back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.iceberg.look import Look

NO_BATCH = "none"
"""What a snapshot of this package that has put no batch in names in place of one."""


@dataclass(frozen=True, kw_only=True)
class RolledAway:
    """Batches of the snapshots that a rollback passed over, the newest first.

    :param gone: those that are on record, and whose rows are gone.
    :param back: those that had been taken out of what the branch has again, so that it has rows of them.
    """

    gone: tuple[str, ...] = ()
    back: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What the rollback has done, in words that go on from it."""
        which = f"batches {', '.join(self.gone)}"
        gone = f"by which {which} were published: they count as published, and their rows are gone"
        back = f"by which batches {', '.join(self.back)} had been taken out: rows of them are back, without a record"
        return (
            "; ".join([gone] * bool(self.gone) + [back] * bool(self.back))
            or "whose batches had all been taken out again"
        )


def rolled_away(look: Look, last: tuple[int, int] | None) -> RolledAway | None:
    """What a rollback did to batches of the branch; nothing without one. None if the snapshots between the branch and
    the last one are not all there any more: then it may have been any batch.

    :param last: id and sequence number of the last snapshot of this package; None if there is none.
    """
    if look.rolled_back(last) is None:
        return RolledAway()
    there = {snapshot.snapshot_id: snapshot for snapshot in look.table.metadata.snapshots}
    kept = {snapshot.snapshot_id for snapshot in look.chain()}
    # The record stands as the newest snapshot of a batch has left it, the rows as the oldest one has found them.
    newest, oldest = dict[str, bool](), dict[str, bool]()
    at = None if last is None else last[0]
    while at not in kept:
        snapshot = None if at is None else there.get(at)
        if snapshot is None or snapshot.summary is None:
            return None
        told = snapshot.summary.additional_properties
        batch, is_out = told.get("microbatch.batch"), "microbatch.withdrawn" in told
        if batch not in (None, NO_BATCH):
            newest.setdefault(batch, is_out)
            oldest[batch] = is_out
        at = snapshot.parent_snapshot_id
    return RolledAway(
        gone=tuple(batch for batch, is_out in newest.items() if not is_out),
        back=tuple(batch for batch in newest if oldest[batch]),
    )
