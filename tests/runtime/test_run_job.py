"""What ``run_job`` leaves behind, in a session of this process."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime import report, write
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Read
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.report import read_schema
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from tests.runtime.jobs import BATCH, EXPECTED, ROWS, land, make_job
from tests.support.iceberg_table import opened_in
from tests.support.local_spark import local_spark
from tests.tables.stages import create_stage_table

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


@pytest.fixture
def orders(tmp_path: Path) -> str:
    return land(tmp_path / "landing")


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "my lake ü%20"), format="json")


def delta_in(folder: Path) -> OpenSink:
    return DeltaSink(str(folder)).open(SinkContext())


def rows_of(sink: OpenSink) -> list[dict[str, Any]]:
    """As somebody finds them who reads the files without Spark."""
    if isinstance(sink, OpenIceberg):
        look = sink._log.look()
        assert look is not None
        table = look.table.scan().to_arrow()
    else:
        assert isinstance(sink.definition, DeltaSink)
        table = DeltaTable(sink.definition.root.as_uri()).to_pyarrow_table()
    found: list[dict[str, Any]] = table.sort_by("id").to_pylist()
    return found


def failure_of(spark: Any, sink: FileSink, function: str, paths: list[str], **changes: Any) -> dict[str, Any]:
    with pytest.raises(BatchFailure):
        run_job(spark, make_job(sink, function, paths, **changes))
    assert sink.manifest(BATCH, 1) is None
    with pytest.raises(SinkError, match="no complete stage"):
        sink.publish(EXPECTED, 1)
    reported = sink.failure(BATCH, 1)
    assert reported is not None
    return dict(reported)


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc"])
def test_every_format_comes_back_as_it_went_in(spark: Any, tmp_path: Path, orders: str, format: str) -> None:
    sink = FileSink(str(tmp_path / "lake"), format=format)
    run_job(spark, make_job(sink, None, [orders]))
    sink.publish(EXPECTED, 1)
    frame = spark.read.format(format).schema("id long, note string").load(str(sink.root))
    assert sorted(row.id for row in frame.collect()) == [1, 2, 3]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_partition_values_of_any_kind_are_listed_as_they_lie_on_disk(
    spark: Any, tmp_path: Path, orders: str, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    if elsewhere:
        # As where Spark's driver is on another host: then Spark lists the stage and writes the manifest.
        for module in (write, report):
            monkeypatch.setattr(module, "folder_beside_driver", lambda spark, address: None)
    sink = FileSink(str(tmp_path / "my lake ü%20"), format="parquet", partition_by=("note",))
    run_job(spark, make_job(sink, "keep", [orders]))
    manifest = sink.publish(EXPECTED, 1)
    folder = sink.root / "lane=live" / "batch_id=0"
    assert len(manifest.files) == 3
    assert {name: (folder / name).stat().st_size for name in manifest.files} == dict(manifest.files)
    rows = spark.read.parquet(str(sink.root)).collect()
    assert {(row.id, row.note, row.lane, row.batch_id) for row in rows} == {
        (row["id"], row["note"], "live", 0) for row in ROWS
    }


@pytest.mark.parametrize("partition_by", [(), ("note",)])
def test_a_batch_without_rows_is_published_too(
    spark: Any, tmp_path: Path, orders: str, partition_by: tuple[str, ...]
) -> None:
    for number, (function, paths) in enumerate([("empties_it", [orders]), ("keep", [])]):
        sink = FileSink(str(tmp_path / f"lake{number}"), partition_by=partition_by)
        result = run_job(spark, make_job(sink, function, paths))
        assert result["numOutputRows"] == 0
        assert sink.publish(EXPECTED, 1).result["numInputRows"] == {"orders": 3 if paths else 0}
        assert sink.contains(EXPECTED) is not None


def test_rows_read_are_counted_once_however_often_a_source_is_used(spark: Any, sink: FileSink, orders: str) -> None:
    result = run_job(spark, make_job(sink, "uses_it_twice", [orders]))
    assert result["numInputRows"] == {"orders": 3}
    assert result["numOutputRows"] == 9


def test_a_source_that_is_not_used_does_not_hang_the_batch(spark: Any, sink: FileSink, orders: str) -> None:
    result = run_job(spark, make_job(sink, "ignores_its_input", [orders]))
    assert result["numInputRows"] == {"orders": None}
    assert result["numOutputRows"] == 2


def test_an_action_in_the_transform_leaves_no_wrong_count(spark: Any, sink: FileSink, orders: str) -> None:
    result = run_job(spark, make_job(sink, "counts_it_first", [orders]))
    assert result["numInputRows"] == {"orders": None}
    assert result["numOutputRows"] == 3


def test_the_batch_can_ask_for_another_and_has_the_pinned_time(spark: Any, sink: FileSink, orders: str) -> None:
    result = run_job(spark, make_job(sink, "wants_another", [orders]))
    assert result["requiresAnotherBatch"] is True
    manifest = sink.publish(EXPECTED, 1)
    text = (sink.root / "lane=live" / "batch_id=0" / next(iter(manifest.files))).read_text()
    assert json.loads(text.splitlines()[0])["at"] == "2023-11-14T22:13:20.123000+00:00"


@pytest.mark.parametrize(
    ("watermark_ms", "said"),
    [
        (0, "None"),
        (1_700_000_000_123, "2023-11-14 22:13:20.123000+00:00"),
        # Of one row with milliseconds for seconds: each batch behind it is told the last moment that Python has.
        (1_767_225_609_940_000, "9999-12-31 23:59:59.999000+00:00"),
    ],
)
def test_a_transform_is_told_the_watermark_that_is_pinned(
    spark: Any, sink: FileSink, orders: str, watermark_ms: int, said: str
) -> None:
    run_job(spark, make_job(sink, "says_the_watermark", [orders], watermark_ms=watermark_ms))
    manifest = sink.publish(EXPECTED, 1)
    paths = [sink.root / "lane=live" / "batch_id=0" / name for name in manifest.files]
    assert {json.loads(line)["note"] for path in paths for line in path.read_text().splitlines()} == {said}


def test_the_hidden_metadata_column_is_still_there(spark: Any, sink: FileSink, orders: str) -> None:
    run_job(spark, make_job(sink, "shows_the_files", [orders]))
    assert sink.publish(EXPECTED, 1).result["numOutputRows"] == 3


def test_a_transform_that_raises_shows_its_own_frames_only(spark: Any, sink: FileSink, orders: str) -> None:
    report = failure_of(spark, sink, "raises", [orders])
    assert report["origin"] == "transform"
    assert "no_such_column" in report["error"]
    assert "in broken_helper" in report["traceback"]
    assert "shop.py" in report["traceback"]
    for noise in ("runtime/app.py", "pyspark/sql", "py4j"):
        assert noise not in report["traceback"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("returns_none", "returned None, not a DataFrame"),
        ("returns_pandas", "returned a pandas.DataFrame, not a DataFrame of Spark; make it one"),
        ("returns_a_list", "returned list, not a DataFrame of Spark"),
        ("takes_our_column", "Batch_ID"),
        ("wrong_source", "'orders'"),
        ("exits", "SystemExit"),
        ("fails_in_a_udf", "ZeroDivisionError"),
        ("not_there", "has no function 'not_there'"),
    ],
)
def test_what_a_transform_can_do_wrong(spark: Any, sink: FileSink, orders: str, function: str, said: str) -> None:
    report = failure_of(spark, sink, function, [orders])
    assert report["origin"] == "transform"
    assert said in report["error"]


@pytest.mark.parametrize(("schema", "said"), [("id lonk", "LONK"), ("int", "not a list of columns")])
def test_a_schema_that_is_none_names_the_source(
    spark: Any, sink: FileSink, orders: str, schema: str, said: str
) -> None:
    report = failure_of(spark, sink, "keep", [orders], schema=schema)
    assert report["origin"] == "read"
    assert f"source 'orders': schema {schema!r} cannot be understood" in report["error"]
    assert said in report["error"]


def test_a_file_that_is_gone_is_a_failure_of_the_read(spark: Any, sink: FileSink, orders: str) -> None:
    assert failure_of(spark, sink, "keep", [orders + ".gone"])["origin"] == "read"


def test_a_value_that_cannot_be_computed_with_is_the_datas_fault(spark: Any, sink: FileSink, orders: str) -> None:
    """Spark is lazy, so it is found by the write. It is no more the table's fault than a bad function is."""
    report = failure_of(spark, sink, "divides_by_zero", [orders])
    assert report["origin"] == "data"
    assert "DIVIDE_BY_ZERO" in report["error"]


