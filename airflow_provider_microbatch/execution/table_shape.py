"""Whether a table stays one table: a pipeline may write it in another form from now on than before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SinkError
from airflow_provider_microbatch.execution.newest import newest_published
from airflow_provider_microbatch.execution.published_to import adopted_in, published_as
from airflow_provider_microbatch.execution.recorded_sinks import RecordedTable, recorded_tables
from airflow_provider_microbatch.execution.rewind_named import rewind_named
from airflow_provider_microbatch.sinks import OpenSink, Sink

OTHERS = 20
"""Number of lanes that are looked at beside the batch's own and the live one, before the definitions on record are
asked whether the form was ever another one: each interval that ever ran has a lane."""


def check_shape(checkpoint: Checkpoint, sink: OpenSink, *, lane: str) -> None:
    """Check that readers can read the next batch of a lane together with the newest one that was published in the
    table.

    :raises SinkError: if they could not.
    """
    for table in sink.tables:
        _check_table(checkpoint, table, lane=lane, beside=sink)


def _check_table(checkpoint: Checkpoint, table: OpenSink, *, lane: str, beside: OpenSink) -> None:
    for name in _lanes(checkpoint, table, lane, beside=beside):
        before = _newest_as_written(checkpoint, table, name, beside=beside)
        if before is None:
            continue
        why = table.definition.unlike(before)
        if why is not None:
            # Not looked for where it is not named: it asks each batch of the lane, at each retry.
            rewind = None if table.definition.keeps_form else rewind_named(checkpoint, beside, name, -1)
            again = f"; or have {rewind} take all batches out, to run them again in the new form"
            raise SinkError(
                f"{why} Readers of {table.location()} could not read both. Go on as before; or write to another table"
                f"{again if rewind else ''}."
            )
        return


def _lanes(checkpoint: Checkpoint, table: OpenSink, lane: str, *, beside: OpenSink) -> Iterator[str]:
    """The lanes in which the newest batch is looked for. A lane that has published costs no listing of the others. All
    of them are looked at if the newest ones have published nothing, and the form was another one once."""
    yield lane
    if lane != LIVE:
        yield LIVE
    others = [name for name in reversed(checkpoint.lanes()) if name not in (lane, LIVE)]
    yield from others[:OTHERS]
    if len(others) > OTHERS and _was_ever_unlike(checkpoint, table, beside=beside):
        yield from others[OTHERS:]


def _was_ever_unlike(checkpoint: Checkpoint, table: OpenSink, *, beside: OpenSink) -> bool:
    """Whether any pipeline on record writes the table in another form: if none does, no batch has another form."""
    names = checkpoint.definitions.names()
    try:
        return any(map(table.definition.unlike, _as_written(checkpoint, table, names, beside=beside)))
    except CheckpointError:
        return True  # a definition that cannot be read may be such a one


def _newest_as_written(checkpoint: Checkpoint, table: OpenSink, lane: str, *, beside: OpenSink) -> Sink | None:
    """The table as the lane's newest published batch was last written there; None if it was not, or its definition
    cannot be loaded here."""
    newest = newest_published(checkpoint, lane)
    if newest is None:
        return None
    written = _as_written(checkpoint, table, published_as(checkpoint, newest), beside=beside)
    # What was adopted, before any clear of it: by no attempt of this checkpoint.
    return next(chain(written, _of(checkpoint, table, adopted_in(checkpoint, newest, beside=beside))), None)


def _as_written(checkpoint: Checkpoint, table: OpenSink, names: Sequence[str], *, beside: OpenSink) -> Iterator[Sink]:
    """The table as these pipelines on record write it, without those that write to other tables."""
    for name in names:
        with suppress(DefinitionError):
            yield from _of(checkpoint, table, recorded_tables(checkpoint, name, beside=beside))


def _of(checkpoint: Checkpoint, table: OpenSink, recorded: Iterable[RecordedTable]) -> Iterator[Sink]:
    sinks = (one.sink for one in recorded)
    return (one for one in sinks if one is not None and table.is_written_by(one, checkpoint.tables))
