"""A token is sent in plain text to this user's own server alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc  # type: ignore[import-untyped,unused-ignore]
import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.engines.spark_connect.launch import Server
from airflow_provider_microbatch.exceptions import EngineError, SinkError
from airflow_provider_microbatch.runtime import listeners, listening
from airflow_provider_microbatch.runtime import statements as statements_by_connect
from airflow_provider_microbatch.runtime.connect import RemoteSession
from airflow_provider_microbatch.runtime.listeners import Listener
from airflow_provider_microbatch.runtime.listening import refusal, stranger_at
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements

OTHER = 54_321
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
V4, V4_ANY, V6 = "0100007F", "00000000", "00000000000000000000000001000000"
MAPPED, V6_ANY = "0000000000000000FFFF00000100007F", "0" * 32
ELSEWHERE = "0200007F"


def row(port: int, *, address: str = V4, uid: int = OTHER, state: str = "0A") -> str:
    remote = f"{'0' * len(address)}:0000"
    queues = "00000000:00000000 00:00000000 00000000"
    return f"   0: {address}:{port:04X} {remote} {state} {queues} {uid:5d}        0 7172039 1 00000000 100 0 0 10 0"


class Table:
    """The kernel's table of sockets, as far as anybody here sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def says(self, *rows: str) -> None:
        self.path.write_text("\n".join((HEADER, *rows)) + "\n")


