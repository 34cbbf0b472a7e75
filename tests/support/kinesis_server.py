"""``python -m tests.support.kinesis_server``: streams of the tests by the protocol of Kinesis (JSON 1.1 over HTTP), for
clients of others. Prints its port, and ends when its standard input does: with the process that started it.

A request whose target begins with ``Tests`` is for the test: it calls or sets what a :class:`Stream` has.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.child_server import serve
from tests.support.kinesis_streams import RefusedError, Stream

TARGET = "Tests_1."


class Streams:
    """By their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}

    def answer(self, target: str, given: dict[str, Any]) -> dict[str, Any]:
        """:raises RefusedError: as Kinesis does."""
        operation = target.rpartition(".")[2]
        with self._lock:
            name = str(given.get("StreamName") or (given.get("ShardIterator") or given["NextToken"]).partition(" ")[0])
            if operation == "CreateStream":
                self._streams[name] = Stream(name, given["ShardCount"])
                return {}
            if operation == "DeleteStream":
                self._streams.pop(name, None)
                return {}
            if name not in self._streams:
                raise RefusedError("ResourceNotFoundException", f"Stream {name} not found")
            stream = self._streams[name]
            return (
                self._arrange(stream, operation, given) if target.startswith(TARGET) else stream.ask(operation, given)
            )

    @staticmethod
    def _arrange(stream: Stream, what: str, given: dict[str, Any]) -> dict[str, Any]:
        if what == "requests":
            return stream.requests
        if "set" in given:
            setattr(stream, what, given["set"])
        else:
            getattr(stream, what)(*given["arguments"])
        return {}


class Handler(BaseHTTPRequestHandler):
    """Of one connection, which stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        status, answer = 200, dict[str, Any]()
        try:
            streams: Streams = self.server.streams  # type: ignore[attr-defined]
            answer = streams.answer(self.headers["X-Amz-Target"], given)
        except RefusedError as error:
            status, answer = 400, {"__type": error.kind, "message": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def main() -> None:
    """Serve until standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.streams = Streams()  # type: ignore[attr-defined]
    serve(server)


if __name__ == "__main__":
    main()
