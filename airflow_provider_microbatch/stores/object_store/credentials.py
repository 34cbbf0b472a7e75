"""Creates the library's client of a bucket from an Airflow connection."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.connections import Connection, connect, type_of
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.stores.object_store.address import AZURE, GCS, S3, Address
from airflow_provider_microbatch.stores.object_store.aws import UNSUPPORTED, AwsAccess
from airflow_provider_microbatch.stores.object_store.forks import library
from airflow_provider_microbatch.stores.object_store.wasb import WasbAccess, WasbFieldsError, unsupported

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

TYPES = {S3: "aws", GCS: "google_cloud_platform", AZURE: "wasb"}
"""Types of Airflow connections, by scheme."""

REQUEST_SECONDS = 30.0
"""The time limit of one request; a dead connection is noticed by then."""

CONNECT_SECONDS = 5.0
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
"""The environment variables where the library finds an endpoint. A value with ``http:`` is intended by the user."""

_MADE_UP_KEY = "AA=="


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A client of a bucket.

    :param signer: a client that returns the URL of a request for an object. On Azure it has a made-up key: with a SAS
        token the library signs nothing, and for an application it would request a key first.
    :param secrets: texts that must appear in no message.
    :param tls: TLS settings for this package's own requests to the service; None: the settings of the system.
    :param process: the only process in which the client can be used.
    """

    client: Client
    signer: Client
    secrets: tuple[str, ...] = field(default=(), repr=False)
    tls: ssl.SSLContext | None = None
    process: int = field(default_factory=os.getpid)


def open_client(address: Address) -> Opened:
    """Create a client with the current credentials. Sends no request to the service.

    :raises CheckpointError: if there is no such connection, or it cannot be used here; if the library is not installed.
    """
    if address.conn_id is None:
        plain = any((os.environ.get(name) or "").startswith("http://") for name in ENDPOINTS)
        return _opened(address, {}, {"allow_http": True} if plain else {})
    try:
        connection = connect(address.conn_id)
    except DefinitionError as error:
        raise CheckpointError(f"{address.of} {address}: {error}") from error
    wanted = TYPES[address.scheme]
    if connection.conn_type != wanted:
        raise CheckpointError(
            f"{address.of} {address}: connection {address.conn_id!r} is of type {type_of(connection)}; "
            f"{address.scheme}:// needs one of type {wanted!r}."
        )
    options, transport, secrets = {S3: _aws, GCS: _google, AZURE: _azure}[address.scheme](address, connection)
    return _opened(address, options, transport, secrets=secrets)


def _opened(
    address: Address, options: Mapping[str, Any], transport: Mapping[str, Any], *, secrets: tuple[str, ...] = ()
) -> Opened:
    client = signer = _client(address, options, transport)
    if address.scheme == AZURE:
        place = {name: options[name] for name in ("account_name", "endpoint", "use_emulator") if name in options}
        signer = _client(address, {**place, "account_key": _MADE_UP_KEY, **_by("access_key")}, transport)
    return Opened(client=client, signer=signer, secrets=secrets, tls=_tls(transport))


_Options = tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]
"""Options of the store, options of its HTTP client, and secrets."""


def _client(address: Address, options: Mapping[str, Any], transport: Mapping[str, Any]) -> Client:
    stores = library().store
    makes: dict[str, Any] = {S3: stores.S3Store, GCS: stores.GCSStore, AZURE: stores.AzureStore}
    try:
        client: Client = makes[address.scheme](
            address.bucket,
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=REQUEST_SECONDS),
                **transport,
            },
            # The caller repeats requests, since it knows what they do: a put that the library sends twice on its own
            # would take its own first put for that of another writer. Also, the library waits where Python handles no
            # signals.
            retry_config={"max_retries": 0},
            **options,
        )
    except Exception as error:
        # The text of the error may contain the options.
        raise CheckpointError(
            f"{address.of} {address}: {address.who} makes no client ({type(error).__name__}): look at its fields, in "
            "docs/object-stores.md."
        ) from None
    return client


