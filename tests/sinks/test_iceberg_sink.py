"""The Iceberg sink on tables in a catalog of SQLite: what of a batch is known when snapshots expire, who wins when
several commit, what is refused, what no message says. (tests/contract/test_sink.py has what it shares with every sink;
tests/sinks/test_iceberg_spark.py what Spark reads of it.)"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError, RolledBackError, SinkError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog, properties_of
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.iceberg import IcebergSink
from airflow_provider_microbatch.sinks.iceberg.catalog import CatalogBusyError
from airflow_provider_microbatch.sinks.iceberg.ledger import PAGE, Ledger
from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN, batch_of, expect
from tests.support.iceberg_table import catalog_file, opened_in

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "my lake"


@pytest.fixture
def sink(folder: Path) -> OpenIceberg:
    return opened_in(folder)


def publish(sink: OpenSink, number: int, *, rows: int = 3, epoch: int = 1) -> None:
    key = BatchKey("live", number)
    write_delta_stage(sink, epoch, batch=batch_of(key), rows=rows)
    sink.publish(expect(key), epoch)


def table(sink: OpenIceberg) -> Table:
    look = sink._log.look()
    assert look is not None
    return look.table


def rows(sink: OpenIceberg) -> Counter[tuple[int, int]]:
    """How many rows there are of each batch and attempt."""
    found = table(sink).scan(selected_fields=("batch_id", "epoch")).to_arrow().to_pylist()
    return Counter((row["batch_id"], row["epoch"]) for row in found)


def expire(sink: OpenIceberg) -> None:
    """All snapshots but the newest."""
    table(sink).maintenance.expire_snapshots().older_than(datetime.now(tz=UTC) + timedelta(days=1)).commit()


def append(sink: OpenIceberg, count: int = 1) -> None:
    """Rows of somebody else."""
    table(sink).append(pa.table({"id": pa.array(range(count), pa.int64()), "epoch": pa.array([9] * count, pa.int64())}))


def before_the_next_commit(monkeypatch: pytest.MonkeyPatch, does: Callable[[], object]) -> None:
    """Somebody does something after the table was looked at, once."""
    looks, waiting = IcebergLog.looks, [does]

    def looking(self: IcebergLog) -> Iterator[Look | None]:
        for look in looks(self):
            if waiting and look is not None:
                waiting.pop()()
            yield look

    monkeypatch.setattr(IcebergLog, "looks", looking)


def test_a_batch_is_one_snapshot_and_says_whose_it_is(sink: OpenIceberg) -> None:
    publish(sink, 6)
    publish(sink, 7)
    assert len(table(sink).metadata.snapshots) == 2
    summary = table(sink).metadata.snapshots[-1].summary
    assert summary is not None
    told = summary.additional_properties
    assert json.loads(told["microbatch.identity"]) == BATCH.to_dict()
    assert (told["microbatch.batch"], told["microbatch.epoch"], told["added-records"]) == ("live/7", "1", "3")
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


def test_a_branch_takes_the_record_of_all_lanes_over_from_the_one_it_is_made_of(
    sink: OpenIceberg, folder: Path
) -> None:
    lane = "interval-20260101T000000Z-20260102T000000Z"
    for key in (BatchKey("live", 0), BatchKey(lane, 0)):
        write_delta_stage(sink, 1, batch=batch_of(key), rows=1)
        sink.publish(expect(key), 1)
    head = table(sink).metadata.current_snapshot_id
    assert head is not None
    table(sink).manage_snapshots().create_branch(head, "audit").commit()
    branch = opened_in(folder, branch="audit")
    assert branch.lanes(NOTHING_KNOWN) == [lane, "live"]
    publish(branch, 1)
    assert branch.lanes(NOTHING_KNOWN) == [lane, "live"]
    assert branch.batches("live", NOTHING_KNOWN) == [0, 1]
    assert sink.batches("live", NOTHING_KNOWN) == [0]
    assert branch.contains(expect(BatchKey(lane, 0))) is not None


def test_what_is_in_is_known_when_snapshots_have_expired(sink: OpenIceberg, folder: Path) -> None:
    for number in (5, 6, 7):
        publish(sink, number)
    known = {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)}
    append(sink)
    expire(sink)
    assert len(table(sink).metadata.snapshots) == 1
    fresh = opened_in(folder)
    assert {number: fresh.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)} == known
    assert fresh.batches("live", NOTHING_KNOWN) == [5, 6, 7]
    assert fresh.lanes(NOTHING_KNOWN) == ["live"]
    fresh.check()


def test_a_batch_without_a_row_is_in(sink: OpenIceberg) -> None:
    publish(sink, 7, rows=0)
    assert sink.contains(EXPECTED) is not None
    assert rows(sink) == {}
    write_delta_stage(sink, 2, rows=2)
    sink.replace(EXPECTED, 2)
    assert rows(sink) == {(7, 2): 2}


def test_a_foreign_append_between_look_and_commit_is_kept(sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink, 6)
    before_the_next_commit(monkeypatch, lambda: append(sink))
    publish(sink, 7)
    assert rows(sink) == {(6, 1): 3, (7, 1): 3, (None, 9): 1}
    write_delta_stage(sink, 2, rows=2)
    before_the_next_commit(monkeypatch, lambda: append(sink))
    sink.replace(EXPECTED, 2)
    assert rows(sink) == {(6, 1): 3, (7, 2): 2, (None, 9): 2}


def test_a_commit_to_another_branch_beside_a_publish_does_not_fail_it(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 6)
    table(sink).manage_snapshots().create_branch(table(sink).metadata.snapshots[0].snapshot_id, "audit").commit()
    before_the_next_commit(monkeypatch, lambda: table(sink).append(pa.table({"id": [1]}), branch="audit"))
    publish(sink, 7)
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


def test_rows_that_somebody_deletes_while_they_are_replaced_are_an_error_that_names_who(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 7)
    write_delta_stage(sink, 2)
    before_the_next_commit(monkeypatch, lambda: table(sink).delete("id = 1"))
    with pytest.raises(SinkError, match=r"deleted or overwritten rows of batch live/7 .*snapshot \d+: overwrite"):
        sink.replace(EXPECTED, 2)
    assert rows(sink) == {(7, 1): 2}


def test_of_two_who_publish_one_batch_at_once_one_does(sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg alone would append the second behind the first."""
    publish(sink, 6)
    write_delta_stage(sink, 1)
    write_delta_stage(sink, 2)
    before_the_next_commit(monkeypatch, lambda: sink.publish(EXPECTED, 1))
    assert sink.publish(EXPECTED, 2).epoch == 1
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


