"""A real Spark reads exactly the planned files, with the schema that was pinned."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_microbatch.runtime.files import ReadResult, read
from airflow_provider_microbatch.sources import OpenSource
from tests.sources.support import World
from tests.support.local_spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ODD_NAMES = [
    "plain.json",
    "with space.json",
    "100%.json",
    "c%20d.json",
    "ü é 😀.json",
    "a+b&c=d.json",
    "[1].json",
    "{a,b}.json",
    "star*.json",
    "question?.json",
    "back\\slash.json",
    "hash#semi;.json",
    "quote'\".json",
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with local_spark(conf={"spark.sql.shuffle.partitions": "1", "spark.sql.warehouse.dir": warehouse}) as session:
        yield session


def batch(spark: SparkSession, source: OpenSource, start: str | None = None) -> tuple[str | None, ReadResult]:
    """Plan, read and learn, as execution and runtime do; the plan travels as JSON."""
    end = source.latest_offset(start)
    arguments = json.loads(json.dumps(source.read(start, end).arguments))
    result = read(spark, arguments)
    source.learned(json.loads(json.dumps(dict(result.learned))))
    return end, result


def rows(result: ReadResult) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in result.frame.collect())


def test_odd_names_are_read_as_they_are_and_none_is_taken_for_a_glob(world: World, spark: SparkSession) -> None:
    for number, name in enumerate(ODD_NAMES):
        world.land(name, f'{{"id": {number}}}\n')
    position, result = batch(spark, world.open())
    assert rows(result) == [(number,) for number in range(len(ODD_NAMES))]
    # Each of these names, taken for a glob, would match one of the files above or below.
    for name in ("1.json", "a.json", "starfish.json", "questions.json", "d.json"):
        world.land(name, '{"id": 100}\n')
    world.land("later*.json", '{"id": 200}\n')
    world.land("laterally.json", '{"id": 300}\n', age=1)
    source = world.open(max_files=6)
    position, result = batch(spark, source, position)
    assert rows(result) == [(100,)] * 5 + [(200,)]
    assert rows(batch(spark, source, position)[1]) == [(300,)]


@pytest.mark.parametrize("folder", ["at 10:00", "with space", "100%", "c%20d", "ü", "[1]", "{a}", "k=v w%"])
def test_odd_folder_names(world: World, spark: SparkSession, folder: str) -> None:
    world.land(f"{folder}/day=1/a.json")
    escaped = "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in folder)
    _, result = batch(spark, world.open(f"{world.landing}/{escaped}"))
    assert [row.asDict() for row in result.frame.collect()] == [{"id": 1, "day": 1}]


def test_partition_columns_count_from_the_part_without_a_glob(world: World, spark: SparkSession) -> None:
    world.land("day=2026-01-01/hour=1/a.json", '{"id": 1}')
    world.land("day=2026-01-02/hour=2/b.json", '{"id": 2}')
    for path in (str(world.landing), f"{world.landing}/day=*/hour=*/*.json", f"{world.landing}/day=*"):
        source = World(world.root, world.now_ms).open(path)
        end = source.latest_offset(None)
        frame = read(spark, source.read(None, end).arguments).frame
        assert frame.columns == ["id", "day", "hour"]
        assert sorted((row.id, str(row.day), row.hour) for row in frame.collect()) == [
            (1, "2026-01-01", 1),
            (2, "2026-01-02", 2),
        ]


def test_files_outside_of_the_partitions_are_not_lost(world: World, spark: SparkSession) -> None:
    world.land("top.json", '{"id": 1}')
    world.land("day=7/a.json", '{"id": 2}')
    world.land("day=7/hour=3/b.json", '{"id": 3}')
    _, result = batch(spark, world.open(schema="id long, day int, hour int"))
    assert sorted(rows(result), key=lambda row: row[0]) == [(1, None, None), (2, 7, None), (3, 7, 3)]


def test_a_glob_over_several_roots_with_partitions(world: World, spark: SparkSession) -> None:
    world.land("eu/day=1/a.json", '{"id": 1}')
    world.land("us/day=2/b.json", '{"id": 2}')
    _, result = batch(spark, world.open(f"{world.landing}/*/day=*"))
    assert rows(result) == [(1, 1), (2, 2)]


def test_recursive_reads_all_folders_and_makes_no_columns(world: World, spark: SparkSession) -> None:
    world.land("x/y/a.json", '{"id": 1}')
    world.land("x/day=1/b.json", '{"id": 2}')
    _, result = batch(spark, world.open(recursive=True))
    assert result.frame.columns == ["id"]
    assert rows(result) == [(1,), (2,)]


def test_column_order_is_the_schemas_in_every_batch(world: World, spark: SparkSession) -> None:
    world.land("day=1/a.json", '{"id": 1, "a`b.c": 5}')
    source = world.open(schema="day int, id long, `a``b.c` int")
    position, result = batch(spark, source)
    assert rows(result) == [(1, 1, 5)]
    world.land("b.json", '{"day": 2, "id": 2}')
    _, result = batch(spark, source, position)
    assert rows(result) == [(2, 2, None)]


def test_an_inferred_schema_is_pinned_by_the_first_batch(world: World, spark: SparkSession) -> None:
    world.land("day=1/a.json", '{"id": 1, "name": "x"}')
    source = world.open(schema=None)
    position, result = batch(spark, source)
    schema = result.frame.schema
    assert [field.simpleString() for field in schema] == ["id:bigint", "name:string", "day:int"]

    world.land("day=2/b.json", '{"id": "text", "more": true}')
    again = world.open(schema=None)
    position, result = batch(spark, again, position)
    assert result.frame.schema == schema
    assert dict(result.learned) == {}

    empty = read(spark, world.open(schema=None).read(position, position).arguments)
    assert empty.frame.schema == schema
    assert empty.frame.count() == 0


@pytest.mark.parametrize("name", ["a.json", "day=1/a.json"])
def test_files_that_hold_nothing_teach_no_schema(world: World, spark: SparkSession, name: str) -> None:
    world.land(name, "")
    position, result = batch(spark, world.open(schema=None))
    assert result.absent is not None
    assert "1 file(s) hold neither a column nor a row" in result.absent
    assert dict(result.learned) == {}
    assert result.told["files"] == 1
    world.land("day=2/b.json", '{"id": 1}')
    _, result = batch(spark, world.open(schema=None), position)
    assert result.absent is None
    assert rows(result) == [(1, 2)]
    # The first range again, as a replay has it.
    assert read(spark, world.open(schema=None).read(None, position).arguments).frame.columns == ["id", "day"]


def test_a_column_of_the_files_that_their_folders_have_too_is_one(world: World, spark: SparkSession) -> None:
    world.land("day=1/a.json", '{"day": 1}')
    _, result = batch(spark, world.open(schema=None))
    assert rows(result) == [(1,)]
    assert "schema" in result.learned


@pytest.mark.parametrize("name", ["a.json", "day=1/a.json"])
@pytest.mark.parametrize("text", ["{}\n", "this is no json\n"])
def test_rows_without_a_column_name_their_files_and_ask_for_a_schema(
    world: World, spark: SparkSession, name: str, text: str
) -> None:
    world.land(name, text)
    with pytest.raises(ValueError, match=rf"source 'orders'.*rows and no column.*{name}.*schema="):
        batch(spark, world.open(schema=None))


def test_partition_columns_beyond_the_schema_keep_their_types(world: World, spark: SparkSession) -> None:
    world.land("day=1/a.json")
    source = world.open()
    position, result = batch(spark, source)
    assert [field.simpleString() for field in result.frame.schema] == ["id:bigint", "day:int"]
    world.land("b.json", '{"id": 2}')
    position, result = batch(spark, world.open(), position)
    assert rows(result) == [(2, None)]
    empty = read(spark, world.open().read(position, position).arguments)
    assert empty.frame.columns == ["id", "day"]
    world.land("zone=eu/c.json", '{"id": 3}')
    with pytest.raises(ValueError, match=r"'orders'.*zone.*schema"):
        batch(spark, world.open(), position)


def test_an_empty_range_has_the_schema(world: World, spark: SparkSession) -> None:
    result = read(spark, world.open(schema="id long, ts timestamp").read(None, None).arguments)
    assert [field.simpleString() for field in result.frame.schema] == ["id:bigint", "ts:timestamp"]
    assert result.frame.collect() == []
    assert dict(result.learned) == {}


def test_a_schema_that_does_not_parse_names_the_source(world: World, spark: SparkSession) -> None:
    world.land("a.json")
    with pytest.raises(ValueError, match=r"source 'orders'.*'id lonk wrong\('"):
        batch(spark, world.open(schema="id lonk wrong("))


def test_formats_and_options(world: World, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string").coalesce(1)
    for name in ("parquet", "orc", "csv", "json", "text"):
        folder = tmp_path / name
        writer = frame.select("name") if name == "text" else frame
        writer.write.format(name).option("header", "true").save(str(folder))
        options = {"header": True} if name == "csv" else {}
        schema = "value string" if name == "text" else "id long, name string"
        other = World(tmp_path / f"{name}-world")
        _, result = batch(spark, other.open(str(folder), format=name, schema=schema, options=options))
        assert rows(result) == ([("a",), ("b",)] if name == "text" else [(1, "a"), (2, "b")])


@pytest.mark.parametrize("format_", ["json", "parquet"])
def test_a_file_that_cannot_be_read_whole_fails_the_batch_whatever_the_session_is_set_to(
    world: World, spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    world.landing.mkdir(exist_ok=True)
    if format_ == "json":
        whole = gzip.compress("".join(f'{{"id": {number}}}\n' for number in range(20_000)).encode())
        (world.landing / "a.json.gz").write_bytes(whole[: len(whole) // 2])
    else:
        (world.landing / "a.parquet").write_bytes(b"PAR1 and nothing else")
    names = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    try:
        for name in names:
            spark.conf.set(name, "true")
        with pytest.raises(Exception, match=r"(?i)EOF|end of|parquet"):
            rows(batch(spark, world.open(format=format_))[1])
    finally:
        for name in names:
            spark.conf.unset(name)


def test_archived_and_remaining_files_of_a_range_are_read_together(world: World, spark: SparkSession) -> None:
    world.land("day=1/a.json", '{"id": 1}')
    world.land("day=2/b.json", '{"id": 2}')
    archive = world.root / "archive"
    source = world.open(clean_source="archive", archive_dir=str(archive))
    end, _ = batch(spark, source)
    (archive / "day=1").mkdir(parents=True)
    (world.landing / "day=1/a.json").rename(archive / "day=1" / "a.json")
    assert rows(read(spark, source.read(None, end).arguments)) == [(1, 1), (2, 2)]


def test_many_files_are_listed_without_a_job(world: World, spark: SparkSession) -> None:
    for number in range(60):
        world.land(f"{number}.json", f'{{"id": {number}}}')
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    _, result = batch(spark, world.open())
    assert len(tracker.getJobIdsForGroup(None)) == before
    assert result.frame.count() == 60


def test_a_real_query_takes_over_our_source_log(world: World, spark: SparkSession, tmp_path: Path) -> None:
    """Spark accepts our entries, extra keys and encoded names included, and sees every file of them as read."""
    names = [name for name in ODD_NAMES if "\\" not in name]
    for name in names:
        world.land(name)
    world.open().latest_offset(None)
    checkpoint = tmp_path / "query"
    (checkpoint / "sources").mkdir(parents=True)
    Path(world.log.location).rename(checkpoint / "sources" / "0")
    (checkpoint / "metadata").write_text('{"id":"6f0c2f4e-6c0d-4f0e-9c0f-0f4b3b0f2a11"}')
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}'
    )
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    world.land("new.json", '{"id": 77}')
    query = (
        spark.readStream.schema("id long")
        .json(str(world.landing))
        .writeStream.foreachBatch(lambda frame, batch_id: frame.write.mode("append").parquet(str(tmp_path / "out")))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [77]


def test_we_take_over_the_source_log_of_a_real_query(world: World, spark: SparkSession, tmp_path: Path) -> None:
    names = [name for name in ODD_NAMES if not set(name) & set("[]{}*?\\")]
    for number in range(10):
        world.land(f"{number}.json", age=100 - number)
    for number, name in enumerate(names):
        world.land(name, age=50 - number)
    query = (
        spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", 1)
        .json(str(world.landing))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "query"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    log = Path(world.log.location)
    log.parent.mkdir(parents=True)
    (tmp_path / "query" / "sources" / "0").rename(log)
    last = len(names) + 9
    assert (log / "9.compact").exists()
    position = f'{{"logOffset":{last}}}'
    source = world.open()
    assert not source.has_new(position)
    planned = source.read(None, position)
    assert sorted(world.names(planned)) == sorted([*names, *(f"{number}.json" for number in range(10))])
    world.land("new.json", '{"id": 77}')
    assert rows(batch(spark, source, position)[1]) == [(77,)]
