"""What Spark writes comes back out of PostgreSQL as it was: every type, and whatever is nasty about its values."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.connections import find_by
from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime.changes import Changes
from airflow_provider_microbatch.runtime.copy_lines import write
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.engines.conftest import World
from tests.engines.conftest import spark_default as spark_default
from tests.postgres import database
from tests.sinks.stages import BATCH, EXPECTED, batch_of, expect
from tests.sinks.versions_by_spark import MERGE, VERSIONED, check_nothing_forgotten_comes_back
from tests.support.local_spark import local_spark
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # A zone whose clocks are set back, and one in which the first days of PostgreSQL's calendar had odd seconds.
    with local_spark(conf={"spark.sql.session.timeZone": "Europe/Amsterdam"}) as session:
        yield session


def staged(sink: OpenPostgres, frame: Any, epoch: int = 1) -> None:
    """As the runtime leaves it."""
    stage = sink.stage(BATCH, epoch)
    if (changes := Changes.of(stage.arguments)) is not None:
        frame = changes.marked(frame, forgotten=None)
    listing = write(frame, stage.arguments)
    result = {"batchId": BATCH.key.id, "epoch": epoch, "identity": BATCH.to_dict()}
    report.write_manifest(frame.sparkSession, stage.report, result, listing)


def published(sink: OpenPostgres, folder: Path, frame: Any, what: str = "*", order: str = "1") -> list[Any]:
    staged(sink, frame)
    sink.publish(EXPECTED, 1)
    return database.rows(database.table_in(folder), what, order)


def test_every_type_has_its_own(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        SELECT 1 AS id, true AS b, tinyint(-128) AS i1, smallint(-32768) AS i2, int(-2147483648) AS i4,
            bigint(-9223372036854775808) AS i8, float('1.1') AS f4, double('-1.7976931348623157E308') AS f8,
            cast('-99999999999999999999.999999999999999999' AS decimal(38, 18)) AS n,
            cast(0 AS decimal(38, 18)) AS zero,
            'text' AS s, X'00FF5C0A09' AS y, DATE'2026-02-28' AS d, TIMESTAMP'2026-10-25 02:30:00.123456+01:00' AS late,
            TIMESTAMP'2026-10-25 02:30:00.123456+02:00' AS early, TIMESTAMP_NTZ'2026-03-29 02:30:00.000001' AS gap,
            array(1, null) AS a, named_struct('x', null, 'y', TIMESTAMP'2026-01-01 00:00:00.000001Z') AS st,
            map('k"\\\\', named_struct('n', 1.50)) AS m
        """
    )
    sink = database.sink_in(tmp_path)
    (row,) = published(sink, tmp_path, frame)
    with database.connect() as connection:
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 "
            "AND attrelid = to_regclass(%s) ORDER BY attnum",
            [sink.definition.name.text],
        ).fetchall()
    assert [type for _, type in found] == [
        "integer", "boolean", "smallint", "smallint", "integer", "bigint", "real", "double precision", "numeric(38,18)",
        "numeric(38,18)", "text", "bytea", "date", "timestamp with time zone", "timestamp with time zone",
        "timestamp without time zone", "jsonb", "jsonb", "jsonb", "text", "bigint",
    ]  # fmt: skip
    assert row[1:6] == (True, -128, -32768, -(2**31), -(2**63))
    assert row[6] == pytest.approx(1.1, rel=1e-6)
    assert row[7] == -1.7976931348623157e308
    assert row[8:10] == (Decimal("-99999999999999999999.999999999999999999"), Decimal(0))
    assert row[10:13] == ("text", b"\x00\xff\\\n\t", date(2026, 2, 28))
    assert row[13] == datetime(2026, 10, 25, 1, 30, 0, 123456, tzinfo=UTC)
    assert row[14] == datetime(2026, 10, 25, 0, 30, 0, 123456, tzinfo=UTC)
    assert row[15] == datetime(2026, 3, 29, 2, 30, 0, 1)
    assert row[16] == [1, None]
    assert row[17] == {"x": None, "y": "2026-01-01T01:00:00.000001+01:00"}
    assert row[18] == {'k"\\': {"n": 1.5}}
    assert row[19:] == ("live", 7)


def test_texts_come_back_whatever_is_in_them(spark: Any, tmp_path: Path) -> None:
    texts = [
        "",
        "\\N",
        "\\.",
        "\t",
        "\n",
        "\r\n",
        "\\",
        "\\\\t",
        "'",
        '"',
        "%s",
        "ü€😀",
        "a\u2028b",
        "null",
        " x ",
        None,
    ]
    frame = spark.createDataFrame(list(enumerate(texts)), 'id int, `Note "%"` string')
    found = published(database.sink_in(tmp_path), tmp_path, frame, 'id, "Note ""%"""')
    assert found == list(enumerate(texts))


