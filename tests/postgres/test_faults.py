"""The server goes away, holds its locks, says nothing: a batch is in once, or not, and an error says what to do."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_provider_microbatch.exceptions import AttemptFencedError, DefinitionError, SinkError
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.postgres import open as opened
from airflow_provider_microbatch.sinks.postgres.database import Database
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.postgres import database
from tests.postgres.stages import write_lines, write_stage
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED
from tests.support.postgres import Postgres, postgres
from tests.support.proxy import Proxy, proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def between() -> Iterator[Proxy]:
    with proxy(("127.0.0.1", int(os.environ[database.PORT]))) as found:
        yield found


def nth(number: int, what: bytes) -> Callable[[bytes], bool]:
    """True for the piece that is the n-th one with these bytes."""
    count = itertools.count()
    return lambda piece: what in piece and next(count) == number


@pytest.mark.parametrize("commit", range(5))
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("doing", ["publish", "replace"])
def test_a_batch_is_in_once_whichever_commit_is_cut_off(
    tmp_path: Path, between: Proxy, commit: int, side: str, doing: str
) -> None:
    sink = database.sink_in(tmp_path, port=between.port)
    if doing == "replace":
        write_stage(sink, 1, rows=2)
        sink.publish(EXPECTED, 1)
    epoch = 2 if doing == "replace" else 1
    write_stage(sink, epoch, rows=5)
    setattr(between, side, nth(commit, b"COMMIT"))
    assert getattr(sink, doing)(EXPECTED, epoch).epoch == epoch
    assert between.cuts == 1
    assert database.rows(database.table_in(tmp_path), "id, epoch") == [(id, epoch) for id in range(5)]
    assert sink.stages(CHECKPOINT) == []
    assert database.tables_of_ours(tmp_path) == ({"kept"} if doing == "replace" else set())
    assert len(sink.drop_replaced(CHECKPOINT, older_seconds=0)) == (doing == "replace")


def test_a_load_that_is_cut_off_begins_again(tmp_path: Path, between: Proxy) -> None:
    sink = database.sink_in(tmp_path, port=between.port)
    write_stage(sink, 1, rows=100_000)
    between.before = nth(5, b"\t1\n")
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert between.cuts == 1
    assert database.rows(database.table_in(tmp_path), "count(*)") == [(100_000,)]


def test_a_server_that_is_not_there_is_waited_for_and_then_named_without_the_password(tmp_path: Path) -> None:
    with proxy(("127.0.0.1", 9)) as nowhere:
        sink = database.sink_in(tmp_path, port=nowhere.port, patience_seconds=0.5)
        with pytest.raises(SinkError) as error:
            sink.contains(EXPECTED)
    assert nowhere.connections > 1
    assert "connection 'warehouse'" in str(error.value)
    assert "Orders" in str(error.value)
    assert database.PASSWORD not in str(error.value)
    assert database.PASSWORD not in repr(error.value.__cause__)


def test_a_lock_that_goes_is_waited_for_and_one_that_stays_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, lock_seconds=0.1, patience_seconds=1.0)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 2)
    with database.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {database.table_in(tmp_path)} IN ACCESS EXCLUSIVE MODE".encode())
        began = time.monotonic()
        with pytest.raises(SinkError, match=r"lock timeout \[55P03\]\. Somebody holds a lock.*lock_seconds"):
            sink.replace(EXPECTED, 2)
        assert time.monotonic() - began < 10
    assert database.rows(database.table_in(tmp_path), "DISTINCT epoch") == [(1,)]
    assert sink.replace(EXPECTED, 2).epoch == 2


def raising(folder: Path, state: str, *, times: int) -> None:
    """The table's server refuses so many publishes. A sequence counts them: no rollback takes that back."""
    schema = database.quoted(database.schema_of(folder))
    with database.connect() as connection:
        connection.execute(f"CREATE SEQUENCE {schema}.tries".encode())
        sequence = f"{schema}.tries".replace("'", "''")
        connection.execute(
            f"CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('{sequence}') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF; "
            "RETURN NULL; END $$".encode()
        )
        connection.execute(
            f"CREATE TRIGGER refuse AFTER INSERT ON {database.table_in(folder)} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse()".encode()
        )


