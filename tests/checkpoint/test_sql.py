"""What is special about a database: lost answers, poolers, forks, versions."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg2
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.sql import database as databases
from airflow_provider_microbatch.stores.sql.keys import end_of, folder_of, key_of, past
from tests.checkpoint.conftest import Connected
from tests.execution.maintaining import filled
from tests.execution.world import World
from tests.support import sql
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # a database is started

MOST_STATEMENTS = 200
"""Of a whole batch, as it was measured: plan, attempt, publish, commit."""


@pytest.fixture
def proxy(server_port: int) -> Iterator[CuttingProxy]:
    with cutting_proxy(server_port) as proxy:
        yield proxy


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """What is said to databases in the block."""
    said: list[str] = []

    def hear(*event: Any) -> None:
        said.append(event[2])

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", hear)
    try:
        yield said
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", hear)


def own_session(store: Store) -> int:
    """The server's process that serves this one."""
    opened = databases.database_of(store.location.split("/")[2])
    rows = opened._answered(  # type: ignore[attr-defined]
        store._address,  # type: ignore[attr-defined]
        lambda _, session: session.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar_one(),
        doing="ask",
    )
    return int(rows[0])


# Keys

NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1).filter(lambda name: not name.startswith("."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@given(st.lists(PATHS, max_size=12), NAMES, NAMES)
def test_keys_sort_as_lists_of_names_do(paths: list[str], folder: str, after: str) -> None:
    assert sorted(paths, key=key_of) == sorted(paths, key=lambda path: path.split("/"))
    begin = folder_of(folder)
    for path in paths:
        names = [folder, *path.split("/")]
        below = "/".join(names)
        assert begin <= key_of(below) < end_of(begin)
        assert (past(begin, after) <= key_of(below)) == (names[1] > after)
        assert (begin <= key_of(path) < end_of(begin)) == (path.split("/")[0] == folder and "/" in path)


@pytest.mark.slow
@given(st.sets(PATHS.map(lambda path: f"top/{path}"), max_size=8))
def test_a_folder_of_any_names_is_listed_as_they_are(paths: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(sql.in_sqlite(Path(folder)))
        for path in paths:
            assert store.put_if_absent(path, b"x")
        expected = sorted({path.split("/")[1] for path in paths})
        assert store.list("top") == expected
        assert store.list_after("top") == expected
        assert store.present("top", expected) == {name for name in expected if f"top/{name}" in paths}
        folders = {path.split("/")[1] for path in paths if path.count("/") > 1}
        assert store.folders("top") == sorted(folders)


# Requests


@pytest.mark.slow
def test_each_question_is_one_statement_however_much_there_is(connected: Connected) -> None:
    store = connected()
    store.put_if_absent("offsets/0", b"x")
    for number in range(300):
        store.put_if_absent(f"attempts/live/{number}/1", b"x")
    asked: dict[str, Callable[[], object]] = {
        "put": lambda: store.put_if_absent("offsets/1", b"y"),
        "get": lambda: store.get("offsets/0"),
        "range": lambda: store.get_range("offsets/0", 0, 1),
        "versioned": lambda: store.get_versioned("offsets/0"),
        "compared": lambda: store.compare_and_put("offsets/0", b"z", version="another"),
        "list": lambda: store.list("attempts/live"),
        "page": lambda: store.list_after("attempts/live", "17", limit=5),
        "folders": lambda: store.folders("attempts/live"),
        "present": lambda: store.present("offsets", [str(number) for number in range(3_000)]),
        "deleted": lambda: store.delete_if("offsets/0", b"another"),
        "many deleted": lambda: store.delete_many(f"offsets/{number}" for number in range(3_000)),
        "clock": store.now_ms,
        "age": lambda: store.modified_ms("offsets/0"),
    }
    for name, ask in asked.items():
        with counted_statements() as said:
            ask()
        assert len(said) == 1, f"{name}: {said}"


def test_a_page_of_names_reads_no_more_of_the_index_than_the_page(connected: Connected, server_port: int) -> None:
    store = connected()
    for number in range(400):
        store.put_if_absent(f"offsets/{number:04}", b"x")
    with counted_statements() as said:
        assert len(store.list_after("offsets", "0100", limit=10)) == 10
    login = {"host": "127.0.0.1", "port": server_port, "user": "postgres", "dbname": "checkpoints"}
    with psycopg2.connect(**login) as session, session.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        values = {"folder": b"orders\0offsets\0", "length": 15, "low": b"orders\0offsets\x000100\1", "limit": 10}
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {said[0]}", {**values, "high": b"orders\0offsets\1"})
        plan = json.dumps(cursor.fetchone()[0])
    assert "Index" in plan
    assert '"Actual Rows": 400' not in plan


@pytest.mark.slow
def test_a_batch_says_as_much_to_the_database_however_long_the_history(tmp_path: Path) -> None:
    """The history is made in a folder, which is faster, and each time copied over as it is."""
    counts = []
    for history in (15, 79):
        root = tmp_path / str(history)
        world = filled(World(root), history)
        files = [path for path in (root / "checkpoint").rglob("*") if path.is_file()]
        moved = World(root, checkpoint=sql.in_postgres(root))
        moved.clock = world.clock
        store = open_store(moved.pipeline.checkpoint)
        for path in files:
            store.put_if_absent(str(path.relative_to(root / "checkpoint")), path.read_bytes())
        moved.land(history)
        with counted_statements() as said:
            moved.run(history)
        counts.append(len(said))
    assert max(counts) <= MOST_STATEMENTS, counts
    assert counts[1] - counts[0] < (79 - 15) / 4, f"a statement for each batch of before, or more: {counts}"


# Answers that are lost

POOLED = {"extra": {"options": ""}}
"""As where a pooler is in between: settings go into each transaction, and so a COMMIT is said."""


@pytest.mark.parametrize(
    ("changes", "said"),
    [({}, b"INSERT INTO"), (POOLED, b"INSERT INTO"), (POOLED, b"COMMIT")],
    ids=["", "pooled", "commit"],
)
@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "not heard"])
def test_a_put_whose_answer_is_lost_is_known_by_its_writer(
    connected: Connected, proxy: CuttingProxy, changes: dict[str, Any], said: bytes, is_heard: bool
) -> None:
    store = connected(port=proxy.port, **changes)
    store.put_if_absent("offsets/0", b"x")
    proxy.cut_at(said, is_heard=is_heard)
    assert store.put_if_absent("offsets/1", b"ours") is True
    assert proxy.cuts == 1
    assert store.get("offsets/1") == b"ours"
    assert store.put_if_absent("offsets/1", b"ours") is False


def test_equal_bytes_of_another_are_not_taken_for_our_own(connected: Connected, proxy: CuttingProxy) -> None:
    store, other = connected(port=proxy.port), connected()
    store.put_if_absent("offsets/0", b"x")
    won = []
    proxy.cut_at(
        b"INSERT INTO", is_heard=False, meanwhile=lambda: won.append(other.put_if_absent("offsets/1", b"same"))
    )
    assert store.put_if_absent("offsets/1", b"same") is False
    assert won == [True]


@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "not heard"])
def test_a_replacement_whose_answer_is_lost_is_known_by_its_writer(
    connected: Connected, proxy: CuttingProxy, is_heard: bool
) -> None:
    store = connected(port=proxy.port)
    store.put_if_absent("leases/0", b"x")
    read = store.get_versioned("leases/0")
    assert read is not None
    proxy.cut_at(b"UPDATE", is_heard=is_heard)
    version = store.compare_and_put("leases/0", b"y", version=read.version)
    assert version is not None
    assert proxy.cuts == 1
    assert store.compare_and_put("leases/0", b"z", version=version) is not None