def _publishes(folder: Path, number: int) -> None:
    publish(opened_in(folder), number)


def test_a_catalog_whose_tables_somebody_else_is_making_is_opened(
    sink: OpenIceberg, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = list[str]()
    make = SqlCatalog.create_tables

    def losing(self: SqlCatalog) -> None:
        make(self)
        if not others:
            others.append("somebody")
            with self.engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE iceberg_tables (a TEXT)")

    monkeypatch.setattr(SqlCatalog, "create_tables", losing)
    publish(sink, 0)
    assert others
    assert rows(sink) == {(0, 1): 3}


@pytest.mark.slow
def test_processes_that_publish_at_once_lose_nothing(sink: OpenIceberg, folder: Path) -> None:
    publish(sink, 0)
    processes = [SPAWN.Process(target=_publishes, args=(folder, number)) for number in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    assert rows(sink) == {(number, 1): 3 for number in range(4)}


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_an_answer_of_the_catalog_that_was_lost_is_looked_for(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    publish(sink, 6)
    catalog, lost = sink._log.catalog.get(), list[str]()
    commit = catalog.commit_table

    def losing(*given: Any) -> Any:
        if lost:
            return commit(*given)
        lost.append("an answer")
        if done:
            commit(*given)
        raise CommitStateUnknownException("the server went away")

    monkeypatch.setattr(catalog, "commit_table", losing)
    publish(sink, 7)
    assert lost
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


def test_files_that_are_removed_come_to_be_in_the_table_by_no_commit_that_is_on_its_way(
    sink: OpenIceberg, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog may still be at a commit whose process has died."""
    publish(sink, 6)
    write_delta_stage(sink, 1)
    catalog, caught = sink._log.catalog.get(), list[Any]()
    commit = catalog.commit_table

    def catching(*given: Any) -> Any:
        caught.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "commit_table", catching)
    with pytest.raises(KeyboardInterrupt):
        sink.publish(EXPECTED, 1)
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    other = opened_in(folder)
    assert other.drop_stage(BATCH, 1)
    with pytest.raises(CommitFailedException):
        commit(*caught[0])
    assert rows(sink) == {(6, 1): 3}


def test_a_rollback_is_noticed_and_still_so_when_a_dead_attempts_files_were_removed(sink: OpenIceberg) -> None:
    publish(sink, 5)
    first = table(sink).current_snapshot()
    assert first is not None
    publish(sink, 6)
    table(sink).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    write_delta_stage(sink, 1)
    with pytest.raises(SinkError, match=f"rolled back to snapshot {first.snapshot_id}"):
        sink.publish(EXPECTED, 1)
    assert sink.drop_stage(BATCH, 1)
    with pytest.raises(SinkError, match="rolled back"):
        sink.check()
    assert rows(sink) == {(5, 1): 3}


def test_a_rollback_takes_away_the_batches_behind_it_and_no_others(sink: OpenIceberg) -> None:
    for number in (5, 6):
        publish(sink, number)
    write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 5)))
    first = table(sink).current_snapshot()
    assert first is not None
    publish(sink, 7)
    assert any(look is not None and sink._log.pass_by(look) for look in sink._log.looks())
    sink.replace(expect(BatchKey("live", 5)), 2)
    assert sink.contains(expect(BatchKey("live", 6))) is not None
    table(sink).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    found = sink.contains(expect(BatchKey("live", 6)))
    assert found is not None
    assert found.epoch == 1
    for gone in (5, 7):
        with pytest.raises(RolledBackError, match="by which batches live/5, live/7 were published"):
            sink.contains(expect(BatchKey("live", gone)))
    assert sink.contains(expect(BatchKey("live", 8))) is None


def test_rows_that_a_rollback_took_away_are_still_missed_once_the_rollback_is_to_stay(sink: OpenIceberg) -> None:
    def damage(number: int) -> str | None:
        asked = expect(BatchKey("live", number))
        found = sink.contains(asked)
        assert found is not None
        return sink.damage(asked, found)

    publish(sink, 5)
    first = table(sink).current_snapshot()
    assert first is not None
    publish(sink, 6)
    publish(sink, 7, rows=0)
    assert [damage(number) for number in (5, 6, 7)] == [None, None, None]
    table(sink).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with table(sink).transaction() as change:
        change.remove_properties("microbatch.last.main")
    told = f"none of its 3 rows is in snapshot {first.snapshot_id}"
    assert [damage(number) for number in (5, 6, 7)] == [None, told, None]
    write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 6)))
    sink.replace(expect(BatchKey("live", 6)), 2)
    assert damage(6) is None


def test_where_no_history_tells_which_batches_a_rollback_took_away_it_may_be_any(sink: OpenIceberg) -> None:
    for number in (4, 5, 6, 7):
        publish(sink, number)
    ids = [one.snapshot_id for one in reversed(list(Look(table(sink), "main").chain()))]
    table(sink).manage_snapshots().rollback_to_snapshot(ids[0]).commit()
    table(sink).maintenance.expire_snapshots().by_id(ids[2]).commit()
    for number in (4, 5, 6, 7):
        with pytest.raises(RolledBackError, match="rolled back"):
            sink.contains(expect(BatchKey("live", number)))


def test_a_stage_that_was_cut_off_before_its_commit_is_published_by_who_comes_next(
    sink: OpenIceberg, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delta_stage(sink, 1)

    def dying(*given: Any, **named: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(IcebergLog, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(EXPECTED, 1)
    after = opened_in(folder)
    assert after.contains(EXPECTED) is None
    assert after.manifest(BATCH, 1) is not None
    assert after.publish(EXPECTED, 1).epoch == 1
    assert after.stages(CHECKPOINT) == []
    assert rows(after) == {(7, 1): 3}


@pytest.mark.parametrize("partition_by", [(), ("id",)], ids=["plain", "partitioned"])
def test_a_replay_in_a_file_that_others_have_merged_leaves_all_rows_of_others(
    folder: Path, partition_by: tuple[str, ...]
) -> None:
    sink = opened_in(folder, partition_by=partition_by)
    columns = {"id": "long", "epoch": "long"}
    for number in (6, 7):
        key = BatchKey("live", number)
        write_rows(sink, 1, [[{"id": 1, "epoch": 1}]], columns, batch=batch_of(key))
        sink.publish(expect(key), 1)
    append_one = pa.table({"id": pa.array([1], pa.int64()), "epoch": pa.array([9], pa.int64())})
    table(sink).append(append_one)
    table(sink).overwrite(table(sink).scan().to_arrow())  # one file of all
    assert len(list(table(sink).scan().plan_files())) == 1
    write_rows(sink, 2, [[{"id": 1, "epoch": 2}]], columns)
    sink.replace(EXPECTED, 2)
    assert rows(sink) == {(6, 1): 1, (7, 2): 1, (None, 9): 1}
    assert sink.withdraw(EXPECTED, 2)
    assert rows(sink) == {(6, 1): 1, (None, 9): 1}


def test_a_table_that_was_dropped_or_made_anew_is_not_taken_for_an_empty_one(sink: OpenIceberg) -> None:
    publish(sink, 6)
    schema = table(sink).schema()
    catalog = sink._log.catalog.get()
    catalog.drop_table("shop.orders")
    for asked in (sink.check, lambda: sink.contains(EXPECTED), lambda: sink.batches("live", NOTHING_KNOWN)):
        with pytest.raises(SinkError, match=r"has no table shop\.orders"):
            asked()
    catalog.create_table("shop.orders", schema, location=f"file://{sink.definition.root}")
    with pytest.raises(SinkError, match="is another table"):
        sink.check()


def test_a_table_elsewhere_or_partitioned_otherwise_is_refused(folder: Path) -> None:
    publish(opened_in(folder), 7)
    elsewhere = IcebergSink("any", "shop.orders", path=str(folder / "other"))
    opened = OpenIceberg(elsewhere, SinkContext(connect=lambda _: connection(folder)))
    with pytest.raises(SinkError, match=f"path='{folder}/orders'"):
        opened.check()
    with pytest.raises(SinkError, match=r"partitioned by \[\], and the sink says \['id'\]"):
        opened_in(folder, partition_by=("id",)).check()


def connection(folder: Path) -> Connection:
    extra = {"type": "sql", "uri": f"sqlite:///{catalog_file(folder)}", "catalog_name": "tests"}
    return Connection(conn_id="any", conn_type="iceberg", extra=extra)


def test_a_result_that_does_not_fit_the_table_is_refused_or_widens_it(sink: OpenIceberg, folder: Path) -> None:
    publish(sink, 6)
    write_rows(sink, 1, [[{"id": 1, "epoch": 1, "more": "x"}]], {"id": "long", "epoch": "long", "more": "string"})
    with pytest.raises(SinkError, match="does not have 'more'"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    allowing = opened_in(folder, schema_policy="add_columns")
    allowing.publish(EXPECTED, 1)
    found = table(sink).scan(row_filter="batch_id = 7").to_arrow().to_pylist()
    assert found == [{"id": 1, "epoch": 1, "lane": "live", "batch_id": 7, "more": "x"}]
    eighth = BatchKey("live", 8)
    write_rows(sink, 1, [[{"id": 1, "epoch": "x"}]], {"id": "long", "epoch": "string"}, batch=batch_of(eighth))
    with pytest.raises(SinkError, match="column 'epoch' is string, and long in"):
        allowing.publish(expect(eighth), 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"table": "orders"}, "name in the catalog"),
        ({"path": "/a b%20"}, "path must not have '%'"),
        ({"partition_by": ("bucket(id)",)}, "Plain Spark cannot compute"),
        ({"partition_by": "day"}, "sequence"),
        ({"schema_policy": "ignore"}, "none of"),
        ({"branch": ""}, "name of a branch"),
    ],
)
def test_a_wrong_definition_names_its_field(given: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        IcebergSink(**{"conn_id": "lake", "table": "shop.orders", "path": "/lake/orders", **given})


def test_a_connection_says_where_the_catalog_is_and_keeps_its_secrets(folder: Path) -> None:
    rest = Connection(
        conn_id="lake", conn_type="iceberg", host="catalog.example", port=8181, login="me", password="hush!"
    )
    name, properties = properties_of(rest)
    assert (name, properties["uri"], properties["credential"]) == ("lake", "https://catalog.example:8181", "me:hush!")
    for wrong in (Connection(conn_id="lake", conn_type="http"), Connection(conn_id="lake", conn_type="iceberg")):
        with pytest.raises(DefinitionError):
            properties_of(wrong)
    secret = "s3cr3t/of%us"
    uri = f"postgresql+psycopg://me:{secret}@127.0.0.1:1/none"
    extra = {"type": "sql", "uri": uri, "s3.secret-access-key": "longkey"}
    catalog = OpenCatalog(
        "lake",
        "shop.orders",
        connect=lambda _: Connection(conn_id="lake", conn_type="iceberg", extra=extra),
        at_end=lambda _: None,
        failed=SinkError,
        busy=CatalogBusyError,
    )
    with pytest.raises((SinkError, DefinitionError)) as error:
        catalog.load()
    assert secret not in str(error.value)
    assert "longkey" not in str(error.value)
    assert error.value.__cause__ is None
    with pytest.raises(SinkError, match=r"cannot read .*: no answer to \*\*\*"), catalog.reporting("read"):
        raise OSError("no answer to longkey")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4 * PAGE), st.one_of(st.none(), st.integers(1, 2**62 - 1))), max_size=60))
def test_a_ledger_knows_what_a_dictionary_does(changes: list[tuple[int, int | None]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        ledger, known = Ledger(Path(root), Path(root) / "ledger", "main.x"), dict[int, int]()
        properties: dict[str, str] = {}
        for id, number in changes:
            properties |= ledger.change(properties, "live", id, number)
            known.pop(id, None)
            if number is not None:
                known[id] = number
            assert ledger.number(properties, "live", id) == number
        for after in (-1, PAGE + 5):
            assert ledger.ids(properties, "live", after=after) == sorted(id for id in known if id > after)
        assert {id: ledger.number(properties, "live", id) for id in known} == known
        assert ledger.lanes(properties) == (["live"] if known else [])


def test_a_page_of_the_ledger_that_somebody_changed_is_no_answer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, tmp_path / "ledger", "main")
    properties = ledger.change({}, "live", 0, 7)
    properties |= ledger.change(properties, "live", PAGE, 8)
    (page,) = (tmp_path / "ledger").glob("*.json")
    page.write_text(json.dumps({"0": f"{9:016x}"}))
    with pytest.raises(SinkError, match="somebody changed it"):
        ledger.number(properties, "live", 0)
    page.unlink()
    with pytest.raises(SinkError, match="backup"):
        ledger.ids(properties, "live")
    assert ledger.ids(properties, "live", after=PAGE - 1) == [PAGE]  # as a plan asks
