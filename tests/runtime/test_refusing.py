"""Which rows of a batch its tables get, as Spark divides them: in a session of this process."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.app import run_job
from airflow_provider_microbatch.runtime.checks import Forgotten
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.letters import shape
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from tests.runtime.jobs import BATCH, EXPECTED, make_job
from tests.runtime.shop import WHATEVER_JSON_TAKES
from tests.support.local_spark import local_spark

pytestmark = pytest.mark.spark

SCHEMA = "id long, amount double, customer string"
LINES = (
    '{"id": 1, "amount": 2.5, "customer": "ann"}',
    '{"id": 2, "amount": -1, "customer": "bob"}',
    '{"id": 3, "customer": "ann"}',
    '{"id": 4, "amount": "many", "customer": "ann"}',
    "no json",
    '{"id": 200, "amount": 3, "customer": "bob"}',
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with local_spark() as session:
        yield session


class Shop:
    """A pipeline over one file."""

    def __init__(self, root: Path, **pipeline: Any) -> None:
        self.root = root
        self.file = root / "landing" / "orders.json"
        self.file.parent.mkdir()
        self.land(*LINES)
        letters = {"dead_letters": FileSink(str(root / "letters"), format="json"), **pipeline}
        self.pipeline = Pipeline(
            "orders",
            checkpoint=str(root / "checkpoint"),
            sources={"orders": FileSource(str(self.file.parent), schema=SCHEMA)},
            sink=FileSink(str(root / "lake")),
            **{name: value for name, value in letters.items() if value is not None},
        )

    def land(self, *lines: str) -> None:
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def job(self, function: str | None = None, *, forgotten: tuple[Forgotten, ...] = (), **arguments: Any) -> Job:
        checks = self.pipeline.checks(forgotten)
        job = make_job(self.pipeline.sink, function, [str(self.file)], schema=SCHEMA, checks=checks)
        read = job.sources["orders"]
        told = {**read.arguments, "keeps_refused": self.pipeline.sink.dead_letters is not None, **arguments}
        made = replace(job, sources={"orders": replace(read, arguments=told)})
        assert Job.from_json(made.to_json()) == made
        return made

    def run(self, spark: Any, function: str | None = None, **given: Any) -> dict[str, Any]:
        result = run_job(spark, self.job(function, **given))
        self.pipeline.sink.open(SinkContext()).publish(EXPECTED, 1)
        return result

    def ids(self, spark: Any) -> list[int]:
        return sorted(row.id for row in spark.read.parquet(str(self.root / "lake")).collect())

    def letters(self) -> dict[str, dict[str, Any]]:
        files = sorted((self.root / "letters").glob("lane=live/batch_id=0/*.json"))
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        return {row["raw"]: row for row in rows}

    def refuses(self, spark: Any, function: str | None = None, **given: Any) -> BatchFailure:
        with pytest.raises(BatchFailure) as failure:
            run_job(spark, self.job(function, **given))
        assert self.pipeline.sink.open(SinkContext()).manifest(BATCH, 1) is None
        return failure.value


def test_each_row_is_in_one_place_with_what_is_known_of_it(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"id < 100": "drop", "amount >= 0": "dead_letter"})
    result = shop.run(spark)
    assert shop.ids(spark) == [1]
    letters = shop.letters()
    unparsed = {key: value for key, value in letters.items() if value["kind"] == "unparsed"}
    assert set(unparsed) == {LINES[3], LINES[4]}
    refused = {json.loads(key)["id"]: value for key, value in letters.items() if value["kind"] == "refused"}
    assert set(refused) == {2, 3}  # of 3 the amount is null: nobody knows whether it is met
    assert refused[2]["columns"] == "`id` bigint, `amount` double, `customer` string"
    for letter in letters.values():
        assert (letter["batch"], letter["source"]) == ("live/0", "orders")
        assert letter["place"] == f"file:{shop.file}"
        assert letter["read_at"].startswith("2023-11-14T22:13:20.123")
    assert {value["reason"] for value in refused.values()} == {"amount >= 0"}
    assert result["numInputRows"] == {"orders": 6}
    assert (result["numOutputRows"], result["numDeadLetters"], result["numDroppedRows"]) == (1, 4, 1)
    assert result["numUnparsedRows"] == {"orders": 2}
    assert [(one["expectation"], one["rows"]) for one in result["refused"]] == [("amount >= 0", 2), ("id < 100", 1)]


def test_a_refused_row_read_by_its_columns_is_the_row(spark: Any, tmp_path: Path) -> None:
    """As code reads it that runs dead letters again, of each type, wherever Spark's clock is."""
    from pyspark.sql import functions as F

    shop = Shop(tmp_path, expect={"id < 0": "dead_letter"})
    shop.land(LINES[0])
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        shop.run(spark, "of_whatever_json_takes")
        (letter,) = shop.letters().values()
        raw = spark.createDataFrame([(letter["raw"],)], "raw string")
        told = raw.select(F.from_json("raw", letter["columns"]).alias("row")).select("row.*").cache()
        assert told.count() == 1
        spark.conf.set("spark.sql.session.timeZone", "UTC")  # in which no time is told like another one
        row = spark.sql(WHATEVER_JSON_TAKES)
        assert told.schema.simpleString() == row.schema.simpleString()
        texts = [frame.select(*(F.col(name).cast("string") for name in row.columns)) for frame in (told, row)]
        ours, theirs = (frame.first().asDict() for frame in texts)
        assert ours == theirs
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_record_is_refused_by_columns_that_the_transform_leaves_out(spark: Any, tmp_path: Path) -> None:
    """Spark's reader looks at the columns that are selected, and marks a record by these alone."""
    shop = Shop(tmp_path)
    result = shop.run(spark, "only_ids")
    assert shop.ids(spark) == [1, 2, 3, 200]
    assert set(shop.letters()) == {LINES[3], LINES[4]}
    assert (result["numOutputRows"], result["numDeadLetters"]) == (4, 2)


