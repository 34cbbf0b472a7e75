"""Access to Tablestore: an instance, and the keys for it, from an Airflow connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError

_INSTANCE = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_HEADER = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, kw_only=True)
class Access:
    """:param endpoint: scheme, host and port.
    :param secrets: ``access_key_id``, ``access_key_secret``, and ``security_token`` if there is one.
    """

    endpoint: str
    instance: str
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_connection(cls, connection: Connection) -> Access:
        """:raises SourceError: if the connection lacks something, or has what cannot be, naming the field."""
        extra: Mapping[str, Any] = connection.extra
        endpoint = _endpoint(connection)
        # The endpoint of an instance begins with the instance's name.
        instance = connection.schema or extra.get("instance") or (urlsplit(endpoint).hostname or "").partition(".")[0]
        if not isinstance(instance, str) or not _INSTANCE.fullmatch(instance):
            raise _wrong(connection, f"the schema must be the name of the instance; not {instance!r:.100}")
        given = {
            "access_key_id": connection.login or extra.get("access_key_id"),
            "access_key_secret": connection.password or extra.get("access_key_secret"),
            "security_token": extra.get("security_token"),
        }
        for name, where in (("access_key_id", "login"), ("access_key_secret", "password")):
            if not given[name]:
                raise _wrong(connection, f"it has no {name}, which is its {where}")
        for name, value in given.items():
            if value and not _HEADER.fullmatch(str(value)):
                raise _wrong(connection, f"its {name} has a space, or another character that no key has")
        secrets = {name: str(value) for name, value in given.items() if value}
        return cls(endpoint=endpoint, instance=instance, secrets=secrets)


def _endpoint(connection: Connection) -> str:
    host = (connection.host or "").rstrip("/")
    scheme, _, rest = host.rpartition("://")
    scheme, port = scheme or "https", "" if connection.port is None else f":{connection.port}"
    endpoint = f"{scheme}://{rest}{port}"
    try:
        found = urlsplit(endpoint)
        is_one = scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_one = False
    if not is_one or found.path or found.query or found.username is not None:
        told = "one with a user in it" if "@" in host else f"{connection.host!r:.200}"
        raise _wrong(
            connection,
            "the host must be the endpoint of an instance, such as https://instance.eu-central-1.ots.aliyuncs.com; not "
            f"{told}",
        )
    return endpoint


def _wrong(connection: Connection, what: str) -> SourceError:
    return SourceError(f"connection {connection.conn_id!r}: {what}.")
