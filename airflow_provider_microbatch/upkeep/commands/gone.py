"""Tables of before that cannot be asked, and need not be: what is known of them tells enough."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.execution.came_back import is_left
from airflow_provider_microbatch.sinks import OpenSink

_BEHIND_ALL = 2**62


def is_gone(table: OpenSink, *, now: OpenSink | None, others: Sequence[OpenSink], tables: KnownTables) -> bool:
    """Whether what the table was was dropped from one that is there, or cannot be asked by its name of before, and goes
    by another name (a table that was renamed, a connection that was): that one tells what this one had.

    :param now: the pipeline's sink of now; None if nobody knows it.
    :param others: the tables on record that have other addresses.
    :param tables: the checkpoint's knowledge of its tables.
    :raises SinkError: if it cannot tell.
    """
    # By its address, and not by its definition: of one that is named as it is now and is away, nobody else tells.
    if now is None or any(one.location() == table.location() for one in now.tables):
        return table.is_gone()
    same = [one for one in others if _is_table_of(one, table, tables)]
    try:
        if table.is_gone():
            return True
        if same:
            _ask(table, tables)  # of a copy that can be asked, readers may still find what it has
        return False
    except SinkError:
        return any(_can_be_asked(one, tables) for one in same)


def _is_table_of(other: OpenSink, table: OpenSink, tables: KnownTables) -> bool:
    with suppress(SinkError):  # its server may be off, which tells nothing of this table
        return other.is_table_of(table.definition, tables)
    return False


def _can_be_asked(table: OpenSink, tables: KnownTables) -> bool:
    """Of two names of one table that nobody can ask, none stands for the other."""
    with suppress(SinkError):
        _ask(table, tables)
        return True
    return False


def _ask(table: OpenSink, tables: KnownTables) -> None:
    """Raise :class:`SinkError` if it cannot be asked. A sink need not tell lanes, and would not be asked for these."""
    list(table.batches_after(LIVE, _BEHIND_ALL, tables))


def never_had(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, wrote: Sequence[OpenSink]) -> bool:
    """Whether no attempt of a batch wrote to one of the sink's tables, and the pipeline does not name that (it was
    taken away, or only plans that were refused have named it): then the sink does not have the batch in all of its
    tables, whatever these would say. Not of a table that is named, into which somebody may have copied what another
    one had.

    :param wrote: all tables that attempts of the batch wrote to.
    """
    others = [one for one in sink.tables if not any(one.definition.is_same_place(other.definition) for other in wrote)]
    return any(is_left(checkpoint, one, key.lane) for one in others)


def not_reached(checkpoint: Checkpoint, table: OpenSink, lane: str, *, tables: KnownTables) -> SinkError | None:
    """Why a table cannot be asked that the pipeline does not write to any more: its connection, or its server, may be
    gone for good. None if it can be asked, or is one of now."""
    if not table.definition.is_cheap_to_ask or not is_left(checkpoint, table, lane):
        return None
    try:
        _ask(table, tables)
    except SinkError as error:
        return error
    return None
