"""Tables of before that cannot be asked, and need not be: what is known of them tells enough."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.exceptions import CorruptEntryError, SinkError
from airflow_provider_microbatch.execution.came_back import is_left
from airflow_provider_microbatch.sinks import OpenSink

_BEHIND_ALL = 2**62


class Answering:
    """Which tables can be asked. Each is asked once: a server that is off is waited for.

    :param tables: the checkpoint's knowledge of its tables.
    """

    def __init__(self, tables: KnownTables) -> None:
        self._tables = tables
        self._errors: dict[str, SinkError | None] = {}

    def error(self, table: OpenSink) -> SinkError | None:
        """Why it cannot be asked; None if it can be. A sink need not tell lanes, and would not be asked for these."""
        where = table.location()
        if where not in self._errors:
            self._errors[where] = None
            try:
                with suppress(CorruptEntryError):  # a torn id, which a repair mends, tells nothing of a server
                    list(table.batches_after(LIVE, _BEHIND_ALL, self._tables))
            except SinkError as error:
                self._errors[where] = error
        return self._errors[where]

    def tells_of(self, table: OpenSink, other: OpenSink) -> bool:
        """Whether it can be asked and is the table that the other one was."""
        with suppress(CorruptEntryError):
            return self.error(table) is None and table.is_table_of(other.definition, self._tables)
        return False


def is_gone(table: OpenSink, *, now: OpenSink | None, others: Sequence[OpenSink], answering: Answering) -> bool:
    """Whether what the table was was dropped from one that is there, or cannot be asked by its name of before, and goes
    by another name (a table that was renamed, a connection that was): that one tells what this one had.

    :param now: the pipeline's sink of now; None if nobody knows it.
    :param others: the tables on record that have other addresses.
    :raises SinkError: if it cannot tell.
    """
    # By its address, and not by its definition: of one that is named as it is now and is away, nobody else tells.
    if now is None or any(one.location() == table.location() for one in now.tables):
        return table.is_gone()
    try:
        if table.is_gone():
            return True
    except SinkError:
        return any(answering.tells_of(one, table) for one in others)
    # Of a copy that can be asked readers may still find what it has; of two names that nobody can ask, none stands for
    # the other.
    is_asked = not table.definition.is_cheap_to_ask or answering.error(table) is None
    return not is_asked and any(answering.tells_of(one, table) for one in others)


def never_had(checkpoint: Checkpoint, sink: OpenSink, key: BatchKey, *, wrote: Sequence[OpenSink]) -> bool:
    """Whether no attempt of a batch wrote to one of the sink's tables, and the pipeline does not name that (it was
    taken away, or only plans that were refused have named it): then the sink does not have the batch in all of its
    tables, whatever these would say. Not of a table that is named, into which somebody may have copied what another
    one had.

    :param wrote: all tables that attempts of the batch wrote to.
    """
    others = [one for one in sink.tables if not any(one.definition.is_same_place(other.definition) for other in wrote)]
    return any(is_left(checkpoint, one, key.lane) for one in others)


def not_reached(checkpoint: Checkpoint, table: OpenSink, lane: str, *, answering: Answering) -> SinkError | None:
    """Why a table cannot be asked that the pipeline does not write to any more: its connection, or its server, may be
    gone for good. None if it can be asked, or is one of now."""
    if not table.definition.is_cheap_to_ask or not is_left(checkpoint, table, lane):
        return None
    return answering.error(table)
