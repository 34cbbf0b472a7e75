"""Whether sources give again all that the batches have read which a rewind takes out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from shlex import quote

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.set_offset_command import set_offset_command
from airflow_provider_microbatch.exceptions import CheckpointError, MaintenanceError, SourceChangedError
from airflow_provider_microbatch.execution.position import starts_of
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.upkeep.commands.letters_out import made_anew
from airflow_provider_microbatch.upkeep.commands.lost_rows import check_goes_on, lost_of, only_copy
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded


def check_readable(
    drafting: Drafting,
    recorded: Recorded,
    *,
    lane: str,
    to: int,
    later: Sequence[int],
    committed: Collection[int],
    besides: Collection[str],
    only_in_table: Collection[int],
    position: Callable[[str], Offset | None],
    allow_skip: bool,
) -> None:
    """Check that everything the later batches have committed can be read a second time.

    :param to: the batch of the lane that stays the newest; -1 for none.
    :param later: its later batches, ascending.
    :param committed: batches of the lane that have a commit entry.
    :param besides: sources that are left out, since their own logs are damaged.
    :param only_in_table: later batches that no log knows.
    :param position: returns the position of a source once the lane has been rewound.
    :param allow_skip: lose what is not there any more; a note names it.
    :raises MaintenanceError: if rows would be lost, or the next run would stop.
    """
    checkpoint, late = drafting.checkpoint, dict[str, OpenSource]()
    logs = checkpoint.lane(lane)
    for number in later:
        key = BatchKey(lane, number)
        try:
            entry = logs.offset_log.get(number)
        except CheckpointError:
            entry = None
        if entry is None and any(checkpoint.resolutions.unreadable(key)):
            raise MaintenanceError(
                f"where batch {key} ends is torn in {checkpoint.location}/resolved, and its commit entry may "
                f"tell it. Nothing was done. `microbatch repair {quote(drafting.store.location)}` first."
            )
        if entry is None:
            if number not in only_in_table:  # else a note tells already that it is of after the backup
                drafting.note(f"what batch {key} read is lost; its source log tells what the next plan reads.")
            continue
        if number not in committed:
            continue
        starts = starts_of(logs, number, entry)
        for name, end in entry.ends.items():
            start, is_unknown = starts.get(name), name in entry.unresolved
            if (start == end and not is_unknown) or name in besides:
                continue
            source = recorded.source(name, lane=lane)
            if source is None:
                raise MaintenanceError(
                    f"batch {key} read source {name!r}, which the pipeline on record no longer has, so it cannot "
                    "be read again and its rows would be lost. Put the source back, run a batch, then rewind. The "
                    f"pipeline is that of {recorded.where()}: if it is none of yours, look who wrote it, and "
                    "remove the file."
                )
            late |= {name: source} if name in entry.late and not is_unknown else {}
            reason = source.why_not_from(start) if is_unknown else source.why_not_anew(start, end)
            # What the table has of such a batch is the only copy: that is never taken out, unless it is rows of
            # letters that a clear makes anew. Where another table lacks them, nothing else brings them back there.
            anew = made_anew(checkpoint, recorded, source, end, to=to) if reason else None
            may_be_lost = reason is not None and (is_unknown or anew is not None or not recorded.everywhere(key))
            then = " ".join(f"Then {way}" for way in anew or ())
            if reason is not None and not (may_be_lost and allow_skip):
                way = f"Go on without them: --allow-skip. {then}".rstrip() if may_be_lost else only_copy(number)
                raise MaintenanceError(
                    f"batch {key} cannot be planned again, its rows would be lost: {reason} Nothing was done. {way}"
                )
            if reason is not None:
                behind = set_offset_command(location=checkpoint.location, source=name, offset=end, lane=lane, skip=True)
                told = f"lost to the table: what batch {key} read in source {name!r}: {reason}"
                # A run of a range without a planned end stops in its attempt, planned: no position is set then.
                # Of that, and of the source's way on, `check_goes_on` tells.
                stops = "" if name in entry.late else f"If the next run stops there, `{behind}` begins behind it."
                drafting.note(f"{told} {then or stops}".rstrip())
            gone = None
            with suppress(SourceChangedError):  # the batch as it was planned is refused, and it is planned anew
                gone = source.left_out(start, end) if reason else lost_of(checkpoint, key, name, source, start, end)
            if gone is not None and not allow_skip:
                raise MaintenanceError(
                    f"batch {key} read what source {name!r} would read less of now, and those rows would be lost: "
                    f"{gone}. Nothing was done. Put it back; or go on without it: --allow-skip."
                )
            for told in filter(None, (gone, source.doubt_anew(start, end))):
                drafting.note(f"of what batch {key} read in source {name!r}, {told}.")
    check_goes_on(drafting, late, lane=lane, to=to, position=position, allow_skip=allow_skip)
