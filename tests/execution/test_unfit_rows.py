"""Rows that a table with a schema of its own cannot take: each is a dead letter, once, and the others are in the table
as they were, whatever becomes of the table meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import MicroBatchError, SinkError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.engine import Handle
from airflow_provider_microbatch.execution.summary import BatchSummary
from airflow_provider_microbatch.runtime.job import Transform
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.tables_of_others import TABLES, OfDelta, OfPostgres, Row, TableOfOthers
from tests.execution.two_tables import is_clean
from tests.execution.world import CODE, World, run_identity
from tests.support.local_spark import local_spark
from tests.support.spark_engine import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "n long, id long, amount double, name string"
ROWS: tuple[Row, ...] = tuple(
    {"n": n, "id": id, "amount": amount, "name": name}
    for n, (id, amount, name) in enumerate(
        [
            (1, 2.5, "ann"),
            (2**31, 1.0, "bob"),
            (3, 0.125, "bob"),
            (4, 10_000.0, "bob"),
            (5, 1.0, None),
            (6, None, "ann"),
        ]
    )
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark(conf={"spark.sql.shuffle.partitions": "1"}) as session:
        yield session


class Shop(World):
    """A pipeline into a table of somebody else's."""

    def __init__(self, table: TableOfOthers, spark: Any, **pipeline: Any) -> None:
        letters = FileSink(str(table.root / "letters"), format="json")
        given = {"sink": table.sink, "dead_letters": letters, "transform": None, **pipeline}
        super().__init__(table.root, **{name: value for name, value in given.items() if value is not None})
        self.sources = {"orders": FileSource(str(self.landing()), format="json", schema=SCHEMA)}
        self.of = table
        self.engine = SparkEngine(spark)

    def land_rows(self, *rows: Row) -> None:
        name = f"{len(list(self.landing().iterdir())):04}.json"
        (self.landing() / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def letters(self) -> list[dict[str, Any]]:
        files = sorted((self.root / "letters").glob("lane=*/batch_id=*/*.json"))
        return [json.loads(line) for path in files for line in path.read_text().split("\n") if line]

    def divided(self) -> tuple[list[int], list[int]]:
        """Numbers of the rows in the table, and of those among the dead letters."""
        return sorted(row["n"] for row in self.of.rows()), sorted(json.loads(one["raw"])["n"] for one in self.letters())

    def ran(self, number: int = 0, engine: SparkEngine | None = None, **given: Any) -> BatchSummary:
        summary = self.run(number, engine or self.engine, **given)
        assert summary is not None
        return summary

    def ran_with(self, function: str) -> None:
        transform = Transform(module="tests.runtime.shop", function=function)
        assert self.execution.run(run=run_identity(0), engine=self.engine, code=CODE, transform=transform) is not None

    def replay(self, number: int, function: str) -> BatchSummary:
        pipeline = replaying(self.pipeline, f"jobs/mend.py:{function}")
        execution = execution_of(pipeline, self.checkpoint, clock_ms=self._tick)
        mends = Transform(module="tests.runtime.shop", function=function)
        summary = execution.run(run=run_identity(number), engine=self.engine, code=CODE, transform=mends)
        assert isinstance(summary, BatchSummary)
        return summary


class Meanwhile(SparkEngine):
    """Something happens when the job has ended, and before anything of it is published."""

    def __init__(self, spark: Any, happens: Callable[[], None]) -> None:
        super().__init__(spark)
        self._happens = happens

    def result(self, handle: Handle) -> None:
        super().result(handle)
        self._happens()


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: None) -> TableOfOthers:
    made: TableOfOthers = TABLES[request.param](tmp_path / "a")
    return made