@pytest.mark.parametrize("state", ["40001", "40P01", "57P01", "53300"])
def test_what_passes_is_tried_again(tmp_path: Path, state: str) -> None:
    sink = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "integer"})
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    raising(tmp_path, state, times=3)
    write_stage(sink, 1)
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert len(database.rows(database.table_in(tmp_path))) == 3


def test_what_does_not_pass_is_told_at_once_and_nothing_is_in(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "integer"})
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    raising(tmp_path, "P0001", times=1)
    write_stage(sink, 1)
    with pytest.raises(SinkError, match=r"cannot publish batch live/7 \(connection 'warehouse', table .*not now"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert sink.stages(CHECKPOINT) == [(BATCH.key, 1)]
    assert sink.drop_stage(BATCH, 1)
    assert sink.stages(CHECKPOINT) == []
    assert database.tables_of_ours(tmp_path) == set()


def test_a_statement_that_takes_too_long_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, columns={"id": "int8", "epoch": "integer"}, statement_seconds=0.3)
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    table = database.table_in(tmp_path)
    with database.connect() as connection:
        connection.execute(
            f"CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$".replace(
                f"{table}_slow", f'{table[:-1]}_slow"'
            ).encode()
        )
        connection.execute(
            f'CREATE TRIGGER slow AFTER INSERT ON {table} EXECUTE FUNCTION {table[:-1]}_slow"()'.encode()
        )
    write_stage(sink, 1)
    with pytest.raises(SinkError, match=r"statement timeout \[57014\]\. Raise statement_seconds"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None


def test_a_row_that_the_table_refuses_is_named_by_line_and_column_and_not_shown(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, columns={"id": "bigint", "note": "varchar(4)"})
    write_lines(sink, 1, {"id": "bigint", "note": "string"}, [("1", "ab"), ("2", "a secret")])
    with pytest.raises(SinkError, match=r"value too long.*COPY microbatch_stage_\w+, line 2, column note") as error:
        sink.publish(EXPECTED, 1)
    assert "a secret" not in str(error.value)


def test_a_publisher_whose_stage_was_dropped_while_it_slept_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = database.sink_in(tmp_path), database.sink_in(tmp_path)
    write_stage(sink, 1)
    run = Database.run

    def sleepy(self: Database, doing: str, *given: object, **more: object) -> object:
        if doing.startswith("publish"):
            monkeypatch.setattr(Database, "run", run)
            assert other.drop_stage(BATCH, 1)
        return run(self, doing, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "run", sleepy)
    with pytest.raises(AttemptFencedError, match="was dropped while it was loaded"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert sink.stages(CHECKPOINT) == []


def test_a_stage_that_is_dropped_while_it_is_loaded_is_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that loads holds it, so that the drop fails and is said again; it counts all the same."""
    sink, other = database.sink_in(tmp_path), database.sink_in(tmp_path, lock_seconds=0.1, patience_seconds=0.3)
    write_stage(sink, 1)
    load = opened.load

    def slow(*given: object, **more: object) -> int:
        with pytest.raises(SinkError, match="which is being loaded"):
            other.drop_stage(BATCH, 1)
        return load(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opened, "load", slow)
    with pytest.raises(AttemptFencedError):
        sink.publish(EXPECTED, 1)
    assert sink.stages(CHECKPOINT) == [(BATCH.key, 1)]
    assert other.drop_stage(BATCH, 1)
    assert database.tables_of_ours(tmp_path) == set()
    assert sink.contains(EXPECTED) is None


def test_a_publisher_that_slept_while_its_batch_was_taken_out_does_not_bring_it_back(tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path)
    for epoch in (1, 2):
        write_stage(sink, epoch)
    sink.publish(EXPECTED, 2)
    assert sink.withdraw(EXPECTED, 2)
    with pytest.raises(AttemptFencedError, match="was taken out"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert database.rows(database.table_in(tmp_path)) == []


@pytest.mark.parametrize(
    ("extra", "match"),
    [({"sslmod": "require"}, "its extra has sslmod, which libpq does not know"), ({"cursor": "dictcursor"}, None)],
)
def test_what_the_extra_has_is_libpqs_or_airflows(tmp_path: Path, extra: dict[str, str], match: str | None) -> None:
    connection = database.connection_of(database.CONN_ID, extra=extra)
    sink = OpenPostgres(database.sink_in(tmp_path).definition, opened.SinkContext(connect=lambda conn_id: connection))
    if match is None:
        sink.check()
        return
    with pytest.raises(DefinitionError, match=match):
        sink.check()


def test_a_table_is_known_as_one_by_whichever_session_it_is_looked_at(tmp_path: Path) -> None:
    """Two connections to it are two sinks of one table, which is refused before anything is planned."""

    def known(zone: str) -> list[str]:
        connection = database.connection_of(database.CONN_ID, extra={"options": f"-c TimeZone={zone}"})
        definition = database.sink_in(tmp_path).definition
        return OpenPostgres(definition, opened.SinkContext(connect=lambda _: connection)).known_as()

    assert known("Asia/Tokyo") == known("America/New_York")


def test_a_record_that_names_a_table_of_somebody_drops_nothing(tmp_path: Path) -> None:
    """Others may write into the schema's tables."""
    sink = database.sink_in(tmp_path)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    schema = database.quoted(database.schema_of(tmp_path))
    with database.connect() as connection:
        connection.execute(
            f"INSERT INTO {schema}.microbatch_stages VALUES ('Orders', 'Orders', '{CHECKPOINT}', 'live', 7, 5)".encode()
        )
    with pytest.raises(SinkError, match="is no table of ours"):
        sink.drop_stage(BATCH, 5)
    assert len(database.rows(database.table_in(tmp_path))) == 3


def test_a_file_of_a_stage_that_became_a_link_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it may lie what only the orchestrator can read; the table would show it."""
    sink = database.sink_in(tmp_path)
    path = next(write_stage(sink, 1).glob("part-*"))
    load = opened.load

    def late(*given: object, **more: object) -> int:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        return load(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(opened, "load", late)
    with pytest.raises(SinkError, match=r"part-.*symbolic links.*run the batch again"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None


def test_rows_that_a_policy_hides_are_not_left_behind_by_a_replay(tmp_path: Path) -> None:
    """What the login does not see it does not delete, and they would be there twice."""
    owner, table, role = database.sink_in(tmp_path), database.table_in(tmp_path), f"app_{uuid.uuid4().hex}"
    write_stage(owner, 1)
    owner.publish(EXPECTED, 1)
    with database.connect() as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT ALL ON SCHEMA {database.quoted(database.schema_of(tmp_path))} TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {database.quoted(database.schema_of(tmp_path))} TO {role}",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY theirs ON {table} USING (id > 0) WITH CHECK (true)",
        ):
            connection.execute(statement.encode())
    sink = PostgresSink(database.CONN_ID, table, stages=str(tmp_path / "stages")).open(
        SinkContext(connect=lambda conn_id: dataclasses.replace(database.connection_of(conn_id), login=role))
    )
    write_stage(sink, 2)
    with pytest.raises(SinkError, match="row-level security"):
        sink.replace(EXPECTED, 2)
    assert database.rows(table, "DISTINCT epoch") == [(1,)]


def test_rows_that_a_trigger_keeps_are_not_doubled_by_a_replay(tmp_path: Path) -> None:
    sink, table = database.sink_in(tmp_path), database.table_in(tmp_path)
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    function = f"{database.quoted(database.schema_of(tmp_path))}.keep()"
    with database.connect() as connection:
        for statement in (
            f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
            f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}",
        ):
            connection.execute(statement.encode())
    write_stage(sink, 2)
    for ask in (lambda: sink.replace(EXPECTED, 2), lambda: sink.withdraw(EXPECTED, 1)):
        with pytest.raises(SinkError, match=r"rows of batch live/7 .* cannot be deleted.*trigger"):
            ask()
    assert database.rows(table, "id, epoch") == [(id, 1) for id in range(3)]


def test_a_standby_that_is_to_become_primary_is_waited_for(tmp_path: Path) -> None:
    with postgres(is_replica=True) as standby:
        definition = PostgresSink(database.CONN_ID, "orders", stages=str(tmp_path / "stages"), patience_seconds=30)
        sink = definition.open(SinkContext(connect=lambda conn_id: database.connection_of(conn_id, port=standby.port)))
        connection = psycopg.connect(
            f"host=127.0.0.1 port={standby.port} user=postgres dbname=postgres", autocommit=True
        )
        timer = threading.Timer(1.0, lambda: connection.execute("SELECT pg_promote(false)"))
        timer.start()
        assert sink.contains(EXPECTED) is None
        timer.join()
        connection.close()


def crash(server: Postgres) -> None:
    """One of the server's processes is killed: it ends all the others, and recovers."""
    where = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    killed, witness = psycopg.connect(where), psycopg.connect(where, autocommit=True)
    os.kill(killed.info.backend_pid, signal.SIGKILL)

    def has_noticed() -> bool:
        try:
            witness.execute("SELECT 1")
        except psycopg.Error:
            return True
        return False

    wait_until(has_noticed)
    killed.close()
    witness.close()


def sink_of(server: Postgres, folder: Path) -> OpenSink:
    """A sink of the table ``orders`` of a server that may crash."""
    definition = PostgresSink(database.CONN_ID, "orders", stages=str(folder / "stages"))
    return definition.open(SinkContext(connect=lambda conn_id: database.connection_of(conn_id, port=server.port)))


def orders(server: Postgres) -> list[tuple[int, int]]:
    wait_until(server.answers)
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres") as connection:
        return connection.execute("SELECT id, epoch FROM orders ORDER BY id").fetchall()


def test_what_is_published_and_what_is_taken_out_outlives_a_crash_whatever_the_database_has_as_its_default(
    tmp_path: Path,
) -> None:
    with postgres(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"}) as server:
        sink = sink_of(server, tmp_path)
        write_stage(sink, 1, rows=2)
        sink.publish(EXPECTED, 1)
        crash(server)
        assert orders(server) == [(0, 1), (1, 1)]
        assert sink.withdraw(EXPECTED, 1)
        crash(server)
        assert sink.contains(EXPECTED) is None
        assert orders(server) == []


@pytest.mark.parametrize("doing", ["publish", "replace"])
def test_a_server_that_crashes_after_a_load_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """It empties the stage table, which is UNLOGGED."""
    run, crashes = Database.run, iter([True])
    with postgres() as server:
        sink = sink_of(server, tmp_path)
        if doing == "replace":
            write_stage(sink, 1, rows=2)
            sink.publish(EXPECTED, 1)
        epoch = 2 if doing == "replace" else 1
        write_stage(sink, epoch, rows=5)

        def crashing(self: Database, what: str, *given: object, **more: object) -> object:
            if what.startswith(doing) and next(crashes, False):
                crash(server)
            return run(self, what, *given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Database, "run", crashing)
        assert getattr(sink, doing)(EXPECTED, epoch).epoch == epoch
        assert next(crashes, None) is None, "it has crashed"
        assert orders(server) == [(id, epoch) for id in range(5)]
        assert sink.stages(CHECKPOINT) == []
