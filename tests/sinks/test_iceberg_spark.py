"""Batches that Spark has written, published into an Iceberg table, and the table as Spark's Iceberg runtime and
pyiceberg read it; tables that Spark has made, and what others do to them by Spark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.checks import Checks
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.sinks.merge import Merge
from tests.environments import jars
from tests.runtime.jobs import EXPECTED, ROWS, land, make_job
from tests.sinks.changes import change
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.merged_iceberg import MergedInIceberg
from tests.sinks.stages import batch_of, expect
from tests.sinks.versions_by_spark import (
    VERSIONED,
    check_nothing_forgotten_comes_back,
    check_versions_of_now_and_of_then,
)
from tests.support.iceberg_table import catalog_file, connection_of, opened_in, sink_in
from tests.support.local_spark import local_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CATALOG = "tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("my lake")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{catalog_file(folder)}",
        f"{catalog}.warehouse": str(folder),
        f"{catalog}.cache-enabled": "false",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.shuffle.partitions": "1",
    }
    opened_in(folder)._log.catalog.get()  # makes the catalog's tables
    with local_spark(jars=jars("iceberg"), conf=conf) as session:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.shop")
        yield session


def publish(sink: OpenSink, number: int, *, rows: int = 3, epoch: int = 1) -> None:
    key = BatchKey("live", number)
    write_delta_stage(sink, epoch, batch=batch_of(key), rows=rows)
    if epoch == 1:
        sink.publish(expect(key), epoch)
    else:
        sink.replace(expect(key), epoch)


def rows(spark: Any, name: str) -> Counter[tuple[int, int]]:
    """How many rows there are of each batch and attempt, as Spark reads them."""
    return Counter((row.batch_id, row.epoch) for row in spark.table(f"{CATALOG}.shop.{name}").collect())


def make(spark: Any, folder: Path, name: str, how: str = "", columns: str = "") -> None:
    columns = columns or "id BIGINT, epoch BIGINT, lane STRING, batch_id BIGINT"
    spark.sql(f"CREATE TABLE {CATALOG}.shop.{name} ({columns}) USING iceberg {how} LOCATION 'file://{folder}/{name}'")


def compact(spark: Any, name: str) -> None:
    spark.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => 'shop.{name}', options => map('min-input-files', '2'))"
    )


def snapshots(sink: OpenIceberg) -> int:
    look = sink._log.look()
    assert look is not None
    return len(look.table.metadata.snapshots)


def test_a_batch_of_spark_is_read_by_both_as_it_was_written(spark: Any, folder: Path) -> None:
    sink = opened_in(folder, "kinds", partition_by=("note", "day(happened)", "month(day)", "hour(at)", "year(wall)"))
    orders = land(folder / "landing", [*ROWS, {"id": 4, "note": None}])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    run_job(spark, make_job(sink, "of_kinds_of_iceberg", [orders]))
    manifest = sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) == manifest
    assert snapshots(sink) == 1
    table = spark.table(f"{CATALOG}.shop.kinds")
    found = {row.id: row.asDict(recursive=True) for row in table.collect()}
    assert sorted(found) == [1, 2, 3, 4]
    assert [found[id]["note"] for id in (1, 2, 3, 4)] == ["a b", "50%/ü=?", "_c", None]
    assert (found[1]["tiny"], found[2]["small"], str(found[1]["amount"])) == (1, 2, "1.50")
    assert (found[1]["lane"], found[1]["batch_id"]) == ("live", 0)
    # Whoever believes a bound that is wrong passes over rows.
    for column in table.columns:
        if column in ("inner", "by_key"):
            continue
        for id, row in found.items():
            like = table.where(f"`{column}` <=> (SELECT `{column}` FROM {CATALOG}.shop.kinds WHERE id = {id})")
            assert id in {one.id for one in like.collect()}, (column, row[column])
    assert table.where("ratio > 3.5").count() == 2, "NaN, and 4"
    days = spark.sql(
        f"SELECT partition.happened_day d, count(*) n FROM {CATALOG}.shop.kinds.files GROUP BY 1"
    ).collect()
    assert {str(row.d) for row in days} == {"2026-01-01", "None"}
    look = sink._log.look()
    assert look is not None
    arrow = {row["id"]: row for row in look.table.scan().to_arrow().to_pylist()}
    for id, row in found.items():
        for column in ("note", "amount", "day", "raw", "half", "wall", "tiny", "small", "yes"):
            assert arrow[id][column] == row[column], column
        assert arrow[id]["inner"] == row["inner"]
        assert dict(arrow[id]["by_key"]) == row["by_key"]


def test_ids_that_columns_bring_from_another_table_are_none_of_this_one(spark: Any, folder: Path) -> None:
    """Where a file has one, Iceberg's readers know no column of it by its name."""
    sink = opened_in(folder, "ids")
    run_job(spark, make_job(sink, "with_ids_of_another_table", [land(folder / "landing")]))
    sink.publish(EXPECTED, 1)
    found = spark.table(f"{CATALOG}.shop.ids").orderBy("id").collect()
    assert [{"id": row.id, "note": row.note} for row in found] == ROWS