def test_a_column_to_partition_by_that_is_missing(spark: Any, tmp_path: Path, orders: str) -> None:
    sink = FileSink(str(tmp_path / "lake"), partition_by=("day",))
    report = failure_of(spark, sink, "keep", [orders])
    assert report["origin"] == "result"
    assert "partition_by names day" in report["error"]


@pytest.mark.parametrize(
    ("function", "partition_by", "said"),
    [
        ("has_a_column_twice", (), "COLUMN_ALREADY_EXISTS"),
        ("has_an_interval", (), "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE"),
        ("keep", ("id", "note"), "ALL_PARTITION_COLUMNS_NOT_ALLOWED"),
    ],
)
def test_a_result_that_cannot_be_written_is_told_as_such(
    spark: Any, tmp_path: Path, orders: str, function: str, partition_by: tuple[str, ...], said: str
) -> None:
    sink = FileSink(str(tmp_path / "lake"), partition_by=partition_by)
    report = failure_of(spark, sink, function, [orders])
    assert report["origin"] == "result"
    assert said in report["error"]


def test_a_text_that_spark_takes_for_no_value_is_named_with_the_ways_on(spark: Any, tmp_path: Path) -> None:
    rows = [{"id": 1, "note": None}, {"id": 2, "note": ""}, {"id": 3, "note": "__HIVE_DEFAULT_PARTITION__"}]
    sink = FileSink(str(tmp_path / "lake"), partition_by=("note",))
    run_job(spark, make_job(sink, "keep", [land(tmp_path / "without", rows[:2])]))
    with pytest.raises(BatchFailure) as failure:
        run_job(spark, make_job(sink, "keep", [land(tmp_path / "landing", rows)], epoch=2))
    assert failure.value.origin == "result"
    assert failure.value.error.startswith("FileAlreadyExistsException: ")
    assert "rows without a value in a column of partition_by (note)" in failure.value.error
    assert "make that text null (nullif)" in failure.value.error


