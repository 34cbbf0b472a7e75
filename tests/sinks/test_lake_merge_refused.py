"""What cannot be merged into a table of Delta or Iceberg is refused by name, before anything is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError, SourceError
from airflow_provider_microbatch.sinks import Compaction, Sink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.merged.opened import OpenMerged
from airflow_provider_microbatch.sinks.iceberg import IcebergSink
from airflow_provider_microbatch.sinks.iceberg.merged.opened import OpenMergedIceberg
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sinks.changes import MERGE, change
from tests.sinks.delta_stages import write_rows
from tests.sinks.delta_world import publish
from tests.sinks.merged_delta import MergedInDelta
from tests.sinks.merged_lakes import LAKES
from tests.sinks.merged_table import COLUMNS, MergedInFiles, row_of
from tests.sinks.stages import CHECKPOINT, EXPECTED, NOTHING_KNOWN, expect
from tests.support.iceberg_table import CONN_ID, connection_of


@pytest.fixture(params=LAKES.values(), ids=LAKES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> MergedInFiles:
    found: MergedInFiles = request.param(tmp_path / "customers")
    return found


@pytest.fixture
def of_delta(tmp_path: Path) -> MergedInDelta:
    return MergedInDelta(tmp_path / "customers")


def of_iceberg(**given: Any) -> IcebergSink:
    return IcebergSink("lake", "shop.customers", path="/lake/customers", **given)


DEFINITIONS: dict[str, Callable[..., Sink]] = {
    "delta": functools.partial(DeltaSink, "/lake/customers"),
    "delta on S3": functools.partial(DeltaSink, "s3://lake@bucket/customers"),
    "iceberg": of_iceberg,
}


@pytest.mark.parametrize(
    ("made", "wrong", "match"),
    [
        ("delta", {"partition_by": ["shop"], "merge": MERGE}, "partition_by cannot be given with merge"),
        ("delta on S3", {"partition_by": ["shop"], "merge": MERGE}, "partition_by cannot be given with merge"),
        ("delta", {"merge": "id"}, "merge must be a Merge, not str"),
        ("iceberg", {"partition_by": ["shop"], "merge": MERGE}, "partition_by cannot be given with merge"),
        ("iceberg", {"branch": "audit", "merge": MERGE}, "branch cannot be given with merge"),
        ("iceberg", {"merge": "id"}, "merge must be a Merge, not str"),
    ],
)
def test_a_definition_of_what_cannot_be_merged_is_refused_where_it_is_written(
    made: str, wrong: dict[str, Any], match: str
) -> None:
    with pytest.raises(DefinitionError, match=match):
        DEFINITIONS[made](**wrong)


def test_rows_and_changes_do_not_go_into_one_table(table: MergedInFiles) -> None:
    rows = type(table)(table.root.with_name("rows"))
    publish(rows.of_rows(), 1)
    table.publish(1, change())
    with pytest.raises(SinkError, match=r"has batches of rows.*Give the pipeline another table"):
        rows.sink.check()
    with pytest.raises(SinkError, match=r"changes are merged into.*Give the sink its merge=… again"):
        table.of_rows().check()


@pytest.mark.parametrize("made", ["delta", "iceberg"])
def test_what_a_table_has_had_until_now_its_definition_tells(made: str) -> None:
    one, other = DEFINITIONS[made](), DEFINITIONS[made](merge=MERGE)
    assert "has batches of rows, and this sink writes changes" in str(other.unlike(one))
    assert "has batches of changes, and this sink writes rows" in str(one.unlike(other))


def test_a_sink_of_rows_takes_no_batch_out_of_changes(table: MergedInFiles) -> None:
    """It would find no file of the batch's own, and the rows would stay for good while no log knows the batch."""
    table.publish(1, change(ts=1))
    with pytest.raises(SinkError, match=r"changes are merged into.*Give the sink its merge=… again"):
        table.of_rows().withdraw(expect(BatchKey("live", 1)), 1)
    assert table.sink.contains(expect(BatchKey("live", 1))) is not None
    assert table.withdraw(1)
    assert table.rows() == []


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_files_may_not_be_written_anew_is_refused(of_delta: MergedInDelta, name: str) -> None:
    table = of_delta
    table.publish(1, change())
    table.table().alter.set_table_properties({name: "true"}, commit_properties=CommitProperties())
    with pytest.raises(SinkError, match=f"which has {name}"):
        table.sink.check()
    table.write(BatchKey("live", 2), 1, [change(ts=2)])
    with pytest.raises(SinkError, match=f"which has {name}"):
        table.sink.publish(expect(BatchKey("live", 2)), 1)


