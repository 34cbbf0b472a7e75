"""Checks which user listens at a port of this machine, before a token is sent there in plain text.

A token goes to the loopback address without TLS. While its server is down, any user with a login may listen in its
place, receive the token, and use it when the server is back. Linux tells which user a listening socket belongs to.
Where Linux cannot tell (another system, a port that is forwarded from outside this network namespace), nothing is
refused.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from airflow_provider_microbatch.runtime.listeners import listeners

PORT = 15002
"""Spark Connect's default port."""

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment variable that has the token if the URL has none."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEARING = {
    ipaddress.ip_address(text).packed
    for text in ("127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0")
}
"""Addresses whose listeners receive, or may receive, data that is sent to the loopback address."""
_ROOT = 0
"""Root can read all traffic anyway, and often forwards a container's ports."""


def refusal(url: str) -> str | None:
    """Why nothing that needs a token may be sent to a Spark Connect server now.

    :param url: ``sc://host:port/;name=value…``.
    :return: the reason for a person, without the token; None if no token would be sent, if it would be sent with TLS or
        to another machine, or if the listener is this user or unknown.
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
    """The id of a user, neither this user nor root, who listens at this port of the loopback address; None if there is
    no such user, or the users are unknown."""
    trusted = {_ROOT, os.geteuid()}
    heard = (found for found in listeners() if found.port == port and found.address in _HEARING)
    return next((found.uid for found in heard if found.uid not in trusted), None)
