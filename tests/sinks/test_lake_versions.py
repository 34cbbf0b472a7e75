"""Of each key all versions (SCD type 2), in a Delta table or one of Iceberg: whatever came when, was replaced or was
taken out, they are those of the changes that are in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.changes import (
    MERGE,
    VERSIONED,
    WAYS,
    Change,
    change,
    check_like_a_dictionary,
    check_same_versions,
    histories,
    versions,
)
from tests.sinks.delta_stages import write_rows
from tests.sinks.merged_lakes import LAKES, anywhere
from tests.sinks.merged_table import COLUMNS, MergedInFiles, row_of
from tests.sinks.stages import BATCH, batch_of, expect

worlds = itertools.count()


@pytest.fixture(params=LAKES.values(), ids=LAKES)
def lake(request: pytest.FixtureRequest) -> type[MergedInFiles]:
    found: type[MergedInFiles] = request.param
    return found


@pytest.fixture
def table(lake: type[MergedInFiles], tmp_path: Path) -> MergedInFiles:
    return lake(tmp_path / "history", {"merge": VERSIONED})


@pytest.mark.parametrize("how", WAYS)
def test_changes_make_the_same_versions_in_whatever_order_they_come(table: MergedInFiles, how: str) -> None:
    check_same_versions(table, how=how)


def test_readers_find_the_bounds_and_whose_the_change_is_that_began_the_version(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1), change(ts=9, note="y"))
    table.publish(2, change(ts=5), change(ts=7, deleted=True))
    found = table.read().sort_by("valid_from")
    assert found.column_names == ["id", "shop", "note", "lane", "batch_id", "valid_from", "valid_to"]
    assert found.select(["batch_id", "valid_from", "valid_to"]).to_pylist() == [
        {"batch_id": 1, "valid_from": 1, "valid_to": 7},
        {"batch_id": 1, "valid_from": 9, "valid_to": None},
    ]
    assert found.schema.field("valid_to").type == found.schema.field("valid_from").type == "int64"


def test_of_keys_alone_it_is_told_from_when_to_when_each_was_there(lake: type[MergedInFiles], tmp_path: Path) -> None:
    table = lake(tmp_path / "members", {"merge": replace(VERSIONED, leave_out=(*VERSIONED.leave_out, "note"))})
    table.publish(1, change(ts=1), change(ts=5, note="y"), change(ts=7, deleted=True))
    table.publish(2, change(ts=9), change(id=2, ts=3))
    found = table.read().select(["id", "valid_from", "valid_to"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(1, 1, 7), (1, 9, None), (2, 3, None)]


def test_a_change_that_comes_again_writes_no_file_and_one_of_a_key_leaves_the_files_of_others(
    table: MergedInFiles,
) -> None:
    table.publish(1, change(ts=5), change(ts=3, note="y"))
    table.publish(2, change(id=9))
    before = table.files()
    table.publish(3, change(ts=5), change(id=9))
    assert table.files() == before
    table.publish(4, change(id=9, ts=9, note="z"))
    assert len(set(before) & set(table.files())) == 1


def test_a_late_change_parts_a_version_whatever_others_have_done_to_its_file(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1), change(ts=5), change(ts=9))
    table.tidy()
    table.publish(2, change(ts=3, note="y"))
    assert table.rows() == [(1, "a", "x", 1, 3), (1, "a", "y", 3, 5), (1, "a", "x", 5, None)]
    assert table.withdraw(2)
    assert table.rows() == [(1, "a", "x", 1, None)]


def test_a_column_that_comes_later_parts_versions_from_where_it_has_a_value(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    """No number is one like any other: a change from it to itself alters nothing."""
    table = lake(tmp_path / "t", {"merge": VERSIONED, "schema_policy": "add_columns"})
    table.publish(1, change(ts=1))
    key, rows = BatchKey("live", 2), [{**row_of(change(ts=ts)), "more": float("nan")} for ts in (4, 5)]
    columns = {**COLUMNS, "more": "double"}
    write_rows(table.sink, 1, [rows], columns, batch=batch_of(key))
    table.sink.publish(expect(key), 1)
    found = table.read().sort_by("valid_from").select(["more", "valid_from", "valid_to"])
    assert [repr(tuple(row.values())) for row in found.to_pylist()] == ["(None, 1, 4)", "(nan, 4, None)"]


@pytest.mark.parametrize("kind", [MERGE, VERSIONED], ids=["the newest", "all versions"])
def test_a_column_that_is_left_out_from_now_on_is_null_and_begins_no_version(
    lake: type[MergedInFiles], tmp_path: Path, kind: Merge
) -> None:
    table = lake(tmp_path / "t", {"merge": replace(kind, leave_out=("op",))})
    table.publish(1, change(ts=1), change(ts=5), change(id=2))
    table = table.again(merge=replace(kind, leave_out=("op", "ts", "seq")), schema_policy="add_columns")
    table.publish(2, change(ts=7))
    found = table.read().sort_by("id").select(["id", "ts", "seq"]).to_pylist()
    assert found == [{"id": 1, "ts": None, "seq": None}, {"id": 2, "ts": 1, "seq": 1}]


def test_times_that_python_has_not_begin_and_end_versions_like_others(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    """As 9999-12-31 becomes in a session west of UTC, and 0001-01-01 in one east of it."""
    table = lake(tmp_path / "t", {"merge": replace(VERSIONED, leave_out=("op", "seq"), sequence_by=("at", "seq"))})
    columns = {**COLUMNS, "at": "timestamp", "until": "date"}
    for id, (at, until) in enumerate([(-62135596800000001, 7), (5, 2932897), (253402300800000000, 2932897)]):
        key, row = BatchKey("live", id), {**row_of(change()), "at": at, "until": until}
        write_rows(table.sink, 1, [[row]], columns, batch=batch_of(key))
        table.sink.publish(expect(key), 1)
    assert table.read().num_rows == 3
    assert table.withdraw(0)
    bounds = table.read().sort_by("valid_from").select(["valid_from", "valid_to"])
    assert [part.cast("int64").to_pylist() for part in bounds.columns] == [
        [5, 253402300800000000],
        [253402300800000000, None],
    ]


def test_rows_that_a_table_had_before_are_versions_without_bounds_until_a_change_of_their_key(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    table = lake(tmp_path / "history", {"merge": VERSIONED, "schema_policy": "add_columns"})
    table.append({"id": 1, "note": "before"}, {"id": 2, "note": "before"})
    table.publish(1, change(ts=1), change(ts=5, deleted=True))
    assert table.rows() == [(1, "a", "x", 1, 5), (2, "a", "before", None, None)]


def test_another_type_of_merge_or_other_names_are_refused(lake: type[MergedInFiles], tmp_path: Path) -> None:
    named = replace(VERSIONED, valid_to="until")
    for has, wants, told in (
        (MERGE, VERSIONED, r"has the newest state of each key \(scd_type=1\), and the sink says all versions"),
        (
            VERSIONED,
            MERGE,
            r"has all versions of each key, from 'valid_from' to 'valid_to' \(scd_type=2\), and .* says",
        ),
        (VERSIONED, named, r"the sink says all versions of each key, from 'valid_from' to 'until'"),
    ):
        table = lake(tmp_path / str(next(worlds)), {"merge": has})
        table.publish(1, change())
        other = table.again(merge=wants)
        with pytest.raises(SinkError, match=told):
            other.sink.check()
        with pytest.raises(SinkError, match=told):
            other.publish(2, change(ts=2))
        assert len(table.rows()) == 1


def test_a_pipeline_that_changes_the_type_of_its_merge_is_told_so(lake: type[MergedInFiles], tmp_path: Path) -> None:
    one, other = (lake(tmp_path / "t", {"merge": merge}).sink.definition for merge in (MERGE, VERSIONED))
    assert "has batches of changes, and this sink writes changes with their history" in str(other.unlike(one))
    assert one.unlike(one) is None


def test_the_bounds_are_columns_of_no_change_and_none_of_this_package(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    table = lake(tmp_path / "t", {"merge": VERSIONED})
    assert {"valid_from", "valid_to"} <= set(table.sink.stage(BATCH, 1).reserved_columns)
    with pytest.raises(DefinitionError, match="'lane' is added by this package"):
        _ = table.again(merge=replace(VERSIONED, valid_to="lane")).sink


@pytest.mark.slow
@anywhere
def test_the_versions_are_those_of_the_changes_that_are_in(
    lake: type[MergedInFiles], tmp_path_factory: pytest.TempPathFactory
) -> None:
    @given(history=histories())
    @settings(max_examples=lake.examples // 3, deadline=None)
    def check(history: Sequence[tuple[str, int, list[Change]]]) -> None:
        check_like_a_dictionary(lake(tmp_path_factory.mktemp("history") / "t", {"merge": VERSIONED}), history, versions)

    check()
