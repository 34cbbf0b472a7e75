"""``python -m tests.support.tablestore_server``: tables and tunnels of the tests by the protocol of Tablestore, for
clients of others, the vendor's among them (``tests/sources/test_tunnel_protocol.py``). Prints its port, and ends when
its standard input does: with the process that started it.

A request whose path begins with ``/tests/`` is for the test: it calls, sets or gets what a table or a tunnel has.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow_provider_microbatch.runtime.protobuf import Message, encoded
from airflow_provider_microbatch.runtime.tunnel_calls import signature
from tests.support.child_server import serve
from tests.support.tablestore_tunnels import TERMINATED, Instance, RefusedError, Table

KEY, SECRET, INSTANCE = "LTAI-tests", "a-secret-of-the-tests", "tests"
ARRANGE = "/tests/"


class Handler(BaseHTTPRequestHandler):
    """Of one connection, which stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    instance = Instance()
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith(ARRANGE):
            with self.lock:
                answer = arrange(self.instance, self.path.removeprefix(ARRANGE), json.loads(body))
            self._send(200, json.dumps(answer).encode(), {})
            return
        status, cut = 200, None
        try:
            self._check(body)
            with self.lock:
                data = self.instance.ask(self.path, Message(body))
                cut = self.instance.next_cut()
        except RefusedError as error:
            status = {"OTSAuthFailed": 403, "OTSTunnelServerUnavailable": 503}.get(error.code, 400)
            data = encoded({1: error.code, 2: str(error)})
        headers = {} if cut == "bare" else self._signed(data)
        self._send(status, data if cut is None else encoded({1: Message(data)._fields.get(1, [])}), headers)

    def _check(self, body: bytes) -> None:
        """:raises RefusedError: for a request that was not signed with the key, or not for its body."""
        given = {name.lower(): value for name, value in self.headers.items() if name.lower().startswith("x-ots-")}
        told = given.pop("x-ots-signature", "")
        needed = ("x-ots-date", "x-ots-apiversion", "x-ots-accesskeyid", "x-ots-instancename", "x-ots-contentmd5")
        lacking = [name for name in needed if name not in given]
        if lacking:
            raise RefusedError("OTSParameterInvalid", f"Missing header: '{lacking[0]}'.")
        if given["x-ots-accesskeyid"] != KEY or not hmac.compare_digest(told, signature(self.path, given, SECRET)):
            raise RefusedError("OTSAuthFailed", "Signature mismatch.")
        if given["x-ots-contentmd5"] != base64.b64encode(hashlib.md5(body).digest()).decode():
            raise RefusedError("OTSAuthFailed", "Mismatch between MD5 value of request body and x-ots-contentmd5.")

    def _signed(self, data: bytes) -> dict[str, str]:
        """As the vendor's client in Java wants an answer."""
        headers = {
            "x-ots-contentmd5": base64.b64encode(hashlib.md5(data).digest()).decode(),
            "x-ots-contenttype": "protocol buffer",
            "x-ots-date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z",
            "x-ots-requestid": str(uuid.uuid4()),
        }
        text = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers)) + self.path
        digest = hmac.new(SECRET.encode(), text.encode(), hashlib.sha1).digest()
        return {**headers, "Authorization": f"OTS {KEY}:{base64.b64encode(digest).decode()}"}

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def arrange(instance: Instance, what: str, given: dict[str, Any]) -> Any:
    """What a test asks for."""
    name = given["table"]
    if what == "create":
        instance.tables[name] = Table(name, given["shards"])
        return None
    if what == "requests":
        return {key.removeprefix(name): count for key, count in instance.requests.items() if key.startswith(f"{name}/")}
    if what == "cuts":
        instance.cuts[f"{name}{given['path']}"] = [given["how"]] * given["count"]
        return None
    if what == "refusals":
        instance.refusals[name] = given["count"]
        return None
    on: Any = instance.tables[name]
    if given.get("tunnel"):
        on = instance.tunnels[name, given["tunnel"]]
        on.refresh()
    if what == "open_shards":
        return [shard.id for shard in on.open_shards()]
    if what == "checkpoints":
        return {one.id: one.checkpoint for one in on.channels.values()}
    if what == "owners":
        return [one.client for one in on.channels.values() if one.status != TERMINATED]
    if "set" in given:
        setattr(on, what, given["set"])
        return None
    getattr(on, what)(*given["arguments"])
    return None


def main() -> None:
    """Serve until standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serve(server)


if __name__ == "__main__":
    main()
