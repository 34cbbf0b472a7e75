"""Sessions of a real MariaDB, one of which is opened for each look."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.jdbc.mariadb.session import connected
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
