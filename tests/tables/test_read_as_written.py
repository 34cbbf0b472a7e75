"""Which columns and options of a sink a continuous table of a catalog reads as they are written. (What is made of it,
on a real metastore, is in test_spark_tables.py.)"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.read_as_written import misread, missing, other_options
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from tests.sinks.stages import BATCH
from tests.tables.metastore_in_memory import InMemory
from tests.tables.stages import write_stage_table

LONG, INT = {"name": "bigint"}, {"name": "int"}
TEXT = {"name": "string", "collation": "UTF8_BINARY"}


def struct(**fields: Any) -> dict[str, Any]:
    told = [{"name": name, "type": kind, "nullable": True} for name, kind in fields.items()]
    return {"name": "struct", "fields": told}


def several(kind: Any, **told: Any) -> dict[str, Any]:
    return {"name": "array", "element_type": kind, **told}


WRITTEN = [
    ("parquet", {"id": LONG, "note": TEXT}, {"NOTE": {"name": "string"}, "Id": LONG, "more": INT}, [], []),
    ("orc", {"id": LONG, "note": TEXT}, {"id": LONG}, ["note"], []),
    ("parquet", {"id": LONG}, {"id": INT}, [], ["id"]),
    ("parquet", {"at": struct(a=INT)}, {"at": struct(b=INT, A=INT)}, [], []),
    ("parquet", {"at": struct(a=INT, b=INT)}, {"at": struct(a=INT)}, [], ["at"]),
    ("parquet", {"at": several(struct(a=INT))}, {"at": several(struct(a=INT), element_nullable=True)}, [], []),
    ("parquet", {"at": several(struct(a=INT))}, {"at": several(struct(a=LONG))}, [], ["at"]),
    ("parquet", {"at": several(INT)}, {"at": INT}, [], ["at"]),
    ("json", {"id": LONG}, {"more": INT, "id": LONG}, [], []),
    ("json", {"ID": LONG}, {"id": LONG}, [], ["ID"]),
    ("json", {"at": struct(A=INT)}, {"at": struct(a=INT)}, [], ["at"]),
    ("csv", {"id": LONG, "note": TEXT}, {"Id": LONG, "note": TEXT, "more": INT}, [], []),
    ("csv", {"id": LONG, "note": TEXT}, {"more": INT, "id": LONG, "note": TEXT}, [], ["id", "note"]),
    ("csv", {"id": LONG, "note": TEXT}, {"id": LONG}, ["note"], []),
    ("csv", {"id": LONG, "name": TEXT}, {"id": LONG, "note": TEXT}, [], ["name"]),
]


@pytest.mark.parametrize(("format", "written", "read", "lacks", "others"), WRITTEN)
def test_columns_are_read_as_they_are_written(
    format: str, written: dict[str, Any], read: dict[str, Any], lacks: list[str], others: list[str]
) -> None:
    given = list(written.items()), list(read.items())
    assert (missing(*given, format=format), misread(*given, format=format)) == (lacks, others)


def test_so_are_files_of_text_by_their_options() -> None:
    made, now = {"Sep": ";", "header": "true"}, {"sep": ";", "quoteAll": "true", "compression": "gzip"}
    assert other_options(now, made, format="csv") == ["header"]
    assert other_options({**now, "HEADER": "true"}, made, format="csv") == []
    assert other_options({"dateFormat": "dd.MM.yyyy"}, {}, format="json") == ["dateformat"]
    assert other_options({"mergeSchema": "true"}, {}, format="parquet") == []


ALIKE = [
    ("csv", {"header": "True"}, {"HEADER": "true"}),
    ("csv", {"header": "FALSE"}, {}),
    ("csv", {"delimiter": ";"}, {"sep": ";"}),
    ("csv", {"delimiter": "|", "sep": ";"}, {"sep": ";"}),
    ("csv", {"encoding": "utf-16"}, {"charset": "UTF-16"}),
    ("csv", {"sep": ",", "encoding": "UTF-8"}, {"quote": '"', "escape": "\\", "nullValue": "", "mode": "PERMISSIVE"}),
    ("csv", {}, {"inferSchema": "true", "maxColumns": "9", "columnNameOfCorruptRecord": "_bad"}),
    ("json", {"primitivesAsString": "true", "writeNonAsciiCharacterAsCodePoint": "true"}, {"allowComments": "true"}),
]
UNLIKE = [
    ("csv", {"nullValue": "None"}, {"nullValue": "none"}, ["nullvalue"]),
    ("csv", {"delimiter": ";"}, {"sep": "|"}, ["sep"]),
    ("csv", {"header": "True"}, {"header": "false"}, ["header"]),
    ("csv", {}, {"mode": "DROPMALFORMED"}, ["mode"]),
    ("json", {}, {"multiLine": "true"}, ["multiline"]),
]


@pytest.mark.parametrize(("format", "written", "read"), ALIKE)
def test_options_that_spark_takes_alike_refuse_no_batch(
    format: str, written: dict[str, str], read: dict[str, str]
) -> None:
    assert other_options(written, read, format=format) == []


@pytest.mark.parametrize(("format", "written", "read", "told"), UNLIKE)
def test_those_by_which_rows_are_read_otherwise_do(
    format: str, written: dict[str, str], read: dict[str, str], told: list[str]
) -> None:
    assert other_options(written, read, format=format) == told


def test_a_column_that_readers_take_for_what_does_not_parse_is_read_otherwise() -> None:
    """Spark reads no value of the files for it, and each column of CSV behind it has the values of the one before."""
    option, table = "columnNameOfCorruptRecord", [("id", LONG), ("Note", TEXT), ("_bad", TEXT)]
    columns = ([("id", LONG), ("note", TEXT)], table)
    for form in ("csv", "json"):
        assert other_options({}, {option: "Note"}, format=form, columns=columns) == [option.casefold()]
        for name in ("_bad", "note", "elsewhere"):  # one that is not written, and two that the table does not have
            assert other_options({}, {option: name}, format=form, columns=columns) == []
    now = [("id", LONG), ("_corrupt_record", TEXT)]
    assert other_options({option: "_bad"}, {}, format="json", columns=(now, now)) == [option.casefold()]
    assert other_options({}, {option: "_corrupt_record"}, format="json", columns=(now, now)) == []


def test_no_batch_is_admitted_of_which_readers_take_a_column_for_that(tmp_path: Path) -> None:
    catalog = SparkCatalog(metastore := InMemory(), str(tmp_path / "lake"))
    sink = TableSink(catalog, "orders", format="csv", schema="id long, epoch long")
    write_stage_table(sink, 1)
    assert sink.admits(BATCH)
    for table in metastore.tables.values():
        table["storage_properties"] = {"columnNameOfCorruptRecord": "id"}
    with pytest.raises(SinkError, match=r"made with other options \(columnnameofcorruptrecord\)"):
        sink.admits(BATCH)


def test_a_batch_is_not_admitted_whose_columns_the_table_would_not_read(tmp_path: Path) -> None:
    catalog = SparkCatalog(InMemory(), str(tmp_path / "lake"))
    sink = TableSink(catalog, "orders", format="json", schema="id long, epoch long")
    write_stage_table(sink, 1)
    assert sink.admits(BATCH)
    for schema, said in (
        ("id long, epoch long, of string", r"ADD COLUMNS \(`of` string\)"),
        ("id long, epoch string", "reads epoch otherwise"),
    ):
        with pytest.raises(SinkError, match=said):
            dataclasses.replace(sink, schema=schema).admits(BATCH)


def test_columns_with_more_than_a_type_has_do_not_keep_a_table_from_its_batches(tmp_path: Path) -> None:
    """Spark makes a table of them, and parses no type of them."""
    catalog = SparkCatalog(InMemory(), str(tmp_path / "lake"))
    sink = TableSink(catalog, "orders", format="json", schema="id long, epoch long DEFAULT 0")
    write_stage_table(sink, 1)
    assert sink.admits(BATCH)
