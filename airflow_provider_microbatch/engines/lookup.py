"""Find an engine: by the name in a handle, or by the type of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.registry import CONNECTIONS, ENGINES

_ELSE = "spark"
"""The engine for a connection of any other type, or for no connection: spark-submit accepts it, or says what is
missing."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an operator asks of its engine.

    :param conn_id: the connection, whose type chooses the engine.
    :param conf: Spark settings.
    :param arguments: the operator's other arguments, by name; an engine takes the arguments that it knows, and reports
        any other that has a value.
    """

    conn_id: str
    conf: Mapping[str, Any] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


class EngineOfConnection(Protocol):
    """The class of an engine, named in the registry by the type of connections that it takes."""

    def of_connection(self, wanted: Wanted) -> Engine:
        """The engine that an operator asks for. Touches nothing yet."""


def find_engine(name: str) -> Engine | None:
    """The engine of that name, to poll and cancel from the handle alone; None for an unknown name.

    :raises DefinitionError: if the engine is known and cannot be imported.
    """
    if name not in ENGINES:
        return None
    engine: Engine = ENGINES.load(name)()
    return engine


def engine_for(wanted: Wanted) -> Engine:
    """The engine for a connection.

    :raises DefinitionError: if the engine's module cannot be imported.
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
