"""Joins the small files of a pipeline's tables, for the command and the operator. Neither a plan nor an attempt takes
part, and nothing is written to the checkpoint: it may run beside live batches, replays and commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.sinks import Compacted, Compaction, Manifest, OpenSink
from airflow_provider_microbatch.sinks.compaction import TARGET_BYTES
from airflow_provider_microbatch.upkeep.commands.site import Recorded, tables_of

log = logging.getLogger(__name__)

_NAMED = 10
"""So many batches that were left, and reasons for it, are named: a table may have very many, and the report is kept in
XCom."""


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What was done to one table.

    :param location: its address.
    :param done: what was done, or, in a dry run, would be.
    :param seconds: how long it took.
    :param refused: why a table of this kind is not compacted, and what to do instead; None if it is.
    :param failed: the error that ended it; None if there was none.
    """

    location: str
    done: Compacted
    seconds: float = 0.0
    refused: str | None = None
    failed: str | None = None

    @property
    def named(self) -> list[tuple[str, set[BatchKey]]]:
        """Why batches were left, with the batches: the reasons of most of them. A reason may be of one batch alone."""
        return sorted(self.done.left.items(), key=lambda left: (-len(left[1]), left[0]))[:_NAMED]

    @property
    def unnamed(self) -> int:
        """Number of reasons that are not among those."""
        return max(len(self.done.left) - _NAMED, 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for XCom and ``--json``."""
        done = self.done
        return {
            "location": self.location,
            "batches": len(done.batches),
            "files_before": done.files_before,
            "files_after": done.files_after,
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "seconds": round(self.seconds, 3),
            "left": {
                why: {"batches": len(keys), "such_as": [str(key) for key in sorted(keys)[:_NAMED]]}
                for why, keys in self.named
            },
            "further_reasons": self.unnamed,
            "refused": self.refused,
            "failed": self.failed,
        }


def compact(
    checkpoint: Checkpoint,
    *,
    sinks: Sequence[OpenSink] | None = None,
    target_bytes: int = TARGET_BYTES,
    dry_run: bool = False,
) -> list[TableReport]:
    """Compact each table of the pipeline; one that cannot be compacted does not keep the others from it.

    :param sinks: the pipeline's sinks, opened; None: those that the checkpoint has on record.
    :param target_bytes: the size that a joined file has at most, in bytes.
    :param dry_run: only count.
    :raises MaintenanceError: if a command is changing the checkpoint, or no pipeline is on record.
    """
    checkpoint.maintenance.check_none()
    identity = checkpoint.identity()
    found = tables_of(Recorded(checkpoint).usable() if sinks is None else sinks)
    wanted = Compaction(
        checkpoint=identity.query_id if identity is not None else "",
        tables=checkpoint.tables.following_moves,
        left_alone=_left_alone(checkpoint),
        target_bytes=target_bytes,
        dry_run=dry_run,
    )
    return [_compact(table, wanted) for table in found]


def _compact(table: OpenSink, wanted: Compaction) -> TableReport:
    location, refused = mask(table.location()), table.definition.not_compactable()
    if refused is not None:
        log.info("%s is not compacted: %s", location, refused)
        return TableReport(location=location, done=Compacted(), refused=refused)
    begun, done, failed = time.monotonic(), Compacted(), None
    try:
        done = table.compact(wanted)
    except (MicroBatchError, OSError) as error:  # OSError: a full disk of this host, say. The other tables are tried
        failed = mask(str(error))
        log.warning("%s was not compacted to its end: %s", location, failed)
    report = TableReport(location=location, done=done, seconds=time.monotonic() - begun, failed=failed)
    rate = max(report.seconds, 0.001)
    log.info(
        "%s: %s files of %s batches %s %s files, %s bytes in place of %s; %.1f s, %.0f files and %.1f MB a second",
        location, f"{done.files_before:,}", f"{len(done.batches):,}",
        "would be" if wanted.dry_run else "are", f"{done.files_after:,}",
        f"{done.bytes_after:,}", f"{done.bytes_before:,}", report.seconds,
        done.files_before / rate, done.bytes_before / rate / 1e6,
    )  # fmt: skip
    for why, keys in report.named:
        log.info("%s: %s batches were left as they are, such as %s: %s", location, len(keys), min(keys), why)
    if report.unnamed:
        log.info("%s: batches were left as they are for %s further reasons", location, report.unnamed)
    return report


def _left_alone(checkpoint: Checkpoint) -> Callable[[Manifest], str | None]:
    def why(found: Manifest) -> str | None:
        missing = [one.number for one in checkpoint.forgotten.active() if one.mark not in found.forgotten]
        if not missing:
            return None
        # Written anew they would be there for longer: in new files, and in the old ones until these are removed.
        return (
            f"made before `microbatch forget` entry {', '.join(map(str, missing))}, so that it may have rows that are "
            "to be erased, which are not written anew: clear its task, and compact again"
        )

    return why
