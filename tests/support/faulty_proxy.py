"""A proxy on loopback before an object store: counts requests, and answers some as a service does on a bad day."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request. :param key: of the object, without the bucket; of a listing its prefix."""

    method: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]

    @property
    def kind(self) -> str:
        """As a bill would call it."""
        if "list-type" in self.query or self.query.get("comp") == ["list"]:
            return "list"
        return {"GET": "get", "PUT": "put", "HEAD": "head", "DELETE": "delete", "POST": "delete"}[self.method]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is sent back. :param cut: so many bytes of the body are, and then the connection ends; None: all."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    cut: int | None = None


Forward = Callable[..., Answer]
"""What the service answers; without the headers that are named, if any."""
Fault = Callable[[Asked, Forward], Answer | None]
"""Answers in the service's place, with what it may ask of the service itself; None: the connection ends without one."""


def error(status: int, code: str, message: str = "So it is.", more: str = "") -> Answer:
    """An error in the words of S3."""
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>'.encode()
    return Answer(status=status, headers=[("Content-Type", "application/xml")], body=body)


class FaultyProxy:
    """:param behind: address of the service.
    :param page: so many keys a listing tells at once; None: as many as the service does.
    :param above: so many parts of a path stand before an object's key.
    :param unknown: a parameter of the query that the service hears nothing of; empty: none.
    """

    def __init__(self, behind: str, *, page: int | None = None, above: int = 1, unknown: str = "") -> None:
        self._page = page
        self._above = above
        self._unknown = re.compile(f"&{unknown}=[^&]*") if unknown else None
        self._behind = urlsplit(behind).netloc
        self._faults: list[tuple[Callable[[Asked], bool], Fault, list[int]]] = []
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.asked: list[Asked] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # each answer would wait for 40 ms

            def setup(self) -> None:
                super().setup()
                self.upstream = http.client.HTTPConnection(proxy._behind)

            def finish(self) -> None:
                self.upstream.close()
                super().finish()

            def log_message(self, *given: object) -> None:
                pass

            def serve(self) -> None:
                proxy._serve(self)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, when: Callable[[Asked], bool], fault: Fault, *, times: int = 1) -> None:
        """Have the next ``times`` requests that are meant answered by ``fault``."""
        with self._lock:
            self._faults.append((when, fault, [times]))

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """What is asked in the block alone."""
        before, found = self.requests.copy(), Counter[str]()
        yield found
        found.update(self.requests - before)

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = parse_qs(url.query, keep_blank_values=True)
        key = "/".join(unquote(url.path).lstrip("/").split("/")[self._above :])
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        asked = Asked(
            method=handler.command,
            key=query["prefix"][0] if "prefix" in query else key,
            query=query,
            headers={name.lower(): value for name, value in handler.headers.items()},
        )

        def forward(*without: str) -> Answer:
            upstream: http.client.HTTPConnection = handler.upstream  # type: ignore[attr-defined]
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in {*_HOP, *without}}
            # The words of S3 and of Azure: each service leaves aside the other's.
            paged = f"&max-keys={self._page}&maxresults={self._page}" if self._page and asked.kind == "list" else ""
            path = handler.path if self._unknown is None else self._unknown.sub("", handler.path)
            upstream.request(handler.command, path + paged, body=body, headers=headers)
            answer = upstream.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            if handler.command == "HEAD":
                kept.append(("Content-Length", answer.headers.get("Content-Length") or "0"))
            return Answer(status=answer.status, headers=kept, body=answer.read())

        with self._lock:
            self.requests[asked.kind] += 1
            self.asked.append(asked)
            fault = next((one for one in self._faults if one[2][0] > 0 and one[0](asked)), None)
            if fault is not None:
                fault[2][0] -= 1
        answer = forward() if fault is None else fault[1](asked, forward)
        if answer is None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response_only(answer.status)
        for name, value in answer.headers:
            handler.send_header(name, value)
        if handler.command != "HEAD":
            handler.send_header("Content-Length", str(len(answer.body)))
        elif not any(name == "Content-Length" for name, _ in answer.headers):
            handler.send_header("Content-Length", "0")
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(answer.body[: answer.cut])
        if answer.cut is not None:
            handler.close_connection = True
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)


# Faults that are said often.


def busy(asked: Asked, forward: Forward) -> Answer:
    """Throttled: nothing was done."""
    return error(503, "SlowDown", "Please reduce your request rate.")


def done_but_lost(asked: Asked, forward: Forward) -> None:
    """It is done, and the answer is lost."""
    forward()


def done_but_failed(asked: Asked, forward: Forward) -> Answer:
    """It is done, and the answer says that it was not."""
    forward()
    return error(500, "InternalError", "We encountered an internal error. Please try again.")


def lost(asked: Asked, forward: Forward) -> None:
    """It is not done, and there is no answer."""


def truncated(asked: Asked, forward: Forward) -> Answer:
    """Half of the body."""
    answer = forward()
    return Answer(status=answer.status, headers=answer.headers, body=answer.body, cut=len(answer.body) // 2)


def entry(suffix: str, kind: str = "put") -> Callable[[Asked], bool]:
    """The requests of one kind for an entry."""
    return lambda asked: asked.kind == kind and asked.key.endswith(suffix)