def test_rows_that_were_held_against_not_null_are_read_by_spark(spark: Any, folder: Path) -> None:
    """Plain files have columns that may be null, where the table's may not."""
    make(spark, folder, "held", columns="id BIGINT NOT NULL, note STRING, lane STRING, batch_id BIGINT")
    context = SinkContext(connect=lambda _: connection_of(folder), rows_are_judged=True)
    sink = sink_in(folder, "held").open(context)
    sink.check()
    checks = Checks(intakes=sink.intakes_by_name())
    run_job(spark, make_job(sink, "keep", [land(folder / "held_landing")], checks=checks))
    sink.publish(EXPECTED, 1)
    table = spark.table(f"{CATALOG}.shop.held")
    assert not table.schema["id"].nullable
    assert sorted(row.id for row in table.where("id IS NOT NULL").collect()) == [1, 2, 3]


def test_what_is_in_is_known_when_all_snapshots_of_before_have_expired_and_files_were_compacted(
    spark: Any, folder: Path
) -> None:
    make(spark, folder, "kept")
    sink = opened_in(folder, "kept")
    for number in (5, 6, 7):
        publish(sink, number)
    known = {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)}
    name = f"{CATALOG}.shop.kept"
    spark.sql(f"INSERT INTO {name} VALUES (1, 9, NULL, NULL)")
    compact(spark, "kept")
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => 'shop.kept', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )
    assert spark.table(f"{name}.files").count() == 1
    assert snapshots(sink) == 1
    fresh = opened_in(folder, "kept")
    assert {number: fresh.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)} == known
    assert fresh.batches("live", expect().tables) == [5, 6, 7]
    publish(fresh, 6, rows=2, epoch=2)
    assert rows(spark, "kept") == {(5, 1): 3, (6, 2): 2, (7, 1): 3, (None, 9): 1}
    assert snapshots(sink) == 2, "a replay is one snapshot"
    assert fresh.withdraw(expect(BatchKey("live", 5)), 1)
    assert rows(spark, "kept") == {(6, 2): 2, (7, 1): 3, (None, 9): 1}


def test_rows_that_others_deleted_stay_deleted_where_another_batch_is_replayed(spark: Any, folder: Path) -> None:
    modes = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"
    make(spark, folder, "deleted", f"TBLPROPERTIES ('format-version'='2', {modes})")
    sink = opened_in(folder, "deleted")
    for number in (0, 1):
        publish(sink, number)
    name = f"{CATALOG}.shop.deleted"
    spark.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => 'shop.deleted', options => map('min-input-files', '2'))"
    )
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    assert spark.table(f"{name}.delete_files").count() == 1
    publish(sink, 1, epoch=2)
    assert rows(spark, "deleted") == {(0, 1): 2, (1, 2): 3}


def test_a_rollback_takes_no_batch_away_without_a_word(spark: Any, folder: Path) -> None:
    make(spark, folder, "rolled")
    sink = opened_in(folder, "rolled")
    publish(sink, 0)
    look = sink._log.look()
    assert look is not None
    assert look.head is not None
    publish(sink, 1)
    spark.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('shop.rolled', {look.head.snapshot_id})")
    for asked in (sink.check, lambda: sink.contains(expect(BatchKey("live", 1))), lambda: publish(sink, 2)):
        with pytest.raises(SinkError, match=f"rolled back to snapshot {look.head.snapshot_id}"):
            asked()
    spark.sql(f"INSERT INTO {CATALOG}.shop.rolled VALUES (1, 9, NULL, NULL)")
    with pytest.raises(SinkError, match="rolled back to snapshot"):
        sink.check()
    spark.sql(f"ALTER TABLE {CATALOG}.shop.rolled UNSET TBLPROPERTIES ('microbatch.last.main')")
    publish(sink, 1, epoch=2)
    assert rows(spark, "rolled") == {(0, 1): 3, (1, 2): 3, (None, 9): 1}


