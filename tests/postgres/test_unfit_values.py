"""Values that a table of PostgreSQL cannot take are told from others by Spark, as the server itself tells them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime import report
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.changes import Changes
from airflow_provider_microbatch.runtime.checks import DEAD_LETTER, Checks, Expectation, Forgotten
from airflow_provider_microbatch.runtime.copy_lines import write
from airflow_provider_microbatch.runtime.fitting import fitting_of
from airflow_provider_microbatch.runtime.intake import Intake
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from tests.postgres import database
from tests.runtime.jobs import land, make_job
from tests.sinks.stages import batch_of, expect
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

OWN = "_batch_lane text NOT NULL, _batch_id bigint NOT NULL"
COLUMNS = (
    "n int, key uuid, day date, at timestamptz, wall timestamp, note varchar(3), code char(2), tags jsonb, half real, "
    f"plain text, ms timestamptz(3), s timestamp(0), {OWN}"
)
GOOD = {
    "n": "0",
    "key": "'a0ee-bc99-9c0b4ef8bb6d6bb9bd380a11'",
    "day": "DATE'2026-01-01'",
    "at": "TIMESTAMP'2026-01-01 00:00:00Z'",
    "wall": "TIMESTAMP_NTZ'2026-01-01 00:00:00'",
    "note": "'abc'",
    "code": "'é'",
    "tags": "array('a')",
    "half": "cast(1 AS int)",
    "plain": "'a'",
    "ms": "TIMESTAMP'2026-01-01 00:00:00.001Z'",
    "s": "TIMESTAMP_NTZ'2026-01-01 00:00:01'",
}
FITS = [
    {},
    {"key": "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'"},
    {"day": "date_from_unix_date(-2440588)"},
    {"day": "date_from_unix_date(2145042905)"},
    {"at": "timestamp_micros(-210866803200000000)"},
    {"wall": "TIMESTAMP_NTZ'-4713-11-24 00:00:00'"},
    {"at": "TIMESTAMP'+294246-12-31 00:00:00Z'"},
    {"note": "'äöü'", "code": "'ab'"},
    {"tags": r"array('\\u0000')"},
    {"half": "16777216"},
    {name: "null" for name in GOOD if name != "n"},
]
UNFIT = [
    ("key", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1'", "no uuid"),
    ("key", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "no uuid"),
    ("day", "date_from_unix_date(-2440589)", "a day that PostgreSQL's date does not have"),
    ("day", "date_from_unix_date(2145042906)", "a day that PostgreSQL's date does not have"),
    ("at", "timestamp_micros(-210866803200000001)", "earlier than PostgreSQL's timestamps begin"),
    ("wall", "TIMESTAMP_NTZ'-4713-11-23 23:59:59.999999'", "earlier than PostgreSQL's timestamps begin"),
    ("note", "'abcd'", "longer than character varying(3)"),
    ("code", "'abc'", "longer than character(2)"),
    ("plain", "concat('a', char(0))", "the character NUL, which PostgreSQL's text cannot have"),
    ("ms", "TIMESTAMP'1969-12-31 23:59:59.0005Z'", "more digits of a second than timestamp(3) with time zone keeps"),
    ("s", "TIMESTAMP_NTZ'2026-01-01 00:00:01.5'", "more digits of a second than timestamp(0) without time zone keeps"),
    ("tags", "array(concat('a', char(0)))", "the character NUL, which PostgreSQL's text cannot have"),
]

ROUNDED = ("ms", "s")
"""The server takes these, and changes them."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark(conf={"spark.sql.session.timeZone": "UTC"}) as session:
        yield session


def made(folder: Path, columns: str, **given: Any) -> OpenPostgres:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {database.table_in(folder)} ({columns})".encode())
    return database.sink_in(folder, **given)


def frame_of(spark: Any, rows: list[dict[str, str]]) -> Any:
    selects = [
        "SELECT " + ", ".join(f"{sql} AS {name}" for name, sql in {**GOOD, **row, "n": str(n)}.items())
        for n, row in enumerate(rows)
    ]
    return spark.sql(" UNION ALL ".join(selects))


