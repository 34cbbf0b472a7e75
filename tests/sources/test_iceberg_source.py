"""Iceberg tables as a source: where a range ends, and what becomes of a history that is not the one that was read. Rows
are read in test_iceberg_source_spark.py; what it shares with every source is in tests/contract/test_source.py."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SourceChangedError, SourceError
from airflow_provider_microbatch.sources import versions
from airflow_provider_microbatch.sources.iceberg import IcebergSource
from airflow_provider_microbatch.sources.iceberg.offset import Place
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import batch_of, expect
from tests.sources.iceberg_world import World
from tests.support.iceberg_orders import OrdersOfIceberg
from tests.support.iceberg_table import opened_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def counts(world: World, **arguments: Any) -> list[int | None]:
    """How many files each batch has, up to the head."""
    found = []
    while (ends := world.plan(**arguments))[0] != ends[1]:
        found.append(world.open(**arguments).describe(*ends).splits)
    return found


def forget_counts(world: World) -> None:
    """Have the summaries of all snapshots say no more than they must, which is the operation."""
    table = world.orders.table
    address = table.metadata_location.removeprefix("file://")
    told = json.loads(Path(address).read_text())
    for snapshot in told["snapshots"]:
        snapshot["summary"] = {"operation": snapshot["summary"]["operation"]}
    Path(address).write_text(json.dumps(told))


def test_a_first_snapshot_is_read_in_limited_batches_whatever_is_committed_meanwhile(world: World) -> None:
    for _ in range(5):
        world.orders.append(2)
    ends = [world.plan(max_files=2)]
    world.orders.append()
    ends += [world.plan(max_files=2), world.plan(max_files=2)]
    places = [Place.of(end or "") for _, end in ends]
    assert [(one.sequence, one.index, one.in_snapshot) for one in places] == [
        (5, 1, True),
        (5, 3, True),
        (6, -1, False),
    ]
    assert [world.open().describe(*one).rows for one in ends] == [4, 4, 3]
    assert not world.open().has_new(world.position)
    assert world.open().lag(ends[0][1]).splits == 4


def test_what_lies_behind_is_told_as_long_as_it_takes_few_snapshots_to_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MOST_VERSIONS", 3)
    world.orders.append()
    world.plan()
    for _ in range(3):
        world.orders.append()
    assert world.open().lag_in_words(world.position)["files"] == 3
    world.orders.append()
    assert world.open().lag_in_words(world.position) == {}


def test_where_it_begins(world: World, tmp_path: Path) -> None:
    heads, times = [], []
    for _ in range(3):
        world.orders.append()
        heads.append(world.orders.head)
        times.append(world.orders.table.metadata.snapshots[-1].timestamp_ms)
    moment = dt.datetime.fromtimestamp(times[1] / 1000, dt.UTC).isoformat()
    found = {}
    for start in ("earliest", "latest", heads[0], heads[2], moment):
        fresh = World(tmp_path / str(start), orders=world.orders)
        found[start] = counts(fresh, start=start)
        assert fresh.open(start="latest").initial_offset() is not None, "on record, whatever is said later"
        fresh.close()
    assert found == {"earliest": [3], "latest": [], heads[0]: [3], heads[2]: [1], moment: [2]}
    with pytest.raises(SourceError, match="no such snapshot"):
        World(tmp_path / "none", orders=world.orders).plan(start=7)


def test_a_table_without_a_snapshot_is_followed_from_its_first(world: World) -> None:
    world.plan(start="latest")
    world.orders.append()
    assert counts(world, start="latest") == [1]


def test_a_first_append_without_a_row_is_no_history_that_has_expired(world: World) -> None:
    world.plan(start="latest")
    table = world.orders.table
    table.append(table.schema().as_arrow().empty_table())
    world.orders.append()
    assert counts(world, start="latest") == [1]


def test_an_append_by_a_writer_that_counts_nothing_is_read(world: World, tmp_path: Path) -> None:
    world.orders.append()
    world.plan()
    world.orders.append()
    forget_counts(world)
    end = world.plan()
    assert world.open().read(*end).arguments["runs"], "the spec asks no writer to say how many files it has added"
    fresh = World(tmp_path / "fresh", orders=world.orders)
    first = fresh.plan(start=world.orders.table.metadata.snapshots[0].snapshot_id)
    assert len(fresh.open().read(*first).arguments["runs"]) == 1
    fresh.close()


def test_an_upstream_pipelines_batches_are_read_and_its_replay_is_named(world: World, tmp_path: Path) -> None:
    sink = opened_in(tmp_path / "my lake", "published")
    table = {"table": "shop.published"}
    for number in (6, 7):
        write_delta_stage(sink, 1, batch=batch_of(BatchKey("live", number)))
        sink.publish(expect(BatchKey("live", number)), 1)
    first = world.plan(**table)
    assert world.open(**table).describe(*first).rows == 6
    write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 7)), rows=5)
    sink.replace(expect(BatchKey("live", 7)), 2)
    replayed = world.orders.catalog.load_table("shop.published").current_snapshot()
    assert replayed is not None
    write_delta_stage(sink, 1, batch=batch_of(BatchKey("live", 8)))
    sink.publish(expect(BatchKey("live", 8)), 1)
    named = rf"'orders'.* no append: overwrite of batch live/7 .*skip_snapshots=\[{replayed.snapshot_id}\]"
    with pytest.raises(SourceChangedError, match=named):
        world.plan(**table)
    skipping: dict[str, Any] = {**table, "skip_snapshots": [replayed.snapshot_id]}
    ends = world.plan(**skipping)
    assert world.open(**skipping).describe(*ends).rows == 3
    assert "of batch live/7" in (world.open(**skipping).left_out(*ends) or "")
    told = world.open(**skipping).read(*ends).arguments["told"]
    assert world.open(**skipping).left_out(*ends, told=told) is None
    assert world.open(**table).not_replayable(*ends) is not None, "without the setting that it was planned with"
    assert world.open(**table).not_replayable(*first) is None


def test_a_snapshot_that_only_deletes_is_passed_over_if_asked_and_said(world: World) -> None:
    world.orders.append()
    world.plan()
    world.orders.append()
    world.orders.table.delete("id = 0")
    world.orders.append()
    assert world.open().describe(*world.plan()).splits == 1
    with pytest.raises(SourceChangedError, match="no append: delete"):
        world.plan()
    ends = world.plan(on_delete="record_gap")
    assert world.open(on_delete="record_gap").describe(*ends).splits == 1
    assert "delete by" in (world.open(on_delete="record_gap").left_out(*ends) or "")


def test_history_that_has_expired_is_named(world: World) -> None:
    snapshots = []
    for _ in range(4):
        world.orders.append()
        snapshots.append(world.orders.head)
        if len(snapshots) == 1:
            first = world.plan()
    world.orders.expire(snapshots[0], snapshots[1])
    with pytest.raises(SourceChangedError, match=rf"'orders'.*expired before they were read: .*{snapshots[2]}"):
        world.plan()
    assert "expired" in (world.open().not_replayable(*first) or "")
    assert world.open().in_words(*first) == {}, "of a batch that nobody can look at any more nothing is told"
    assert world.open().left_out(*first) is None
    with pytest.raises(SourceError, match="has expired"):
        World(world.orders._folder.parent / "other", orders=world.orders).plan(start=snapshots[2])
    with pytest.raises(SourceError, match="is later"):
        World(world.orders._folder.parent / "third", orders=world.orders).plan(start="2020-01-01T00:00:00Z")


def test_snapshots_without_rows_are_passed_by_before_they_expire(world: World) -> None:
    """As a writer commits that has nothing to write, or a compaction."""
    world.orders.append()
    world.plan()
    passed = [world.orders.head]
    for _ in range(3):
        world.orders.append(0)
        passed.append(world.orders.head)
    assert not world.open().has_new(world.position), "they may be followed by rows"
    world.now_ms = time.time_ns() // 1_000_000 + 24 * 3_600_000
    assert world.open().has_new(world.position)
    ends = world.plan()
    arguments = world.open().read(*ends).arguments
    assert (arguments["files"], arguments["runs"]) == ([], [])
    world.open().verify(*ends)
    assert not world.open().has_new(world.position), "one batch for all of them"
    world.orders.append()
    world.orders.expire(*passed[:-1])
    assert world.open().describe(*world.plan()).rows == 1


def commands(error: pytest.ExceptionInfo[BaseException]) -> list[tuple[str, str]]:
    """The flags and the offset of each set-offset that an error names."""
    return [(flags, at) for at, flags in re.findall(r"--source orders --offset '([^']*)' ([^`]*)`", str(error.value))]


def test_what_was_read_of_a_first_snapshot_that_has_expired_comes_again_only_if_that_is_allowed(world: World) -> None:
    for _ in range(3):
        world.orders.append()
    world.plan(max_files=1)
    snapshot = world.orders.head
    world.orders.append()
    world.orders.append()
    world.orders.expire(snapshot)
    with pytest.raises(SourceChangedError, match="before all its rows were read") as told:
        world.plan(max_files=1)
    (again, all_now), (on, behind) = commands(told)
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
    assert source.is_after(all_now, behind) is None, "whatever was read after it"
    assert source.is_after(world.position, all_now) is True


def test_a_table_that_was_made_anew_is_read_as_the_error_says(world: World) -> None:
    """Also where its sequence numbers are lower than those that were read."""
    world.orders.append()
    world.orders.append()
    world.plan()
    world.orders.drop()
    world.orders.make()
    world.orders.append()
    with pytest.raises(SourceError, match="another table than the one that was read") as told:
        world.plan()
    ((flags, all_now),) = commands(told)
    assert flags == "--allow-skip --allow-reread"
    source = world.open()
    source.check_offset(all_now)
    assert source.why_not_again(all_now, world.position) is None
    world.position = all_now
    assert counts(world) == [1]


def test_the_places_of_one_snapshot_are_ordered(world: World) -> None:
    for _ in range(3):
        world.orders.append()
    first, second = world.plan(max_files=1)
    third = world.plan(max_files=1)[1]
    source = world.open()
    assert [source.is_after(one, second) for one in (None, first, second, third)] == [False, False, False, True]


def test_a_table_that_is_registered_again_as_it_was_before_has_not_expired(world: World) -> None:
    world.orders.append()
    before = world.orders.table.metadata_location
    world.orders.append()
    world.plan()
    world.orders.catalog.drop_table(world.orders.name)
    world.orders.catalog.register_table(world.orders.name, before)
    world.orders.append()
    world.orders.append()
    with pytest.raises(SourceError, match=r"rolled back.* was read, and is none of its history") as told:
        world.plan()
    ((flags, all_now),) = commands(told)
    assert flags == "--allow-skip --allow-reread"
    source = world.open()
    source.check_offset(all_now)
    assert source.is_after(all_now, world.position) is None
    assert source.why_not_again(all_now, world.position) is None


def test_only_the_current_start_has_to_be_there(world: World) -> None:
    world.orders.append()
    before = world.orders.head
    world.orders.append()
    world.plan()
    world.orders.append()
    world.orders.append()
    world.orders.expire(before)
    assert counts(world) == [2]


def test_a_branch_that_was_rolled_back_is_noticed_also_when_it_has_grown(world: World) -> None:
    world.orders.append()
    first = world.orders.head
    world.orders.append()
    world.plan()
    world.orders.table.manage_snapshots().set_current_snapshot(first).commit()
    with pytest.raises(SourceError, match=r"'orders'.*was rolled back.*ends at snapshot"):
        world.open().has_new(world.position)
    for _ in range(3):
        world.orders.append()
    with pytest.raises(SourceError, match="was rolled back"):
        world.plan()
    with pytest.raises(SourceError, match="was rolled back"):
        world.open().check_offset(world.position or "")


def test_a_table_that_was_made_anew_is_another_one(world: World) -> None:
    world.orders.append()
    ends = world.plan()
    world.orders.drop()
    world.orders.make()
    for _ in range(3):
        world.orders.append()
    with pytest.raises(SourceError, match="another table than the one that was read"):
        world.open().has_new(ends[1])
    assert "another table" in (world.open().not_replayable(*ends) or "")


def test_a_branch_is_read_and_no_other(world: World) -> None:
    world.orders.append()
    world.orders.table.manage_snapshots().create_branch(world.orders.head, "audit").commit()
    world.orders.append(branch="audit")
    world.orders.append()
    assert counts(world, branch="audit") == [2]
    world.orders.append()
    assert not world.open(branch="audit").has_new(world.position)
    with pytest.raises(SourceError, match="no branch 'nowhere'"):
        world.open(branch="nowhere").check()


def test_a_range_has_one_schema(world: World) -> None:
    from pyiceberg.types import StringType

    world.orders.append()
    world.plan()
    world.orders.append()
    with world.orders.table.update_schema() as update:
        update.add_column("more", StringType())
    world.orders.append()
    assert counts(world) == [1, 1]


def test_a_column_of_a_type_that_pyiceberg_does_not_know_is_an_error_of_the_source(world: World) -> None:
    """Any other error of one pipeline's would end the sensor of all pipelines of its job."""
    world.orders.append()
    path = Path(world.orders.table.metadata_location.removeprefix("file://"))
    told = json.loads(path.read_text())
    told["schemas"][0]["fields"][1]["type"] = "variant"
    path.write_text(json.dumps(told))
    for question in (world.open().check, world.plan):
        with pytest.raises(SourceError, match=r"'orders'.*shop\.orders: pyiceberg does not understand .*'variant'"):
            question()