def test_texts_that_spark_takes_for_no_value_have_partitions_of_their_own_in_iceberg(
    spark: Any, tmp_path: Path
) -> None:
    notes = [None, "", "__HIVE_DEFAULT_PARTITION__", "_"]
    landed = land(tmp_path / "landing", [{"id": id, "note": note} for id, note in enumerate(notes)])
    sink = opened_in(tmp_path / "lake", partition_by=("note",))
    run_job(spark, make_job(sink, "keep", [landed]))
    sink.publish(EXPECTED, 1)
    look = sink._log.look()
    assert look is not None
    for id, note in enumerate(notes):
        asked = "note IS NULL" if note is None else f"note = '{note}'"
        found = look.table.scan(row_filter=asked).to_arrow().to_pylist()
        assert [(row["id"], row["note"]) for row in found] == [(id, note)]
    assert sorted(str(one.file.partition[0]) for one in look.table.scan().plan_files()) == sorted(map(str, notes))


@pytest.mark.parametrize("open_in", [opened_in, delta_in], ids=["iceberg", "delta"])
def test_days_of_before_1582_are_told_to_all_readers_in_the_calendar_of_theirs(
    spark: Any, tmp_path: Path, orders: str, open_in: Callable[[Path], OpenSink]
) -> None:
    sink, rebase = open_in(tmp_path / "lake"), "spark.sql.parquet.datetimeRebaseModeInWrite"
    run_job(spark, make_job(sink, "before_the_calendar_was_changed", [orders], conf={rebase: "LEGACY"}))
    assert spark.conf.get(rebase) == "LEGACY"
    spark.conf.unset(rebase)
    sink.publish(EXPECTED, 1)
    found = {(row["day"], row["at"]) for row in rows_of(sink)}
    assert found == {(dt.date(1500, 1, 1), dt.datetime(1500, 1, 1, tzinfo=dt.UTC))}


def test_a_stage_is_never_written_twice_and_the_result_is_not_blamed(spark: Any, sink: FileSink, orders: str) -> None:
    run_job(spark, make_job(sink, "keep", [orders]))
    with pytest.raises(BatchFailure, match="PATH_ALREADY_EXISTS") as failure:
        run_job(spark, make_job(sink, "keep", [orders]))
    assert failure.value.origin == "write"


