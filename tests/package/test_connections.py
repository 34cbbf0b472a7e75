"""Connections reach what lies below Airflow's face by their ids, and their secrets no further."""

from __future__ import annotations

import json

import pytest

from airflow_provider_microbatch import configuration, connections
from airflow_provider_microbatch.connections import connect
from airflow_provider_microbatch.exceptions import DefinitionError

WHOLE = {
    "conn_type": "acme",
    "host": "acme.example",
    "port": 77,
    "schema": "orders",
    "login": "anna",
    "password": "hunter2",
    "extra": {"region": "eu"},
}


@pytest.fixture(autouse=True)
def of_airflow() -> None:
    configuration.hand_down()


def test_a_connection_is_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps(WHOLE))
    found = connect("acme")
    assert (found.conn_id, found.conn_type, found.host, found.port) == ("acme", "acme", "acme.example", 77)
    assert (found.schema, found.login, found.password) == ("orders", "anna", "hunter2")
    assert found.extra == {"region": "eu"}
    assert not any(secret in repr(found) for secret in ("hunter2", "anna", "region"))


def test_what_is_missing_is_named_with_how_to_make_it() -> None:
    with pytest.raises(DefinitionError, match=r"connection 'not_there' cannot be used: .*airflow connections add"):
        connect("not_there")


def test_a_process_that_nobody_told_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_found_by", [])
    with pytest.raises(DefinitionError, match="neither a task of Airflow nor the microbatch command"):
        connect("acme")
