"""Who connects to a relayed port speaks with the server behind it, in both directions until either is done."""

from __future__ import annotations

import socket
import threading

from demo.relay import relay


def test_what_is_said_and_what_is_answered_arrive_whole() -> None:
    said = b"a question" * 100_000
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_server(("127.0.0.1", 0)) as server:
        relay(door, to=server.getsockname())

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as heard:
                connection.sendall(heard.read()[::-1])

        threading.Thread(target=answer, daemon=True).start()
        with socket.create_connection(door.getsockname()) as client, client.makefile("rb") as answered:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            assert answered.read() == said[::-1]