def test_a_replacement_that_another_was_before_is_none(connected: Connected, proxy: CuttingProxy) -> None:
    store, other = connected(port=proxy.port), connected()
    store.put_if_absent("leases/0", b"x")
    read = store.get_versioned("leases/0")
    assert read is not None
    meanwhile = lambda: other.compare_and_put("leases/0", b"y", version=read.version)  # noqa: E731
    proxy.cut_at(b"UPDATE", is_heard=False, meanwhile=meanwhile)
    assert store.compare_and_put("leases/0", b"y", version=read.version) is None


@pytest.mark.parametrize("is_heard", [True, False], ids=["heard", "not heard"])
def test_a_removal_whose_answer_is_lost_is_done(connected: Connected, proxy: CuttingProxy, is_heard: bool) -> None:
    store = connected(port=proxy.port)
    store.put_if_absent("leases/0", b"x")
    proxy.cut_at(b"DELETE", is_heard=is_heard)
    assert store.delete_if("leases/0", b"x") is True
    assert store.get("leases/0") is None
    assert store.delete("leases/0") is False


def test_a_look_whose_answer_is_lost_is_taken_again(connected: Connected, proxy: CuttingProxy) -> None:
    store = connected(port=proxy.port)
    store.put_if_absent("offsets/0", b"x")
    proxy.cut_at(b"SELECT data", is_heard=True)
    assert store.get("offsets/0") == b"x"
    assert proxy.cuts == 1


