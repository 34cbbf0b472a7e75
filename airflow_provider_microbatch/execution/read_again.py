"""A replay reads its ranges as the pipeline is set now, and so does an attempt at a batch that was planned before.

Each setting that differs from then is logged. Rows in which nothing is left of the data that was read do not take the
place of published rows, nor become the batch.

A user who mends a wrong option and clears the task wants just this; a user who changed an option for today's files did
not think of the earlier ones. The two cannot be told apart, so the change is only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from shlex import quote

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import DefinitionError, PublishConflictError, SourceError
from airflow_provider_microbatch.execution.forgetting import check_entries_known, check_left_out
from airflow_provider_microbatch.execution.guard import named
from airflow_provider_microbatch.execution.identity import latest_seen
from airflow_provider_microbatch.execution.letters_taken import check_not_taken
from airflow_provider_microbatch.execution.newest import published_epoch
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, read_as
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.progress import told
from airflow_provider_microbatch.execution.refused import refused_in
from airflow_provider_microbatch.execution.standing_state import check_stands
from airflow_provider_microbatch.execution.table_place import check_recorded
from airflow_provider_microbatch.runtime.masking import HIDDEN, mask
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest, OpenSink
from airflow_provider_microbatch.sources import Source

log = logging.getLogger(__name__)

ReadAs = Mapping[str, Mapping[str, str | None]]
"""How each source is set to make rows; see ``Source.reads_as``."""


def say_what_changed(checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, *, replayed: bool) -> None:
    """Warn if a batch is about to be read in another way than its published output was, or than it was planned."""
    epoch = published_epoch(checkpoint, planned.key) if replayed else None
    before = planned.entry.read_as if epoch is None else _read_as(checkpoint, planned.key, epoch, sources.classes)
    found = _changes(before, sources.read_as(planned.ranges))
    if found and epoch is not None:
        log.warning(
            "Batch %s is replayed, and not read as it was for attempt %s, which is published: %s. Its rows may become "
            "others. If the files of then are not meant, set it as it was before the task is cleared",
            planned.key,
            epoch,
            "; ".join(found),
        )
    elif found:
        log.warning(
            "Batch %s is not read as it was when it was planned: %s. If what it reads is of then, set it as it was "
            "until this batch is through",
            planned.key,
            "; ".join(found),
        )


def say_where_from(checkpoint: Checkpoint, sources: OpenedSources, key: BatchKey) -> None:
    """Warn if a source reads from another place than it did for the batch before ``key``, in the source's words."""
    commit = checkpoint.lane(key.lane).commit_of(key.id - 1)
    if commit is None or commit.epoch is None:
        return
    before = BatchKey(key.lane, key.id - 1)
    recorded = _recorded(checkpoint, before, commit.epoch, sources.classes)
    for name, now in sources.defined.items():
        then = recorded.get(name, now)
        means = now.moved_from(then)
        if means is not None:
            log.warning(
                "Source %r was at %s for batch %s, and is at %s now: %s",
                name, then.location(), before, now.location(), means,
            )  # fmt: skip


def look_at_stage(
    checkpoint: Checkpoint,
    planner: Planner,
    planned: PlannedBatch,
    attempt: Attempt,
    staged: Manifest,
    *,
    first: bool,
) -> None:
    """Log the rows that were refused, and the runtime's warnings, from the task itself: Spark's own output comes
    through a pipe, and has one level there.

    :param planner: has the opened sources and sink.
    :param first: nothing of the batch is published.
    :raises AttemptFencedError: if the stage holds rows that are to be forgotten, or goes on from state that is not the
        published one any more.
    :raises CheckpointError: if the stage is a replay's, and the batch's earlier dead letters were run again meanwhile.
    :raises SourceError: if the attempt has read a source in another way than was planned, and nothing is left of its
        rows: the change does not fit the data that was there when the batch was planned.
    """
    if attempt.request is not None:  # once more: they may have been run again since the job was made
        check_not_taken(checkpoint, attempt.key, planner.sink)
    check_left_out(checkpoint, staged)
    check_stands(checkpoint, planner.sink, planned, staged)
    found = staged.result.get("warnings")
    for text in found if isinstance(found, list) else ():
        log.warning("Batch %s attempt %s: %s", staged.key, staged.epoch, mask(str(text)))
    for refused in refused_in(staged.result):
        log.warning("Batch %s attempt %s: %s", staged.key, staged.epoch, refused)
    empty = _empty(staged) if first else {}
    read = _read_as(checkpoint, attempt.key, attempt.epoch, planner.sources.classes) if empty else {}
    changed = {name for name, now in read.items() if planned.entry.read_as.get(name, now) != now}
    emptied = [f"all {rows:,} rows of source {name!r}" for name, rows in empty.items() if name in changed]
    if emptied:
        key = planned.key
        raise SourceError(
            f"batch {key} attempt {attempt.epoch}: nothing was published. {' and '.join(emptied)} have nothing in any "
            "column of its schema, and it was not read as it was set when the batch was planned: "
            f"{'; '.join(_changes(planned.entry.read_as, read))}. Set it as it was until this batch is through, and "
            "run this task again. If it is meant so, "
            f"{command(checkpoint.lane(key.lane), f'rewind --to {key.id - 1}')} has the batch planned anew."
        )