@pytest.mark.parametrize(
    "other",
    [Merge(keys=("id",), sequence_by=("ts", "seq")), Merge(keys=("id", "shop"), sequence_by=("seq", "ts"))],
    ids=["keys", "sequence"],
)
def test_another_key_or_order_than_that_of_the_earlier_changes_is_refused(table: MergedInFiles, other: Merge) -> None:
    table.publish(1, change())
    with pytest.raises(SinkError, match="which of two changes is newer nobody could say"):
        table.again(merge=other).sink.check()


@pytest.mark.parametrize("column", ["shop", "seq"])
def test_a_key_or_sequence_that_is_null_fails_the_batch_and_names_it(table: MergedInFiles, column: str) -> None:
    rows = [row_of(change()), {**row_of(change(id=2)), column: None}]
    write_rows(table.sink, 1, [rows], COLUMNS)
    with pytest.raises(SinkError, match=f"1 of the changes of batch live/7 have no value in '{column}'"):
        table.sink.publish(EXPECTED, 1)
    assert not {path.name for path in table.root.iterdir()} & {"_delta_log", "metadata"}


@pytest.mark.parametrize(
    ("kinds", "match"),
    [({"id": "double"}, "'id' of the type double"), ({"seq": None}, "has no column 'seq'")],
)
def test_columns_without_an_order_are_refused(table: MergedInFiles, kinds: dict[str, Any], match: str) -> None:
    columns = {name: kind for name, kind in {**COLUMNS, **kinds}.items() if kind is not None}
    row = {name: value for name, value in row_of(change()).items() if name in columns}
    write_rows(table.sink, 1, [[row]], columns)
    with pytest.raises(SinkError, match=match):
        table.sink.publish(EXPECTED, 1)


def test_a_left_out_column_keeps_its_type(table: MergedInFiles) -> None:
    table.publish(1, change())
    write_rows(table.sink, 1, [[{**row_of(change(ts=2)), "op": 5}]], {**COLUMNS, "op": "long"})
    with pytest.raises(SinkError, match="'op' is long, and string in the changes that are merged into"):
        table.sink.publish(EXPECTED, 1)


def test_a_source_does_not_read_the_rows_that_merges_write_anew(table: MergedInFiles, tmp_path: Path) -> None:
    table.publish(1, change())
    store = PosixStore(str(tmp_path / "checkpoint"))
    context = SourceContext(
        name="customers",
        log=store,
        state=store.scoped("state"),
        clock_ms=lambda: 0,
        connect=lambda _: connection_of(table.root.parent),
    )
    source = (
        DeltaSource(str(table.root)) if isinstance(table, MergedInDelta) else IcebergSource(CONN_ID, "shop.customers")
    )
    with pytest.raises(SourceError, match=r"changes are merged into the \w+ table.*Read what its pipeline reads"):
        source.open(context).latest_offset(None)


def test_a_compaction_says_that_publishes_join_the_files(table: MergedInFiles) -> None:
    table.publish(1, change())
    wanted = Compaction(checkpoint=CHECKPOINT, tables=NOTHING_KNOWN, left_alone=lambda found: None)
    with pytest.raises(SinkError, match="cannot be compacted: a publish joins small files"):
        table.sink.compact(wanted)
    with pytest.raises(SinkError, match="does not tell which rows"):
        table.sink.published_rows(expect(BatchKey("live", 1)))


def test_what_cannot_be_merged_is_told_also_while_others_commit_all_the_time(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be judged takes seconds, in which a busy table has another commit each time."""
    write_rows(table.sink, 1, [[{**row_of(change()), "seq": None}]], COLUMNS)
    for lake in OpenMerged, OpenMergedIceberg:
        monkeypatch.setattr(lake, "_is_outdated", lambda *_: True)
    with pytest.raises(SinkError, match="have no value in 'seq'"):
        table.sink.publish(EXPECTED, 1)