def no_netlink(family: int) -> list[Listener]:
    raise OSError("not here")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table(tmp_path / "tcp")
    monkeypatch.setattr(listeners, "TABLES", (tmp_path / "none", made.path))
    monkeypatch.setattr(listeners, "_by_netlink", no_netlink)
    made.says()
    return made


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.delenv(listening.TOKEN, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(5)
        yield made


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def heard(listener: socket.socket) -> bytes:
    """All that was sent to a listener by who has closed by now."""
    text = b""
    listener.setblocking(False)
    while True:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return text
        with client:
            client.settimeout(5)
            while piece := client.recv(65536):
                text += piece


@pytest.mark.parametrize("by", ["netlink", "the files"])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_a_socket_of_this_process_is_seen_and_is_no_strangers(
    address: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "netlink":
        monkeypatch.setattr(listeners, "TABLES", ())
    else:
        monkeypatch.setattr(listeners, "_by_netlink", no_netlink)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        found = socket.create_server(
            (address, 0), family=family, dualstack_ipv6="::" in address[:2] and address != "::1"
        )
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with found:
        assert stranger_at(port_of(found)) is None
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        monkeypatch.setattr(listening, "_ROOT", OTHER)
        assert stranger_at(port_of(found)) == own, "the kernel's own table is read"


@pytest.mark.parametrize("address", [V4, V4_ANY, V6, V6_ANY, MAPPED])
def test_whoever_else_may_hear_is_a_stranger(table: Table, address: str) -> None:
    own = os.geteuid()
    table.says(row(7000, uid=own), row(7001, address=address), row(7000, address=address))
    assert stranger_at(7000) == OTHER
    table.says(row(7000, address=address, uid=own), row(7000, address=address, uid=0))
    assert stranger_at(7000) is None


@pytest.mark.parametrize("count", [1, 2_000])
def test_both_ways_tell_of_the_same_sockets(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        mine = {stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1)) for _ in range(count)}
        ports = {port_of(one) for one in mine}
        told = {one for one in listeners.listeners() if one.port in ports}
        monkeypatch.setattr(listeners, "_by_netlink", no_netlink)
        assert told == {one for one in listeners.listeners() if one.port in ports}
    assert {one.port for one in told if one.address == socket.inet_aton("127.0.0.1")} == ports
    assert {one.uid for one in told} == {os.geteuid()}


def test_who_does_not_hear_is_not(table: Table) -> None:
    table.says(row(7001), row(7000, state="01"), row(7000, address=ELSEWHERE))
    assert stranger_at(7000) is None
    table.path.unlink()
    assert stranger_at(7000) is None, "no Linux: nothing is known"


def test_only_a_token_that_would_go_in_plain_text_is_held_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(listening.TOKEN, raising=False)
    table.says(row(7000), row(listening.PORT))
    for host in ("localhost:7000", "127.0.0.1:7000", "[::1]:7000", "LOCALHOST", "localhost"):
        why = refusal(f"sc://{host}/;user_id=me;token=secret-77")
        assert why is not None
        assert f"user {OTHER} listens at port {7000 if '7000' in host else 15002} of this machine" in why
        assert "microbatch engine start" in why
        assert "secret-77" not in why
        assert refusal(f"sc://{host}/;token=secret-77;use_ssl=True") is None
        assert refusal(f"sc://{host}/;user_id=me") is None
    assert refusal("sc://spark.example.com:7000/;token=secret-77") is None
    assert refusal("sc://localhost:7001/;token=secret-77") is None
    monkeypatch.setenv(listening.TOKEN, "secret-77")
    assert refusal("sc://localhost:7000") is not None


def test_an_attempt_says_nothing_to_a_stranger_at_the_engines_port(
    table: Table, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = port_of(listener)
    given = {"conn_type": "spark_connect", "host": "localhost", "port": port, "password": "secret-77"}
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(given))
    table.says(row(port))
    with pytest.raises(EngineError, match=rf"'warm' is not spoken to: user {OTHER} listens at port {port}") as error:
        SparkConnectEngine(conn_id="warm").handle(pipeline="orders", key=BatchKey("live", 0), epoch=1)
    assert "secret-77" not in str(error.value)
    assert heard(listener) == b""
    assert not Server.is_gone(f"sc://localhost:{port}"), "somebody listens there"
    table.says(row(port, uid=os.geteuid()))
    Server.of("warm").check()
    table.says()
    Server.of("warm").check()


CLIENT = """
import sys
from pathlib import Path
from airflow_provider_microbatch.engines.spark_connect import session as spark_connect_session
from airflow_provider_microbatch.runtime import failure, listeners

listeners.TABLES = (Path(sys.argv[1]),)

def no_netlink(family):
    raise OSError

listeners._by_netlink = no_netlink
spark_connect_session.MAX_RETRIES = 0
try:
    spark_connect_session.AttemptSession(sys.argv[2], on_silence=exit)
except Exception as error:
    print(failure._origin(error, "transform"), error)
"""


@pytest.mark.slow
def test_nor_does_one_whose_server_dies_meanwhile(table: Table, listener: socket.socket) -> None:
    """The clients are there already; then somebody else has the port."""
    port = port_of(listener)
    url = f"sc://localhost:{port}/;user_id=me;token=secret-77"
    remote = RemoteSession(url, session=str(uuid.uuid4()), user="me")
    table.says(row(port))
    for call in (remote.end, remote.interrupt, remote.close):
        with pytest.raises(grpc.RpcError, match=rf"UNAVAILABLE: user {OTHER} listens at port {port}"):
            call()
    client = [sys.executable, "-c", CLIENT, str(table.path), url]
    told = subprocess.run(client, capture_output=True, text=True, check=True, timeout=100).stdout
    assert told.startswith("runtime "), "no fault of the transform's"
    assert f"user {OTHER} listens at port {port}" in told
    assert heard(listener) == b""


def test_a_statement_that_is_tried_again_is_not_sent_to_a_stranger(
    table: Table, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = port_of(listener)
    monkeypatch.setenv(listening.TOKEN, "secret-77")
    monkeypatch.setattr(statements_by_connect, "_check", lambda _: table.says(row(port)))
    monkeypatch.setattr(statements_by_connect, "RETRIES", 0)
    with pytest.raises(SinkError, match=rf"user {OTHER} listens at port {port}"):
        ConnectStatements(f"sc://localhost:{port}").run(["SELECT 1"])
    assert heard(listener) == b""


def test_nor_do_statements_and_who_ends_them(
    table: Table, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = port_of(listener)
    statements = ConnectStatements(f"sc://localhost:{port}")
    monkeypatch.setenv(listening.TOKEN, "secret-77")
    table.says(row(port))
    with pytest.raises(SinkError, match=rf"not spoken to: user {OTHER} listens at port {port}"):
        statements.run(["SELECT 1"])
    with pytest.raises(SinkError, match=rf"not spoken to: user {OTHER} listens at port {port}"):
        statements.end({"url": statements.url, "session": str(uuid.uuid4()), "user": "me"})
    assert heard(listener) == b""