def replace_published(
    checkpoint: Checkpoint,
    sources: OpenedSources,
    sink: OpenSink,
    planned: PlannedBatch,
    batch: ExpectedBatch,
    *,
    staged: Manifest,
    published: Manifest | None,
) -> Manifest:
    """Put the stage of a replay into the place of the published output.

    :param batch: the batch, in the form in which the sink is asked for it.
    :param staged: the manifest of the attempt's stage.
    :param published: the manifest in the sink; None if it is not there any more.
    :raises SourceError: if nothing is left of the rows of a source, and the published output has some; or if data of
        the range is gone that the published attempt has read.
    :raises PublishConflictError: if a later attempt was faster.
    :raises SinkError: if a table has the batch's rows and has lost its record of them.
    :raises CheckpointError: if the published output leaves out rows, and the checkpoint has lost which.
    """
    # Also where a table lacks the batch, or readers find a part of it: what they find would be replaced.
    before = latest_seen(sink, batch) if published is None else published
    gone = [] if before is None else sources.left_out(planned.ranges, told=told(checkpoint, before.result))
    if before is not None and gone:
        raise SourceError(
            f"batch {batch.key} attempt {staged.epoch}: nothing was replaced, since attempt {before.epoch}, which "
            f"is published, has more. {'; '.join(gone)}. Put that back and run this task again; or leave the batch as "
            f"it is: `microbatch withdraw-clear {quote(checkpoint.location)} {batch.key}`."
        )
    fewer = [] if before is None else _fewer(checkpoint, sources, planned, staged, before)
    if before is not None and fewer:
        raise SourceError(
            f"batch {batch.key} attempt {staged.epoch}: nothing was replaced, since attempt {before.epoch}, which "
            f"is published, has read more, and nothing is set otherwise: {'; '.join(fewer)}. What was read may be gone "
            "(compacted). Leave the batch as it is: "
            f"`microbatch withdraw-clear {quote(checkpoint.location)} {batch.key}`."
        )
    emptied = [] if before is None else _emptied(checkpoint, staged, before)
    if before is not None and emptied:
        then = _read_as(checkpoint, batch.key, before.epoch, sources.classes)
        changed = _changes(then, sources.read_as(planned.ranges))
        why = f"It is not read as it was then: {'; '.join(changed)}." if changed else "It is read as it was then."
        raise SourceError(
            f"batch {batch.key} attempt {staged.epoch}: nothing was replaced. {' and '.join(emptied)} have nothing in "
            f"any column of its schema, and attempt {before.epoch}, which is published, has rows of it. {why} Mend "
            "the source, or its files, and run this task again; or leave the batch as it is: "
            f"`microbatch withdraw-clear {quote(checkpoint.location)} {batch.key}`."
        )
    if before is not None:
        check_entries_known(checkpoint, before, what=f"batch {batch.key} attempt {staged.epoch}: nothing was replaced")
    check_recorded(checkpoint, sink, batch.key)
    try:
        return sink.replace(batch, staged.epoch)
    except PublishConflictError as conflict:
        winner = sink.contains(batch)
        who = named(checkpoint.attempts.get(batch.key, winner.epoch) if winner else None)
        raise PublishConflictError(f"{conflict} The winner is {who}.") from None