def reasons(frame: Any, intake: Intake | None) -> dict[int, list[str]]:
    """Of rows that the table cannot take, why."""
    assert intake is not None
    found: dict[int, list[str]] = {}
    for misfit in fitting_of(frame, intake, where="").misfits:
        for row in frame.where(misfit.is_met).select("n").collect():
            found.setdefault(row.n, []).append(misfit.reason)
    return found


def publish(sink: OpenPostgres, frame: Any, number: int, *, judged: bool = True) -> None:
    """What fits of the frame, as the runtime has it written."""
    intake, key = sink.intake(), BatchKey("live", number)
    assert intake is not None
    stage = sink.stage(batch_of(key), 1)
    listing = write(frame.withColumns(dict(fitting_of(frame, intake, where="").values)), stage.arguments)
    held = list(intake.rules)
    result = {"batchId": number, "epoch": 1, "identity": batch_of(key).to_dict(), "heldTo": held if judged else []}
    report.write_manifest(frame.sparkSession, stage.report, result, listing)
    sink.publish(expect(key), 1)


def marked(frame: Any, sink: OpenPostgres) -> Any:
    """The changes, as the runtime has them written."""
    changes = Changes.of(sink.stage(batch_of(BatchKey("live", 0)), 1).arguments)
    assert changes is not None
    return changes.marked(frame, forgotten=None)


def test_what_fits_is_what_the_server_takes(spark: Any, tmp_path: Path) -> None:
    sink = made(tmp_path, COLUMNS)
    fitting = frame_of(spark, FITS)
    assert reasons(fitting, sink.intake()) == {}
    publish(sink, fitting, 0)
    found = database.rows(database.table_in(tmp_path), "count(*), count(key), count(half)")
    assert found == [(len(FITS), len(FITS) - 1, len(FITS) - 1)]

    unfit = frame_of(spark, [{column: sql} for column, sql, _ in UNFIT])
    assert reasons(unfit, sink.intake()) == {
        n: [f"column {column!r}: {problem}"] for n, (column, _, problem) in enumerate(UNFIT)
    }
    for n in (n for n, (column, *_) in enumerate(UNFIT) if column not in ROUNDED):
        with pytest.raises(SinkError, match=rf"column '?{UNFIT[n][0]}\b") as error:
            publish(sink, unfit.where(f"n = {n}"), n + 1)
        assert "Nothing was published" in str(error.value) or "Orders" in str(error.value)


def test_what_the_server_would_round_is_published_only_if_it_was_judged(spark: Any, tmp_path: Path) -> None:
    sink = made(tmp_path, COLUMNS)
    with pytest.raises(SinkError, match=r"not every value of it goes into timestamp\(3\) with time zone"):
        publish(sink, frame_of(spark, FITS[:1]), 0, judged=False)


def test_a_whole_number_that_real_does_not_have_is_not_rounded(spark: Any, tmp_path: Path) -> None:
    sink = made(tmp_path, COLUMNS)
    found = reasons(frame_of(spark, [{"half": "16777217"}]), sink.intake())
    assert found == {0: ["column 'half': int that real would round or cut"]}


def test_a_text_that_is_too_long_by_blanks_alone_is_not_cut(spark: Any, tmp_path: Path) -> None:
    sink = made(tmp_path, COLUMNS)
    found = reasons(frame_of(spark, [{"note": "'abc '"}]), sink.intake())
    assert found == {0: ["column 'note': longer than character varying(3)"]}


def test_where_nul_is_taken_out_a_text_is_as_long_as_what_is_left(spark: Any, tmp_path: Path) -> None:
    sink = made(tmp_path, COLUMNS, nul_characters="remove")
    rows = [{"note": "concat('abc', char(0))"}, {"tags": "array(char(0))"}, {"note": "concat('abcd', char(0))"}]
    found = reasons(frame_of(spark, rows), sink.intake())
    assert found == {2: ["column 'note': longer than character varying(3)"]}


