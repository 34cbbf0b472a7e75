"""Which values a table's column takes: those that its type has just as they are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.checks import Checks
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.fitting import fitting_of
from airflow_provider_microbatch.runtime.intake import Intake, Limit, TableColumn
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.runtime.jobs import EXPECTED, land, make_job
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

WHOLE = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
DECIMALS = {"decimal(5,0)": (5, 0), "decimal(7,2)": (7, 2), "decimal(38,18)": (38, 18)}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


def divided(frame: Any, intake: Intake) -> tuple[list[Any], dict[Any, list[str]]]:
    """The rows that go in, as they go in; and by the first column of the others, why they do not."""
    from pyspark.sql import functions as F

    fitting = fitting_of(frame, intake, where="")
    reasons = F.array_compact(F.array(*(F.when(one.is_met, F.lit(one.reason)) for one in fitting.misfits)))
    rows = fitting.rows.select(reasons.alias("reasons"), *frame.columns)
    kept = rows.where("size(reasons) = 0").drop("reasons").withColumns(dict(fitting.values))
    others = {row[1]: row["reasons"] for row in rows.where("size(reasons) > 0").collect()}
    return kept.collect(), others


def taken(value: Any, target: str) -> Any:
    """The value with that type, exactly; None if there is none."""
    if target in WHOLE:
        whole = int(value)
        return whole if whole == value and -(1 << WHOLE[target]) <= whole < 1 << WHOLE[target] else None
    if target in DECIMALS:
        digits, scale = DECIMALS[target]
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, Context(prec=400))
        back = float(rounded) if isinstance(value, float) else rounded
        return rounded if back == value and abs(rounded) < 10 ** (digits - scale) else None
    if isinstance(value, int):
        return float(value) if abs(value) <= 1 << 53 else None
    return float(value) if not isinstance(value, Decimal) or Decimal(repr(float(value))) == value else None


VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "bigint": st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from(
            [sign * (1 << bits) + more for bits in (7, 15, 31, 53, 62) for sign in (1, -1) for more in (-1, 0, 1)]
        ),
        st.sampled_from([99_999, 100_000, 2**63 - 1, -(2**63)]),
    ),
    "decimal(20,4)": st.one_of(
        st.decimals(-(10**15), 10**15, places=4),
        st.integers(-200, 200).map(Decimal),
        st.integers(-10_000_100, 10_000_100).map(lambda cents: Decimal(cents) / 100),
    ),
    "double": st.one_of(
        st.floats(-1e6, 1e6),
        st.integers(-10_000_100, 10_000_100).map(lambda cents: cents / 100),
        st.sampled_from([-0.0, 127.0, 128.0, 1e19, -9.3e18, 0.1, 0.30000000000000004, 1e-7]),
    ),
}


@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("source", VALUES)
def test_a_number_goes_in_if_the_type_has_just_that_number(spark: Any, source: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[source], min_size=100, max_size=150))
    targets = [one for one in (*WHOLE, *DECIMALS, "double") if one != source]
    frame = spark.createDataFrame(
        [tuple([value] * len(targets)) for value in values], ", ".join(f"`{target}` {source}" for target in targets)
    )
    intake = Intake(columns=tuple(TableColumn(name=target, told=target, type=target) for target in targets))
    fitting = fitting_of(frame, intake, where="")
    assert set(fitting.values) == set(targets)
    by_target = [(one.reason.split("'")[1], one.is_met) for one in fitting.misfits]
    rows = frame.select(*(met for _, met in by_target), *fitting.values.values()).collect()
    for value, row in zip(values, rows, strict=True):
        refused = {target for (target, _), is_met in zip(by_target, row, strict=False) if is_met}
        for target, found in zip(fitting.values, row[len(by_target) :], strict=True):
            expected = taken(value, target)
            assert (target in refused) == (expected is None), (value, target)
            assert expected is None or found == expected, (value, target)


def test_what_is_no_number_becomes_none_and_the_whole_batch_does_not_fit(spark: Any) -> None:
    frame = spark.sql("SELECT '7' AS a, 7 AS b, 1.5D AS c, current_timestamp() AS d, timestamp_ntz'2026-01-01' AS e")
    types = {"a": "int", "b": "string", "c": "float", "d": "date", "e": "timestamp"}
    columns = tuple(TableColumn(name=name, told=type, type=type) for name, type in types.items())
    fitting = fitting_of(frame, Intake(columns=columns), where="")
    assert (fitting.misfits, fitting.values) == ((), {})


def test_a_day_and_a_time_without_a_zone_go_in_where_nothing_is_cut_off(spark: Any) -> None:
    frame = spark.sql("SELECT timestamp_ntz'2026-01-01 00:00:00' AS t, date'2026-01-02' AS d")
    frame = frame.union(spark.sql("SELECT timestamp_ntz'2026-01-01 00:00:00.000001', date'2026-01-02'"))
    columns = (
        TableColumn(name="t", told="date", type="date"),
        TableColumn(name="d", told="timestamp_ntz", type="timestamp_ntz"),
    )
    kept, others = divided(frame, Intake(columns=columns))
    assert [(str(row.t), str(row.d)) for row in kept] == [("2026-01-01", "2026-01-02 00:00:00")]
    assert list(others.values()) == [["column 't': timestamp_ntz that date would round or cut"]]


def test_a_narrower_number_stays_as_it_is_where_that_will_do(spark: Any) -> None:
    frame = spark.sql("SELECT 1 AS a, 0.1F AS b, 1L AS c")
    columns = tuple(
        TableColumn(name=name, told=type, type=type) for name, type in (("a", "bigint"), ("b", "double"), ("c", "int"))
    )
    assert set(fitting_of(frame, Intake(columns=columns, is_exact=False), where="").values) == {"c"}
    assert set(fitting_of(frame, Intake(columns=columns), where="").values) == {"a", "b", "c"}


def test_nulls_limits_and_constraints_keep_rows_out_each_with_its_reason(spark: Any) -> None:
    frame = spark.createDataFrame(
        [(1, "a", 1), (2, None, 1), (3, None, 0), (4, "abc", 1), (5, "b", None)], "id int, `a b` string, n int"
    )
    limit = Limit(condition="char_length($value) <= 2", problem="longer than two", kinds=("string",))
    other = Limit(condition="$value > 0", problem="not asked of a text", kinds=("int",))
    column = TableColumn(
        name="a b", told="text", type="string", is_needed=True, needed_unless="n = 0", limits=(limit, other)
    )
    kept, others = divided(frame, Intake(columns=(column,), constraints={"some": "n >= 0"}))
    assert [row.id for row in kept] == [1, 3]
    assert others == {
        2: ["column 'a b': null, which the table does not take (text)"],
        4: ["column 'a b': longer than two"],
        5: ["constraint 'some' is not met: n >= 0"],  # nobody knows whether it is met
    }


@pytest.mark.parametrize(
    ("kind", "condition", "goes_in"),
    [
        ("int", "CAST(n AS STRING) <> '7'", [8]),
        ("int", "length(n) <= 1 AND m > 0", [7, 8]),
        ("int", "n div 2 = 4", [8]),
        ("int", "1 / n < 1", [7, 8]),
        ("decimal(6,2)", "CAST(n AS STRING) LIKE '_.__'", [7, 8]),
    ],
)
def test_a_constraint_is_held_against_the_values_that_go_in(
    spark: Any, kind: str, condition: str, goes_in: list[int]
) -> None:
    """7.0 passed where 7 is not to be, and 8.0 was a dead letter, since it is longer than 8."""
    frame = spark.createDataFrame([(7.0, 1), (8.0, 1), (0.005, 1)], "n double, m int")
    intake = Intake(columns=(TableColumn(name="n", told=kind, type=kind),), constraints={"some": condition})
    kept, others = divided(frame, intake)
    assert [(row.n, row.m) for row in kept] == [(number, 1) for number in goes_in]
    assert others.pop(0.005) == [f"column 'n': double that {kind} would round or cut"]
    assert others == {one: [f"constraint 'some' is not met: {condition}"] for one in {7, 8} - {*goes_in}}


def test_a_column_that_takes_no_null_has_to_be_there(spark: Any) -> None:
    needed = TableColumn(name="id", told="int", type="int", is_needed=True)
    with pytest.raises(BatchFailure, match=r"takes no null in 'id', and the result does not have it"):
        fitting_of(spark.sql("SELECT 1 AS n"), Intake(columns=(needed,)), where="")
    assert fitting_of(spark.sql("SELECT 1 AS n"), Intake(columns=(needed,), is_exact=False), where="").misfits == ()


def test_a_constraint_that_cannot_be_computed_is_named(spark: Any) -> None:
    with pytest.raises(BatchFailure, match=r"the constraint 'some' \(m > 0\) of the table for sink 'a'.*`m`"):
        fitting_of(spark.sql("SELECT 1 AS n"), Intake(constraints={"some": "m > 0"}), where=" for sink 'a'")


def ran(spark: Any, root: Path, checks: Checks | None) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """Ids in the table, the dead letters, and what the job has told, of a batch with the ids 1, -5 and 2 ** 40."""
    rows = [{"id": 1}, {"id": -5}, {"id": 2**40}]
    sink = Pipeline(
        "orders",
        checkpoint=str(root / "checkpoint"),
        sources={"orders": FileSource(str(root / "in"), schema="id long")},
        sink=FileSink(str(root / "lake")),
        dead_letters=FileSink(str(root / "letters"), format="json"),
    ).sink
    job = make_job(sink, None, [land(root / "in", rows)], schema="id long", checks=checks)
    assert Job.from_json(job.to_json()) == job
    result = run_job(spark, job)
    sink.open(SinkContext()).publish(EXPECTED, 1)
    letters = [
        json.loads(line)
        for path in (root / "letters").glob("lane=*/*/*.json")
        for line in path.read_text().splitlines()
    ]
    return sorted(row.id for row in spark.read.parquet(str(root / "lake")).collect()), letters, result


INTAKE = Intake(columns=(TableColumn(name="id", told="int", type="int"),))


def test_what_the_table_cannot_take_is_not_dropped_though_it_might_be(spark: Any, tmp_path: Path) -> None:
    from airflow_provider_microbatch.expectations import checks_of

    checks = checks_of({"": {"id < 100": "drop", "id > 0": "drop"}}, letters="dead_letters", most=None)
    assert checks is not None
    ids, letters, result = ran(spark, tmp_path, dataclasses.replace(checks, intakes={"": INTAKE}))
    assert ids == [1]
    assert [(one["kind"], one["raw"]) for one in letters] == [("unfit", f'{{"id":{2**40}}}')]
    assert (result["numDeadLetters"], result["numDroppedRows"]) == (1, 1)
    assert [(one["expectation"], one["action"], one["rows"]) for one in result["refused"]] == [
        ("column 'id': bigint out of the range of int", "dead_letter", 1),
        ("id > 0", "drop", 1),
    ]


def test_a_job_without_such_a_table_is_as_older_versions_read_it() -> None:
    job = make_job(FileSink("/lake"), None, [], checks=Checks(letters="dead_letters"))
    assert "intakes" not in json.loads(job.to_json())["checks"]
