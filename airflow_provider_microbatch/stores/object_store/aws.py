"""What an Airflow connection of type ``aws`` says about a bucket, or a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_microbatch.connections import Connection

UNSUPPORTED = ("role_arn", "profile_name", "assume_role_method", "credential_process")
"""Fields that only Amazon's own library can act upon."""


@dataclass(frozen=True, kw_only=True)
class AwsAccess:
    """How to reach a service of Amazon's, or one that speaks as it does, and by which keys.

    :param endpoint: URL of the service; None for Amazon's own.
    :param addressing: ``addressing_style`` of Amazon's library; None if nothing is said.
    :param verify: ``verify`` of Amazon's library: False, or a file of certificates.
    :param keys: access key and secret key; None for the environment's credentials.
    :param token: token of temporary keys.
    """

    endpoint: str | None = None
    region: str | None = None
    addressing: str | None = None
    verify: object = None
    keys: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, connection: Connection, *, service: str = "s3") -> Self:
        """Read the connection.

        :param service: the service that is to be reached, by its name in ``service_config``.
        """
        extra = connection.extra
        own = _mapping(_mapping(extra.get("service_config")).get(service))
        key = connection.login or extra.get("aws_access_key_id")
        secret = connection.password or extra.get("aws_secret_access_key")
        return cls(
            endpoint=_text(own.get("endpoint_url") or extra.get("endpoint_url")),
            region=_text(extra.get("region_name")),
            addressing=_text(_mapping(_mapping(extra.get("config_kwargs")).get("s3")).get("addressing_style")),
            verify=extra.get("verify"),
            keys=(str(key), str(secret)) if key and secret else None,
            token=_text(extra.get("aws_session_token") or extra.get("session_token")),
        )

    @property
    def is_plain(self) -> bool:
        """Whether the service is asked without TLS."""
        return self.endpoint is not None and self.endpoint.startswith("http://")

    @property
    def trusts_anybody(self) -> bool:
        """Whether the service's certificate is not checked."""
        return self.verify is False or str(self.verify).lower() == "false"

    @property
    def certificates(self) -> str | None:
        """Path of the file of certificates to trust; None for the system's."""
        is_path = isinstance(self.verify, str) and self.verify.lower() not in ("true", "false")
        return str(self.verify) if is_path else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must appear in no message."""
        return tuple(one for one in (*(self.keys or ()), self.token) if one)


def _text(value: object) -> str | None:
    return str(value) if value else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
