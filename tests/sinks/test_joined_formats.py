"""Files of a format become one file of it: what can be joined is the same to every reader, and what cannot be is left
with a reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest, SinkContext
from airflow_provider_microbatch.sinks.compaction import parquet as compaction_of_parquet
from airflow_provider_microbatch.sinks.compaction.writer_name import rename_writer
from airflow_provider_microbatch.sinks.file import FileSink
from tests.sinks.stages import EXPECTED, KEY, write_stage
from tests.sinks.test_file_compaction import batch_folder, data, publish, wanted

ARROW, MR = f"parquet-cpp-arrow version {pa.cpp_version}", "parquet-mr version 1.16.0 (build 0)"


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "table"), format="json")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "csv", "options": {"Header": "true"}}, "header"),
        ({"format": "json", "options": {"lineSep": ";"}}, "linesep"),
        ({"format": "json", "options": {"encoding": "UTF-16"}}, "encoding"),
    ],
)
def test_lines_that_cannot_be_joined_are_left_with_a_reason(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    sink = FileSink(str(tmp_path / "table"), **given)
    publish(sink)
    done = sink.compact(wanted())
    assert (done.files_before, list(done.left.values())) == (0, [{KEY}])
    assert said in next(iter(done.left))


def test_files_of_orc_are_refused_with_a_sentence(tmp_path: Path) -> None:
    assert "use parquet" in (FileSink(str(tmp_path), format="orc").not_compactable() or "")
    table = FileSink("s3://bucket/table", format="orc", packages=[]).open(SinkContext())
    with pytest.raises(SinkError, match="use parquet"):
        table.compact(wanted())


def _rewrite(folder: Path, files: dict[str, bytes]) -> None:
    """Other files in place of a stage's."""
    path = folder / "_manifest" / "part-00000.txt"
    first, *_ = path.read_text().split("\n")
    for old in folder.glob("*.json"):
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    lines = [json.dumps({"file": name, "bytes": len(content)}) for name, content in files.items()]
    path.write_text("".join(f"{line}\n" for line in (first, *lines)))


def test_packed_lines_are_joined_member_by_member(sink: FileSink) -> None:
    folder = write_stage(sink, 1)
    _rewrite(folder, {f"part-{number}.json.gz": gzip.compress(b'{"id": %d}\n' % number) for number in range(3)})
    sink.publish(EXPECTED, 1)
    sink.compact(wanted())
    (joined,) = data(batch_folder(sink))
    assert joined.name.endswith(".json.gz")
    assert gzip.decompress(joined.read_bytes()) == b'{"id": 0}\n{"id": 1}\n{"id": 2}\n'


@pytest.mark.parametrize(
    "files",
    [
        {"part-0.json": b'{"id": 0}', "part-1.json": b'{"id": 1}\n'},
        {"part-0.json.zst": b"0\n", "part-1.json.zst": b"1\n"},
    ],
    ids=["without an end", "packed otherwise"],
)
def test_lines_that_would_run_together_are_not_joined(sink: FileSink, files: dict[str, bytes]) -> None:
    folder = write_stage(sink, 1)
    _rewrite(folder, files)
    sink.publish(EXPECTED, 1)
    assert sink.compact(wanted()).files_before == 0
    assert len(data(batch_folder(sink))) == 2


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"0,a\n" * 9)[:-12], gzip.compress(b"")[:10] + b"\xff" * 9],
    ids=["no gzip", "torn", "no stream"],  # the bytes have the time in them: two workers would not collect the same
)
def test_packed_lines_that_cannot_be_read_are_left_and_named(tmp_path: Path, content: bytes) -> None:
    sink = FileSink(str(tmp_path / "table"), format="csv")
    _rewrite(write_stage(sink, 1), {f"part-{number}.csv.gz": content for number in range(2)})
    sink.publish(EXPECTED, 1)
    assert "part-0.csv.gz cannot be read as gzip" in next(iter(sink.compact(wanted()).left))


def test_what_looks_like_headers_of_older_files_is_not_joined(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "table"), format="csv")
    folder = write_stage(sink, 1)
    _rewrite(folder, {f"part-{number}.csv": b"id,name\n%d,a\n" % number for number in range(2)})
    sink.publish(EXPECTED, 1)
    assert "header" in next(iter(sink.compact(wanted()).left))


