"""Rows that were asked to be erased: each attempt leaves them out, and earlier batches may still have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.forgotten import Forgetting
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    CheckpointError,
    CorruptEntryError,
    DefinitionError,
)
from airflow_provider_microbatch.execution.recorded_sinks import places_of, tables_in
from airflow_provider_microbatch.execution.summary import BatchSummary, summaries
from airflow_provider_microbatch.expectations import check_condition
from airflow_provider_microbatch.runtime.checks import Forgotten
from airflow_provider_microbatch.sinks import Manifest, OpenSink, Sink
from airflow_provider_microbatch.sinks.dead_letters import tables_of


def forgotten_of(checkpoint: Checkpoint, sink: OpenSink) -> list[Forgotten]:
    """The conditions of the rows that an attempt that begins now leaves out. A table is known by where an entry has
    it; or, where it is there no more, by the name that the entry has for it. A clear is run by the code of then, and
    the batches of now by that of now, so that no name is both's once a sink was renamed, and that another table may
    have the name.

    :param sink: the sink that the attempt writes to.
    :raises CorruptEntryError: if one is no condition that `microbatch forget` would take: Spark would run it.
    :raises CheckpointError: if one is about a sink that is none of these, neither by its place nor by its name: the
        attempt's output would say of that table, too, that the rows are left out.
    """
    found = []
    for one in checkpoint.forgotten.active():
        try:
            condition = check_condition(one.condition, what="its condition")
        except DefinitionError as error:
            raise CorruptEntryError(
                f"{checkpoint.location}/microbatch/forgotten/{one.number} was written by {one.by!r:.100}, and not by "
                f"`microbatch forget`, which does not take it: {error} Nothing was run. Lift it (`microbatch forget … "
                f"--lift {one.number}`) and say what is meant anew."
            ) from None
        stages = {name: stage for name in one.sinks if (stage := _stage_of(name, one, sink)) is not None}
        gone = [name for name in one.sinks if name not in stages]
        if gone:
            raise CheckpointError(_not_there(checkpoint, one, gone, sink.definition))
        names = tuple(dict.fromkeys(stages.values()))
        found.append(Forgotten(condition=condition, number=one.number, mark=one.mark, stages=names))
    return found


def _stage_of(name: str, entry: Forgetting, sink: OpenSink) -> str | None:
    """The stage of the rows that an entry has a sink's name for; None if the attempt is not known to have any."""
    now = sink.definition
    then = places_of(tables_in(entry.tables.get(name), beside=sink))
    own = zip(tables_of(now), now.tables, strict=False)  # the dead letters are the last table, and have no name
    there = next((stage for stage, table in own if any(map(table.is_same_place, then))), None)
    return name if there is None and name in now.names else there


def _not_there(checkpoint: Checkpoint, entry: Forgetting, gone: Sequence[str], sink: Sink) -> str:
    """That an entry is about sinks which the pipeline does not have, in words, and the ways on."""
    command, names = f"microbatch forget {quote(checkpoint.location)}", " and ".join(map(repr, gone))
    has, which = ", ".join(map(repr, sink.names)) or "one sink, without a name", "--sink NAME" if sink.names else ""
    anew = f"{command} --where … {which}".rstrip()
    return (
        f"entry {entry.number} of `microbatch forget` is about the rows of sink {names}, and the pipeline has {has}: "
        "which table that is by now nobody can tell. Nothing was run. Name the sink as it was. Or, if its table is "
        f"another one by now, say it anew, `{anew}` (`{command} --show` has the condition), and then lift this one, "
        f"`{command} --lift {entry.number}`; as you do where the pipeline writes to that table no more, which keeps "
        "what it has. Without --sink an entry is for the tables of any code, that of a cleared run too."
    )


def check_left_out(checkpoint: Checkpoint, staged: Manifest) -> None:
    """Check, before a stage is published, that its attempt has left out all rows that are to be forgotten.

    :raises AttemptFencedError: if a condition was put on record since the attempt's job was made.
    """
    missing = [one.number for one in checkpoint.forgotten.active() if one.mark not in staged.forgotten]
    if missing:
        raise AttemptFencedError(
            f"batch {staged.key} attempt {staged.epoch} has not left out what `microbatch forget` has on record since "
            f"(entry {', '.join(map(str, missing))}). Nothing was published; the next try leaves it out."
        )


def told_of_lost(checkpoint: Checkpoint, marks: Sequence[str]) -> tuple[str, str]:
    """What an output leaves out, where the checkpoint has no such entries, and the ways on, in words."""
    command, entries = f"microbatch forget {quote(checkpoint.location)}", " and ".join(marks)
    lifts = " and ".join(f"`{command} --lift {mark}`" for mark in marks)
    return (
        f"leaves out what `microbatch forget` had as entry {entries}, and {checkpoint.location} has no such entry: it "
        "was restored from a backup of before that, or another checkpoint made the batch. Whatever it computes has "
        "these rows again.",
        f"First say anew what is to be left out, `{command} --where …`; then, or if nothing is, {lifts}.",
    )


def check_entries_known(checkpoint: Checkpoint, output: Manifest, *, what: str) -> None:
    """Check, before output goes out of its table to be made again, that what it leaves out is on record here.

    :param what: what is not done, for the message.
    :raises CheckpointError: if it is not: the checkpoint was restored from before that, or another one has made the
        output, and the rows would be in the table again.
    """
    lost = checkpoint.forgotten.lost(output.forgotten)
    if lost:
        told = " ".join(told_of_lost(checkpoint, lost))
        raise CheckpointError(f"{what}: batch {output.key}, as attempt {output.epoch} has published it, {told}")


def holding(checkpoint: Checkpoint, marks: Sequence[str]) -> Iterator[BatchSummary]:
    """Committed batches of all lanes that may have rows of the entries with these marks: their output was made before
    the entries. Reads all log entries that are kept."""
    for lane in checkpoint.lanes():
        for batch in summaries(checkpoint, lane=lane):
            if batch.state == "committed" and not set(marks) <= set(batch.forgotten):
                yield batch
