"""Connections by their ids, for sources, sinks and stores. The Airflow face and the command line say how a connection
is found: no layer below them imports Airflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.exceptions import DefinitionError, UnconnectedError


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An Airflow connection. Its secrets are in no repr, and belong in no definition, log or entry."""

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def type_of(connection: Connection) -> str:
    """The connection's type as an error names it that wants another type."""
    told = repr(connection.conn_type[:40])
    if connection.conn_type != "generic":
        return told
    return (
        f"{told} (what `airflow connections add --conn-type` stores where the provider of a type is not installed; "
        "with --conn-json '{\"conn_type\": …}' it stores the type)"
    )


Connect = Callable[[str], Connection]
"""Returns the connection of an id. :raises DefinitionError: if there is no connection of this id."""

_found_by: list[Connect] = []


def find_by(connect: Connect) -> None:
    """Set the function by which this process finds connections."""
    _found_by[:] = [connect]


def connect(conn_id: str) -> Connection:
    """The connection of an id, as this process finds it. Call this when the connection is needed, and do not keep the
    result: secrets change.

    :raises DefinitionError: if there is no such connection, or :func:`find_by` was not called in this process.
    """
    if not _found_by:
        raise DefinitionError(
            f"connection {conn_id!r} is needed, and this process is neither a task of Airflow nor the microbatch "
            "command. Say how it is found: airflow_provider_microbatch.connections.find_by(…)."
        )
    return _found_by[0](conn_id)


def connect_sink(conn_id: str) -> Connection:
    """The connection of a sink, as :func:`connect` finds it. Who asks several tables goes on without one that cannot be
    asked, for whichever reason: a definition on record may name a connection that is gone.

    :raises UnconnectedError: if there is none that can be used.
    """
    try:
        return connect(conn_id)
    except DefinitionError as error:
        raise UnconnectedError(str(error)) from error