def parquet_batch(sink: FileSink, tables: list[pa.Table], *, writers: Sequence[str] = (), **given: Any) -> Manifest:
    """:param writers: names of the files' writers; else Arrow's."""
    folder = write_stage(sink, 1)
    files = {}
    for number, table in enumerate(tables):
        path = folder / f"part-{number:05}.parquet"
        named = {"store_schema": False, "use_deprecated_int96_timestamps": True, **given}
        with parquet.ParquetWriter(path, table.schema, **named) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(table.schema.metadata or {})
        if writers:
            rename_writer(path, writers[number], before=ARROW)
        files[path.name] = path.read_bytes()
    _rewrite(folder, files)
    return sink.publish(EXPECTED, 1)


@pytest.fixture
def lake(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "table"))


def test_parquet_is_joined_with_its_types_and_notes(lake: FileSink) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, None]),
            "amount": pa.array([float("nan"), None, -0.0]),
            "tags": pa.array([["a", None], [], None]),
            "place": pa.array([{"x": 1.5, "y": "b"}, None, {"x": float("nan"), "y": None}]),
            "counts": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
            "at": pa.array([0, 253_402_300_799_999_999, None], pa.timestamp("us")),
        }
    ).replace_schema_metadata({"org.apache.spark.version": "4.1.3"})
    parquet_batch(lake, [table.slice(0, 1), table.slice(1, 1), table.slice(2, 1)], compression="zstd")
    before = parquet.ParquetFile(next(batch_folder(lake).glob("*.parquet")))
    assert lake.compact(wanted()).files_after == 1
    (path,) = batch_folder(lake).glob("*.parquet")
    after = parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
    assert after.schema.equals(before.schema)
    assert after.metadata.metadata[b"org.apache.spark.version"] == b"4.1.3"
    assert after.metadata.row_group(0).column(0).compression == "ZSTD"
    assert str(after.read().to_pylist()) == str(table.to_pylist())


def test_files_of_other_columns_or_of_another_writer_are_not_mixed(lake: FileSink) -> None:
    one = pa.table({"id": [1]})
    noted = one.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})
    parquet_batch(lake, [one, pa.table({"id": [1], "more": ["x"]}), noted, one])
    assert (lake.compact(wanted()).files_before, len(list(batch_folder(lake).glob("*.parquet")))) == (2, 3)
    assert sum("-joined-" in path.name for path in batch_folder(lake).glob("*.parquet")) == 1
    assert dataset.dataset(batch_folder(lake), format="parquet").count_rows() == 4


@pytest.mark.parametrize("name", [MR, "", "x" * 127, "é" * 100, f"{ARROW} {ARROW}"], ids=len)
def test_times_in_96_bits_keep_the_name_of_their_writer(lake: FileSink, name: str) -> None:
    table = pa.table({"at": pa.array([0, 1], pa.timestamp("us")), f" {ARROW}": [f" {ARROW}", ARROW]})
    table = table.replace_schema_metadata({"k": f" {ARROW}"})
    parquet_batch(lake, [table, table], writers=[name, name])
    assert lake.compact(wanted()).files_after == 1
    (path,) = batch_folder(lake).glob("*.parquet")
    found = parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
    assert (found.metadata.created_by, found.metadata.metadata[b"k"].decode()) == (name, f" {ARROW}")
    assert found.read().to_pylist() == table.to_pylist() * 2


def test_and_are_not_joined_with_those_of_another_writer(lake: FileSink) -> None:
    table = pa.table({"at": pa.array([0], pa.timestamp("us"))})
    parquet_batch(lake, [table, table], writers=[MR, ARROW])
    assert lake.compact(wanted()).files_before == 0


def test_columns_that_arrow_stores_otherwise_are_one_reason_for_all_batches(lake: FileSink) -> None:
    """Such as lists with spark.sql.parquet.writeLegacyFormat: the report is kept in XCom."""
    table = pa.table({"tags": [["a"]]})
    parquet_batch(lake, [table, table], use_compliant_nested_type=False)
    ((why, left),) = lake.compact(wanted()).left.items()
    assert left == {KEY}
    assert "as Arrow does not store them" in why
    assert str(lake.root) not in why