def test_a_branch_is_published_to_and_main_sees_it_when_it_is_told_to(spark: Any, folder: Path) -> None:
    make(spark, folder, "branched")
    main, audit = opened_in(folder, "branched"), opened_in(folder, "branched", branch="audit")
    publish(main, 0)
    with pytest.raises(SinkError, match="CREATE BRANCH `audit`"):
        audit.check()
    spark.sql(f"ALTER TABLE {CATALOG}.shop.branched CREATE BRANCH audit")
    publish(audit, 0)
    publish(audit, 1)
    assert rows(spark, "branched") == {(0, 1): 3}
    assert main.contains(expect(BatchKey("live", 1))) is None
    spark.sql(f"CALL {CATALOG}.system.fast_forward('shop.branched', 'main', 'audit')")
    assert rows(spark, "branched") == {(0, 1): 3, (1, 1): 3}  # the branch had batch 0 from the start


REFUSED = {
    "bucket": ("PARTITIONED BY (bucket(4, id))", "", r"a partition by bucket\[4\] of id"),
    "truncated": ("PARTITIONED BY (truncate(2, lane))", "", r"a partition by truncate\[2\] of lane"),
    "needed": ("", "id BIGINT NOT NULL, epoch BIGINT, lane STRING, batch_id BIGINT", "the column id that is NOT NULL"),
    "first": ("TBLPROPERTIES ('format-version'='1')", "", "the format version 1"),
    "third": ("TBLPROPERTIES ('format-version'='3')", "", "the format version 3"),
    "parted": ("PARTITIONED BY (days(at))", "id BIGINT, at TIMESTAMP", r"partition_by=\['day\(at\)'\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_plain_files_cannot_serve_is_refused_before_anything_runs(
    spark: Any, folder: Path, name: str
) -> None:
    how, columns, why = REFUSED[name]
    make(spark, folder, name, how, columns)
    with pytest.raises(SinkError, match=why):
        opened_in(folder, name).check()


def test_a_name_that_was_once_another_columns_is_refused(spark: Any, folder: Path) -> None:
    """Files without ids have their columns by name: readers would find the old one's values in the new one."""
    make(spark, folder, "renamed")
    sink = opened_in(folder, "renamed")
    publish(sink, 0)
    spark.sql(f"ALTER TABLE {CATALOG}.shop.renamed RENAME COLUMN epoch TO attempt")
    sink.check()
    assert {row.attempt for row in spark.table(f"{CATALOG}.shop.renamed").collect()} == {1}
    spark.sql(f"ALTER TABLE {CATALOG}.shop.renamed ADD COLUMN epoch BIGINT")
    with pytest.raises(SinkError, match="the column epoch that was once another one's name"):
        sink.check()


def test_columns_that_others_or_a_batch_add_are_null_where_they_were_not(spark: Any, folder: Path) -> None:
    make(spark, folder, "grown")
    sink = opened_in(folder, "grown")
    publish(sink, 0)
    spark.sql(f"ALTER TABLE {CATALOG}.shop.grown ADD COLUMN more STRING")
    with pytest.raises(SinkError, match="'more' too"):
        publish(sink, 1)
    allowing = opened_in(folder, "grown", schema_policy="add_columns")
    write_delta_stage(allowing, 2, batch=batch_of(BatchKey("live", 1)))
    allowing.publish(expect(BatchKey("live", 1)), 2)
    spark.sql(f"INSERT INTO {CATALOG}.shop.grown (id, more) VALUES (8, 'x')")
    found = spark.table(f"{CATALOG}.shop.grown").collect()
    assert Counter(row.more for row in found) == {None: 6, "x": 1}


def test_values_of_all_kinds_are_the_same_after_a_merge_has_written_their_file_anew(spark: Any, folder: Path) -> None:
    name, merge = f"{CATALOG}.shop.merged", Merge(keys=("id", "day"), sequence_by=("at", "amount"))
    sink, later = opened_in(folder, "merged", merge=merge), batch_of(BatchKey("live", 1))
    run_job(spark, make_job(sink, "of_kinds_of_iceberg", [land(folder / "first")]))
    sink.publish(EXPECTED, 1)
    # As people do, which leaves a file of deleted rows, and one as Spark's Iceberg writes it.
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.update.mode'='merge-on-read')")
    spark.sql(f"UPDATE {name} SET half = 7 WHERE id = 3")
    assert spark.table(f"{name}.delete_files").count() == 1

    def rows() -> list[Any]:
        found: list[Any] = spark.table(name).orderBy("id").collect()
        return found

    before = rows()
    assert [row.half for row in before] == [0.5, 0.5, 7.0]
    stages = sink.stages_by_name(later, 1)
    orders = [land(folder / "later", [{"id": 1, "note": "zz"}, {"id": 3, "note": "_c"}])]
    run_job(spark, make_job(sink, "of_kinds_of_iceberg", orders, batch_id=1, stages=stages, identity=later.to_dict()))
    sink.publish(expect(later.key), 1)
    assert str(rows()[1]) == str(before[1])  # of a row with NaN the text alone is equal to itself
    assert rows()[2] == before[2]
    assert (rows()[0].inner[0].b, rows()[0].batch_id) == ("zz", 1)
    look = sink._log.look()
    assert look is not None
    assert look.table.scan().to_arrow().num_rows == 3


def test_a_deletion_is_remembered_whatever_spark_does_to_the_table(spark: Any, folder: Path) -> None:
    name, table = f"{CATALOG}.shop.customers", MergedInIceberg(folder / "customers")
    table.publish(1, change(ts=1), change(id=2), change(id=3))
    table.publish(2, change(ts=5, deleted=True))
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.format.default'='orc')")
    spark.sql(f"INSERT INTO {name} (id, shop, ts, seq, note) VALUES (3, 'a', 9, 1, 'twice'), (4, 'a', 9, 1, 'theirs')")
    compact(spark, "customers")
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => 'shop.customers', "
        "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1)"
    )
    table.publish(3, change(ts=4, note="late"), change(id=3, ts=2))
    assert table.rows() == [(2, "a", 1, 1, "x"), (3, "a", 2, 1, "x"), (4, "a", 9, 1, "theirs")]
    head = table.table().metadata.current_snapshot_id
    table.publish(4, change(ts=6))
    newest = table.rows()
    spark.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('shop.customers', {head})")
    with pytest.raises(SinkError, match=f"rolled back to snapshot {head}") as refused:
        table.publish(5, change(id=5))
    (call,) = re.findall(r"CALL (system\.\S+\('shop\.customers', \d+\))", str(refused.value))
    spark.sql(f"CALL {CATALOG}.{call}")
    table.sink.publish(expect(BatchKey("live", 5)), 1)
    assert table.rows() == [*newest, (5, "a", 1, 1, "x")]
    found = [tuple(row) for row in spark.table(name).select("id", "shop", "ts", "seq", "note").orderBy("id").collect()]
    assert found == table.rows()