def test_a_table_that_is_to_be_made_takes_what_its_declared_columns_will(spark: Any, tmp_path: Path) -> None:
    sink = database.sink_in(tmp_path, columns={"n": "int4", "note": "varchar(3)"})
    frame = spark.sql("SELECT 1L AS n, 'abcd' AS note UNION ALL SELECT 2147483648L, 'abc'")
    assert reasons(frame, sink.intake()) == {
        1: ["column 'note': longer than character varying(3)"],
        2**31: ["column 'n': bigint out of the range of integer"],
    }
    assert database.sink_in(tmp_path, table="absent").intake() is None


def test_a_change_that_deletes_needs_nothing_but_its_key_and_its_order(spark: Any, tmp_path: Path) -> None:
    merge = Merge(keys=("n",), sequence_by=("lsn",), delete_when="op = 'D'", leave_out=("op", "lsn"))
    sink = made(tmp_path, "n int PRIMARY KEY, note text NOT NULL", merge=merge)
    rows = [(1, None, "D", 5), (2, None, "U", 5), (3, "a", "U", None), (None, "a", "D", 5)]
    frame = spark.createDataFrame(rows, "n int, note string, op string, lsn bigint")
    assert reasons(marked(frame, sink), sink.intake()) == {
        2: ["column 'note': null, which the table does not take (text)"],
        3: ["column 'lsn': null, which the table does not take (it orders changes)"],
        None: ["column 'n': null, which the table does not take (integer)"],
    }


def test_a_change_that_is_forgotten_deletes_its_key_and_is_no_dead_letter(spark: Any, tmp_path: Path) -> None:
    merge = Merge(keys=("n",), sequence_by=("lsn",), leave_out=("lsn",))
    sink = made(tmp_path, "n int PRIMARY KEY, note varchar(3) NOT NULL", merge=merge)
    publish(sink, marked(spark.sql("SELECT 2 AS n, 'old' AS note, 1.0D AS lsn"), sink), 0)
    sound, refused = {"n": 1, "note": "new", "lsn": 5}, {"n": 3, "note": "bad", "lsn": 5}
    persons = [{"n": 2, "lsn": 5}, {"n": 2**40, "lsn": 5}, {"lsn": 5}, {"n": 4}, {"n": 5, "lsn": "NaN"}]
    landed = land(tmp_path / "landing", [sound, refused, *({**row, "note": "Eve"} for row in persons)])
    batch, letters = batch_of(BatchKey("live", 1)), FileSink(str(tmp_path / "letters"), format="json")
    intake = sink.intake()
    assert intake is not None
    job = make_job(
        sink,
        None,
        [landed],
        schema="n bigint, note string, lsn double",
        batch_id=1,
        stages={"": sink.stage(batch, 1), "letters": letters.open(SinkContext()).stage(batch, 1)},
        identity=batch.to_dict(),
        checks=Checks(
            expectations=(Expectation(condition="note <> 'bad'", action=DEAD_LETTER),),
            letters="letters",
            forgotten=(Forgotten(condition="note = 'Eve'", number=0, mark="0-x"),),
            intakes={"": intake},
        ),
    )
    result = run_job(spark, job)
    assert (result["numDeadLetters"], [one["rows"] for one in result["refused"]]) == (1, [1])
    sink.publish(expect(batch.key), 1)
    assert database.rows(database.table_in(tmp_path)) == [(1, "new")]
    kept = database.rows(database.table_in(tmp_path, "microbatch_changes_Orders"), "n, note, _deleted", "n, lsn")
    assert kept == [(1, "new", False), (2, "old", False), (2, None, True)]


def test_a_change_whose_place_is_no_number_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    merge = Merge(keys=("n",), sequence_by=("at", "half"), leave_out=("half",))
    sink = made(tmp_path, "n int PRIMARY KEY, at double precision", merge=merge)
    rows = [(1, math.nan, 1.0), (2, 1.0, math.nan), (3, 1.0, 1.0), (4, math.inf, 1.0)]
    frame = marked(spark.createDataFrame(rows, "n int, at double, half float"), sink)
    assert reasons(frame, sink.intake()) == {
        1: ["column 'at': NaN, and it orders changes"],
        2: ["column 'half': NaN, and it orders changes"],
    }
