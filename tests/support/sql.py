"""Databases that checkpoints of tests are kept in: a PostgreSQL of the tests' own, and SQLite files.

A folder's database is found again by every process that knows the folder: connections stand in the environment, as
Airflow reads them, and so does where the server is that this process, or one above it, has started.
"""

from __future__ import annotations

import atexit
import json
import os
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError

POSTGRES = "microbatch_test_postgres"
"""Id of the connection to the server."""
_DATABASE = "checkpoints"


def connect(conn_id: str) -> Connection:
    """As Airflow finds connections in the environment."""
    given = os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}")
    if given is None:
        raise DefinitionError(f"connection {conn_id!r} cannot be used: it is not defined")
    return Connection(conn_id=conn_id, **json.loads(given))


def make_connection(conn_id: str, **fields: Any) -> str:
    """Let this process, and those it starts, find a connection.

    :param fields: of :class:`Connection`.
    :return: its id.
    """
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(fields)
    connections.find_by(connect)
    return conn_id


def in_sqlite(folder: Path) -> str:
    """Address of a checkpoint in a file of the folder."""
    name = make_connection(f"lite_{_name(folder)}", conn_type="sqlite", host=str(folder / "checkpoint.db"))
    return f"sql://{name}/main/orders"


def in_postgres(folder: Path) -> str:
    """Address of a checkpoint in a schema that is the folder's own."""
    return f"sql://{postgres_connection()}/w_{_name(folder)}/orders"


def postgres_connection() -> str:
    """Id of a connection to the server, which is started by the first to ask and ends with its process."""
    if f"AIRFLOW_CONN_{POSTGRES.upper()}" not in os.environ:
        from tests.support.postgres import postgres

        stack = ExitStack()
        server = stack.enter_context(postgres())
        atexit.register(stack.close)
        server.database(_DATABASE)
        login = {"host": "127.0.0.1", "port": server.port, "login": "postgres", "schema": _DATABASE}
        make_connection(POSTGRES, conn_type="postgres", **login)
    connections.find_by(connect)
    return POSTGRES


def _name(folder: Path) -> str:
    return sha256(str(folder).encode()).hexdigest()[:16]