def test_tables_that_are_cut_off_while_they_are_made_are_made(connected: Connected, proxy: CuttingProxy) -> None:
    for said in (b"CREATE SCHEMA", b"CREATE TABLE", b"COMMIT"):
        proxy.cut_at(said, is_heard=True)
        store = connected(port=proxy.port)
        assert store.put_if_absent(f"offsets/{said.decode()}", b"x") is True
    assert len(connected().list("offsets")) == 3


def test_a_server_that_ends_our_session_stops_nobody(connected: Connected, server_port: int) -> None:
    store = connected()
    store.put_if_absent("offsets/0", b"x")
    login = {"host": "127.0.0.1", "port": server_port, "user": "postgres", "dbname": "checkpoints"}
    with psycopg2.connect(**login) as session, session.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [own_session(store)])
    assert store.put_if_absent("offsets/1", b"x") is True
    assert store.get("offsets/0") == b"x"


def test_a_database_that_stays_away_is_an_error_in_bounded_time(
    connected: Connected, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "PATIENCE_SECONDS", 0.5)
    store = connected(port=proxy.port, password="hunter2", extra={"sslpassword": "hunter3"})
    store.put_if_absent("offsets/0", b"x")
    proxy.close()
    with pytest.raises(
        CheckpointError, match=r"cannot write offsets/1 of checkpoint sql://own_.*connection 'own_"
    ) as error:
        store.put_if_absent("offsets/1", b"x")
    assert "hunter" not in str(error.value)


