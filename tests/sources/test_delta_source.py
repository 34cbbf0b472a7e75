"""Delta tables as a source: where a range ends, and what becomes of a history that is not the one that was read. (Rows
are read in test_delta_source_spark.py; what it shares with every source is in tests/contract/test_source.py.)"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SourceChangedError, SourceError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sources import versions
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.delta.commits import Commits
from airflow_provider_microbatch.stores.location import open_store
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import opened, publish
from tests.sinks.stages import batch_of, expect
from tests.sources.delta_world import World, place


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def counts(world: World, **arguments: Any) -> list[int | None]:
    """How many files each batch has, up to the head."""
    found = []
    while (ends := world.plan(**arguments))[0] != ends[1]:
        found.append(world.open(**arguments).describe(*ends).splits)
    return found


def test_a_first_snapshot_is_read_in_limited_batches_whatever_is_committed_meanwhile(world: World) -> None:
    for _ in range(5):
        world.orders.append(2)
    ends = [world.plan(max_files=2)]
    world.orders.append()
    world.orders.table.optimize.compact()
    ends += [world.plan(max_files=2), world.plan(max_files=2)]
    assert [place(end) for _, end in ends] == [(5, 1, True), (5, 3, True), (8, -1, False)]
    assert [world.open().describe(*one).rows for one in ends] == [4, 4, 3]
    assert not world.open().has_new(world.position)
    assert world.open().latest_offset(world.position) == world.position


def test_a_version_with_many_files_is_divided_and_its_rest_comes_next(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.add_files(5)
    world.orders.append()
    ends = [world.plan(max_files=3), world.plan(max_files=3)]
    assert [place(end) for _, end in ends] == [(2, 2, False), (4, -1, False)]
    size = world.open().describe(*ends[1]).bytes
    assert size is not None
    again = World(world.root.parent, made=False)
    again.position = ends[0][1]
    assert counts(again, max_bytes=size - 1) == [2, 1]
    assert world.open().lag(ends[0][1]).splits == 3


def test_what_lies_behind_is_told_as_long_as_it_takes_few_versions_to_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told with each batch: a source that is far behind would take longer for each."""
    monkeypatch.setattr(versions, "MOST_VERSIONS", 3)
    world.orders.append()
    world.plan()
    for _ in range(3):
        world.orders.append()
    assert world.open().lag_in_words(world.position)["files"] == 3
    for _ in range(7):
        world.orders.append()
    read, get = list[int](), Commits.get
    monkeypatch.setattr(Commits, "get", lambda commits, version: read.append(version) or get(commits, version))
    assert world.open().lag_in_words(world.position) == {}
    assert len(read) == 4


def test_where_it_begins(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.orders.append()
    iso = _iso(world.orders.commits.path(2).stat().st_mtime_ns)
    found = {}
    for start in ("earliest", "latest", 2, iso):
        fresh = World(tmp_path / str(start), made=False)
        fresh.root = world.root
        found[start] = counts(fresh, start=start)
        assert fresh.open(start="latest").initial_offset() is not None, "on record, whatever is said later"
    assert found == {"earliest": [3], "latest": [], 2: [2], iso: [2]}
    late = World(tmp_path / "late", made=False)
    late.root = world.root
    assert late.open(start="latest").has_new(None), "the first plan makes a first position"
    late.plan(start="latest")
    world.orders.append()
    assert counts(late, start="latest") == [1]


def _iso(ns: int) -> str:
    # Milliseconds, as the log has them, and none of the version before.
    return dt.datetime.fromtimestamp(ns // 1_000_000 / 1000, dt.UTC).isoformat()


def test_an_upstream_pipelines_batches_are_read_and_its_replay_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, made=False)
    sink = opened(world.root)
    for number in (6, 7):
        publish(sink, number)
    first = world.plan()
    assert world.open().describe(*first).rows == 6
    write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 7)), rows=5)
    sink.replace(expect(BatchKey("live", 7)), 2)
    publish(sink, 8)
    with pytest.raises(
        SourceChangedError, match=r"'orders'.* version 2 .*no append: .*of batch live/7 by .*skip_versions=\[2\]"
    ):
        world.plan()
    with pytest.raises(SourceChangedError, match="version 2"):
        world.open().has_new(world.position)
    skipping = {"skip_versions": [2]}
    ends = world.plan(**skipping)
    assert world.open(**skipping).describe(*ends).rows == 3
    told = world.open(**skipping).left_out(*ends)
    assert told is not None
    assert "version 2" in told
    assert "batch live/7" in told
    assert world.open(**skipping).left_out(*ends, told={"passed_over": {"2": "known"}}) is None
    assert world.open(**skipping).read(*ends).arguments["told"]["passed_over"].keys() == {"2"}
    assert world.open().not_replayable(*ends) is not None, "without the setting that it was planned with"
    assert world.open().not_replayable(*first) is None, "what was replaced is there until a VACUUM"
    assert world.open().read(*first).requires.packages == ()