def test_settings_are_pinned_and_a_static_one_only_warns(
    spark: Any, sink: FileSink, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.warehouse.dir": "/nowhere"}
    run_job(spark, make_job(sink, "keep", [orders], conf=conf))
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert "spark.sql.warehouse.dir" in caplog.text
    spark.conf.unset("spark.sql.session.timeZone")


def test_a_table_that_is_made_as_a_whole_has_the_querys_columns_and_tells_them(
    spark: Any, tmp_path: Path, orders: str
) -> None:
    sink = TableSink(PathCatalog(str(tmp_path / "lake")), "sales.orders", mode="create")
    create_stage_table(sink, 1, batch=BATCH)
    run_job(spark, make_job(sink, "takes_our_column", [orders]))
    sink.publish(EXPECTED, 1)
    table = tmp_path / "lake" / "sales" / "orders"
    rows = spark.read.parquet(str(table))
    assert rows.columns == ["id", "note", "Batch_ID"]
    assert rows.count() == 3
    mark = json.loads((table / "_table.json").read_text())
    # A file's columns may all be null; the query's are told as they were.
    recorded = [(field["name"], field["type"]) for field in mark["schema"]["fields"]]
    assert recorded == [("id", "long"), ("note", "string"), ("Batch_ID", "integer")]
    told = read_schema(table)
    assert told is not None
    assert told["columns"] == [["id", "bigint"], ["note", "string"], ["Batch_ID", "int"]]


def test_a_declared_schema_orders_and_widens_and_takes_no_other_column(spark: Any, tmp_path: Path, orders: str) -> None:
    declared = {"mode": "create", "schema": "note string, id decimal(38,0)"}
    sink = TableSink(PathCatalog(str(tmp_path / "lake")), "orders", **declared)  # type: ignore[arg-type]
    create_stage_table(sink, 1, batch=BATCH)
    run_job(spark, make_job(sink, "keep", [orders]))
    sink.publish(EXPECTED, 1)
    assert [field.simpleString() for field in spark.read.parquet(str(tmp_path / "lake" / "orders")).schema] == [
        "note:string", "id:decimal(38,0)"
    ]  # fmt: skip
    for number, (schema, said) in enumerate([("id long", "has note too"), ("id string, note boolean", "note")]):
        refusing = TableSink(PathCatalog(str(tmp_path / f"lake{number}")), "orders", schema=schema)
        create_stage_table(refusing, 1, batch=BATCH)
        with pytest.raises(BatchFailure, match=said) as failure:
            run_job(spark, make_job(refusing, "keep", [orders]))
        assert failure.value.origin in ("result", "data")
        assert refusing.manifest(BATCH, 1) is None


def test_a_source_without_a_frame_says_why_to_whoever_asks_for_it(spark: Any, sink: FileSink) -> None:
    absent = {"orders": "there is no file in it."}
    report = failure_of(spark, sink, "keep", [], sources={}, absent=absent)
    assert report["origin"] == "transform"
    assert "source 'orders' has no frame in this batch: there is no file in it." in report["error"]
    run_job(spark, make_job(sink, "ignores_its_input", [], epoch=2, sources={}, absent=absent))


@pytest.mark.parametrize("function", [None, "keep", "raises"])
def test_files_that_hold_nothing_make_a_batch_without_rows_and_pin_nothing(
    spark: Any, sink: FileSink, tmp_path: Path, caplog: pytest.LogCaptureFixture, function: str | None
) -> None:
    (tmp_path / "0_SUCCESS").touch()
    result = run_job(spark, make_job(sink, function, [str(tmp_path / "0_SUCCESS")], schema=None))
    assert (result["numInputRows"], result["numOutputRows"]) == ({"orders": 0}, 0)
    assert result["learned"] == {}
    assert result["read"] == {"orders": {"files": 1, "left_out": [], "as_found": []}}
    assert sink.publish(EXPECTED, 1).files == {}
    assert sink.contains(EXPECTED) is not None
    for text in ("source orders: its 1 file(s) hold neither a column nor a row", "the transform is not called"):
        assert text in caplog.text
        assert any(text in warning for warning in result["warnings"])


def test_rows_without_a_column_are_a_failure_of_the_read(spark: Any, sink: FileSink, tmp_path: Path) -> None:
    (tmp_path / "braces.json").write_text("{}\n")
    told = failure_of(spark, sink, "keep", [str(tmp_path / "braces.json")], schema=None)
    assert told["origin"] == "read"
    assert "braces.json" in told["error"]
    assert "schema=" in told["error"]


def test_a_source_whose_files_hold_nothing_has_no_frame_beside_one_that_has(
    spark: Any, sink: FileSink, orders: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.json").touch()
    sources = {
        "orders": make_job(sink, None, [str(tmp_path / "empty.json")], schema=None).sources["orders"],
        "refunds": make_job(sink, None, [orders]).sources["orders"],
    }
    told = failure_of(spark, sink, "keep", [], sources=sources)
    assert told["origin"] == "transform"
    assert "source 'orders' has no frame in this batch: its 1 file(s) hold neither" in told["error"]
    result = run_job(spark, make_job(sink, "ignores_its_input", [], epoch=2, sources=sources))
    assert (result["numInputRows"]["orders"], result["numOutputRows"]) == (0, 2)


def test_a_table_that_is_made_of_the_results_columns_is_not_made_of_none(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    for schema in (None, "id long"):
        sink = TableSink(PathCatalog(str(tmp_path / f"lake{schema is None}")), "orders", mode="create", schema=schema)
        create_stage_table(sink, 1, batch=BATCH)
        job = make_job(sink, "keep", [str(tmp_path / "empty.json")], schema=None)
        if schema is None:
            with pytest.raises(BatchFailure, match=r"table orders is made of the result's columns.*schema") as told:
                run_job(spark, job)
            assert told.value.origin == "read"
        else:
            run_job(spark, job)
            assert sink.publish(EXPECTED, 1).files == {}


def test_columns_that_a_file_has_by_no_such_name_are_counted_as_nothing(
    spark: Any, sink: FileSink, tmp_path: Path
) -> None:
    spark.range(3).write.parquet(str(tmp_path / "made"))
    (made,) = (tmp_path / "made").glob("*.parquet")
    sources = {
        "orders": Read(
            reader="airflow_provider_microbatch.runtime.files:read",
            arguments={
                "name": "orders",
                "format": "parquet",
                "schema": "key long",
                "options": {},
                "groups": [{"base_path": None, "paths": [str(made)]}],
            },
        )
    }
    result = run_job(spark, make_job(sink, None, [], sources=sources))
    assert result["numEmptyRows"] == {"orders": 3}


@pytest.mark.parametrize("kind", ["date", "int"])
def test_a_folder_that_does_not_fit_its_column_is_named_with_the_ways_on(
    spark: Any, sink: FileSink, tmp_path: Path, kind: str
) -> None:
    stray = tmp_path / "in" / "dt=foo" / "1.json"
    stray.parent.mkdir(parents=True)
    stray.write_text('{"id": 1}\n')
    read = Read(
        reader="airflow_provider_microbatch.runtime.files:read",
        arguments={
            "name": "orders",
            "format": "json",
            "schema": f"id long, dt {kind}",
            "options": {},
            "groups": [{"base_path": str(tmp_path / "in"), "paths": [str(stray)]}],
        },
    )
    ways = rf"'dt=foo' does not fit column 'dt', .* {kind.upper()}.*schema='…, dt string'.*on_missing='skip'"
    with pytest.raises(BatchFailure, match=ways) as told:
        run_job(spark, make_job(sink, None, [], sources={"orders": read}))
    assert told.value.origin == "read"


@pytest.mark.parametrize(
    ("schema", "warning"),
    [("key long, text string", "3 of 3 rows have nothing in any column"), ("id long, note string", None)],
)
def test_a_schema_that_fits_no_column_warns(
    spark: Any,
    sink: FileSink,
    orders: str,
    schema: str,
    warning: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = run_job(spark, make_job(sink, None, [orders], schema=schema))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [warning in text for text in said] == [True] if warning else said == []
    # The task, where Spark's log comes through a pipe, warns by the result, and a replay is judged by the figure.
    assert result["warnings"] == said
    assert result["numEmptyRows"] == ({"orders": 3} if warning else {})
