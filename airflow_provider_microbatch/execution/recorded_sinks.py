"""Sinks that attempts on record wrote to, read back by a process that has the pipeline at hand.

A checkpoint does not decide what this process loads and whom it speaks to; the pipeline does. So classes and servers of
the pipeline's own sink count as known. Otherwise, the checks of a pipeline that names a server would find no sink on
record, and pass over whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.definition import check_servers, class_path
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.dead_letters import LETTERS, WithDeadLetters
from airflow_provider_microbatch.sinks.several import Sinks

_OF_SEVERAL = (class_path(Sinks), class_path(WithDeadLetters))
"""Classes of sinks whose tables are sinks of their own."""


def recorded_sink(checkpoint: Checkpoint, name: str, *, beside: OpenSink) -> Sink | None:
    """The sink of a pipeline definition on record, to be compared with others. Each of its tables may be asked only
    after :func:`check_may_be_asked`: one table's server that nobody trusts must not hide the other tables.

    :param name: name of the definition.
    :param beside: the pipeline's sink of now.
    :return: None if there is no such definition.
    :raises CheckpointError: if the definition cannot be read.
    :raises UntrustedError: if it is of a class that neither the pipeline nor the settings name.
    :raises DefinitionError: if its class cannot be imported here, or has changed.
    """
    recorded = checkpoint.definitions.sink(name)
    return None if recorded is None else _loaded(recorded, beside=beside)


@dataclass(frozen=True, kw_only=True)
class RecordedTable:
    """A table of a sink on record, which is loaded by itself: one that cannot be, as that of a class which the pipeline
    names no more, hides no other.

    :param form: its sink in plain form.
    :param place: its sink, to be compared by where it is and by nothing else: one that another version of its class
        wrote down is read as far as the class of now goes, since the pipeline's table stays the same when its class
        loses a field. None if nobody can tell where the table is: a class that the pipeline does not name may have
        written anywhere.
    :param unread: why its sink is of no more use than that; None if it can be loaded.
    :param is_of_letters: whether it is the table of the dead letters.
    """

    form: object
    place: Sink | None
    unread: DefinitionError | None
    is_of_letters: bool

    @property
    def sink(self) -> Sink | None:
        """Its sink; None if that cannot be loaded here."""
        return self.place if self.unread is None else None

    def is_same(self, other: RecordedTable) -> bool:
        """Whether both are one table: where nobody can tell where they are, if they are written down alike."""
        if self.place is None or other.place is None:
            return self.form == other.form
        return self.place.is_same_place(other.place)


def recorded_tables(checkpoint: Checkpoint, name: str, *, beside: OpenSink) -> list[RecordedTable]:
    """The tables of the sink of a pipeline definition on record; none if there is no such definition.

    :param name: name of the definition.
    :param beside: the pipeline's sink of now.
    :raises CheckpointError: if the definition cannot be read.
    :raises DefinitionError: if this package did not write it.
    """
    return tables_in(checkpoint.definitions.sink(name), beside=beside)


def tables_in(recorded: Any, *, beside: OpenSink) -> list[RecordedTable]:
    """The tables of a sink on record; none of None.

    :param recorded: the sink's plain form, whoever wrote it.
    :param beside: the pipeline's sink of now.
    """
    letters = (
        LETTERS if isinstance(recorded, Mapping) and recorded.get("class") == class_path(WithDeadLetters) else None
    )
    return [_table(form, beside=beside, is_of_letters=one == letters) for one, form in forms_in(recorded).items()]


def forms_in(recorded: Any) -> Mapping[str, Any]:
    """By name, the plain forms of the tables of a sink on record; none of None. That of a single table has no name.

    :param recorded: as :func:`tables_in` takes it.
    """
    given = recorded if isinstance(recorded, Mapping) else {}
    arguments = given.get("arguments") if given.get("class") in _OF_SEVERAL else None
    several = arguments.get("sinks") if isinstance(arguments, Mapping) else None
    if isinstance(several, Mapping):
        return several
    return {} if recorded is None else {"": recorded}


def places_of(tables: Iterable[RecordedTable]) -> list[Sink]:
    """Where they are, as far as anybody can tell; see :class:`RecordedTable`."""
    return [one.place for one in tables if one.place is not None]


def is_one_of(table: OpenSink, places: Sequence[Sink], tables: KnownTables) -> bool:
    """Whether a table is at one of the places, or was moved to where it is from one of them. One that cannot be asked
    whether it was moved is at its own address alone, wherever the others are.

    :param places: as of :func:`places_of`.
    """
    if any(table.definition.is_same_place(place) for place in places):
        return True
    with suppress(SinkError):
        return any(table.is_table_of(place, tables) for place in places)
    return False


def _table(form: Any, *, beside: OpenSink, is_of_letters: bool) -> RecordedTable:
    now, unread, place = beside.definition, None, None
    try:
        place = _loaded(form, beside=beside)
    except DefinitionError as error:
        unread = error
        if isinstance(form, Mapping):
            own = {type(table) for table in now.tables}
            read = (one.as_far_as_known(form, known=now.classes()) for one in own)
            place = next((one for one in read if one is not None), None)
    return RecordedTable(form=form, place=place, unread=unread, is_of_letters=is_of_letters)


def _loaded(form: Mapping[str, Any], *, beside: OpenSink) -> Sink:
    now = beside.definition
    return Sink.from_dict(form, live=[now, *now.tables], known=now.classes(), any_server=True)


def check_may_be_asked(sink: Sink, *, beside: OpenSink) -> None:
    """Check that the sink's servers may be spoken to.

    :param beside: the pipeline's sink of now.
    :raises UntrustedError: if neither it nor the settings name one of them.
    """
    check_servers(sink, live=[beside.definition])
