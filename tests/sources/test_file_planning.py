"""Which files a batch gets: order, limits, ages, crashes, several planners."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from tests.sources.support import World

OFFSET_0 = '{"logOffset":0}'
OFFSET_1 = '{"logOffset":1}'


def test_the_log_entry_is_sparks(world: World) -> None:
    path = world.land("a b%20é.json")
    os.utime(path, ns=(1_795_177_071_704_123_456,) * 2)
    assert world.open().latest_offset(None) == OFFSET_0
    entry = world.log.get("0")
    assert entry is not None
    version, line = entry.decode().split("\n")
    assert version == "v1"
    assert line.startswith(f'{{"path":"file://{world.landing}/a%20b%2520é.json","timestamp":1795177071704,"batchId":0,')
    assert json.loads(line)["size"] == path.stat().st_size
    assert json.loads(line)["mtime_ns"] == 1_795_177_071_704_123_456


def test_oldest_first_and_ties_by_path(world: World) -> None:
    for name, age in [("c", 10), ("b", 30), ("a", 20), ("e", 20)]:
        world.land(f"{name}.json", age=age)
    assert world.drain(max_files=2) == [["b.json", "a.json"], ["e.json", "c.json"]]


def test_latest_first(world: World) -> None:
    for name, age in [("c", 10), ("b", 30), ("a", 20)]:
        world.land(f"{name}.json", age=age)
    assert world.drain(max_files=2, latest_first=True) == [["c.json", "a.json"], ["b.json"]]


def test_max_bytes_takes_what_fits_but_always_one_file(world: World) -> None:
    for age, (name, size) in enumerate([("d", 5), ("c", 5), ("big", 50), ("a", 10), ("z", 1)]):
        world.land(name, "x" * size, age=100 - age)
    assert world.drain(max_bytes=10) == [["d", "c"], ["big"], ["a"], ["z"]]
    assert [
        world.open().in_words(f'{{"logOffset":{n - 1}}}' if n else None, f'{{"logOffset":{n}}}') for n in (0, 1)
    ] == [
        {"files": 2, "bytes": 10},
        {"files": 1, "bytes": 50},
    ]


def test_both_limits_hold_at_once(world: World) -> None:
    for age, size in enumerate([1, 1, 1, 8, 8]):
        world.land(f"{age}", "x" * size, age=100 - age)
    assert world.drain(max_bytes=10, max_files=2) == [["0", "1"], ["2", "3"], ["4"]]


def test_min_file_age_keeps_back_what_is_still_fresh(world: World) -> None:
    world.land("old.json", age=60)
    world.land("fresh.json", age=5)
    world.land("ahead.json", age=-5)
    source = world.open(min_file_age=30)
    position = source.latest_offset(None)
    assert world.names(source.read(None, position)) == ["old.json"]
    assert not source.has_new(position)
    world.now_ms += 26_000
    assert source.has_new(position)
    assert world.names(source.read(position, source.latest_offset(position))) == ["fresh.json"]


def test_max_file_age_counts_from_the_newest_planned_file_and_spares_the_first_batch(world: World) -> None:
    world.land("ancient.json", age=9_000)
    world.land("newest.json", age=1_000)
    source = world.open(max_file_age=100)
    position = source.latest_offset(None)
    assert world.names(source.read(None, position)) == ["ancient.json", "newest.json"]
    world.land("late.json", age=1_200)
    assert not source.has_new(position)
    assert source.latest_offset(position) == position
    world.land("recent.json", age=1_050)
    assert world.names(source.read(position, source.latest_offset(position))) == ["recent.json"]


def test_files_that_max_file_age_leaves_out_are_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else tells of them: no log has them, and no count."""
    world.land("newest.json", age=1_000)
    source = world.open(max_file_age=100)
    position = source.latest_offset(None)
    world.land("late.json", age=1_200)
    source.latest_offset(position)
    assert "1 file(s) are older than max_file_age allows and are never read" in caplog.text
    assert "late.json" in caplog.text


def test_a_planned_file_of_the_future_makes_nothing_too_old_that_is_not(world: World) -> None:
    world.land("future.json", age=-1_000_000)
    source = world.open(max_file_age=100)
    position = source.latest_offset(None)
    world.land("recent.json", age=50)
    world.land("old.json", age=200)
    assert source.has_new(position)
    assert world.names(source.read(position, source.latest_offset(position))) == ["recent.json"]


def test_files_of_the_future_that_are_held_back_are_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.land("future.json", age=-1_000_000)
    assert world.open(min_file_age=30).latest_offset(None) is None
    assert "changed in the future" in caplog.text
    assert "future.json" in caplog.text


def test_a_file_that_arrives_with_an_old_mtime_is_new(world: World) -> None:
    world.land("a.json", age=10)
    position = world.open().latest_offset(None)
    world.land("b.json", age=1_000)
    assert world.open().has_new(position)


def test_a_planned_path_that_is_written_again_is_not_new(world: World) -> None:
    world.land("a.json", age=100)
    position = world.open().latest_offset(None)
    world.land("a.json", "other", age=1)
    assert not world.open().has_new(position)


def test_what_is_planned_ahead_is_taken_without_a_listing(world: World) -> None:
    world.land("a.json")
    world.open().latest_offset(None)
    source = world.open()
    world.landing.rename(world.root / "away")
    assert source.has_new(None)
    assert source.latest_offset(None) == OFFSET_0


def test_a_rewound_position_is_planned_again_one_entry_at_a_time(world: World) -> None:
    for number in range(3):
        world.land(f"{number}.json", age=100 - number)
    first = world.drain(max_files=1)
    before = world.snapshot()
    assert world.drain(max_files=3) == first == [["0.json"], ["1.json"], ["2.json"]]
    assert world.snapshot() == before


