"""Tablestore for tests: a server of the tests' own that speaks its protocol, started when it is first needed, one for a
session and all processes that it starts. No other server there is to run; what holds this one to the protocol is the
vendor's own client, ``tests/sources/test_tunnel_protocol.py``."""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from collections.abc import Sequence
from typing import Any

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.runtime.protobuf import Message, encoded
from airflow_provider_microbatch.runtime.tunnel_calls import Calls
from tests.support.child_server import started
from tests.support.tablestore_server import ARRANGE, INSTANCE, KEY, SECRET
from tests.support.tablestore_tunnels import DELETE, PUT, STREAM, UPDATE

CONN_ID = "tablestore"
SECRETS = {"access_key_id": KEY, "access_key_secret": SECRET}
_KNOWN = "MICROBATCH_TESTS_TABLESTORE_SERVER"


def endpoint() -> str:
    """The address of the server, which runs by now."""
    if _KNOWN not in os.environ:
        os.environ[_KNOWN] = f"http://127.0.0.1:{started('tests.support.tablestore_server')}"
    return os.environ[_KNOWN]


def connection(conn_id: str = CONN_ID) -> Connection:
    """An Airflow connection that leads there."""
    return Connection(
        conn_id=conn_id, conn_type="generic", host=endpoint(), schema=INSTANCE, login=KEY, password=SECRET
    )


def calls() -> Calls:
    """The package's client, for calls that only tests make."""
    return Calls({"endpoint": endpoint(), "instance": INSTANCE, "timeout": 30}, SECRETS)


class Table:
    """A new table, or one of that name, with a tunnel ``changes``.

    :param shards: how many the log of a new one has at first; None: the table is there, or somebody else makes it.
    """

    def __init__(self, *, shards: int | None = 1, name: str | None = None, kind: int = STREAM) -> None:
        self.name = name or f"orders_{uuid.uuid4().hex[:8]}"
        self.tunnel = "changes"
        if shards is not None:
            self.create(shards, kind=kind)

    def create(self, shards: int, *, kind: int = STREAM) -> None:
        """Make table and tunnel."""
        self._ask("create", shards=shards)
        self.create_tunnel(kind=kind)

    def create_tunnel(self, *, kind: int = STREAM, earliest: bool = False) -> str:
        """Make a tunnel, and return its id."""
        config = encoded({1: 1}) if earliest else None
        message = encoded({1: encoded({1: self.name, 3: self.tunnel, 4: kind, 5: config})})
        return Message(_post("/tunnel/create", message)).text(1)

    def remove_tunnel(self) -> None:
        """The tunnel goes."""
        _post("/tunnel/delete", encoded({1: self.name, 2: self.tunnel}))

    def put(self, values: Sequence[str], *, at: float = 0.0) -> None:
        """Put rows, one after the other, whose column ``value`` has a value.

        :param at: which part of the keys they are of, from 0 to 1.
        """
        for value in values:
            self.write(PUT, {"id": value}, {"value": value}, at=at)

    def update(self, key: dict[str, Any], columns: dict[str, Any], *, at: float = 0.0) -> None:
        """Columns of a row change."""
        self.write(UPDATE, key, columns, at=at)

    def delete(self, key: dict[str, Any], *, at: float = 0.0) -> None:
        """A row goes."""
        self.write(DELETE, key, {}, at=at)

    def write(self, kind: int, key: dict[str, Any], columns: dict[str, Any], *, at: float = 0.0) -> None:
        """One record of the log."""
        self.arrange("write", kind, key, columns, at)

    def open_shards(self) -> list[str]:
        """Ids, by their keys."""
        found: list[str] = self._ask("open_shards")
        return found

    def checkpoints(self) -> dict[str, str]:
        """What the tunnel keeps of its reader, by channel."""
        found: dict[str, str] = self._ask("checkpoints", tunnel=self.tunnel)
        return found

    def owners(self) -> list[str | None]:
        """The workers that have the tunnel's channels, of those that are not read to their end."""
        found: list[str | None] = self._ask("owners", tunnel=self.tunnel)
        return found

    def statuses(self) -> dict[str, str]:
        """Of the tunnel's channels, as its client sees them."""
        return dict(calls().tunnel(self.name, self.tunnel).channels)

    def requests(self) -> dict[str, int]:
        """How many there were for the table, by their paths."""
        found: dict[str, int] = self._ask("requests")
        return found

    def refuse(self, count: int) -> None:
        """The next requests find the service busy."""
        self._ask("refusals", count=count)

    def cut(self, path: str, count: int, how: str) -> None:
        """The next answers to such requests are cut off behind their first field, and come with the digest that they
        had, or ``bare``."""
        self._ask("cuts", path=path, count=count, how=how)

    def arrange(self, what: str, *arguments: Any) -> None:
        """Call a method of the server's :class:`~tests.support.tablestore_tunnels.Table`."""
        self._ask(what, arguments=list(arguments))

    def set(self, what: str, value: Any) -> None:
        """Set something that it has."""
        self._ask(what, set=value)

    def set_tunnel(self, what: str, value: Any) -> None:
        """Set something that the tunnel has."""
        self._ask(what, tunnel=self.tunnel, set=value)

    def _ask(self, what: str, **given: Any) -> Any:
        body = json.dumps({"table": self.name, **given}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint()}{ARRANGE}{what}", body), timeout=30) as answer:
            return json.load(answer)


def _post(path: str, message: bytes) -> bytes:
    one = calls()
    request = urllib.request.Request(f"{endpoint()}{path}", message, one._headers(path, message))
    with urllib.request.urlopen(request, timeout=30) as answer:
        data: bytes = answer.read()
    return data
