"""What an Airflow connection of type ``wasb`` says about a storage account.

Forms and their order are those of Airflow's own hook: a connection string, an application of a tenant, a shared access
key, a SAS token, a key as password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_microbatch.connections import Connection

UNSUPPORTED = ("managed_identity_client_id", "workload_identity_tenant_id", "client_secret_auth_config")
"""Fields that only Microsoft's own library can act upon."""

_PREFIX = "extra__wasb__"
"""Before a field's name, as old versions of Airflow's form stored it."""
_PUBLIC = "core.windows.net"
_DFS = re.compile(r"^(https?://[^./]+)\.dfs\.")
"""The same account's other endpoint, for Hadoop's file system, which the library does not speak to."""
_OF_CONTAINER = "sr=c"
"""In a SAS token of a container, which Azure shows with the container's URL. The address names the container too."""
_CONTAINER = re.compile(r"(?<=[^/])/[^/]+$")


class WasbFieldsError(ValueError):
    """The fields name no account. The message holds no secret."""


@dataclass(frozen=True, kw_only=True)
class WasbAccess:
    """How to reach a storage account, and by which credentials: at most one of the three.

    :param account: name of the account.
    :param endpoint: URL of its blob service.
    :param application: client id, client secret and tenant id.
    """

    account: str
    endpoint: str
    key: str | None = field(default=None, repr=False)
    sas: str | None = field(default=None, repr=False)
    application: tuple[str, str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """Read the connection. :raises WasbFieldsError: if it names no account."""
        if text := _extra(connection, "connection_string"):
            return cls._of_string(text)
        host, sas = connection.host or "", _extra(connection, "sas_token")
        tenant, key = _extra(connection, "tenant_id"), _extra(connection, "shared_access_key")
        if sas and sas.startswith(("https://", "http://")) and not tenant and not key:
            host, _, sas = sas.partition("?")
            if _OF_CONTAINER in sas.split("&"):
                host = _CONTAINER.sub("", host)
        url = _url(host)
        named = url.split("://")[-1].partition(".")[0] if url else host
        # Beside a tenant the login is the application's.
        account = (named or connection.login) if tenant else (connection.login or named)
        if not account:
            raise WasbFieldsError("names no storage account: give it as login")
        at = cls(account=account, endpoint=url or f"https://{account}.blob.{_PUBLIC}")
        if tenant:
            return replace(at, application=(connection.login or "", connection.password or "", tenant))
        if sas and not key:
            return replace(at, sas=sas.removeprefix("?"))
        return replace(at, key=key or connection.password or _extra(connection, "account_key"))

    @classmethod
    def _of_string(cls, text: str) -> Self:
        parts = [part.strip().partition("=") for part in text.split(";") if part.strip()]
        found = {name.lower(): value for name, _, value in parts}
        key, sas, endpoint = found.get("accountkey"), found.get("sharedaccesssignature"), found.get("blobendpoint")
        account = found.get("accountname") or _url(endpoint or "").split("://")[-1].partition(".")[0]
        if not account or not (key or sas):
            raise WasbFieldsError(
                "has a connection_string without AccountName and AccountKey, or BlobEndpoint and "
                "SharedAccessSignature: copy it from the account's access keys, whole"
            )
        protocol, suffix = found.get("defaultendpointsprotocol", "https"), found.get("endpointsuffix", _PUBLIC)
        url = _url(endpoint) if endpoint else f"{protocol}://{account}.blob.{suffix}"
        # As Microsoft's library does: where both stand, the key counts.
        return cls(account=account, endpoint=url, key=key or None, sas=None if key else (sas or "").removeprefix("?"))

    @property
    def is_plain(self) -> bool:
        """Whether the service is asked without TLS."""
        return self.endpoint.startswith("http://")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must appear in no message."""
        secret = self.application[1] if self.application else None
        signature = self.sas.rpartition("sig=")[2] if self.sas else None
        return tuple(one for one in (self.key, self.sas, signature, secret) if one)


def unsupported(connection: Connection) -> str | None:
    """A field of the connection that cannot be acted upon here, or None."""
    return next((name for name in UNSUPPORTED if _extra(connection, name)), None)


def _url(host: str) -> str:
    """The URL of a blob service; empty for a name without a dot, which is an account's."""
    if "://" not in host:
        host = f"https://{host}" if "." in host else ""
    return _DFS.sub(r"\1.blob.", host.rstrip("/"))


def _extra(connection: Connection, name: str) -> str | None:
    extra: Mapping[str, Any] = connection.extra
    found = extra[name] if name in extra else extra.get(f"{_PREFIX}{name}")
    return str(found) if found else None