def test_rows_of_csv_that_do_not_fit_are_dead_letters(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.land("1,2.5,ann", "two,2.5,ann", "3,1")
    shop.run(spark, "only_ids", format="csv")
    assert shop.ids(spark) == [1]
    assert set(shop.letters()) == {"two,2.5,ann", "3,1"}


def test_rows_that_a_transform_has_left_unread_are_dead_letters_all_the_same(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    result = shop.run(spark, "the_first")
    assert result["numOutputRows"] == 1
    assert set(shop.letters()) == {LINES[3], LINES[4]}


def test_where_there_are_none_nothing_is_written(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"id > 0": "dead_letter"})
    shop.land(LINES[0])
    assert shop.run(spark)["numDeadLetters"] == 0
    assert shop.letters() == {}
    assert (tmp_path / "letters" / "lane=live" / "batch_id=0").is_dir()


def test_what_must_not_be_fails_the_batch_and_shows_no_value(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"amount >= 0": "fail", "amount > -5": "drop"}, dead_letters=None)
    failure = shop.refuses(spark)
    assert failure.origin == "data"
    assert "'amount >= 0': 4 of 6" in failure.error
    assert 'customer="xxx"' in failure.error
    assert "ann" not in failure.error


@pytest.mark.parametrize(("most", "told"), [(3, "allows 3"), (0.5, "allows 0.5 of them")])
def test_too_many_dead_letters_fail_the_batch(spark: Any, tmp_path: Path, most: float, told: str) -> None:
    shop = Shop(tmp_path, expect={"amount >= 0": "dead_letter"}, max_dead_letters=most)
    failure = shop.refuses(spark)
    assert failure.origin == "data"
    assert f"4 of 6 rows would be dead letters, and max_dead_letters {told}" in failure.error
    assert "source 'orders' does not parse: 2, 'amount >= 0': 2" in failure.error
    assert "bob" not in failure.error


@pytest.mark.parametrize("most", [2, 0.5])
def test_as_many_as_are_allowed_are_no_failure(spark: Any, tmp_path: Path, most: float) -> None:
    assert Shop(tmp_path, max_dead_letters=most).run(spark)["numDeadLetters"] == 2


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("amuont >= 0", "amuont"),
        ("amount", "FILTER_NOT_BOOLEAN"),
        ("count(id) > 0", "INVALID_WHERE_CONDITION"),
        ("amount >= > 0", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_is_no_condition_is_named_before_anything_is_written(
    spark: Any, tmp_path: Path, condition: str, said: str
) -> None:
    shop = Shop(tmp_path, expect={condition: "drop"})
    failure = shop.refuses(spark)
    assert failure.error.startswith(f"the expectation {condition!r}: ")
    assert said in failure.error
    assert not list(tmp_path.glob("lake/_staging/**/*.parquet"))


def test_a_transform_that_answers_otherwise_each_time_is_found_out(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"amount >= 0": "dead_letter"})
    shop.land(*(f'{{"id": {number}, "amount": 1}}' for number in range(20)))
    assert "answers otherwise each time" in shop.refuses(spark, "with_changing_amounts").error


def test_what_is_forgotten_is_in_neither_table(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path, expect={"amount >= 0": "dead_letter"})
    result = shop.run(spark, forgotten=(Forgotten(condition="customer = 'bob'", number=0, mark="0-x"),))
    assert shop.ids(spark) == [1]
    assert not [raw for raw in shop.letters() if "bob" in raw]
    assert result["numOutputRows"] == 1


def test_what_cannot_be_forgotten_fails_without_saying_whom_it_names(spark: Any, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    failure = shop.refuses(spark, forgotten=(Forgotten(condition="custommer = 'bob'", number=7, mark="7-x"),))
    assert "forgotten by entry 7" in failure.error
    assert "bob" not in failure.error + failure.traceback
    assert failure.__cause__ is None


def test_what_cannot_be_computed_while_it_is_written_says_not_whom_it_names(spark: Any, tmp_path: Path) -> None:
    from pyspark.logger import PySparkLogger

    shop, said = Shop(tmp_path), io.StringIO()
    handler, logger = logging.StreamHandler(said), PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.addHandler(handler)
    failure = shop.refuses(spark, forgotten=(Forgotten(condition="customer = 4711", number=7, mark="7-x"),))
    assert "CAST_INVALID_INPUT" in failure.error
    logger.removeHandler(handler)
    assert "4711" not in failure.error + failure.traceback + said.getvalue()


def test_an_example_shows_the_form_and_not_the_value() -> None:
    raw = '{"id": -12, "name": "Zoë B.", "note": null, "ok": true}'
    assert shape(raw) == 'id=-99, name="xxx x.", note=null, ok=true'
    assert shape("12;Zoë;") == "99;xxx;"
    assert len(shape("a" * 1000)) == 300