def test_a_planner_beaten_to_the_entry_takes_the_winners(world: World) -> None:
    world.land("a.json")
    slow = world.open()
    slow.has_new(None)
    fast = world.open()
    assert fast.latest_offset(None) == OFFSET_0
    entry = world.log.get("0")
    world.land("b.json")
    assert slow.latest_offset(None) == OFFSET_0
    assert world.log.get("0") == entry
    assert world.names(slow.read(None, OFFSET_0)) == ["a.json"]


def test_a_position_beyond_the_log_is_an_error_and_nothing_is_planned_twice(world: World) -> None:
    world.land("a.json")
    world.open().latest_offset(None)
    world.log.delete("0")
    for ask in (world.open().has_new, world.open().latest_offset):
        with pytest.raises(CorruptEntryError, match=r"ends at -1.*backup"):
            ask(OFFSET_0)
    assert world.log.get("0") is None


@pytest.mark.parametrize("broken", [b"", b"v1\n", b"v2\n{}", b'v1\n{"path":"file:///a"', b'v1\n{"path":"file:///a"}'])
def test_a_broken_entry_is_named(world: World, broken: bytes) -> None:
    world.log.put_if_absent("0", broken)
    with pytest.raises(CorruptEntryError, match=r"sources/orders/0 .*backup"):
        world.open().latest_offset(None)


@pytest.mark.parametrize("offset", ["", "x", "{}", '{"logOffset":"1"}', '{"logOffset":-2}', "[1]", "true"])
def test_an_offset_of_another_kind_is_named(world: World, offset: str) -> None:
    with pytest.raises(CorruptEntryError, match=r"no.* an offset of a file source"):
        world.open().has_new(offset)


@pytest.mark.parametrize(("name", "said"), [(b"\xff.json", "UTF-8"), (b"10:00.json", "colon")])
def test_a_name_that_spark_cannot_read_stops_the_plan_and_writes_nothing(world: World, name: bytes, said: str) -> None:
    world.land("a.json")
    Path(os.fsdecode(bytes(world.landing) + b"/" + name)).write_text("{}")
    with pytest.raises(SourceError, match=rf"'orders'.*{said}.*Rename"):
        world.open().latest_offset(None)
    assert world.log.list("") == []


def test_lag_counts_what_is_ahead_and_what_is_not_planned(world: World) -> None:
    for number in range(4):
        world.land(f"{number}.json", "x" * 10, age=100 - number)
    source = world.open(max_files=1)
    source.latest_offset(None)
    source.latest_offset(OFFSET_0)
    assert (source.lag(OFFSET_0).splits, source.lag(OFFSET_0).bytes) == (3, 30)
    assert (source.lag(OFFSET_1).splits, source.lag(OFFSET_1).bytes) == (2, 20)


def test_no_schema_and_no_file_has_no_frame_and_asks_for_a_schema(world: World) -> None:
    assert "Give it a schema" in (world.open(schema=None).absent(None, None) or "")
    assert world.open().absent(None, None) is None
    world.land("a.json")
    end = world.open(schema=None).latest_offset(None)
    assert world.open(schema=None).absent(None, end) is None
    world.open(schema=None).learned({"schema": LEARNED})
    assert world.open(schema=None).absent(end, end) is None


NO_FIELDS = '{"type":"struct","fields":[]}'
LEARNED = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


def test_a_schema_without_fields_is_never_pinned(world: World) -> None:
    world.open(schema=None).learned({"schema": NO_FIELDS})
    assert world.state.get("schema") is None
    world.open(schema=None).learned({"schema": LEARNED})
    assert world.open(schema=None).read(None, None).arguments["schema_json"] == LEARNED


def test_a_schema_without_fields_that_an_earlier_version_pinned_is_none(world: World) -> None:
    assert world.state.put_if_absent("schema", NO_FIELDS.encode())
    assert "Give it a schema" in (world.open(schema=None).absent(None, None) or "")
    assert world.open(schema=None).read(None, None).arguments["schema_json"] is None
    world.open(schema=None).learned({"schema": LEARNED})
    world.open(schema=None).learned({"schema": LEARNED})
    assert world.open(schema=None).read(None, None).arguments["schema_json"] == LEARNED
    with pytest.raises(SourceError, match="pinned another schema"):
        world.open(schema=None).learned({"schema": LEARNED.replace("long", "string")})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), st.integers(1, 4), st.integers(0, 5)),
        st.tuples(st.just("plan"), st.booleans(), st.booleans()),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS, max_files=st.none() | st.integers(1, 3), max_bytes=st.none() | st.integers(1, 30), latest=st.booleans()
)
def test_every_file_is_in_exactly_one_range_whatever_died(
    steps: list[tuple[str, int, int]], max_files: int | None, max_bytes: int | None, latest: bool
) -> None:
    """``plan`` may die between source log and offset log (its end is then forgotten), in a new or an old process."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        landed: list[str] = []
        read: list[str] = []
        position: str | None = None
        arguments = {"max_files": max_files, "max_bytes": max_bytes, "latest_first": latest}
        source = world.open(**arguments)
        plans = [("plan", False, False)] * 200
        for action, one, other in [*steps, *plans]:
            if action == "land":
                for _ in range(one):
                    name = f"{len(landed)}.json"
                    world.land(name, "x" * (7 * other), age=100 * other)
                    landed.append(name)
                continue
            dies, restarts = bool(one), bool(other)
            if restarts:
                source = world.open(**arguments)
            expected = source.has_new(position)
            end = source.latest_offset(position)
            assert expected == (end != position)
            if dies or end == position:
                continue
            names = world.names(source.read(position, end))
            assert 1 <= len(names) <= (max_files or len(landed))
            read += names
            position = end
        assert sorted(read) == sorted(landed)
