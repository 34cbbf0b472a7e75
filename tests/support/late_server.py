"""A network between client and server in which one statement is late."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_CHUNK = 65536
_ANSWER = 150
"""Bytes. An answer or an error is longer, what HTTP/2 says by itself is shorter."""


class Late:
    """What is sent to ``url`` arrives at the server; the first piece that holds ``text`` when :meth:`arrive` says so,
    also if its sender has died meanwhile.

    :param server: URL of the server.
    :param text: of the statement.
    """

    def __init__(self, server: str, text: bytes) -> None:
        address = urlsplit(server)
        self._server = (address.hostname, address.port)
        self._text = text
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"sc://127.0.0.1:{self._listener.getsockname()[1]}"
        self.held, self.answered = threading.Event(), threading.Event()
        self._go = threading.Event()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def arrive(self) -> None:
        """Let the statement through, and wait until the server has said something to it."""
        self._go.set()
        assert self.answered.wait(60)

    def close(self) -> None:
        self._go.set()
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                late = threading.Event()
                threading.Thread(target=self._send, args=(client, server, late), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client, late), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket, late: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(_CHUNK):
                if self._text in piece and not self.held.is_set():
                    self.held.set()
                    self._go.wait()
                    late.set()
                server.sendall(piece)

    def _answer(self, server: socket.socket, client: socket.socket, late: threading.Event) -> None:
        told = 0
        with contextlib.suppress(OSError):
            while piece := server.recv(_CHUNK):
                told += len(piece) if late.is_set() else 0
                if told > _ANSWER:
                    self.answered.set()
                with contextlib.suppress(OSError):
                    client.sendall(piece)


@contextmanager
def late(server: str, text: bytes) -> Iterator[Late]:
    """A :class:`Late` for a while."""
    made = Late(server, text)
    try:
        yield made
    finally:
        made.close()
