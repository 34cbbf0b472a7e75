"""Access to Kinesis: the settings of an Airflow connection of type ``aws``, as in Amazon's provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError

_NOT_HERE = ("role_arn", "profile_name", "assume_role_method", "assume_role_kwargs")


@dataclass(frozen=True, kw_only=True)
class Access:
    """:param region: None where boto3 finds it by itself.
    :param endpoint: None for Amazon's own endpoint.
    :param secrets: arguments of boto3's session.
    """

    region: str | None = None
    endpoint: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_connection(cls, connection: Connection) -> Access:
        """:raises SourceError: if the connection logs in in a way that executors could not repeat, or names half of a
        key.
        """
        extra: Mapping[str, Any] = connection.extra
        for word in _NOT_HERE:
            if extra.get(word):
                raise SourceError(
                    f"connection {connection.conn_id!r} has {word} in its extra, which Spark's executors would have to "
                    "follow too. Let them find such credentials themselves, as boto3 does (a role of the instance or "
                    "the pod), and give the source no conn_id; or put the keys into the connection."
                )
        key = connection.login or extra.get("aws_access_key_id")
        secret = connection.password or extra.get("aws_secret_access_key")
        if bool(key) != bool(secret):
            raise SourceError(
                f"connection {connection.conn_id!r} has an access key without its secret, or a secret without its key: "
                "they are its login and its password."
            )
        token = extra.get("aws_session_token")
        given = {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_session_token": token if key else None}
        return cls(
            region=extra.get("region_name"),
            endpoint=extra.get("endpoint_url"),
            secrets={name: str(value) for name, value in given.items() if value},
        )