def test_format_1_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, orders=OrdersOfIceberg(tmp_path / "old", format_version=1))
    with pytest.raises(SourceError, match=r"format 1.*'format-version' = '2'"):
        world.open().check()


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[World]:
    """A table of three appends in format 1, which was made one of format 2."""
    orders = OrdersOfIceberg(tmp_path / "old", format_version=1)
    for _ in range(3):
        orders.append()
    orders.upgrade()
    found = World(tmp_path, orders=orders)
    yield found
    found.close()


@pytest.mark.parametrize("files", [1, 2, 1000])
def test_a_table_that_was_of_format_1_is_read_whole_and_then_what_comes(upgraded: World, files: int) -> None:
    snapshot = upgraded.orders.head
    read = list[str]()
    while (ends := upgraded.plan(max_files=files))[0] != ends[1]:
        arguments = upgraded.open(max_files=files).read(*ends).arguments
        assert arguments["snapshot"] == snapshot
        known = json.loads(Path(arguments["address"].removeprefix("file://")).read_text())
        assert snapshot in [one["snapshot-id"] for one in known["snapshots"]], "Spark is told where it is"
        read += arguments["files"]
    assert len(read) == len(set(read)) == 3
    for _ in range(2):
        upgraded.orders.append()
    assert upgraded.open().has_new(upgraded.position)
    ends = upgraded.plan()
    assert upgraded.open().read(*ends).arguments["runs"] == [[snapshot, upgraded.orders.head]]


