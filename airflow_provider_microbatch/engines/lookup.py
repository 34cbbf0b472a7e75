"""Find an engine: by the name in a handle, or by the type of a connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.execution.engine import Engine
from airflow_provider_microbatch.registry import ENGINES

log = logging.getLogger(__name__)

SPARK_CONNECT = "spark_connect"
"""The connection type of Airflow's Spark provider."""


def find_engine(name: str) -> Engine | None:
    """The engine, to poll and cancel with what the handle alone says; None for a name that is not known here.

    :raises DefinitionError: if it is known and cannot be imported.
    """
    if name not in ENGINES.names():
        return None
    engine: Engine = ENGINES.load(name)()
    return engine


def find_connect_engine(conn_id: str, *, conf: Mapping[str, Any] | None, unused: Mapping[str, Any]) -> Engine | None:
    """The engine for a connection of type ``spark_connect``; None if it is of another type, or missing.

    :param conn_id: the connection.
    :param conf: Spark settings of the session.
    :param unused: arguments that a server which runs already cannot heed; those that have a value are named.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        if BaseHook.get_connection(conn_id).conn_type != SPARK_CONNECT:
            return None
    except AirflowException:
        return None  # spark-submit says what is missing
    from airflow_provider_microbatch.engines.processes import STOP_SECONDS
    from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine

    ignored = sorted(name for name, value in unused.items() if value)
    if ignored:
        log.warning("connection %r is a running Spark Connect server: not used: %s", conn_id, ", ".join(ignored))
    return SparkConnectEngine(conn_id=conn_id, conf=conf, grace_seconds=STOP_SECONDS)