def test_what_reads_back_otherwise_is_not_published(lake: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet_batch(lake, [pa.table({"id": [1]}), pa.table({"id": [2]})])
    real = parquet.ParquetWriter.write_table

    def other(self: Any, table: pa.Table, **given: Any) -> None:
        real(self, table.set_column(0, "id", pa.array([3] * table.num_rows)), **given)

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", other)
    assert "reads back" in next(iter(lake.compact(wanted()).left))
    assert sorted(dataset.dataset(batch_folder(lake), format="parquet").to_table()["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("deprecated", [True, False])
def test_times_before_1970_are_the_same_ones(lake: FileSink, deprecated: bool) -> None:
    times = pa.table({"at": pa.array([-1, -62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us"))})
    parquet_batch(lake, [times, times], use_deprecated_int96_timestamps=deprecated)
    assert lake.compact(wanted()).files_after == 1
    (path,) = batch_folder(lake).glob("*.parquet")
    found = parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
    assert found.schema.column(0).physical_type == ("INT96" if deprecated else "INT64")
    assert found.read()["at"].to_pylist() == [*times["at"].to_pylist()] * 2


@pytest.mark.parametrize(
    ("values", "at_once"),
    [
        ([f"{number}{'x' * 10_000}" for number in range(50)], 20),
        (["x" * 10_000] * 50, 40),
        ([["x" * 1_000] * 10] * 50, 40),
    ],
    ids=["each another", "one in all rows", "one often in each row"],
)
def test_huge_values_that_are_small_when_packed_are_not_held_in_memory_at_once(
    lake: FileSink, monkeypatch: pytest.MonkeyPatch, values: list[Any], at_once: int
) -> None:
    monkeypatch.setattr(compaction_of_parquet, "_GROUP_BYTES", 100_000)
    table = pa.table({"id": pa.array(values)})
    parquet_batch(lake, [table, table], compression="zstd", use_dictionary=len(set(map(str, values))) == 1)
    assert lake.compact(wanted()).bytes_before < 50_000
    (path,) = batch_folder(lake).glob("*.parquet")
    found = parquet.read_metadata(path)
    assert max(found.row_group(index).num_rows for index in range(found.num_row_groups)) <= at_once


def test_many_small_values_are_read_by_thousands_of_rows(lake: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column of Spark's has a dictionary, whatever is in it."""
    asked, rows, read = [], range(5_000), parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile,
        "iter_batches",
        lambda file, **given: asked.append(given.get("batch_size", 4_096)) or read(file, **given),
    )
    monkeypatch.setattr(compaction_of_parquet, "_GROUP_BYTES", 1_000_000)
    texts = [f"customer-{row:08d}" for row in rows]
    columns = {"a.text": texts, "lists": [[text] for text in texts], "structs": [{"text": text} for text in texts]}
    table = pa.table(columns | {f"number{index}": [row * 7 for row in rows] for index in range(6)})
    parquet_batch(lake, [table, table])
    lake.compact(wanted())
    assert min(asked) > 1_000


def test_a_file_that_is_no_parquet_is_left_and_named(lake: FileSink) -> None:
    folder = write_stage(lake, 1)
    _rewrite(folder, {"part-0.parquet": b"PAR1", "part-1.parquet": b"PAR1"})
    lake.publish(EXPECTED, 1)
    assert "part-0.parquet cannot be read" in next(iter(lake.compact(wanted()).left))


@pytest.mark.parametrize("old", [b"id", None], ids=["a name that is no text", "a page that is none"])
def test_nor_is_parquet_that_cannot_be_read_joined(lake: FileSink, old: bytes | None) -> None:
    table = pa.table({"id": [1]})
    parquet_batch(lake, [table, table])
    for path in batch_folder(lake).glob("*.parquet"):
        content = path.read_bytes()
        old = old or content[4:20]
        path.write_bytes(content.replace(old, b"\xff" * len(old)))
    assert "part-00000.parquet" in next(iter(lake.compact(wanted()).left))