def _aws(address: Address, connection: Connection) -> _Options:
    check_supported(address, connection)
    access = AwsAccess.of(connection)
    options: dict[str, Any] = {}
    transport: dict[str, Any] = {}
    if access.region:
        options["region"] = access.region
    if access.endpoint:
        # By the name of AWS_ENDPOINT_URL_S3, which in the environment wins over "endpoint".
        options["aws_endpoint_url_s3"] = access.endpoint
        transport["allow_http"] = access.is_plain
    if access.addressing:
        options["virtual_hosted_style_request"] = access.addressing == "virtual"
    if access.trusts_anybody:
        transport["allow_invalid_certificates"] = True
    elif access.certificates:
        transport["root_certificate"] = _certificates(address, access.certificates)
    if access.keys:
        key, secret = access.keys
        # By a provider, since otherwise a token from the environment would be sent with these keys.
        options["skip_signature"] = False
        given = {"access_key_id": key, "secret_access_key": secret, "token": access.token, "expires_at": None}
        options["credential_provider"] = lambda: given
    return options, transport, access.secrets


def check_supported(address: Address, connection: Connection) -> None:
    """:raises CheckpointError: if the connection has a field that cannot be acted upon here."""
    for name in UNSUPPORTED:
        if connection.extra.get(name):
            raise CheckpointError(
                f"{address.of} {address}: connection {connection.conn_id!r} has {name!r}, which is not supported "
                "here. Give it keys (login, password, aws_session_token); or leave conn_id@ out of the address and let "
                "the workers have the role: its credentials are found in the environment."
            )


def _google(address: Address, connection: Connection) -> _Options:
    extra = connection.extra
    keyfile, path = extra.get("keyfile_dict"), extra.get("key_path")
    if keyfile:
        text = keyfile if isinstance(keyfile, str) else json.dumps(dict(keyfile))
        return {"service_account_key": text}, {}, (text,)
    return ({"service_account": str(path)} if path else {}), {}, ()


def _azure(address: Address, connection: Connection) -> _Options:
    who = f"{address.of} {address}: connection {connection.conn_id!r}"
    if name := unsupported(connection):
        raise CheckpointError(
            f"{who} has {name!r}, which is not supported here. Give it the account as login and its key as password, a "
            "sas_token, or a connection_string; or leave conn_id@ out of the address: the workers' identity is found "
            "in the environment, and the account in AZURE_STORAGE_ACCOUNT_NAME."
        )
    try:
        access = WasbAccess.of(connection)
    except WasbFieldsError as error:
        raise CheckpointError(f"{who} {error}.") from None
    # What the environment says of another account, of an emulator or of public data must not count beside a connection.
    options: dict[str, Any] = {"account_name": access.account, "endpoint": access.endpoint, "use_emulator": False}
    if access.application:
        client_id, secret, tenant = access.application
        options |= {"client_id": client_id, "client_secret": secret, "tenant_id": tenant}
        options |= _by("client_secret")
    elif access.sas:
        options |= {"sas_key": access.sas, **_by("sas_token")}
    elif access.key:
        options |= {"account_key": access.key, **_by("access_key")}
    return options, {"allow_http": True} if access.is_plain else {}, access.secrets


def _by(credential: str) -> dict[str, Any]:
    """Options that leave aside the environment's credentials of other types, some of which the library prefers."""
    return {"credential_type": credential, "skip_signature": False}


def _tls(transport: Mapping[str, Any]) -> ssl.SSLContext | None:
    if transport.get("allow_invalid_certificates"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    certificates = transport.get("root_certificate")
    if certificates is None:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=certificates.decode("ascii"))
    return context


def _certificates(address: Address, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{address.of} {address}: connection {address.conn_id!r} has verify={path!r}, and that file cannot be read "
            f"({error.strerror})."
        ) from error
