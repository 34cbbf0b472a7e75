"""Sinks that attempts on record wrote to, read back by a process that has the pipeline at hand.

A checkpoint does not decide what this process loads and whom it speaks to; the pipeline does. So classes and servers of
the pipeline's own sink count as known. Otherwise, the checks of a pipeline that names a server would find no sink on
record, and pass over whatever is in it.
"""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.definition import check_servers
from airflow_provider_microbatch.sinks import OpenSink, Sink


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
    recorded, now = checkpoint.definitions.sink(name), beside.definition
    if recorded is None:
        return None
    return Sink.from_dict(recorded, live=[now, *now.tables], known=now.classes(), any_server=True)


def check_may_be_asked(sink: Sink, *, beside: OpenSink) -> None:
    """Check that the sink's servers may be spoken to.

    :param beside: the pipeline's sink of now.
    :raises UntrustedError: if neither it nor the settings name one of them.
    """
    check_servers(sink, live=[beside.definition])