# Two writers at once


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_of_two_that_replace_at_once_one_does_at_every_level_of_isolation(connected: Connected, level: str) -> None:
    options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    stores = [connected(extra={"options": options}) for _ in range(2)]
    stores[0].put_if_absent("count", b"0")
    barrier = threading.Barrier(2)

    def count_up(store: Store) -> None:
        barrier.wait()
        for _ in range(20):
            while True:
                read = store.get_versioned("count")
                assert read is not None
                if store.compare_and_put("count", str(int(read.data) + 1).encode(), version=read.version):
                    break

    threads = [threading.Thread(target=count_up, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("count") == b"40"


# Sessions


def test_a_fork_leaves_its_parents_session_alone(connected: Connected) -> None:
    store = connected()
    store.put_if_absent("offsets/0", b"x")
    session = own_session(store)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            gc.collect()
            is_own = own_session(store) != session
            status = 0 if store.put_if_absent("offsets/1", b"x") and is_own else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("offsets/1") == b"x"
    assert own_session(store) == session


def test_what_a_task_has_opened_is_closed_at_its_end_and_its_connection_looked_up_again(
    connected: Connected, server_port: int
) -> None:
    with lifetime():
        store = connected(extra={"application_name": "a task"})
        store.put_if_absent("offsets/0", b"x")
        store.scoped("offsets").get("0")
        assert sessions_of("a task", server_port) == 1
    wait_until(lambda: sessions_of("a task", server_port) == 0)
    with mock.patch.object(sql, "connect", wraps=sql.connect) as looked_up:
        databases.connections.find_by(looked_up)
        with lifetime():
            assert store.get("offsets/0") == b"x"
            assert store.get("offsets/1") is None
    assert looked_up.call_count == 1


def sessions_of(name: str, port: int) -> int:
    with psycopg2.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres") as session:
        cursor = session.cursor()
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
        return int(cursor.fetchone()[0])  # type: ignore[index]


def test_limits_of_time_go_into_each_transaction_where_a_pooler_gives_each_another_session(
    connected: Connected,
) -> None:
    store = connected(**POOLED)
    store.put_if_absent("offsets/0", b"x")
    opened = databases.database_of(store.location.split("/")[2])._open()
    with opened.engine.connect() as session:
        shown = sqlalchemy.text("SELECT current_setting('statement_timeout'), current_setting('synchronous_commit')")
        assert session.execute(shown).one() == ("0", "off"), "nothing stays in the session"
        opened.kind.before(session)
        assert session.execute(shown).one() == ("30s", "on")
    with connected_engine(connected()) as session:
        assert session.execute(shown).one() == ("30s", "on")


@contextmanager
def connected_engine(store: Store) -> Iterator[Any]:
    with databases.database_of(store.location.split("/")[2])._open().engine.connect() as session:
        yield session


def test_no_statement_is_prepared_on_the_server(connected: Connected) -> None:
    store = connected()
    for _ in range(12):
        store.get("offsets/0")
        store.put_if_absent("offsets/0", b"x")
    with connected_engine(store) as session:
        assert session.execute(sqlalchemy.text("SELECT count(*) FROM pg_prepared_statements")).scalar_one() == 0


def test_a_statement_that_waits_for_a_lock_ends(
    connected: Connected, server_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connected().put_if_absent("offsets/0", b"x")
    store = connected(extra={"options": "-c lock_timeout=200"})
    monkeypatch.setattr("airflow_provider_microbatch.stores.sql.postgres._SETTINGS", {"lock_timeout": "200"})
    schema = sql.in_postgres(tmp_path).split("/")[3]
    with psycopg2.connect(host="127.0.0.1", port=server_port, user="postgres", dbname="checkpoints") as session:
        cursor = session.cursor()
        cursor.execute(f'LOCK TABLE "{schema}".microbatch_entries')
        with pytest.raises(CheckpointError, match="lock is held"):
            store.put_if_absent("offsets/1", b"x")


def test_the_driver_that_is_there_is_taken(connected: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "psycopg" else find_spec(name))
    store = connected()
    with counted_statements():
        assert store.put_if_absent("offsets/0", bytes(range(256))) is True
    with connected_engine(store) as session:
        assert session.dialect.driver == "psycopg2"
    assert store.get_range("offsets/0", 4, 2) == b"\4\5"
    assert store.list_after("offsets") == ["0"]
    assert store.present("offsets", ["0", "1"]) == {"0"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install 'airflow-provider-microbatch\[postgres\]'"):
        connected().get("offsets/0")


# Versions


@pytest.mark.parametrize("address", [sql.in_sqlite, sql.in_postgres], ids=["sqlite", "postgres"])
def test_tables_of_a_newer_version_are_refused(tmp_path: Path, address: Callable[[Path], str]) -> None:
    store = open_store(address(tmp_path))
    store.put_if_absent("offsets/0", b"x")
    with connected_engine(store) as session:
        schema = store.location.split("/")[3]
        session.execute(sqlalchemy.text(f'INSERT INTO "{schema}".microbatch_version VALUES (9, 0)'))
    databases.database_of(store.location.split("/")[2]).close()
    for ask in (lambda: store.get("offsets/0"), lambda: store.put_if_absent("offsets/1", b"x")):
        with pytest.raises(CheckpointError, match=r"version 9, and this version of the package knows 1[\s\S]*Install"):
            ask()


@pytest.mark.parametrize("address", [sql.in_sqlite, sql.in_postgres], ids=["sqlite", "postgres"])
def test_tables_of_an_older_version_are_migrated_and_keep_what_is_in_them(
    tmp_path: Path, address: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(address(tmp_path))
    store.put_if_absent("offsets/0", b"x")
    here = databases.database_of(store.location.split("/")[2])
    more = (*here.kind.migrations, ("ALTER TABLE {schema}.microbatch_entries ADD COLUMN note text",))
    monkeypatch.setattr(type(here.kind), "migrations", more)
    here.close()
    assert store.get("offsets/0") == b"x"
    with connected_engine(store) as session:
        schema = store.location.split("/")[3]
        assert session.execute(sqlalchemy.text(f'SELECT note FROM "{schema}".microbatch_entries')).all() == [(None,)]
        versions = session.execute(sqlalchemy.text(f'SELECT version FROM "{schema}".microbatch_version'))
        assert sorted(number for (number,) in versions) == [1, 2]


def test_whoever_waits_while_another_makes_the_tables_finds_them_made(
    connected: Connected, server_port: int, tmp_path: Path
) -> None:
    store, other = connected(extra={"application_name": "waits"}), connected()
    schema = store.location.split("/")[3]
    put = threading.Thread(target=lambda: store.put_if_absent("offsets/0", b"x"))
    login = {"host": "127.0.0.1", "port": server_port, "user": "postgres", "dbname": "checkpoints"}
    with psycopg2.connect(**login) as session, session.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"microbatch {schema}"])
        put.start()
        wait_until(lambda: waiting_for_a_lock("waits", server_port))
        cursor.execute(f'CREATE SCHEMA "{schema}"')
        cursor.execute(f'CREATE TABLE "{schema}".microbatch_version (version integer, applied_ms bigint)')
        cursor.execute(f'INSERT INTO "{schema}".microbatch_version VALUES (1, 0)')
        for statement in databases.database_of(other.location.split("/")[2]).kind.migrations[0]:
            cursor.execute(statement.replace("{schema}", f'"{schema}"'))
    put.join()
    assert other.get("offsets/0") == b"x"


@pytest.mark.parametrize("extra", [{}, {"options": ""}], ids=["", "pooled"])
def test_and_at_a_stricter_level_of_isolation(connected: Connected, server_port: int, extra: dict[str, str]) -> None:
    """A snapshot that is older than the lock does not show them."""
    role = "strict_pooled" if extra else "strict"
    login = {"host": "127.0.0.1", "port": server_port, "user": "postgres", "dbname": "checkpoints"}
    with psycopg2.connect(**login) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
        cursor.execute(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    stores = [connected(login=role, extra={**extra, "application_name": f"strict {n}"}) for n in range(2)]
    schema = stores[0].location.split("/")[3]
    with ThreadPoolExecutor(2) as pool, psycopg2.connect(**login) as session, session.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"microbatch {schema}"])
        puts = [pool.submit(store.put_if_absent, f"offsets/{n}", b"x") for n, store in enumerate(stores)]
        wait_until(lambda: all(waiting_for_a_lock(f"strict {n}", server_port) for n in range(2)))
        session.commit()
        assert [put.result() for put in puts] == [True, True]


def waiting_for_a_lock(name: str, port: int) -> bool:
    with psycopg2.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres") as session:
        cursor = session.cursor()
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        cursor.execute(asked, [name])
        return bool(cursor.fetchone()[0])  # type: ignore[index]
