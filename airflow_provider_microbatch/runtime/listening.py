"""Who listens at a port of this machine, before a token is sent there in plain text.

A token goes to the loopback address without TLS. While its server is down anybody with a login may listen in its place,
hear the token, and use it when the server is back. Linux tells whose a listening socket is. Where it does not (another
system, a port that is forwarded from outside this network namespace) nothing is known, and nothing is refused.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from airflow_provider_microbatch.runtime.listeners import listeners

PORT = 15002
"""Spark Connect's own default."""

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment variable of the token where the URL has none."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEARING = {
    ipaddress.ip_address(text).packed
    for text in ("127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0")
}
"""Who listens at one of these hears, or may hear, what is sent to the loopback address."""
_ROOT = 0
"""Hears everything anyway; a container's ports are often forwarded by it."""


def refusal(url: str) -> str | None:
    """Why nothing that needs a token may be sent to a Spark Connect server now.

    :param url: ``sc://host:port/;name=value…``.
    :return: for a person, without the token; None if no token would be sent, or it would be sent with TLS or to another
        machine, or if who listens is this user, or is not known.
    """
    address = urlsplit(url)
    pairs = (part.partition("=") for part in url.partition("/;")[2].split(";"))
    parameters = {name: value for name, _, value in pairs}
    if parameters.get("use_ssl", "").lower() == "true" or not (parameters.get("token") or os.environ.get(TOKEN)):
        return None
    if address.hostname not in _LOOPBACK:
        return None
    port = address.port or PORT
    other = stranger_at(port)
    if other is None:
        return None
    return (
        f"user {other} listens at port {port} of this machine, this is user {os.geteuid()}, and a token would go there "
        "in plain text; nothing was sent. If a warm engine was there: microbatch engine stop; microbatch engine start, "
        "which takes another port and another token, and import its connection again. The server of another user is "
        "sent a token with TLS only: use_ssl=true."
    )


def stranger_at(port: int) -> int | None:
    """The id of a user who listens at this port of the loopback address and is neither this one nor root; None if there
    is none, or nobody knows."""
    trusted = {_ROOT, os.geteuid()}
    heard = (found for found in listeners() if found.port == port and found.address in _HEARING)
    return next((found.uid for found in heard if found.uid not in trusted), None)
