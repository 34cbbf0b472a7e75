"""Sessions of a real MariaDB, one of which is opened for each look."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb import session
from airflow_provider_microbatch.sources.jdbc.mariadb.session import access, connected
from tests.support.certificates import certificates
from tests.support.mariadb import mariadb
from tests.support.orders_in_mariadb import orders_in_mariadb

pytestmark = pytest.mark.slow


def test_a_look_loads_no_authorities_that_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is encrypted where the server can, and the machine's authorities are many: they cost more than the
    questions."""
    with orders_in_mariadb() as orders:
        source = orders.opened(tmp_path / "checkpoint")
        loaded: list[Any] = []
        source.has_new(None)
        monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *given: loaded.append(given))
        source.has_new(None)
        assert loaded == []


def test_a_session_is_encrypted_where_the_server_can_and_checks_the_certificate_where_an_authority_is_named(
    tmp_path: Path,
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        certificates(folder)

    def is_encrypted(connection: Connection) -> bool:
        with connected(connection) as session:
            return bool(session.row("SHOW STATUS LIKE 'Ssl_cipher'")[1])

    files = {"ssl-cert": str(own / "server.pem"), "ssl-key": str(own / "server.pem")}
    with mariadb(**files) as server, orders_in_mariadb(server) as orders:
        trusting, trusting_another = (
            replace(orders.connection, extra={"ssl": {"ca": str(folder / "ca.pem")}}) for folder in (own, other)
        )
        connections = (orders.connection, orders.connection, trusting, orders.connection)
        assert [is_encrypted(one) for one in connections] == [True] * 4
        with pytest.raises(SourceError, match="certificate verify failed"):
            is_encrypted(trusting_another)
    with orders_in_mariadb() as orders:
        assert not is_encrypted(orders.connection), "this server cannot"


@pytest.mark.parametrize(
    ("value", "is_on"),
    [("0", False), ("1", True), ("'0'", False), ("'1'", True), ("'OFF'", False), ("'ON'", True), ("'NO_LOCK'", True)],
)
def test_a_server_is_read_only_by_a_number_and_by_a_text_as_of_mariadb_12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool
) -> None:
    """In place of what another version of the server has in the variable."""
    monkeypatch.setattr(session, "_READ_ONLY", value)

    def refused(by: type[Exception]) -> AbstractContextManager[Any]:
        return pytest.raises(by, match="must lead to the primary") if is_on else nullcontext()

    with orders_in_mariadb() as orders:
        with refused(SourceError):
            assert not orders.opened(tmp_path / "checkpoint").has_new(None)
        with refused(pymysql.MySQLError):
            orders.execute(access(orders.connection, table="orders").options["sessionInitStatement"])
