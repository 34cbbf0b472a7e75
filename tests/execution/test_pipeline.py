"""What is wrong with a pipeline is said where it is written: when its DAG is parsed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.definition import reading_back
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.world import World


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("checkpoints/orders", r"pipeline 'orders': checkpoint 'checkpoints/orders' is not absolute"),
        ("file:checkpoints/orders", "is not absolute"),
        ("ftp://bucket/orders", "no checkpoint store for ftp"),
        ("", "must be a path or URL"),
    ],
)
def test_a_checkpoint_that_no_worker_could_open_is_refused(checkpoint: str, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Pipeline("orders", checkpoint=checkpoint, sources={"orders": FileSource("/landing")}, sink=FileSink("/lake"))


def written(*sources: FileSource, checkpoint: str = "/checkpoints/orders", sink: str = "/lake") -> Pipeline:
    named = {f"s{number}": source for number, source in enumerate(sources)}
    return Pipeline("orders", checkpoint=checkpoint, sources=named, sink=FileSink(sink), transform="jobs/a.py:f")


@pytest.mark.parametrize(
    ("path", "recursive", "folder"),
    [
        ("/w", False, "/w"),
        ("/w", True, "/w"),
        ("/w", True, "/w/out"),
        ("file:///w/", True, "/x/../w//out/"),
        ("/w", True, "/w/a/b=1/c"),
        ("/w", False, "/w/dt=1"),
        ("/w", False, "/w/dt=1/_hh=2"),
        ("/w/*", False, "/w/out"),
        ("/w/*", False, "/w"),
        ("/w/*/*", True, "/w"),
        ("/{v,w}/o[tu]t", False, "/w/out/dt=1"),
        ("/w/o*", True, "/w/out/deep"),
        (r"/w/a\b", True, "/w/ab/c"),
        ("/w/_o*", False, "/w/_out"),
    ],
)
def test_what_a_pipeline_writes_is_not_where_it_reads(path: str, recursive: bool, folder: str) -> None:
    """It would read its own rows in every run, or the files of its checkpoint as rows."""
    source = FileSource(path, recursive=recursive)
    for what, places in (("sink", {"sink": folder}), ("checkpoint", {"checkpoint": folder})):
        with pytest.raises(
            DefinitionError, match=rf"'s0' reads {re.escape(repr(path))}.* the {what} at '.*Put it where"
        ):
            written(source, **places)
    with pytest.raises(DefinitionError, match=r"'s0' reads .* the archive of source 's1' at '"):
        written(source, FileSource("/other", clean_source="archive", archive_dir=folder))


@pytest.mark.parametrize(
    ("path", "recursive", "folder"),
    [
        ("/w/in", True, "/w/out"),
        ("/w/in", True, "/w/in2"),
        ("/w/in", True, "/w"),
        ("/w", False, "/w/out"),
        ("/w", False, "/w/dt=1/out"),
        ("/w", True, "/w/_out"),
        ("/w", True, "/w/.a/out"),
        ("/w", True, "/w/a/_b/out"),
        ("/w/*.json", True, "/w/out"),
        ("/w/*.json", False, "/w"),
        ("/w/*", True, "/w/_out"),
        ("/w/*", False, "/w/out/deep"),
        ("/w/{a,b}", True, "/w/c"),
    ],
)
def test_what_a_source_does_not_list_may_be_written(path: str, recursive: bool, folder: str) -> None:
    source = FileSource(path, recursive=recursive)
    written(source, sink=folder)
    written(source, checkpoint=folder)


TABLES: dict[str, Sink] = {
    "/lake/orders": FileSink("/lake/orders"),
    "/lake/tables/sales/orders": TableSink(PathCatalog("/lake/tables"), "sales.orders"),
}
REPLACED = TableSink(PathCatalog("/lake/tables"), "sales.orders", mode="create_or_replace")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("below", ["", "/checkpoint", "/a/b"])
def test_nothing_that_a_pipeline_keeps_lies_where_readers_of_its_table_come_upon_it(table: str, below: str) -> None:
    """They read offsets as rows, or find folders of two kinds and read nothing at all."""
    sink, folder = TABLES[table], table + below
    with pytest.raises(DefinitionError, match=f"the checkpoint at '{folder}' lies in the table 'file://{table}'"):
        Pipeline("orders", sink=sink, checkpoint=folder, sources={"orders": FileSource("/landing")})
    archiving = FileSource("/landing", clean_source="archive", archive_dir=folder)
    with pytest.raises(DefinitionError, match=f"the archive of source 'orders' at '{folder}' lies in the table"):
        Pipeline("orders", sink=sink, checkpoint="/checkpoint", sources={"orders": archiving})


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("below", ["/_checkpoint", "/.hidden/checkpoint", "_beside"])
def test_what_readers_of_its_table_pass_over_may_lie_there(table: str, below: str) -> None:
    Pipeline("orders", sink=TABLES[table], checkpoint=table + below, sources={"orders": FileSource("/landing")})


@pytest.mark.parametrize("below", ["", "/a", "/_checkpoint", "/.hidden/checkpoint"])
def test_nothing_lies_in_a_table_that_each_batch_replaces(below: str) -> None:
    folder = f"/lake/tables/sales/orders{below}"
    with pytest.raises(DefinitionError, match="takes it away"):
        Pipeline("orders", sink=REPLACED, checkpoint=folder, sources={"orders": FileSource("/landing")})
    Pipeline(
        "orders", sink=REPLACED, checkpoint="/lake/tables/sales/orders-2", sources={"orders": FileSource("/landing")}
    )


def test_tables_are_asked_for_by_their_address(tmp_path: Path) -> None:
    source, table = FileSource("/w", recursive=True), TableSink(PathCatalog("/w/tables"), "orders")
    arguments: dict[str, Any] = {"checkpoint": "/checkpoints/orders", "sources": {"orders": source}}
    with pytest.raises(DefinitionError, match=r"'orders' reads '/w'.* the sink at 'file:///w/tables/orders'"):
        Pipeline("orders", sink=table, **arguments)


def test_a_pipeline_that_was_written_before_is_read_back() -> None:
    values = written(FileSource("/w", recursive=True)).to_dict()
    values["arguments"]["sink"]["arguments"]["path"] = "/w/out"
    assert Pipeline.from_dict(values).sink == FileSink("/w/out")


@pytest.mark.parametrize("key", ["spark.sql.files.ignoreCorruptFiles", "spark.sql.files.IGNORECORRUPTFILES"])
def test_a_setting_that_loses_rows_is_refused(key: str) -> None:
    arguments: dict[str, Any] = {
        "checkpoint": "/c",
        "sources": {"s": FileSource("/landing")},
        "sink": FileSink("/lake"),
    }
    with pytest.raises(DefinitionError, match=r"(?i)'orders': conf: .*ignoreCorruptFiles.*on_missing='skip'"):
        Pipeline("orders", conf={key: "true"}, **arguments)
    Pipeline("orders", conf={key: "false"}, **arguments)


def test_a_setting_that_loses_rows_is_not_taken_on_from_batches_of_before(tmp_path: Path) -> None:
    lossy = "spark.sql.files.ignoreCorruptFiles"
    world = World(tmp_path)
    with reading_back():  # an older version has let it pass
        world.options["conf"] = {lossy: "true", "spark.sql.caseSensitive": "true"}
        world.land(1)
        world.run(1)
    del world.options["conf"]
    world.land(2)
    world.run(2)
    first, second = (world.checkpoint.offset_log.get(number) for number in (0, 1))
    assert first is not None
    assert second is not None
    assert first.conf[lossy] == "true"
    assert lossy not in second.conf
    assert second.conf["spark.sql.caseSensitive"] == "true"


BOTH = [
    ("/w", {}, "/w", {}),
    ("/w", {}, "file:///w/", {"recursive": True}),
    ("/w", {}, "/w/*.json", {}),
    ("/w", {}, "/w/orders.json", {}),
    ("/w", {}, "/w/dt=1", {}),
    ("/w", {}, "/w/dt=*/hh=1", {}),
    ("/w", {"recursive": True}, "/w/orders", {}),
    ("/w", {"recursive": True}, "/w/v1.0", {"recursive": True}),
    ("/w", {"file_name_pattern": "*.json"}, "/w/dt=2026.*", {}),
    ("/w", {"recursive": True}, "/w/*/in/*.json", {}),
    ("/w/{a,b}", {}, "/w/{b,c}", {}),
    ("/w/a*", {}, "/w/*b", {}),
    ("/w/[a-c]x", {}, "/w/[^ac]?", {}),
    ("/w", {"file_name_pattern": "*.json"}, "/w", {"file_name_pattern": "orders*"}),
]
APART = [
    ("/w/a", {"recursive": True}, "/w/b", {"recursive": True}),
    ("/w", {}, "/w/orders", {}),
    ("/w", {}, "/w/orders/dt=1", {}),
    ("/w", {"recursive": True}, "/w/_x/orders", {}),
    ("/w/*.json", {}, "/w/*.csv", {}),
    ("/w/*", {}, "/w/_x", {}),
    ("/w/[a-c]*", {}, "/w/[d-f]*", {}),
    ("/w/a?", {}, "/w/a", {}),
    ("/w/{a,b}", {}, "/w/{c,d}", {}),
    ("/w", {"file_name_pattern": "*.json"}, "/w", {"file_name_pattern": "*.{csv,txt}"}),
    ("/w", {"file_name_pattern": "*.json"}, "/w/*.csv", {}),
]


@pytest.mark.parametrize(("path", "arguments", "second", "others"), BOTH)
def test_what_one_source_cleans_away_no_other_reads(
    path: str, arguments: dict[str, Any], second: str, others: dict[str, Any]
) -> None:
    one, other = FileSource(path, **arguments), FileSource(second, **others)
    written(one, other)
    cleaning = FileSource(path, clean_source="delete", **arguments)
    for sources in ((cleaning, other), (other, cleaning)):
        with pytest.raises(DefinitionError, match=rf"{re.escape(repr(path))}\) gives up .*{re.escape(repr(second))}\)"):
            written(*sources)
    archiving = FileSource(second, clean_source="archive", archive_dir="/archive", **others)
    with pytest.raises(DefinitionError, match=r"nothing in common"):
        written(one, archiving)


@pytest.mark.parametrize(("path", "arguments", "second", "others"), APART)
def test_sources_that_share_nothing_may_be_cleaned(
    path: str, arguments: dict[str, Any], second: str, others: dict[str, Any]
) -> None:
    one = FileSource(path, clean_source="delete", **arguments)
    other = FileSource(second, clean_source="delete", **others)
    written(one, other)
    written(other, one)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        (("/in/a", "/arch", {}), ("/in/b", "/arch", {}), True),
        (("/in/a", "/arch", {}), ("/in/b", "file:///x/../arch/", {}), True),
        (("/in/a/*.json", "/arch", {}), ("/in/b", "/arch", {"file_name_pattern": "orders*"}), True),
        (("/in/a/{x,y}/*.json", "/arch", {}), ("/in/b/{y,z}/*", "/arch", {}), True),
        (("/in/a", "/arch", {"recursive": True}), ("/in/b", "/arch/deep", {}), True),
        (("/in/a", "/arch", {}), ("/in/b", "/arch/dt=1", {}), True),
        (("/in/a.json", "/arch", {}), ("/other/a.json", "/arch", {}), True),
        (("/in/v1.0", "/arch", {}), ("/in/v2.0", "/arch", {}), True),
        (("/in/[1]", "/ar[c]h", {}), ("/in/2", "/ar[c]h", {}), True),
        (("/in/a", "/arch/a", {}), ("/in/b", "/arch/b", {}), False),
        (("/in/a", "/arch", {}), ("/in/b", "/arch/deep", {}), False),
        (("/in/a.json", "/arch", {}), ("/in/b.json", "/arch", {}), False),
        (("/in/a/*.json", "/arch", {}), ("/in/b/*.csv", "/arch", {}), False),
        (("/in/a/{x,y}/*.json", "/arch", {}), ("/in/b/{w,z}/*.json", "/arch", {}), False),
    ],
)
def test_two_sources_archive_nothing_to_the_same_path(
    one: tuple[str, str, dict[str, Any]], other: tuple[str, str, dict[str, Any]], collide: bool
) -> None:
    """The file of one would stay where it is for good, and be looked for in the other's place."""
    sources = [
        FileSource(path, clean_source="archive", archive_dir=archive, **arguments)
        for path, archive, arguments in (one, other)
    ]
    for pair in (sources, sources[::-1]):
        if collide:
            with pytest.raises(
                DefinitionError, match=r"'s0' and 's1' could archive files to the same path.*of its own"
            ):
                written(*pair)
        else:
            written(*pair)


def test_a_size_that_follows_the_rate_is_a_limit_too(tmp_path: Path) -> None:
    """With it the newest file alone would be read, and make the rest too old for good."""
    source = FileSource(str(tmp_path / "landing"), schema="id long", latest_first=True, max_file_age=3600)
    with pytest.raises(DefinitionError, match="target_seconds limits source 'orders': max_file_age with latest_first"):
        Pipeline(
            "orders",
            checkpoint=str(tmp_path / "checkpoint"),
            sources={"orders": source},
            sink=FileSink(str(tmp_path / "lake")),
            target_seconds=60,
        )