def test_a_beginning_among_snapshots_without_numbers_is_refused(upgraded: World, tmp_path: Path) -> None:
    first, second, third = upgraded.orders.table.metadata.snapshots
    upgraded.orders.append()
    fourth = upgraded.orders.head
    moment = dt.datetime.fromtimestamp(second.timestamp_ms / 1000, dt.UTC).isoformat()
    for start in (first.snapshot_id, second.snapshot_id, third.snapshot_id, moment):
        with pytest.raises(SourceError, match=r"is of Iceberg's format 1.*start='earliest'"):
            upgraded.plan(start=start)
    for snapshot in (first, second):
        place = json.dumps({"snapshot_id": snapshot.snapshot_id, "sequence_number": 0})
        with pytest.raises(SourceError, match=r"is of Iceberg's format 1.*what came after it is not told") as told:
            upgraded.open().check_offset(place)
        # Batches of the version before may have read all rows of then, and ended at such a place.
        (behind,) = re.findall(r"if all rows of then were read, .*--offset '([^']*)' --allow-skip`", str(told.value))
        upgraded.open().check_offset(behind)
        upgraded.position = behind
        assert counts(upgraded) == [1]
    upgraded.position = None
    upgraded.open().check_offset(json.dumps({"snapshot_id": third.snapshot_id, "sequence_number": 0}))
    assert counts(upgraded, start=fourth) == [1]


@pytest.mark.parametrize("offset", ["7", "{}", '{"snapshot_id": 7}', '{"snapshot_id": "7", "sequence_number": 1}'])
def test_what_is_no_place_is_refused(world: World, offset: str) -> None:
    with pytest.raises(SourceError, match="no place in an Iceberg table"):
        world.open().check_offset(offset)


def test_a_person_may_give_a_snapshot(world: World) -> None:
    heads = []
    for _ in range(3):
        world.orders.append()
        heads.append(world.orders.head)
    world.position = json.dumps({"snapshot_id": heads[0], "sequence_number": 1})
    world.open().check_offset(world.position)
    assert counts(world) == [2]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"conn_id": ""}, "conn_id"),
        ({"table": "orders"}, "table"),
        ({"branch": ""}, "branch"),
        ({"max_files": 0}, "max_files"),
        ({"start": "2026-11-21T00:00:00"}, "start"),
        ({"skip_snapshots": ["7"]}, "skip_snapshots"),
        ({"on_delete": "ignore"}, "on_delete"),
    ],
)
def test_a_wrong_definition_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        IcebergSource(**{"conn_id": "lake", "table": "shop.orders", **given})
