"""Batches that stay in their table, since none can be taken out of it: what a command does in place of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LETTERS, LIVE, BatchKey
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.identity import expected_on_record
from airflow_provider_microbatch.execution.table_place import unrecorded
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.manifest import counted_over
from airflow_provider_microbatch.sinks.several import for_good_first
from airflow_provider_microbatch.upkeep.commands.for_good import InForce
from airflow_provider_microbatch.upkeep.commands.not_in import NotIn
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Published, Recorded
from airflow_provider_microbatch.upkeep.commands.steps import DropStage


def kept_in(found: Mapping[int, Sequence[Published]]) -> dict[int, list[OpenSink]]:
    """By number, the tables that keep a batch of after a backup, since nobody can take it out of there.

    :param found: by number, ascending, the batches of after the backup, in all tables.
    """
    tables = {number: [one.sink for one in lives] for number, lives in found.items()}
    kept = {number: [sink for sink in sinks if sink.definition.keeps_for_good] for number, sinks in tables.items()}
    return {number: sinks for number, sinks in kept.items() if sinks}


def taken_out(
    found: Mapping[int, Sequence[Published]], *, lane: str, keeping: Sequence[str] = ()
) -> dict[int, list[Published]]:
    """By number, the batches of after a backup that a rewind takes out of their tables: all or none.

    Where one stays in any table, the lane counts on behind it, and what is counted over is not read again: taken out of
    another table it would never come back there. Nothing counts over the lane of an interval, of which only that stays
    which nobody can take out.

    :param found: as of :func:`kept_in`.
    :param keeping: why a table does not tell what it has, of each that keeps what it has.
    :raises MaintenanceError: if there is one, and batches would be taken out of the others.
    """
    if kept_in(found) and lane in (LIVE, LETTERS):
        return {}
    able = {
        number: [one for one in lives if one.sink.definition.keeps_batches and one.sink.definition.can_withdraw]
        for number, lives in found.items()
    }
    lost = {number: lives for number, lives in able.items() if lives}
    if lost and keeping and lane in (LIVE, LETTERS):
        raise MaintenanceError(
            f"batches {', '.join(map(str, lost))} are of after the backup that this checkpoint was restored from, and "
            f"would be taken out of the tables that tell. But {' '.join(keeping)} What that keeps, nothing brings back "
            "into the others. Bring it back, and type this again; if it is gone for good, with --allow-skip."
        )
    return lost


def told_of(checkpoint: Checkpoint, staying: Mapping[int, Sequence[OpenSink]], *, lane: str) -> str:
    """What there is to say of batches of after a backup that stay where they are, and the ways on.

    :param staying: as :func:`kept_in` returns it.
    """
    where = " and ".join(sorted({sink.location() for sinks in staying.values() for sink in sinks}))
    told = (
        f"batches {', '.join(map(str, staying))} in {where} are of after the backup that this checkpoint was restored "
        "from, and no batch can be taken out of there: they stay"
    )
    way = counted_over(checkpoint.location, lane)
    if way is not None:
        return f"{told}, and so does what came after it in other tables. {way}."
    return f"{told}. No run of that interval makes a batch before the pipeline writes to another table."


def check_none_unrecorded(
    drafting: Drafting, recorded: Recorded, in_force: InForce, keys: Iterable[BatchKey], *, drop_output: bool
) -> None:
    """Check that no table that is written to, nor one that no batch can be taken out of, has rows of batches that are
    to be read again and of which it has lost the record: they would be there twice, since nobody finds them there to
    take them out, and maybe in batches of other numbers, so that no publish meets them.

    :param drop_output: whether what is in a table is taken out; else a note tells of what none can be taken out of.
    :raises MaintenanceError: if one has.
    :raises SinkError: if a table cannot tell.
    """
    found = [one for key in keys for one in _without_record(drafting.checkpoint, recorded, in_force, key)]
    if any(drop_output or not table.definition.keeps_for_good for _, table, _ in found):
        (first, _, told), others = found[0], dict.fromkeys(key for key, _, _ in found)
        so = ", ".join(str(key) for key in others if key != first)
        raise MaintenanceError(f"{told}{f' So it is with batch {so}.' if so else ''} Nothing was done.")
    for _, _, told in found:
        drafting.note(told)


def _without_record(
    checkpoint: Checkpoint, recorded: Recorded, in_force: InForce, key: BatchKey
) -> Iterator[tuple[BatchKey, OpenSink, str]]:
    batch = expected_on_record(checkpoint, key, tables=checkpoint.tables)
    wrote = recorded.sinks_of(key)
    for sink in recorded.usable():
        for table in sink.tables:
            stays = table.definition.keeps_for_good and sink in wrote
            if (stays or in_force.has(table)) and not recorded.is_gone(table):
                told = recorded.asked(partial(unrecorded, checkpoint), table, batch)
                if told is not None:
                    yield key, table, told


def not_in(attempt: Attempt, table: OpenSink) -> NotIn | None:
    """The step that looks whether an attempt, which may have passed its fence and slept, has published meanwhile; None
    if the batch can be taken out of the table, or nobody can tell whether it is the attempt's."""
    if attempt.identity is None or not table.definition.keeps_for_good:
        return None
    return NotIn(
        key=str(attempt.key),
        epoch=attempt.epoch,
        identity=attempt.identity.to_dict(),
        sink=table.definition.to_dict(),
        where=table.location(),
        why="its attempt may have gone on while the command began",
    )


def drop_stages(drafting: Drafting, recorded: Recorded, fenced: Sequence[Attempt]) -> None:
    """Plan to drop the stages of attempts that have passed the fence and sleep before their publish. Such a publish
    would put a batch that no log knows at the batch's place, and no batch of this number could ever be published. Where
    such a publish was faster, in a table that no batch can be taken out of, the plan ends with the look there, and the
    stages of the tables behind it are left for the next run."""
    for attempt in fenced:
        sink = recorded.sink_of(attempt)
        tables = () if sink is None else sink.tables
        for table in for_good_first(tables):
            if table.definition.is_cheap_to_ask and not recorded.is_gone(table):
                drafting.elsewhere(
                    DropStage(
                        key=str(attempt.key),
                        epoch=attempt.epoch,
                        checkpoint=attempt.batch.checkpoint,
                        sink=table.definition.to_dict(),
                        where=table.location(),
                        why="a publish that comes late finds nothing",
                    )
                )
            look = not_in(attempt, table)
            if look is not None and not recorded.is_gone(table):
                drafting.elsewhere(look)
