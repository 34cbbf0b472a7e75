"""Connections by their ids, for sources, sinks and stores. Whoever runs in Airflow, or by the command line, says how
one is found: nothing below these imports Airflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.exceptions import DefinitionError


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What Airflow keeps under a connection's id. Secrets are in no repr, and belong in no definition, log or entry."""

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    schema: str | None = None
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


Connect = Callable[[str], Connection]
"""The connection of an id. :raises DefinitionError: if there is none."""

_found_by: list[Connect] = []


def find_by(connect: Connect) -> None:
    """Say how connections are found in this process."""
    _found_by[:] = [connect]


def connect(conn_id: str) -> Connection:
    """The connection, as this process finds it. Asked when it is needed, and never kept: secrets change.

    :raises DefinitionError: if there is none, or nobody has said how it is found.
    """
    if not _found_by:
        raise DefinitionError(
            f"connection {conn_id!r} is needed, and this process is neither a task of Airflow nor the microbatch "
            "command. Say how it is found: airflow_provider_microbatch.connections.find_by(…)."
        )
    return _found_by[0](conn_id)
