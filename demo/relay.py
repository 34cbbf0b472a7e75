"""A port of this machine's that leads to one on a network of the demo's own, as a container's published port does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


def relay(door: socket.socket, *, to: tuple[str, int]) -> None:
    """Hand on whoever connects, from a thread of its own, until this process ends.

    :param door: listens; a socket stays on the network that it was made on.
    :param to: address and port on the network that this process is on now.
    """
    threading.Thread(target=_serve, args=(door, to), daemon=True).start()


def _serve(door: socket.socket, to: tuple[str, int]) -> None:
    while True:
        client, _ = door.accept()
        try:
            server = socket.create_connection(to)
        except OSError:
            client.close()
            continue
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