def test_spark_finds_the_versions_of_now_and_of_then(spark: Any, folder: Path) -> None:
    sink = opened_in(folder, "history", merge=VERSIONED)
    check_versions_of_now_and_of_then(spark, sink, f"{CATALOG}.shop.history", landing=folder / "history_landing")


def test_what_is_forgotten_leaves_no_older_state_behind(spark: Any, folder: Path) -> None:
    sink, landing = opened_in(folder, "forgotten", merge=VERSIONED), folder / "forgotten_landing"

    def rows() -> list[Any]:
        return [tuple(row) for row in spark.table(f"{CATALOG}.shop.forgotten").select("name", "valid_to").collect()]

    check_nothing_forgotten_comes_back(spark, sink, rows, landing=landing)


def test_changes_are_not_merged_beside_equality_deletes(spark: Any, folder: Path) -> None:
    """As Flink writes them; pyiceberg does not read them."""
    table, jvm = MergedInIceberg(folder / "flinks"), spark._jvm
    table.publish(1, change())
    java = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{CATALOG}.shop.flinks")
    ids = spark._sc._gateway.new_array(jvm.int, 1)
    ids[0] = 1
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(ids)
    deletes = builder.withPath(f"file://{folder}/flinks/data/deletes.parquet").withFileSizeInBytes(1).withRecordCount(1)
    java.newRowDelta().addDeletes(deletes.build()).commit()
    with pytest.raises(SinkError, match=r"cannot be read here: .*equality deletes.*Compact the table"):
        table.publish(2, change(ts=2))
