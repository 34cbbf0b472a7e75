"""What is Iceberg's own of changes that are merged into a table: branches that were put back, snapshots that expire, a
catalog whose answer is lost. (tests/sinks/test_lake_merge.py has what it shares with Delta.)"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StructType, UUIDType

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.iceberg.log import IcebergLog
from airflow_provider_microbatch.sinks.iceberg.look import Look
from airflow_provider_microbatch.sinks.iceberg.merged.shown import ShownFiles
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.changes import change
from tests.sinks.delta_stages import write_rows
from tests.sinks.merged_iceberg import MergedInIceberg
from tests.sinks.stages import CHECKPOINT, batch_of, expect
from tests.support.iceberg_table import opened_in

NEWEST = [(1, "a", 3, 1, "x"), (3, "a", 2, 1, "x")]
"""The rows of all three batches."""


@pytest.fixture
def table(tmp_path: Path) -> MergedInIceberg:
    table = MergedInIceberg(tmp_path / "customers")
    table.publish(1, change(ts=1), change(id=2, ts=1))
    table.publish(2, change(ts=3), change(id=3, ts=2))
    table.publish(3, change(id=2, ts=5, deleted=True))
    assert table.rows() == NEWEST
    return table


def first(table: Table) -> int:
    return table.metadata.snapshots[0].snapshot_id


def roll_back(table: Table) -> None:
    table.manage_snapshots().rollback_to_snapshot(first(table)).commit()


def put_back_by_branch(table: Table) -> None:
    table.manage_snapshots().set_current_snapshot(snapshot_id=first(table)).commit()


def put_back_and_forget(table: Table) -> None:
    """As the error of a table of rows says where a rollback is to stay."""
    roll_back(table)
    table.refresh()
    with table.transaction() as transaction:
        transaction.remove_properties("microbatch.last.main")


def put_back_and_append(table: Table) -> None:
    roll_back(table)
    table.refresh()
    table.append(pa.table({"id": pa.array([9], pa.int64())}))


PUT_BACK: dict[str, Callable[[Table], Any]] = {
    "a rollback": roll_back,
    "another snapshot is made the current one": put_back_by_branch,
    "a rollback that is to stay": put_back_and_forget,
    "a rollback, and an append on top": put_back_and_append,
}


def refused(table: MergedInIceberg) -> str:
    """What everybody is told; nothing is changed."""
    before, told = table.rows(), set[str]()
    table.write(BatchKey("live", 4), 1, [change(id=2, ts=4), change(id=4)])
    for tried in (
        table.sink.check,
        table.sink.check_whole,
        lambda: table.sink.publish(expect(BatchKey("live", 4)), 1),
        lambda: table.replace(1, change(id=5)),
        lambda: table.withdraw(3),
    ):
        with pytest.raises(SinkError) as raised:
            tried()
        told.add(str(raised.value))
    assert table.rows() == before
    (text,) = told
    return text


@pytest.mark.parametrize("put_back", PUT_BACK.values(), ids=PUT_BACK)
def test_nobody_merges_into_a_table_that_was_put_back_until_it_has_its_newest_rows(
    table: MergedInIceberg, put_back: Callable[[Table], Any]
) -> None:
    put_back(table.table())
    told = refused(table)
    (id,) = re.findall(r"set_current_snapshot\('shop.customers', (\d+)\)", told)
    table.table().manage_snapshots().set_current_snapshot(snapshot_id=int(id)).commit()
    assert table.rows() == NEWEST
    table.sink.check_whole()
    table.sink.publish(expect(BatchKey("live", 4)), 1)
    assert table.rows() == [*NEWEST, (4, "a", 1, 1, "x")]
    assert table.withdraw(3)
    assert table.rows() == [NEWEST[0], (2, "a", 4, 1, "x"), *NEWEST[1:], (4, "a", 1, 1, "x")]


def test_what_others_have_done_before_it_comes_back_too(table: MergedInIceberg) -> None:
    table.change_by_hand()
    roll_back(table.table())
    (id,) = re.findall(r"set_current_snapshot\('shop.customers', (\d+)\)", refused(table))
    table.table().manage_snapshots().set_current_snapshot(snapshot_id=int(id)).commit()
    assert table.rows() == [(1, "a", 3, 1, "by hand"), NEWEST[1]]
    table.sink.check()


def test_a_rollback_that_takes_back_what_others_have_done_is_none_of_the_newest_changes(
    table: MergedInIceberg,
) -> None:
    head = table.table().metadata.current_snapshot_id
    assert head is not None
    table.table().delete("id = 1")
    table.table().manage_snapshots().rollback_to_snapshot(head).commit()
    table.sink.check()
    table.publish(4, change(id=4))
    assert table.rows() == [*NEWEST, (4, "a", 1, 1, "x")]


def test_a_rollback_whose_snapshots_are_gone_names_the_way_that_is_left(table: MergedInIceberg) -> None:
    roll_back(table.table())
    old = [one.snapshot_id for one in table.table().metadata.snapshots[1:]]
    table.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert "give the pipeline another table and another checkpoint: all that its sources have is read" in refused(table)


def test_what_is_newest_is_known_when_all_snapshots_of_before_have_expired(table: MergedInIceberg) -> None:
    table.append({"id": 8, "ts": 1, "note": "theirs"})
    table.tidy()
    again = table.again()
    again.publish(4, change(id=2, ts=4, note="late"), change(ts=2, note="late"))
    assert again.rows() == [*NEWEST, (8, "a", 1, 1, "theirs")]
    assert again.sink.batches("live", expect().tables) == [1, 2, 3, 4]


def test_the_table_of_the_catalog_that_was_put_back_alone_is_refused(table: MergedInIceberg) -> None:
    catalog, name = table.sink._log.catalog.get(), "shop.customers"
    before = table.table().metadata_location
    table.publish(4, change(id=4))
    catalog.drop_table(name)
    catalog.register_table(name, before)
    table.write(BatchKey("live", 5), 1, [change(id=5)])
    for tried in (table.sink.check, lambda: table.sink.publish(expect(BatchKey("live", 5)), 1)):
        with pytest.raises(SinkError, match=r"put back the catalog's table alone.*Bring the folder _microbatch"):
            tried()


@pytest.mark.parametrize("is_done", [True, False], ids=["carried out", "not carried out"])
def test_a_replay_whose_answer_the_catalog_has_lost_is_exact(
    table: MergedInIceberg, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    catalog, lost = table.sink._log.catalog.get(), list[str]()
    commit = catalog.commit_table

    def losing(*given: Any) -> Any:
        if lost:
            return commit(*given)
        lost.append("an answer")
        if is_done:
            commit(*given)
        raise CommitStateUnknownException("the server went away")

    monkeypatch.setattr(catalog, "commit_table", losing)
    table.replace(2, change(ts=2, note="new"))
    assert lost
    assert table.rows() == [(1, "a", 2, 1, "new")]
    for key, number in table.sink.stages(CHECKPOINT):  # as the janitor does
        assert table.sink.drop_stage(batch_of(key), number)
    assert table.batches_with_changes() == ["live/1", "live/2", "live/3"]
    table.publish(4, change(id=4))
    assert len([name for name in table.newest_files() if name.endswith(".json")]) == 1


def test_what_was_to_go_out_and_is_in_is_told_from_stages_by_one_look(
    table: MergedInIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Withdrawals were killed before their commit; the janitor asks at each of its runs."""

    def die(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(IcebergLog, "commit", die)
        for number in 1, 2, 3:
            with pytest.raises(KeyboardInterrupt):
                table.withdraw(number)
    looks, look = list[str](), IcebergLog.look

    def looking(self: IcebergLog) -> Look | None:
        looks.append("a look")
        return look(self)

    monkeypatch.setattr(IcebergLog, "look", looking)
    assert table.sink.stages(CHECKPOINT) == []
    assert looks == ["a look"]


def test_a_file_of_the_rows_that_is_gone_is_named(table: MergedInIceberg) -> None:
    shown = ShownFiles(table.table(), table.root, where="it")
    for path in shown.sizes:
        Path(path.removeprefix("file://")).unlink()
    with pytest.raises(SinkError, match=r"a file is gone that the Iceberg table shop\.customers needs"):
        table.publish(4, change(ts=9))


def test_columns_that_files_of_others_call_by_other_names_are_found_by_their_ids(tmp_path: Path) -> None:
    """Iceberg's writers put ``order_x2Did`` for ``order-id`` into a file."""
    sink = opened_in(tmp_path / "shop", merge=Merge(keys=("order-id",), sequence_by=("ts",)))
    columns = {"order-id": "long", "ts": "long", "unit price": "long", "_deleted": "boolean"}

    def publish(id: int, *rows: tuple[int, int, int]) -> None:
        batch = BatchKey("live", id)
        found = [dict(zip(columns, (*row, False), strict=True)) for row in rows]
        write_rows(sink, 1, [found], columns, batch=batch_of(batch))
        sink.publish(expect(batch), 1)

    def table() -> Table:
        look = sink._log.look()
        assert look is not None
        return look.table

    def rows() -> list[tuple[int, ...]]:
        return sorted(tuple(row[name] for name in list(columns)[:3]) for row in table().scan().to_arrow().to_pylist())

    publish(1, (1, 1, 10), (2, 1, 20), (3, 1, 30))
    table().overwrite(table().scan().to_arrow())  # as a compaction does
    publish(2, (1, 2, 11))
    assert rows() == [(1, 2, 11), (2, 1, 20), (3, 1, 30)]
    table().append(table().scan(row_filter="ts = 2").to_arrow())
    publish(3, (1, 3, 12), (2, 2, 21))
    assert rows() == [(1, 3, 12), (2, 2, 21), (3, 1, 30)]


def test_so_are_those_within_others(table: MergedInIceberg) -> None:
    with table.table().update_schema() as update:
        code = NestedField(1, "post code", LongType(), required=False)
        update.add_column("place", StructType(code))
    now = table.read()
    names = now.column_names
    places = pa.array([{"post code": 10}] * now.num_rows, now.schema.field("place").type)
    table.table().overwrite(now.set_column(names.index("place"), "place", places))
    table.again(schema_policy="add_columns").publish(4, change(ts=9))
    found = {row["id"]: row["place"] for row in table.read().to_pylist()}
    assert found == {1: None, 3: {"post code": 10}}


def test_a_value_that_a_file_of_hives_has_in_its_folders_name_alone_stays(tmp_path: Path) -> None:
    """As in a table that Spark's ``migrate`` has made of one of Hive's, and whose partition field was dropped since."""
    table = MergedInIceberg(tmp_path / "customers", {"schema_policy": "add_columns"})
    table.append()
    theirs = table.table()
    with theirs.update_spec() as spec:
        spec.add_identity("shop")
    file = table.root / "shop=b" / "0.parquet"
    file.parent.mkdir()
    parquet.write_table(pa.table({"id": [1, 2], "ts": [1, 1], "note": ["x", "y"]}), file)
    with theirs.transaction() as transaction:
        mapping = theirs.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})
        with transaction.update_snapshot().fast_append() as append:
            append.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"file://{file}",
                    file_format=FileFormat.PARQUET,
                    partition=Record("b"),
                    file_size_in_bytes=file.stat().st_size,
                    record_count=2,
                    spec_id=theirs.spec().spec_id,
                )
            )
    with theirs.update_spec() as spec:
        spec.remove_field("shop")
    table.publish(1, change(shop="b", ts=2))
    found = [(row["id"], row["shop"], row["ts"], row["note"]) for row in table.read().sort_by("id").to_pylist()]
    assert found == [(1, "b", 2, "x"), (2, "b", 1, "y")]


