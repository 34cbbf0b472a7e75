"""Hand Airflow's configuration (section ``[microbatch]``), its masker and its connections down to the layers below.

The Airflow face and the ``microbatch`` command call :func:`hand_down` on entry. A value is read when it is needed, and
not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from functools import lru_cache
from pathlib import Path

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.connections import Connection, find_by
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.masking import mask_by
from airflow_provider_microbatch.settings import GROUP_ACCESS, SECTION, TRUSTED_MODULES, TRUSTED_SERVERS, Settings


def hand_down() -> None:
    """Let the layers below see Airflow's configuration, use its masker and find its connections. Idempotent."""
    settings.hand_down(_settings)
    mask_by(_mask)
    find_by(_connection)


def find_in_database() -> None:
    """Let this process find connections in Airflow's database too, as the ``airflow`` command does: a process that is
    neither a task nor a part of Airflow finds those of the environment and of a secrets backend alone."""
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def _mask(text: str) -> str:
    """Mask a text by Airflow's masker, which knows the secrets that this process has looked up. A process without
    Airflow has looked up none, so its texts stay as they are."""
    if "airflow" not in sys.modules:
        return text
    from airflow.sdk.log import redact  # type: ignore[attr-defined,unused-ignore]

    return str(redact(text))


def _connection(conn_id: str) -> Connection:
    """The connection of Airflow's secrets backends, environment or database.

    :raises DefinitionError: if Airflow has no connection of this id.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowException as error:
        raise DefinitionError(
            f"connection {conn_id!r} cannot be used: {error}. Make it: airflow connections add {conn_id} …, or "
            f"AIRFLOW_CONN_{conn_id.upper()}."
        ) from error
    return Connection(
        conn_id=conn_id,
        conn_type=str(found.conn_type),
        host=found.host,
        port=found.port,
        schema=found.schema,
        login=found.login,
        password=found.password,
        extra=found.extra_dejson,
    )


def _settings() -> Settings:
    return Settings(
        trusted_modules=_names(TRUSTED_MODULES),
        trusted_servers=_names(TRUSTED_SERVERS),
        group_access=_get(GROUP_ACCESS).strip().lower() or "none",
    )


def _names(option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in _get(option).split(",") if name.strip())


def _get(option: str) -> str:
    """The value of an option in Airflow's configuration; empty if the option is not set.

    The ``microbatch`` command does not import Airflow, which takes a second and sets up logging of its own. In its
    process the environment and ``airflow.cfg`` are read directly.
    """
    if "airflow" in sys.modules:
        from airflow.sdk import conf

        return conf.get(SECTION, option, fallback="") or ""
    given = os.environ.get(f"AIRFLOW__{SECTION.upper()}__{option.upper()}")
    if given is not None:
        return given
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    path = Path(os.environ.get("AIRFLOW_CONFIG") or f"{home}/airflow.cfg").expanduser()
    try:
        found = path.stat()
    except OSError:
        return ""
    return _section(path, (found.st_ino, found.st_size, found.st_mtime_ns)).get(option, "")


@lru_cache(maxsize=1)
def _section(path: Path, _stamp: tuple[int, int, int]) -> Mapping[str, str]:
    """Our section of the file, which is read again once it has another stamp: a command asks thousands of times."""
    parser = ConfigParser(interpolation=None, strict=False)
    parser.read(path, encoding="utf-8")
    return dict(parser[SECTION]) if SECTION in parser else {}
