"""A TCP proxy on loopback that cuts a connection at a byte of the client's or the server's."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Cut = Callable[[bytes], bool]
"""Asked with each piece that goes by: whether the connection ends here."""


def never(piece: bytes) -> bool:
    return False


class Proxy:
    """:param target: where to.
    :param before: asked with what the client sends, before it is passed on.
    :param after: the same, after it was passed on: the server has it, and its answer is lost.
    """

    def __init__(self, target: tuple[str, int], *, before: Cut = never, after: Cut = never) -> None:
        self._target = target
        self.before = before
        self.after = after
        self.connections = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()  # as a server that is not there
                    continue
                for one, other, is_client in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(one, other, is_client), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                if is_client and self.before(piece):
                    break
                if is_client and self.after(piece):
                    # The client hears nothing more: what the server answers comes to nobody.
                    self.cuts += 1
                    is_client = False  # counted, also where the server's thread has closed both ends by now
                    one.shutdown(socket.SHUT_RDWR)
                    other.sendall(piece)
                    other.shutdown(socket.SHUT_WR)
                    return
                other.sendall(piece)
            else:
                is_client = False
        self.cuts += is_client
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(target: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy, to the end of the block."""
    opened = Proxy(target)
    try:
        yield opened
    finally:
        opened.close()
