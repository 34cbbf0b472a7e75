"""The batches that a rollback of a branch took away."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_microbatch.sinks.iceberg.look import Look

NO_BATCH = "none"
"""What a snapshot of this package that has put no batch in names in place of one."""


def rolled_away(look: Look, last: tuple[int, int] | None) -> list[str] | None:
    """Batches of which a rollback took away what was published last, the newest first; none without a rollback. None if
    the snapshots between the branch and the last one are not all there any more: then it may have been any batch.

    :param last: id and sequence number of the last snapshot of this package; None if there is none.
    """
    if look.rolled_back(last) is None:
        return []
    there = {snapshot.snapshot_id: snapshot for snapshot in look.table.metadata.snapshots}
    kept = {snapshot.snapshot_id for snapshot in look.chain()}
    found, at = dict[str, None](), None if last is None else last[0]
    while at not in kept:
        snapshot = None if at is None else there.get(at)
        if snapshot is None or snapshot.summary is None:
            return None
        batch = snapshot.summary.additional_properties.get("microbatch.batch")
        if batch not in (None, NO_BATCH):
            found[batch] = None
        at = snapshot.parent_snapshot_id
    return list(found)
