"""Find an engine: by the name in a handle, or by the type of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.registry import CONNECTIONS, ENGINES

_ELSE = "spark"
"""A connection of any other type, or none at all: spark-submit takes it, or says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an operator says of the engine that it wants.

    :param conn_id: the connection, whose type decides.
    :param conf: Spark settings.
    :param arguments: the operator's other arguments, by name; an engine takes those that it knows, and names the others
        that have a value.
    """

    conn_id: str
    conf: Mapping[str, Any] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


class EngineOfConnection(Protocol):
    """The class of an engine, named in the registry by the type of connections that it takes."""

    def of_connection(self, wanted: Wanted) -> Engine:
        """The engine that an operator wants. Touches nothing yet."""


def find_engine(name: str) -> Engine | None:
    """The engine, to poll and cancel with what the handle alone says; None for a name that is not known here.

    :raises DefinitionError: if it is known and cannot be imported.
    """
    if name not in ENGINES:
        return None
    engine: Engine = ENGINES.load(name)()
    return engine


def engine_for(wanted: Wanted) -> Engine:
    """The engine for a connection.

    :raises DefinitionError: if its module cannot be imported.
    """
    conn_type = _type_of(wanted.conn_id)
    found: Any = CONNECTIONS.load(conn_type if conn_type in CONNECTIONS else _ELSE)
    by_type: EngineOfConnection = found
    return by_type.of_connection(wanted)


def _type_of(conn_id: str) -> str:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        return str(BaseHook.get_connection(conn_id).conn_type)
    except AirflowException:
        return _ELSE