def test_they_are_dead_letters_and_say_of_which_column(
    table: TableOfOthers, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(table, spark)
    shop.land_rows(*ROWS)
    summary = shop.ran()
    assert shop.divided() == ([0, 5], [1, 2, 3, 4])
    assert [str(row["amount"]) for row in sorted(table.rows(), key=lambda row: row["n"])] == ["2.50", "None"]
    letters = {json.loads(one["raw"])["n"]: one for one in shop.letters()}
    assert {one["kind"] for one in letters.values()} == {"unfit"}
    # A constraint of Delta's is not met by a null either.
    assert {n: one["reason"].split("; ")[0] for n, one in letters.items()} == {
        1: f"column 'id': bigint out of the range of {table.told['id']}",
        2: f"column 'amount': double that {table.told['amount']} would round or cut",
        3: f"column 'amount': double out of the range of {table.told['amount']}",
        4: f"column 'name': null, which the table does not take ({table.told['name']})",
    }
    assert letters[1]["columns"] == "`n` bigint, `id` bigint, `amount` double, `name` string"
    assert letters[1]["place"].endswith("0000.json")
    assert summary.label == "batch 0 · 2 rows · 4 dead letters"
    assert is_clean(shop)
    capsys.readouterr()
    assert main(["dead-letters", shop.pipeline.checkpoint, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert {one["what"]: one["rows"] for one in told["reasons"]}[letters[1]["reason"]] == 1
    assert main(["show", shop.pipeline.checkpoint, "0"]) == 0
    assert f"{letters[1]['reason']}: 1 dead letters" in capsys.readouterr().out


AMOUNTS = st.one_of(
    st.none(),
    st.integers(-1_100_000, 1_100_000).map(lambda cents: cents / 100),
    st.floats(-10_001, 10_001, allow_nan=False),
)
IDS = st.one_of(st.none(), st.integers(-3, 3), st.integers(2**31 - 2, 2**31 + 1), st.integers(-(2**63), 2**63 - 1))
NAMES = st.one_of(st.none(), st.text(max_size=7), st.sampled_from(["ann", "ghost", "a\0b", "four ", "sechs "]))


@settings(max_examples=1, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(columns=st.lists(st.tuples(IDS, AMOUNTS, NAMES), min_size=40, max_size=90))
@pytest.mark.parametrize("kind", TABLES)
def test_each_row_is_in_the_table_as_it_was_or_a_dead_letter(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: None, spark: Any, kind: str, columns: list[Any]
) -> None:
    assume(len(set(columns)) > 20)  # the example that comes first has one row many times
    table = TABLES[kind](tmp_path_factory.mktemp(kind) / "a")
    shop = Shop(table, spark)
    rows = {n: dict(zip(("n", "id", "amount", "name"), (n, *one), strict=True)) for n, one in enumerate(columns)}
    shop.land_rows(*rows.values())
    shop.ran()
    expected = (
        [n for n, row in rows.items() if table.takes(row)],
        [n for n, row in rows.items() if not table.takes(row)],
    )
    assert shop.divided() == expected
    for row in table.rows():
        was = rows[row["n"]]
        assert (row["id"], row["name"]) == (was["id"], was["name"])
        assert (row["amount"] is None) == (was["amount"] is None)
        assert row["amount"] is None or float(row["amount"]) == was["amount"]
    shop.ran(clear_number=1)
    assert shop.divided() == expected


def test_a_table_that_takes_less_when_the_job_has_ended_gets_nothing_of_it(table: TableOfOthers, spark: Any) -> None:
    shop = Shop(table, spark)
    shop.land_rows(*ROWS)
    with pytest.raises(SinkError, match=table.too_late):
        shop.run(0, Meanwhile(spark, table.narrow))
    assert shop.divided() == ([], [])
    shop.ran(try_number=2)
    assert shop.divided() == ([0], [1, 2, 3, 4, 5])
    assert is_clean(shop)


def test_without_dead_letters_the_batch_fails_and_names_the_column(table: TableOfOthers, spark: Any) -> None:
    shop = Shop(table, spark, dead_letters=None)
    shop.land_rows(*ROWS)
    with pytest.raises(MicroBatchError, match=r"column '?(id|amount|name)'? (is|that is)[ ,]"):
        shop.run(0, shop.engine)
    assert table.rows() == []


def test_they_are_run_again_through_mended_code(table: TableOfOthers, spark: Any) -> None:
    shop = Shop(table, spark)
    shop.land_rows(*ROWS)
    shop.ran()
    again = shop.replay(10, "trims")
    assert (str(again.key), again.rows_out, again.dead_letters) == ("dead-letters/0", 3, 1)
    in_table, letters = shop.divided()
    assert in_table == [0, 1, 2, 3, 5]
    assert letters.count(4) == 2  # once of each batch
    assert is_clean(shop)


def test_a_wider_table_takes_them_when_they_are_run_again(tmp_path: Path, postgres_server: None, spark: Any) -> None:
    table = OfPostgres(tmp_path / "a")
    shop = Shop(table, spark)
    shop.land_rows(*ROWS)
    shop.ran()
    table.run(f"ALTER TABLE {table.table} ALTER id TYPE bigint, ALTER amount TYPE numeric(8, 3)")
    assert shop.replay(10, "as_they_are").dead_letters == 1
    assert shop.divided()[0] == [0, 1, 2, 3, 5]


def test_of_several_tables_each_gets_what_it_takes(tmp_path: Path, postgres_server: None, spark: Any) -> None:
    delta, postgres = OfDelta(tmp_path / "d"), OfPostgres(tmp_path / "p")
    plain = FileSink(str(tmp_path / "d" / "lake"))
    shop = Shop(
        delta,
        spark,
        sink=Sinks({"delta": delta.sink, "postgres": postgres.sink, "all": plain}),
        transform="jobs/orders.py:to_each",
    )
    shop.land_rows(ROWS[0], {**ROWS[1], "id": 1, "name": "ghost"}, {**ROWS[2], "amount": 1.0, "name": "bobbyb"})
    shop.ran_with("to_each")
    assert [row["n"] for row in delta.rows()] == [0, 2]
    assert sorted(row["n"] for row in postgres.rows()) == [0, 1]
    assert {(one["sink"], json.loads(one["raw"])["n"]) for one in shop.letters()} == {("delta", 1), ("postgres", 2)}


def test_too_many_fail_the_batch(tmp_path: Path, spark: Any) -> None:
    shop = Shop(OfDelta(tmp_path / "a"), spark, max_dead_letters=0.5)
    shop.land_rows(*ROWS)
    with pytest.raises(MicroBatchError) as failure:
        shop.run(0, shop.engine)
    assert "4 of 6 rows would be dead letters" in str(failure.value)
    assert "column 'id': bigint out of the range of int: 1" in str(failure.value)
    assert shop.of.rows() == []


def test_a_constraint_that_asks_the_clock_is_refused_by_name(tmp_path: Path, spark: Any) -> None:
    table = OfDelta(tmp_path / "a")
    table.constrain("past", "id < unix_timestamp()")  # as Spark would write it
    shop = Shop(table, spark)
    shop.land_rows(*ROWS)
    with pytest.raises(SinkError, match=r"the constraint 'past' .* asks unix_timestamp"):
        shop.run(0, shop.engine)
