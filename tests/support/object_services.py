"""The services of object stores that tests have, each by an Airflow connection that may lead through a proxy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.connections import Connection
from tests.support import object_store, object_store_azure

KEY, SECRET, TOKEN = "AKIALAKE", "the-secret-of-lake", "the-token-of-lake"


@dataclass(frozen=True, kw_only=True)
class Service:
    """
    :param above: so many parts of a URL's path stand before an object's key.
    :param endpoint: starts it, and returns its URL.
    :param connection: a connection of an id to a URL, which signs nothing that a proxy changes.
    :param put: put an object by another library than the one that is tested.
    :param delete: delete one likewise.
    :param load: put all files of a folder to the address of it.
    :param address: the address of a folder, by the environment's credentials.
    :param environment: the variables that lead to a URL.
    :param elsewhere: variables that would lead elsewhere, if they counted beside a connection.
    """

    scheme: str
    bucket: str
    above: int
    endpoint: Callable[[], str]
    connection: Callable[[str, str], Connection]
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    load: Callable[[Path], None]
    address: Callable[[Path], str]
    environment: Callable[[str], Mapping[str, str]]
    elsewhere: Mapping[str, str]


def s3_connection(conn_id: str, url: str, **extra: Any) -> Connection:
    """A connection of type ``aws``."""
    return Connection(
        conn_id=conn_id,
        conn_type="aws",
        login=KEY,
        password=SECRET,
        extra={"endpoint_url": url, "region_name": "us-east-1", "aws_session_token": TOKEN, **extra},
    )


SERVICES = {
    "s3": Service(
        scheme="s3",
        bucket=object_store.BUCKET,
        above=1,
        endpoint=object_store.endpoint,
        connection=s3_connection,
        put=lambda key, body: object_store.client().put_object(Bucket=object_store.BUCKET, Key=key, Body=body),
        delete=lambda key: object_store.client().delete_object(Bucket=object_store.BUCKET, Key=key),
        load=object_store.load,
        address=object_store.address,
        environment=object_store.environment,
        elsewhere={"AWS_SESSION_TOKEN": "a token that is not of this connection"},
    ),
    "azure": Service(
        scheme="abfs",
        bucket=object_store_azure.CONTAINER,
        above=2,
        endpoint=object_store_azure.endpoint,
        connection=object_store_azure.connection,
        put=object_store_azure.put,
        delete=object_store_azure.delete,
        load=object_store_azure.load,
        address=object_store_azure.address,
        environment=object_store_azure.environment,
        elsewhere={
            "AZURE_STORAGE_ACCOUNT_KEY": "b2YgYW5vdGhlciBhY2NvdW50",
            "AZURE_STORAGE_ENDPOINT": "https://127.0.0.1:1/another",
            "AZURE_SKIP_SIGNATURE": "true",
        },
    ),
}