def test_what_is_no_number_and_what_is_before_and_behind_the_usual_years(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        SELECT double('NaN') AS nan, double('Infinity') AS inf, float('-Infinity') AS minf, DATE'-0043-03-15' AS ides,
            DATE'+12345-01-01' AS far, TIMESTAMP_NTZ'0000-12-31 23:59:59' AS zero,
            TIMESTAMP'1850-01-01 00:00:00' AS odd, TIMESTAMP'+20000-01-01 00:00:00Z' AS later,
            cast(null AS decimal(5, 2)) AS nothing, cast(null AS array<int>) AS none
        """
    )
    casts = "nan, inf, minf, ides::text, far::text, zero::text, extract(epoch FROM odd)::bigint"
    casts += ", (later AT TIME ZONE 'UTC')::text"
    ((nan, *rest),) = published(database.sink_in(tmp_path), tmp_path, frame, f"{casts}, nothing, none")
    assert math.isnan(nan)
    (odd,) = spark.sql("SELECT unix_seconds(TIMESTAMP'1850-01-01 00:00:00')").first()
    assert rest == [
        math.inf, -math.inf, "0044-03-15 BC", "12345-01-01", "0001-12-31 23:59:59 BC", odd, "20000-01-01 00:00:00",
        None, None,
    ]  # fmt: skip


def test_the_character_nul_is_removed_if_it_is_told_so(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'a\\0b' AS s, named_struct('x', 'c\\0d', 'y', '\\\\u0000') AS st")
    sink = database.sink_in(tmp_path, nul_characters="remove")
    assert published(sink, tmp_path, frame, "s, st") == [("ab", {"x": "cd", "y": "\\u0000"})]


def test_what_deletes_is_asked_of_spark_and_null_deletes_nothing(spark: Any, tmp_path: Path) -> None:
    merge = Merge(keys="id", sequence_by="ts", delete_when="upper(op) = 'D'", leave_out="op")  # type: ignore[arg-type]
    frame = spark.sql("SELECT * FROM VALUES (1, 1, 'd'), (2, 1, null), (3, 1, 'u'), (3, 2, 'D') AS t(id, ts, op)")
    assert published(database.sink_in(tmp_path, merge=merge), tmp_path, frame) == [(2, 1)]


@pytest.mark.parametrize("merge", [MERGE, VERSIONED], ids=["newest", "versions"])
def test_what_is_forgotten_leaves_no_older_state_behind(spark: Any, tmp_path: Path, merge: Merge) -> None:
    sink = database.sink_in(tmp_path, merge=merge)

    def rows() -> list[Any]:
        return database.rows(database.table_in(tmp_path), f"name, {'valid_to' if merge.bounds else 'NULL'}")

    check_nothing_forgotten_comes_back(spark, sink, rows, landing=tmp_path / "landing")


def test_versions_are_bounded_by_what_spark_has_written(spark: Any, tmp_path: Path) -> None:
    merge = Merge(keys=("id",), sequence_by=("at",), delete_when="op = 'D'", leave_out=("op", "at"), scd_type=2)
    frame = spark.sql(
        "SELECT id, name, TIMESTAMP'2026-10-25 02:30:00+02:00' + make_dt_interval(0, hours, 0, 0.000001) AS at, op "
        "FROM VALUES (1, 'Ada', 0, 'U'), (1, 'Ada', 1, 'U'), (1, null, 2, 'D'), (1, 'Bo', 3, null) "
        "AS t(id, name, hours, op)"
    )
    found = published(database.sink_in(tmp_path, merge=merge), tmp_path, frame, order="valid_from")
    hours = [datetime(2026, 10, 25, hour, 30, 0, 1, tzinfo=UTC) for hour in range(4)]
    assert found == [(1, "Ada", hours[0], hours[2]), (1, "Bo", hours[3], None)]


@pytest.mark.parametrize(
    ("query", "given", "match"),
    [
        ("SELECT INTERVAL 1 DAY AS i", {}, "column 'i' is of type interval"),
        ("SELECT 1 AS id", {"columns": {"id": "int", "note": "text"}}, "it lacks note"),
        ("SELECT 1 AS id, 2 AS more", {"columns": {"id": "int"}}, "it has more too"),
        ("SELECT 1 AS id", {"merge": Merge(keys=("id",), sequence_by=("ts",))}, "it lacks ts"),
        (f"SELECT 1 AS {'x' * 64}", {}, "would cut the name 'x{64}' to 63 bytes"),
        ("SELECT 1 AS id, 2 AS id", {}, "the column 'id' is there twice"),
    ],
)
def test_what_cannot_be_written_fails_in_spark_and_names_the_column(
    spark: Any, tmp_path: Path, query: str, given: dict[str, Any], match: str
) -> None:
    sink = database.sink_in(tmp_path, **given)
    with pytest.raises(BatchFailure, match=match) as error:
        write(spark.sql(query), sink.stage(BATCH, 1).arguments)
    assert error.value.origin == "result"


def test_a_large_batch_is_streamed_and_tells_its_rate(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = database.sink_in(tmp_path)
    with caplog.at_level("INFO"):
        frame = spark.range(300_000).selectExpr("id", "repeat('x', 50) AS note")
        assert published(sink, tmp_path, frame, "count(*), max(id), sum(length(note))") == [
            (300_000, 299_999, 15_000_000)
        ]
    told = [line for line in caplog.messages if "300,000 rows" in line]
    assert told
    assert "rows a second" in told[0]


@pytest.mark.usefixtures("spark_default")
def test_a_job_of_spark_submit_ends_in_the_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    find_by(database.connection_of)
    sink = database.sink_in(tmp_path, columns={"id": "bigint", "note": "text", "day": "date"})
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    transform = world.transform(
        "from pyspark.sql import functions as F\n"
        "def transform(batch):\n"
        "    return batch.sources['orders'].withColumn('day', F.lit('2026-01-01').cast('date'))\n"
    )
    path = world.land("a.json", [{"id": 1, "note": "x\ty"}, {"id": 2, "note": None}])
    job, code = world.job(transform, [path])
    batch = batch_of(world.key)
    job = dataclasses.replace(job, stages={"": sink.stage(batch, 1)})
    assert database.PASSWORD not in job.to_json()
    handle = world.start(job, code)
    world.engine.result(handle)
    manifest = sink.publish(expect(world.key), 1)
    assert manifest.result["numOutputRows"] == 2
    found = database.rows(database.table_in(tmp_path))
    assert found == [(1, "x\ty", date(2026, 1, 1), "live", 0), (2, None, date(2026, 1, 1), "live", 0)]
    wait_until(lambda: json.dumps(sink.stages(batch.checkpoint)) == "[]")
