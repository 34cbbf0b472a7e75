"""How delta-rs reaches a bucket: a connection as its options, and its errors without what the options hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.aws import AwsAccess
from airflow_provider_microbatch.stores.object_store.credentials import CONNECT_SECONDS, ENDPOINTS, REQUEST_SECONDS
from airflow_provider_microbatch.stores.object_store.failures import Failure

CONDITIONAL = {"aws_conditional_put": "etag"}
"""Without it delta-rs may write a version over another writer's: both would believe that they have committed it."""

_ALWAYS = {
    **CONDITIONAL,
    # The same, if the environment says otherwise.
    "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
    "AWS_S3_LOCKING_PROVIDER": "",
    "timeout": f"{REQUEST_SECONDS:.0f}s",
    "connect_timeout": f"{CONNECT_SECONDS:.0f}s",
}
_TOKENS = ("aws_session_token", "aws_token")
_UNPREFIXED = ("token", "session_token", "endpoint", "endpoint_url")
"""Variables of the environment, in any case of letters, that delta-rs takes for options, and nobody else does."""

_REGIONS = ("region", "default_region")
_ROLES = ("aws_iam_role_arn", "aws_s3_assume_role_arn")

_COLOUR = re.compile(r"\x1b\[\d+m")
_STATUS = re.compile(r"status code\s+↳\s*(\d{3})\b")
_REQUEST = "Error performing "


def options_of(address: Address, connect: Connect) -> dict[str, str]:
    """The options for a table at the address. They hold the secrets of its connection.

    :raises SinkError: if delta-rs would go by something else than the connection says.
    :raises DefinitionError: if there is no such connection.
    """
    names = {name.lower(): name for name in os.environ}
    if address.conn_id is None:
        _check_environment(address, names, _UNPREFIXED)
        plain = any((os.environ.get(name) or "").startswith("http://") for name in ENDPOINTS)
        return {**_ALWAYS, "allow_http": str(plain).lower()}
    access = AwsAccess.of(connect(address.conn_id))
    if access.certificates:
        raise SinkError(
            f"the Delta table {address}: connection {address.conn_id!r} has verify={access.certificates!r}, and "
            "delta-rs takes no certificates of one's own. Have the system trust them, and leave verify out."
        )
    options = {**_ALWAYS, "allow_http": str(access.is_plain).lower()}
    if access.endpoint:
        # By the name of AWS_ENDPOINT_URL_S3, which in the environment wins over "aws_endpoint".
        options["aws_endpoint_url_s3"] = access.endpoint
    if access.region:
        options["aws_region"] = access.region
    else:
        _check_environment(address, names, _REGIONS)
    if access.addressing:
        options["aws_virtual_hosted_style_request"] = str(access.addressing == "virtual").lower()
    if access.trusts_anybody:
        options["allow_invalid_certificates"] = "true"
    if access.keys:
        key, secret = access.keys
        _check_environment(address, names, _ROLES)
        options |= {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_skip_signature": "false"}
        if access.token:
            options["aws_session_token"] = access.token
        else:
            _check_environment(address, names, (*_TOKENS, *_UNPREFIXED[:2]))
    if not access.endpoint:
        _check_environment(address, names, _UNPREFIXED[2:])
    return options


def _check_environment(address: Address, names: dict[str, str], taken: Iterable[str]) -> None:
    """:raises SinkError: if the environment has a variable that delta-rs would take for an option."""
    for name in taken:
        if name in names:
            raise SinkError(
                f"the Delta table {address}: delta-rs would take the environment's variable {names[name]} for its own, "
                f"and {address.who} says nothing of it. Unset it where tasks and the janitor run, or name what it is "
                "to be (aws_session_token, endpoint_url, region_name) in the connection."
            )


def told(error: Exception, address: Address, *, secrets: Iterable[str]) -> str:
    """An error of delta-rs, for people.

    :param secrets: texts that must not be in it.
    """
    text = _STATUS.sub(r"status code: \1", _COLOUR.sub("", str(error)))
    if _REQUEST in text:
        failure = Failure.of(RuntimeError(text))
        return f"{failure.words(secrets=secrets)}. {failure.remedy(bucket=address.bucket, who=address.who)}"
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
