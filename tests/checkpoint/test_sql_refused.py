"""Which databases, addresses and roles are refused as the place of a checkpoint, and what the errors say."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.sql import database as databases
from tests.checkpoint.conftest import Connected
from tests.support import sql
from tests.support.postgres import free_port, postgres

pytestmark = pytest.mark.slow


def test_a_read_replica_is_refused_by_a_sentence(tmp_path: Path) -> None:
    with postgres(is_replica=True) as server:
        conn_id = sql.make_connection(
            "replica", conn_type="postgres", host="127.0.0.1", port=server.port, login="postgres"
        )
        store = open_store(f"sql://{conn_id}/public/orders")
        for ask in (lambda: store.put_if_absent("offsets/0", b"x"), lambda: store.get("offsets/0")):
            with pytest.raises(
                CheckpointError, match=r"'replica' leads to a read replica .*Let it lead to the primary"
            ):
                ask()


def test_of_several_hosts_the_one_is_taken_that_can_be_written_to(connected: Connected, server_port: int) -> None:
    with postgres(is_replica=True) as server:
        store = connected(host="127.0.0.1,127.0.0.1", port=None, extra={})
        assert store is not None
        ports = f"{server.port},{server_port}"
        fields = sql.connect(sql.POSTGRES)
        conn_id = sql.make_connection(
            "several",
            conn_type="postgres",
            host="127.0.0.1,127.0.0.1",
            port=ports,
            login=fields.login,
            schema=fields.schema,
        )
        assert open_store(f"sql://{conn_id}/several/orders").put_if_absent("offsets/0", b"x") is True


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("sql://orders", "SCHEMA"),
        ("sql:///public/orders", "CONN_ID"),
        ("sql://user:secret@host/public", "stand there, not here"),
        ("sql://orders/public/../etc", "path of a checkpoint"),
    ],
)
def test_what_is_no_address_is_refused_where_it_is_written(location: str, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as error:
        open_store(location)
    assert "secret" not in str(error.value)


@pytest.mark.slow
def test_a_connection_that_is_not_there_or_leads_elsewhere_is_named(tmp_path: Path) -> None:
    sql.make_connection("of_mysql", conn_type="mysql", host="127.0.0.1")
    with pytest.raises(CheckpointError, match=r"'of_mysql' is of type 'mysql'.*postgres and sqlite"):
        open_store("sql://of_mysql/lake/orders").get("offsets/0")
    with pytest.raises(CheckpointError, match=r"'nobody' cannot be used"):
        open_store("sql://nobody/public/orders").get("offsets/0")
    sql.make_connection("relative", conn_type="sqlite", host="here.db")
    with pytest.raises(CheckpointError, match="absolute path"):
        open_store("sql://relative/main/orders").get("offsets/0")
    sql.make_connection("lite", conn_type="sqlite", host=str(tmp_path / "away" / "x.db"))
    with pytest.raises(CheckpointError, match="whose only schema is 'main'"):
        open_store("sql://lite/public/orders").put_if_absent("offsets/0", b"x")
    with pytest.raises(CheckpointError, match="Make the folder"):
        open_store("sql://lite/main/orders").put_if_absent("offsets/0", b"x")


def test_a_role_without_rights_is_told_which(connected: Connected, server_port: int, tmp_path: Path) -> None:
    connected().put_if_absent("offsets/0", b"x")
    with psycopg2.connect(host="127.0.0.1", port=server_port, user="postgres", dbname="checkpoints") as session:
        session.cursor().execute(f'CREATE ROLE "{tmp_path.name}" LOGIN')
    with pytest.raises(CheckpointError, match="Grant the role"):
        connected(login=tmp_path.name).put_if_absent("offsets/1", b"x")


def test_a_port_where_nobody_listens_is_named_and_no_secret(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_FIRST_SECONDS", 0.1)
    port = free_port()
    with pytest.raises(CheckpointError, match=f"127.0.0.1:{port}, database 'checkpoints'") as error:
        connected(port=port, password="hunter2").get("offsets/0")
    assert "hunter2" not in repr(error.value) + repr(error.value.__cause__)


def test_the_file_of_sqlite_is_its_users_alone(tmp_path: Path) -> None:
    open_store(sql.in_sqlite(tmp_path)).put_if_absent("offsets/0", b"x")
    assert stat.S_IMODE((tmp_path / "checkpoint.db").stat().st_mode) == 0o600


def test_a_pipeline_is_written_down_without_a_database_and_without_its_libraries() -> None:
    code = (
        "import sys; from airflow_provider_microbatch.stores.location import open_store;"
        "open_store('sql://orders/public/orders').scoped('offsets');"
        "assert not {'sqlalchemy', 'psycopg', 'psycopg2'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