def _changes(before: ReadAs, after: ReadAs) -> list[str]:
    """Settings that differ now, for sources with data in the batch. A setting that cannot be known, as of a definition
    that cannot be loaded here, is left out: it must not stop a batch."""
    found = []
    for name, now in after.items():
        then = before.get(name, now)
        for setting in dict.fromkeys((*then, *now)):
            old, new = then.get(setting), now.get(setting)
            if old != new:
                found.append(f"source {name!r}: {setting} was {_shown(old)}, is {_shown(new)}")
    return found


def _read_as(checkpoint: Checkpoint, key: BatchKey, epoch: int, known: set[type]) -> ReadAs:
    """How an attempt has read its sources, by their present names."""
    return {name: read_as(source) for name, source in _recorded(checkpoint, key, epoch, known).items()}


def _recorded(checkpoint: Checkpoint, key: BatchKey, epoch: int, known: set[type]) -> Mapping[str, Source]:
    """The sources of an attempt, by their present names; sources that cannot be loaded here are left out."""
    attempt = checkpoint.attempts.get(key, epoch)
    name = None if attempt is None else attempt.definition
    recorded = None if name is None else checkpoint.definitions.get(name)
    sources = None if recorded is None else recorded["arguments"].get("sources")
    found = {}
    for source, definition in sources.items() if isinstance(sources, Mapping) else ():
        try:
            found[checkpoint.names.of(source)] = Source.from_dict(definition, known=known)
        except DefinitionError as error:
            log.debug("how batch %s attempt %s has read source %s is not known: %s", key, epoch, source, error)
    return found


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return HIDDEN if value == HIDDEN else repr(value)


def _emptied(checkpoint: Checkpoint, staged: Manifest, published: Manifest) -> list[str]:
    """Sources of whose rows nothing is left in the stage, though published rows of them have values, in words."""
    was, was_empty = (
        {checkpoint.names.of(name): count for name, count in _counts(published, part).items()}
        for part in ("numInputRows", "numEmptyRows")
    )
    if published.result.get("numOutputRows") == 0:
        return []
    emptied = _empty(staged)
    good = [name for name in emptied if was.get(name) != 0 and (name not in was or was_empty.get(name) != was[name])]
    return [f"all {emptied[name]:,} rows of source {name!r}" for name in good]


def _empty(staged: Manifest) -> dict[str, int]:
    """Number of rows of each source all of whose rows are empty in every column."""
    rows, empty = _counts(staged, "numInputRows"), _counts(staged, "numEmptyRows")
    return {name: count for name, count in rows.items() if count and empty.get(name) == count}


def _fewer(
    checkpoint: Checkpoint, sources: OpenedSources, planned: PlannedBatch, staged: Manifest, published: Manifest
) -> list[str]:
    """Sources whose ranges keep their rows, and that gave fewer rows than for the published output, in words."""
    rows = _counts(staged, "numInputRows")
    was = {checkpoint.names.of(name): count for name, count in _counts(published, "numInputRows").items()}
    then, now = (
        _read_as(checkpoint, planned.key, published.epoch, sources.classes),
        sources.read_as(planned.ranges),
    )
    alike = [
        name
        for name, source in sources.defined.items()
        if source.keeps_rows() and name in was and then.get(name, now.get(name)) == now.get(name)
    ]
    for name in alike:
        if name not in rows:
            log.warning(
                "Batch %s attempt %s: Spark told no count of the rows of source %r, which gave %s for attempt %s. "
                "Whether it gave fewer this time is not known",
                planned.key, staged.epoch, name, f"{was[name]:,}", published.epoch,
            )  # fmt: skip
    return [
        f"source {name!r} gave {rows[name]:,} rows, and {was[name]:,} then"
        for name in alike
        if rows.get(name, was[name]) < was[name]
    ]


def _counts(manifest: Manifest, part: str) -> dict[str, int]:
    found = manifest.result.get(part)
    counts = found.items() if isinstance(found, Mapping) else ()
    return {str(name): count for name, count in counts if isinstance(count, int)}
