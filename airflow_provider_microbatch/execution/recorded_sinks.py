"""Sinks that attempts on record wrote to, read back by a process that has the pipeline at hand.

A checkpoint does not decide what this process loads and whom it speaks to; the pipeline does. So classes and servers of
the pipeline's own sink count as known. Otherwise, the checks of a pipeline that names a server would find no sink on
record, and pass over whatever is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.definition import check_servers, class_path
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import OpenSink, Sink
from airflow_provider_microbatch.sinks.dead_letters import WithDeadLetters
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


def recorded_tables(checkpoint: Checkpoint, name: str, *, beside: OpenSink) -> list[Sink]:
    """The tables of that sink, each loaded by itself: one that cannot be loaded, as that of a class which the pipeline
    names no more, is left out, and hides no other.

    :raises CheckpointError: if the definition cannot be read.
    """
    found = list[Sink]()
    for form in _forms(_plain(checkpoint, name)):
        with suppress(DefinitionError):
            found.append(_loaded(form, beside=beside))
    return found


def recorded_places(checkpoint: Checkpoint, name: str, *, beside: OpenSink) -> list[Sink]:
    """The tables of that sink; see :func:`places_of`.

    :raises CheckpointError: if the definition cannot be read.
    """
    return places_of(_plain(checkpoint, name), beside=beside)


def places_of(recorded: Mapping[str, Any] | None, *, beside: OpenSink) -> list[Sink]:
    """The tables of a sink on record, to be compared by where they are and by nothing else. A table that another
    version of its class wrote down is read as far as the class of now goes: the pipeline's table stays the same when
    its class loses a field. A class that the pipeline does not name may have written anywhere, and is left out.

    :param recorded: the sink's plain form.
    :param beside: the pipeline's sink of now.
    """
    found, now = list[Sink](), beside.definition
    for form in _forms(recorded):
        try:
            found.append(_loaded(form, beside=beside))
        except DefinitionError:
            own = {type(table) for table in now.tables}
            read = (one.as_far_as_known(form, known=now.classes()) for one in own)
            found += [one for one in read if one is not None]
    return found


def _loaded(form: Mapping[str, Any], *, beside: OpenSink) -> Sink:
    now = beside.definition
    return Sink.from_dict(form, live=[now, *now.tables], known=now.classes(), any_server=True)


def _plain(checkpoint: Checkpoint, name: str) -> Mapping[str, Any] | None:
    """The plain form of the sink of a definition on record; None if this package did not write it."""
    with suppress(DefinitionError):
        return checkpoint.definitions.sink(name)
    return None


def _forms(recorded: Any) -> list[Mapping[str, Any]]:
    """The plain forms of the tables of a sink on record, whoever wrote it."""
    if not isinstance(recorded, Mapping):
        return []
    arguments = recorded.get("arguments") if recorded.get("class") in _OF_SEVERAL else None
    several = arguments.get("sinks") if isinstance(arguments, Mapping) else None
    forms = several.values() if isinstance(several, Mapping) else [recorded]
    return [form for form in forms if isinstance(form, Mapping)]


def check_may_be_asked(sink: Sink, *, beside: OpenSink) -> None:
    """Check that the sink's servers may be spoken to.

    :param beside: the pipeline's sink of now.
    :raises UntrustedError: if neither it nor the settings name one of them.
    """
    check_servers(sink, live=[beside.definition])