def test_a_version_that_only_deletes_is_passed_over_if_asked_and_said(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.table.delete()
    world.orders.append()
    with pytest.raises(SourceChangedError, match=r"version 2 .*DELETE"):
        world.plan()
    ends = world.plan(on_delete="record_gap")
    assert world.open(on_delete="record_gap").describe(*ends).splits == 1
    assert "version 2, DELETE" in (world.open(on_delete="record_gap").left_out(*ends) or "")


@pytest.mark.parametrize("operation", ["RESTORE", "CLONE"])
@pytest.mark.parametrize("how", [{"skip_versions": [2]}, {"on_delete": "record_gap"}])
def test_files_that_come_back_are_no_append(world: World, how: dict[str, Any], operation: str) -> None:
    """What somebody has deleted by mistake, and brought back: its rows were read."""
    world.orders.append()
    first = world.plan()
    table = world.orders.table
    table.delete()
    table.restore(1)
    path = world.orders.commits.path(3)
    path.write_text(path.read_text().replace('"RESTORE"', f'"{operation}"'))
    assert '"remove"' not in path.read_text()
    world.orders.append()
    named = re.escape(str([*how.get("skip_versions", ()), 3]))
    with pytest.raises(
        SourceChangedError, match=rf"version 3 .* no append: {operation} .*skip_versions={named} passes"
    ):
        world.plan(**how)
    ends = world.plan(skip_versions=[2, 3])
    assert world.open(skip_versions=[2, 3]).describe(*ends).rows == 1
    assert world.open().not_replayable(*first) is None


def test_what_comes_before_a_version_that_cannot_be_read_is_read(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.append()
    world.orders.table.delete("id = 0")
    assert world.open().describe(*world.plan()).splits == 1
    with pytest.raises(SourceChangedError, match="no append"):
        world.plan()


def test_only_the_current_start_has_to_be_in_the_log(world: World) -> None:
    for _ in range(3):
        world.orders.append()
    first = world.plan()
    world.orders.append()
    world.orders.append()
    world.orders.clean_log(4)
    assert world.open().has_new(world.position)
    second = world.plan()
    assert world.open().describe(*second).splits == 2
    assert "expired" in (world.open().not_replayable(*first) or "")
    assert world.open().in_words(*first) == {}, "of a batch that nobody can look at any more nothing is told"
    assert world.open().left_out(*first) is None
    world.orders.append()
    world.orders.append()
    world.orders.clean_log(7)
    with pytest.raises(SourceChangedError, match=r"version 6 .*expired.*from 7 to 7.*skip_versions=\[6\]"):
        world.plan()
    assert counts(world, skip_versions=[6]) == [1]


def test_many_versions_that_have_expired_take_one_way_on(world: World) -> None:
    world.orders.append()
    world.plan()
    for _ in range(24):
        world.orders.append()
    world.orders.clean_log(25)
    with pytest.raises(SourceChangedError, match=r"version 2 .*expired.*from 25 to 25") as told:
        world.plan()
    _, (behind, flags) = re.findall(r"--source orders --offset '([^']*)' ([^`]*)`", str(told.value))
    assert flags == "--allow-skip"
    world.open().check_offset(behind)
    world.position = behind
    assert counts(world) == [1]


def test_what_was_read_of_a_first_version_that_has_expired_comes_again_only_if_that_is_allowed(world: World) -> None:
    for _ in range(3):
        world.orders.append()
    world.plan(max_files=1)
    world.orders.append()
    world.orders.append()
    world.orders.clean_log(5)
    with pytest.raises(SourceChangedError, match="its rows are not all read") as told:
        world.plan(max_files=1)
    (all_now, again), (behind, on) = re.findall(r"--source orders --offset '([^']*)' ([^`]*)`", str(told.value))
    assert again == "--allow-skip --allow-reread"
    assert on == "--allow-skip"
    source, position = world.open(max_files=1), world.position
    for offset in (all_now, behind):
        source.check_offset(offset)
    assert source.is_after(all_now, position) is None, "rows that were read are among them"
    assert source.why_not_again(all_now, position) is None
    assert source.is_after(behind, position) is True
    world.position = behind
    assert counts(world) == [1]


def test_the_command_of_an_error_names_the_checkpoint(world: World, tmp_path: Path) -> None:
    place = str(tmp_path / "my checkpoint")
    checkpoint = Checkpoint(open_store(place), sources=["orders"])
    opened_sources = OpenedSources(
        {"orders": DeltaSource(str(world.root))}, checkpoint=checkpoint, lane="live", clock_ms=lambda: 0
    )
    world.orders.append()
    source = opened_sources.open("orders")
    end = source.latest_offset(None)
    assert isinstance(end, str)
    world.orders.table.delete()
    with pytest.raises(SourceChangedError, match=re.escape(f"`microbatch set-offset '{place}' --source orders ")):
        source.latest_offset(end)


def test_a_table_to_which_nothing_but_settings_is_committed_is_followed_until_its_log_is_cleaned(world: World) -> None:
    world.orders.append()
    world.plan()
    for days in (1, 2, 3):
        DeltaTable(world.root.as_uri()).alter.set_table_properties(
            {"delta.logRetentionDuration": f"interval {days} days"}
        )
    assert not world.open().has_new(world.position), "they may be followed by rows"
    world.now_ms = time.time_ns() // 1_000_000 + 24 * 3_600_000
    assert world.open().has_new(world.position)
    ends = world.plan()
    assert place(ends[1]) == (5, -1, False)
    assert world.open().describe(*ends).splits == 0
    assert world.open().read(*ends).arguments["plain"] == []
    world.open().verify(*ends)
    assert not world.open().has_new(world.position), "one batch for all of them"
    world.orders.append()
    world.orders.clean_log(5)
    assert counts(world) == [1]


def test_files_that_a_vacuum_took_are_named(world: World) -> None:
    world.orders.append()
    world.orders.append()
    ends = world.plan()
    world.orders.table.optimize.compact()
    world.orders.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceChangedError, match=r"'orders'.*\.parquet of version 2 .* is gone: a VACUUM"):
        world.open().read(*ends)
    with pytest.raises(SourceChangedError, match="is gone"):
        world.open().verify(*ends)


def test_files_that_a_vacuum_took_behind_a_position_are_told_though_the_log_has_them(world: World) -> None:
    world.orders.append()
    assert world.open().gone_since(None) is None
    assert "not on record" in str(world.open(start="latest").gone_since(None))
    world.plan()
    backup = world.position
    world.orders.append()
    world.orders.append()
    world.orders.table.optimize.compact()
    assert world.open().gone_since(backup) is None
    world.plan()
    world.orders.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert world.open().gone_since(world.position) is None
    with pytest.raises(SourceError, match="of version 2 "):
        world.open().gone_since(backup)


def test_a_table_that_was_made_anew_is_another_one(world: World, tmp_path: Path) -> None:
    world.orders.append()
    ends = world.plan()
    shutil.rmtree(world.root)
    fresh = World(tmp_path)
    for _ in range(4):
        fresh.orders.append()
    source, position = world.open(), ends[1] or ""
    for question in (source.has_new, source.latest_offset, source.check_offset, source.lag):
        with pytest.raises(SourceError, match="another table than the one that was read"):
            question(position)
    assert "another table" in (world.open().not_replayable(*ends) or "")


def test_a_table_that_was_restored_from_a_backup_is_noticed_also_when_it_has_grown(
    world: World, tmp_path: Path
) -> None:
    world.orders.append()
    shutil.copytree(world.root, tmp_path / "backup")
    world.orders.append()
    world.orders.append()
    world.plan()
    shutil.rmtree(world.root)
    shutil.copytree(tmp_path / "backup", world.root)
    with pytest.raises(SourceError, match=r"went back: its newest version is 1, and version 3 was read"):
        world.open().has_new(world.position)
    for _ in range(4):
        world.orders.append()
    with pytest.raises(SourceError, match=r"version 3 .* is not the one that was read"):
        world.plan()


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_version_that_is_read_in_part_and_written_anew_behind_a_backup_is_noticed(
    world: World, tmp_path: Path, is_cleaned: bool
) -> None:
    world.orders.append()
    world.plan()
    shutil.copytree(world.root, tmp_path / "backup")
    world.orders.add_files(5)
    ends = world.plan(max_files=2)
    assert place(ends[1]) == (2, 1, False)
    shutil.rmtree(world.root)
    shutil.copytree(tmp_path / "backup", world.root)
    with pytest.raises(SourceError, match=r"went back: its newest version is 1, and version 2 was read"):
        world.open().has_new(world.position)
    world.orders.add_files(5)
    if is_cleaned:
        world.orders.clean_log(2)  # the commit before it is gone, by which positions were known before
    with pytest.raises(SourceError, match=r"version 2 .* is not the one that was read"):
        world.plan()
    assert "is not the one that was read" in (world.open().not_replayable(*ends) or "")


def test_a_position_in_a_version_that_pins_the_version_before_it_goes_on(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.add_files(5)
    world.plan(max_files=2)
    before = json.loads(world.position or "")
    assert before["commit"] == world.orders.commits.digest(2)
    world.position = json.dumps({**before, "commit": world.orders.commits.digest(1)})
    assert world.open().describe(*world.plan()).splits == 3
    world.position = json.dumps({**before, "commit": world.orders.commits.digest(0)})
    with pytest.raises(SourceError, match=r"version 2 .* is not the one that was read"):
        world.plan()


def test_a_range_has_one_schema(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.append()
    DeltaTable(world.root.as_uri()).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    world.orders.append()
    assert counts(world) == [1, 1]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_a_line_of_the_log_ends_where_json_lines_do(tmp_path: Path, mark: str) -> None:
    world = World(tmp_path, made=False)
    write_deltalake(world.root, pa.table({"note": [f"one{mark}two"]}))
    assert mark in (world.root / "_delta_log" / f"{0:020}.json").read_text("utf-8"), "as a column's least value"
    assert world.open().describe(*world.plan(start=0)).rows == 1


def test_an_empty_partition_value_is_null_in_a_version_as_in_a_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path, made=False)
    rows = pa.table({"day": ["", None, "100% a/b"], "id": [1, 2, 3]})
    write_deltalake(world.root, rows, partition_by=["day"])
    world.plan()
    write_deltalake(world.root, rows, partition_by=["day"], mode="append")
    version = world.plan()
    for read in (world.open().read(None, version[0]), world.open().read(*version)):
        found = [one["partition"][0] for one in read.arguments["plain"]]
        assert sorted(found, key=str) == ["100% a/b", None, None]


@pytest.mark.parametrize("days", [-719_163, 3_000_000], ids=["year 0", "year 10183"])
@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_dates_that_python_does_not_know_are_read(tmp_path: Path, days: int, partition_by: list[str]) -> None:
    """As the bounds of a column, and as a partition's value."""
    world = World(tmp_path, made=False)
    days_of = pa.array([days, days], pa.int32()).cast(pa.date32())
    at = pa.array([days * 86_400_000_000] * 2, pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"day": days_of, "at": at, "id": [1, 2]})
    write_deltalake(world.root, rows, partition_by=partition_by)
    world.plan()
    write_deltalake(world.root, rows, partition_by=partition_by, mode="append")
    version = world.plan()
    (whole,), (added,) = (world.open().read(*ends).arguments["plain"] for ends in ((None, version[0]), version))
    assert whole["partition"] == added["partition"]
    assert len(whole["partition"]) == len(partition_by)


@pytest.mark.parametrize(
    "offset",
    ["7", "{}", '{"reservoirVersion": "7"}', '{"reservoirVersion": -1}', '{"reservoirVersion": 1, "of": 2}'],
)
def test_what_is_no_place_is_refused(world: World, offset: str) -> None:
    with pytest.raises(SourceError, match="no place in a Delta table"):
        world.open().check_offset(offset)


def test_a_person_may_give_a_version(world: World) -> None:
    for _ in range(3):
        world.orders.append()
    world.position = '{"reservoirVersion": 2}'
    world.open().check_offset(world.position)
    assert counts(world) == [2]
    with pytest.raises(SourceError, match="went back"):
        world.open().check_offset('{"reservoirVersion": 99}')


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"path": "s3://bucket/orders"}, "path"),
        ({"path": "/lake/a%20b"}, "path"),
        ({"change_feed": "yes"}, "change_feed"),
        ({"max_files": 0}, "max_files"),
        ({"start": "2026-11-21T00:00:00"}, "start"),
        ({"start": -1}, "start"),
        ({"skip_versions": [True]}, "skip_versions"),
        ({"on_delete": "ignore"}, "on_delete"),
    ],
)
def test_a_wrong_definition_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        DeltaSource(**{"path": "/lake/orders", **given})


def test_an_offset_is_sparks_with_one_word_more(world: World) -> None:
    world.orders.append()
    values = json.loads(world.plan()[1] or "")
    assert values.pop("commit")
    assert values == {
        "sourceVersion": 1,
        "reservoirId": str(DeltaTable(world.root.as_uri()).metadata().id),
        "reservoirVersion": 2,
        "index": -1,
        "isStartingVersion": False,
    }
