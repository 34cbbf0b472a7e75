"""A proxy before a server, on loopback, that cuts connections at what is said through them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BYTES = 1 << 16


def _nothing() -> None:
    return None


class CuttingProxy:
    """Each connection goes to the server, until a client says what was told to be cut at.

    :param port: of the server, on loopback.
    """

    def __init__(self, *, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self._ended = threading.Event()
        self._pattern: bytes | None = None
        self._is_heard = False
        self._meanwhile: Callable[[], object] = _nothing
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        """Where clients connect to."""
        port: int = self._listening.getsockname()[1]
        return port

    def cut_at(self, said: bytes, *, is_heard: bool, meanwhile: Callable[[], object] = _nothing) -> None:
        """Cut the next connection on which a client says this, once.

        :param is_heard: the server gets it and answers, and the answer does not come; else it never gets it.
        :param meanwhile: done before the client notices.
        """
        self._pattern, self._is_heard, self._meanwhile = said, is_heard, meanwhile

    def close(self) -> None:
        """No connection any more."""
        self._ended.set()
        self._listening.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server)) as server, contextlib.suppress(OSError):
            selector = selectors.DefaultSelector()
            for one in (client, server):
                selector.register(one, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(timeout=0.1):
                    data = key.fileobj.recv(_BYTES)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is server:
                        client.sendall(data)
                    elif self._pattern is not None and self._pattern in data:
                        self._cut(data, server)
                        return
                    else:
                        server.sendall(data)

    def _cut(self, data: bytes, server: socket.socket) -> None:
        self._pattern = None
        self.cuts += 1
        if self._is_heard:
            server.sendall(data)
            # Its answer is its word that it is done: only then is it lost.
            assert server.recv(_BYTES)
        self._meanwhile()


@contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """One, which is closed at the end."""
    proxy = CuttingProxy(port=port)
    try:
        yield proxy
    finally:
        proxy.close()