def test_a_file_of_others_is_not_read_whole_where_its_names_are_the_tables(
    table: MergedInIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction leaves few files, as large as they may be: a publish reads their keys, and the rest of those alone
    that have one of its own."""
    table.tidy()
    monkeypatch.delattr(ShownFiles, "_without_deleted")
    table.publish(4, change(ts=9))
    assert table.rows() == [(1, "a", 9, 1, "x"), NEWEST[1]]


def test_columns_that_a_merge_could_not_write_anew_are_refused(table: MergedInIceberg) -> None:
    with table.table().update_schema() as update:
        update.add_column("token", UUIDType())
    with pytest.raises(SinkError, match=r"which has the columns token \(uuid\)"):
        table.sink.check()
    with table.table().update_schema() as update:
        update.delete_column("token")
        update.rename_column("note", "remark")
    with pytest.raises(SinkError, match=r"which has the columns remark \(renamed\)"):
        table.sink.check()
    with table.table().update_spec() as update:
        update.add_identity("shop")
    with pytest.raises(SinkError, match=r"which is partitioned by \['shop'\]"):
        table.sink.check()


def test_a_branch_of_a_table_of_changes_takes_no_rows(table: MergedInIceberg) -> None:
    head = table.table().metadata.current_snapshot_id
    assert head is not None
    table.table().manage_snapshots().create_branch(head, "audit").commit()
    with pytest.raises(SinkError, match=r"changes are merged into the Iceberg table shop\.customers"):
        table.again(branch="audit", merge=None).sink.check()
