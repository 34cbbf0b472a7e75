"""The calls of Tablestore's tunnel service over HTTP: signed requests, whose bodies are messages of Protocol Buffers.
Uses the standard library alone; the planner and Spark's executors use the same client.

A tunnel is read as the vendor's own connector for Spark reads it: by a name of a client that never connects and sends
no heartbeats, since a batch is read by many executors at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_microbatch.runtime.protobuf import Message, encoded

CLIENT = "spark-client"
FINISHED = "finished"
"""The token of a channel that was read to its end."""
WAIT, TERMINATED = "WAIT", "TERMINATED"
NOT_IN_TURN = "OTSSequenceNumberNotMatch"
GONE = "OTSTunnelExpired"

_VERSION = "2015-12-31"
_BUSY = (
    "OTSServerBusy",
    "OTSQuotaExhausted",
    "OTSNotEnoughCapacityUnit",
    "OTSTableNotReady",
    "OTSPartitionUnavailable",
    "OTSRowOperationConflict",
    "OTSTimeout",
    "OTSInternalServerError",
    "OTSServerUnavailable",
    "OTSTunnelServerUnavailable",
)


class TablestoreError(Exception):
    """A request was refused, or not answered.

    :param code: the code of the error, as Tablestore names it; empty if there was no answer.
    """

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class TunnelState:
    """A tunnel.

    :param kind: ``Stream``, ``BaseData`` or ``BaseAndStream``.
    :param expired: records went from it before they were read.
    :param channels: states of its channels by their ids: ``WAIT``, ``OPEN``, ``CLOSING``, ``CLOSE``, ``TERMINATED``.
    """

    id: str
    kind: str
    expired: bool
    channels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Records:
    """What one request reads.

    :param records: of each its kind, 1 (put), 2 (update) or 3 (delete), and its row in PlainBuffer.
    :param next: where to go on; None after the channel's end.
    :param more: whether more is known to be there already.
    """

    records: list[tuple[int, bytes]]
    next: str | None
    more: bool


class Calls:
    """A client of one instance. Only one thread at a time uses it.

    :param arguments: ``endpoint``, ``instance``, and ``timeout``, seconds that a call may take with all retries.
    :param secrets: ``access_key_id``, ``access_key_secret``, and ``security_token`` if the key is for a while.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = urlsplit(arguments["endpoint"])
        self._instance: str = arguments["instance"]
        self._timeout: float = arguments["timeout"]
        self._secrets = secrets
        self._sleep = sleep
        self._connection: HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; a further call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def tunnel(self, table: str, tunnel: str) -> TunnelState:
        """The state of a tunnel, by its name."""
        answer = self._call("/tunnel/describe", {1: table, 2: tunnel}, needs=(1,))
        (info,) = answer.messages(1)
        channels = {one.text(1): one.text(3) for one in answer.messages(2)}
        return TunnelState(id=info.text(1), kind=info.text(2), expired=bool(info.number(7)), channels=channels)

    def checkpoint(self, tunnel_id: str, channel: str) -> tuple[str, int]:
        """The token up to which the tunnel's reader is said to be, and the number of that word."""
        answer = self._call("/tunnel/getcheckpoint", {1: tunnel_id, 2: CLIENT, 3: channel}, needs=(1, 2))
        return answer.text(1), answer.number(2)

    def set_checkpoint(self, tunnel_id: str, channel: str, token: str, *, number: int) -> None:
        """Say how far the reader is.

        :param number: one more than that of the last word; another is refused as :data:`NOT_IN_TURN`.
        """
        self._call("/tunnel/checkpoint", {1: tunnel_id, 2: CLIENT, 3: channel, 4: token, 5: number})

    def records(self, tunnel_id: str, channel: str, token: str) -> Records:
        """Records from a token on, as many as the service likes to send."""
        answer = self._call("/tunnel/readrecords", {1: tunnel_id, 2: CLIENT, 3: channel, 4: token}, needs=(2,))
        following = answer.text(2)
        return Records(
            records=[(one.number(1), one.data(2)) for one in answer.messages(1)],
            next=None if following == FINISHED else following,
            more=bool(answer.number(3)),
        )

    def stream_hours(self, table: str) -> int | None:
        """The time for which the log of a table is kept, hours; None if the table has no log."""
        details = Message(self._call("/DescribeTable", {1: table}).data(5))
        return details.number(3) if details.number(1) else None

    def _call(self, path: str, fields: Mapping[int, Any], *, needs: Collection[int] = ()) -> Message:
        """:param needs: the fields that each answer has. A message that was cut off between two fields passes for one:
        without its token an answer would be the last one of its channel, and all that follows would be lost.
        """
        body = encoded(fields)
        deadline, pause = time.monotonic() + self._timeout, 0.1
        while True:
            try:
                answer = self._ask(path, body)
                lacking = [number for number in needs if not answer.has(number)]
                if lacking:
                    raise ValueError(f"the answer lacks its field {lacking[0]}")
                return answer
            except (TablestoreError, OSError, HTTPException, ValueError) as error:
                self.close()
                kind = error.code if isinstance(error, TablestoreError) else None
                if (kind is not None and kind not in _BUSY) or time.monotonic() + pause > deadline:
                    if kind is None:
                        text = f"{path} was not answered: {type(error).__name__}: {error}"
                        raise TablestoreError(text) from error
                    raise
            self._sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 3.0)

    def _ask(self, path: str, body: bytes) -> Message:
        if self._connection is None:
            to = self._endpoint
            kind = HTTPSConnection if to.scheme == "https" else HTTPConnection
            self._connection = kind(to.hostname or "", to.port, timeout=self._timeout)
        self._connection.request("POST", path, body, self._headers(path, body))
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status // 100 == 2:
            if answer.headers.get("x-ots-contentmd5", _digest(data)) != _digest(data):
                raise ValueError("the answer is not whole: it differs from its digest")
            return Message(data)
        request = answer.headers.get("x-ots-requestid", "")
        try:
            error = Message(data)
            code, text = error.text(1), error.text(2)
        except ValueError:
            code, text = "", data[:200].decode(errors="replace")
        if not code:
            code = "OTSServerUnavailable" if answer.status >= 500 else f"HTTP {answer.status}"
        raise TablestoreError(f"{path}: {code}: {text} (request {request})", code=code)

    def _headers(self, path: str, body: bytes) -> dict[str, str]:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        headers = {
            "x-ots-date": f"{moment}Z",
            "x-ots-apiversion": _VERSION,
            "x-ots-accesskeyid": self._secrets["access_key_id"],
            "x-ots-instancename": self._instance,
            "x-ots-contentmd5": _digest(body),
        }
        token = self._secrets.get("security_token")
        if token:
            headers["x-ots-ststoken"] = token
        headers["x-ots-signature"] = signature(path, headers, self._secrets["access_key_secret"])
        return headers


def _digest(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def signature(path: str, headers: Mapping[str, str], secret: str) -> str:
    """The signature of a request.

    :param headers: all of its headers that begin with ``x-ots-``, but for the signature, in lower case.
    """
    signed = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    text = f"{path}\nPOST\n\n{signed}"
    return base64.b64encode(hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
