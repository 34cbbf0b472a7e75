"""A real HTTP server with an API of orders, of which ``dags/jobs/orders_api.py`` makes a source."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Order = dict[str, Any]


@dataclass
class OrdersServer:
    """:param orders: what it has, the first of which has the number 1.
    :param asked: how often, by method and path.
    """

    url: str = ""
    orders: list[Order] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    is_down: bool = False

    def add(self, *ids: int) -> None:
        self.orders += [
            {"id": id, "customer": f"c{id}", "amount": id, "ts": f"2026-11-24T06:00:{id % 60:02}+00:00", "more": [id]}
            for id in ids
        ]

    def answer(self, path: str) -> Any:
        """:raises KeyError: for what it does not know."""
        asked = urlsplit(path)
        self.asked[f"GET {asked.path}"] += 1
        found = self._orders(asked.path)
        if asked.path.endswith("/newest"):
            return {"number": len(found)}
        between = {name: int(value) for name, (value,) in parse_qs(asked.query).items()}
        return found[between["after"] : between["to"]]

    def _orders(self, path: str) -> list[Order]:
        return self.orders


@dataclass
class FolderServer(OrdersServer):
    """The orders of JSON files that others land: those of ``/<path of a folder>/orders``."""

    def _orders(self, path: str) -> list[Order]:
        files = sorted(Path(path).parent.glob("*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@contextmanager
def serving(server: OrdersServer) -> Iterator[OrdersServer]:
    """The server, at a port that the kernel chose."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                if server.is_down:
                    raise ConnectionError("it is down")
                status, answer = 200, server.answer(self.path)
            except Exception as error:
                status, answer = 503, {"error": repr(error)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody reads it."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_address[1]}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
