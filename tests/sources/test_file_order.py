"""An ordered source plans what an unordered one plans, and looks at less."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sources.file import batch as file_batch
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, ends_before
from airflow_provider_microbatch.sources.file.log import SourceLog
from airflow_provider_microbatch.sources.file.order import ORDER
from airflow_provider_microbatch.sources.intervals import Interval
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sources.support import World

HOUR = 3_600


class Opened:
    """The folders that were listed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.folders: list[str] = []
        scandir = os.scandir

        def spy(folder: Any) -> Any:
            self.folders.append(str(folder))
            return scandir(folder)

        patch.setattr(os, "scandir", spy)

    def below(self, root: Path) -> list[str]:
        """Those below ``root`` since the last question, relative to it."""
        found = sorted(os.path.relpath(folder, root) for folder in self.folders if folder.startswith(str(root)))
        self.folders.clear()
        return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


class Reader:
    """Plans and remembers the position, each time as a new process."""

    def __init__(self, world: World, **arguments: Any) -> None:
        self.world = world
        self.arguments = {"ordered": True, **arguments}
        self.position: str | None = None

    def sees(self) -> bool:
        return self.world.open(**self.arguments).has_new(self.position)

    def plan(self) -> list[str]:
        """Names of the next batch; empty if nothing is new."""
        source = self.world.open(**self.arguments)
        start, self.position = self.position, source.latest_offset(self.position)
        return [] if self.position == start else self.world.names(source.read(start, self.position))


@pytest.fixture
def hours(world: World) -> Reader:
    """Three hours were read, one a batch."""
    reader = Reader(world)
    for hour in range(3):
        world.land(f"day=1/hour={hour}/a.json", age=1000 - hour)
        assert reader.plan() == [f"day=1/hour={hour}/a.json"]
    return reader


FOLDERS = ["a", "a-b", "a.b", "a b", "b", "k=1", "k=2", "é", "\uffee", "\U0001f600"]
PATHS = st.tuples(st.lists(st.sampled_from(FOLDERS), max_size=3), st.sampled_from(FOLDERS)).map(
    lambda parts: "/".join([*parts[0], parts[1] + ".json"])
)
LIMITS = st.fixed_dictionaries(
    {
        "max_files": st.none() | st.integers(1, 3),
        "max_bytes": st.none() | st.integers(5, 30),
        "min_file_age": st.none() | st.just(100),
        "latest_first": st.booleans(),
    }
)
STEPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["plan", "plan", "die", "lose"])), max_size=12)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(paths=st.sets(PATHS, min_size=1, max_size=25), steps=STEPS, limits=LIMITS, seed=st.integers(0, 99))
def test_what_arrives_in_order_is_planned_as_by_full_listings(
    paths: set[str], steps: list[tuple[int, str]], limits: dict[str, Any], seed: int
) -> None:
    """Before each plan some files land, of any age. A plan may die before the offset log is written, and its record of
    the listing may be lost."""
    coming = sorted(paths, key=str.encode)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_batch, "_ROOM", 2)
        full, ordered = World(Path(folder)), World(Path(folder), checkpoint="ordered")
        peer = Reader(full, recursive=True, **(limits | {"ordered": False}))
        reader = Reader(ordered, recursive=True, **limits)
        read: list[str] = []
        for count, step in [*steps, (len(coming), "plan"), *[(0, "plan")] * len(coming)]:
            for name in coming[:count]:
                full.land(name, "x" * chance.randrange(12), age=chance.randrange(200))
            del coming[:count]
            full.now_ms = ordered.now_ms = full.now_ms + chance.choice([0, 40_000])
            assert reader.sees() == peer.sees()
            before = peer.position
            batch = peer.plan()
            assert reader.plan() == batch
            assert reader.position == peer.position
            if step == "lose":
                for name in ordered.state.list(ORDER):
                    ordered.state.delete(f"{ORDER}/{name}")
            if step == "die":
                peer.position = reader.position = before
            else:
                read += batch
        full.now_ms = ordered.now_ms = full.now_ms + 400_000
        read += [name for batch in iter(reader.plan, []) for name in batch]
        assert sorted(read) == sorted(paths)


@settings(max_examples=200, deadline=None)
@given(paths=st.sets(PATHS, max_size=25), start=PATHS, glob=st.sampled_from(["", "/*", "/{a,b,k=*}", "/a*/*"]))
def test_a_listing_with_a_start_opens_no_folder_that_ends_before_it(paths: set[str], start: str, glob: str) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder) / "root"
        root.mkdir()
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
        listing = Listing(f"{root}{glob}", recursive=True)

        def found(start: str | None = None) -> set[str]:
            return {file.path for file in listing.files(lambda paths: paths, start=start)}

        first = f"{root}/{start}"
        expected = {path for path in found() if path.encode() >= first.encode()}
        opened = Opened(patch)
        assert found(first) == expected
        for inside in opened.below(root):
            below = [path for path in [*paths, start] if inside == "." or path.startswith(f"{inside}/")]
            assert max(below, key=str.encode) >= start, inside


def test_folders_compare_by_what_lies_below_them() -> None:
    assert ends_before("/in/a-b", "/in/a/x")
    assert not ends_before("/in/a", "/in/a-b/x")
    assert not ends_before("/in/a", "/in/a/x")
    assert ends_before("/in/hour=1", "/in/hour=10/x")
    assert not ends_before("/in/hour=10", "/in/hour=1/x")
    assert not ends_before("/", "/in")


def test_a_plan_opens_the_newest_folders_and_a_poll_does_too(hours: Reader, opened: Opened) -> None:
    hours.world.land("day=1/hour=3/a.json")
    newest = [".", "day=1", "day=1/hour=1", "day=1/hour=2", "day=1/hour=3"]
    assert hours.sees()
    assert set(opened.below(hours.world.landing)) <= set(newest)
    assert hours.plan() == ["day=1/hour=3/a.json"]
    assert opened.below(hours.world.landing) == newest
    assert hours.plan() == []
    opened.below(hours.world.landing)
    assert hours.plan() == []
    assert not hours.sees()
    assert opened.below(hours.world.landing) == [".", ".", "day=1", "day=1", "day=1/hour=3", "day=1/hour=3"]


def test_names_before_the_start_are_not_looked_at_in_a_folder_of_all(world: World) -> None:
    reader = Reader(world)
    for number in range(4):
        world.land(f"{number}.json", age=100 - number)
        reader.plan()
    asked: list[str] = []
    walk = Listing(str(world.landing)).files(lambda paths: asked.extend(paths) or [], start=f"{world.landing}/2.json")
    assert list(walk) == []
    assert sorted(asked) == [f"{world.landing}/2.json", f"{world.landing}/3.json"]


def test_a_file_that_comes_late_is_found_once_by_the_next_full_listing_and_named(
    hours: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    late = hours.world.land("day=1/hour=0/late.json")
    assert not hours.sees()
    assert hours.plan() == []
    hours.world.land("day=1/hour=3/a.json")
    assert hours.plan() == ["day=1/hour=3/a.json"]
    assert "order was broken" not in caplog.text
    hours.world.now_ms += HOUR * 1000
    assert hours.sees()
    assert hours.plan() == ["day=1/hour=0/late.json"]
    assert f"order was broken: 1 file(s) landed that sort before '{hours.world.landing}/day=1/hour=" in caplog.text
    assert str(late) in caplog.text
    assert hours.plan() == []
    hours.world.now_ms += HOUR * 1000
    assert not hours.sees()
    assert hours.plan() == []
    assert caplog.text.count("order was broken") == 1


def test_late_files_that_a_batch_has_no_room_for_are_in_the_next_ones(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(world, max_files=1, full_listing_seconds=60)
    for name in ("b", "c", "d"):
        world.land(f"{name}.json")
        reader.plan()
    for number in reversed(range(8)):
        world.land(f"a{number}.json", age=100 - number)
    world.now_ms += 60_000
    assert [reader.plan() for _ in range(9)] == [*[[f"a{number}.json"] for number in range(8)], []]
    assert caplog.text.count("order was broken") == 1
    assert "8 file(s)" in caplog.text
    assert "a4.json' and 3 more" in caplog.text


def test_a_sensor_at_rest_lists_all_once_when_it_is_time(hours: Reader, opened: Opened) -> None:
    hours.plan()
    hours.plan()
    hours.world.now_ms += HOUR * 1000
    opened.below(hours.world.landing)
    assert not hours.sees()
    assert "day=1/hour=0" in opened.below(hours.world.landing)
    before = hours.world.snapshot()
    opened.below(hours.world.landing)
    assert not hours.sees()
    assert "day=1/hour=0" not in opened.below(hours.world.landing)
    assert hours.world.snapshot() == before
    hours.world.land("day=1/hour=0/late.json")
    hours.world.now_ms += HOUR * 1000
    assert hours.sees()
    assert hours.plan() == ["day=1/hour=0/late.json"]


def test_a_file_that_lands_behind_the_walk_is_found_by_the_next_plan(
    hours: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk has left ``hour=3`` when a file lands there, and then the next one, in order, in ``hour=4``."""
    world = hours.world
    world.land("day=1/hour=3/a.json")
    (world.landing / "day=1/hour=4").mkdir()
    scan = Listing._scan

    def writing_meanwhile(self: Listing, folder: str, *, required: bool) -> Any:
        yield from sorted(scan(self, folder, required=required), key=lambda entry: entry.name)
        if folder.endswith("hour=3"):
            monkeypatch.undo()
            world.land("day=1/hour=3/behind.json")
            world.land("day=1/hour=4/ahead.json")

    monkeypatch.setattr(Listing, "_scan", writing_meanwhile)
    assert hours.plan() == ["day=1/hour=3/a.json", "day=1/hour=4/ahead.json"]
    assert hours.sees()
    assert hours.plan() == ["day=1/hour=3/behind.json"]


def test_a_planner_that_was_beaten_to_the_entry_passes_over_nothing(
    hours: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one had listed before the first of the two files landed."""
    world = hours.world
    first, second = world.land("day=1/hour=1/b.json", age=900), world.land("day=1/hour=3/a.json")
    hours.world.land("day=1/hour=2/b.json", age=800)
    add = SourceLog.add

    def beaten(self: SourceLog, number: int, files: Any, **arguments: Any) -> bool:
        monkeypatch.undo()
        assert add(self, number, [FoundFile(str(second), second.stat().st_size, second.stat().st_mtime_ns)])
        return add(self, number, files, **arguments)

    monkeypatch.setattr(SourceLog, "add", beaten)
    assert hours.plan() == ["day=1/hour=3/a.json"]
    assert hours.plan() == [os.path.relpath(first, world.landing), "day=1/hour=2/b.json"]


def test_a_file_that_is_too_young_is_not_passed_over(world: World) -> None:
    reader = Reader(world, min_file_age=30)
    world.land("1.json", age=5)
    for number in range(2, 6):
        world.land(f"{number}.json", age=60)
        assert reader.plan() == [f"{number}.json"]
    world.now_ms += 40_000
    assert reader.sees()
    assert reader.plan() == ["1.json"]


def test_a_stray_name_that_sorts_last_hides_others_only_until_it_is_gone(
    hours: Reader, caplog: pytest.LogCaptureFixture, opened: Opened
) -> None:
    stray = hours.world.land("zzz.json")
    for _ in range(3):
        hours.plan()
    hours.world.land("day=1/hour=3/a.json")
    assert not hours.sees()
    stray.unlink()
    hours.world.now_ms += HOUR * 1000
    assert hours.plan() == ["day=1/hour=3/a.json"]
    assert "zzz.json" in caplog.text
    for hour in range(4, 7):
        hours.world.land(f"day=1/hour={hour}/a.json")
        assert hours.plan() == [f"day=1/hour={hour}/a.json"]
    assert opened.below(hours.world.landing)[-1] == "day=1/hour=6"


@pytest.mark.parametrize("damage", ["lost", "torn", "of another log", "of a longer log"])
def test_without_a_record_that_counts_all_is_listed(hours: Reader, damage: str) -> None:
    world = hours.world
    late = world.land("day=1/hour=0/late.json")
    assert hours.plan() == []
    if damage == "of another log":
        entry = world.log.get("2")
        assert entry is not None
        world.log.delete("2")
        world.log.put_if_absent("2", entry.replace(b"hour=2/a.json", b"hour=2/b.json"))
    elif damage == "of a longer log":
        world.log.delete("2")
        hours.position = '{"logOffset":1}'
        assert set(hours.plan()) == {"day=1/hour=0/late.json", "day=1/hour=2/a.json"}
        return
    else:
        for name in world.state.list(ORDER):
            world.state.delete(f"{ORDER}/{name}")
            if damage == "torn":
                world.state.put_if_absent(f"{ORDER}/{name}", b"{")
    assert hours.sees()
    assert os.path.relpath(late, world.landing) in hours.plan()
    assert len(world.state.list(ORDER)) == 1


def test_who_asks_for_other_files_gets_those_that_were_passed_over(world: World) -> None:
    reader = Reader(world, file_name_pattern="*.json")
    world.land("0.csv")
    for number in range(1, 5):
        world.land(f"{number}.json", age=100 - number)
        reader.plan()
    reader.arguments["file_name_pattern"] = "*"
    assert reader.sees()
    assert reader.plan() == ["0.csv"]


def test_an_existing_checkpoint_can_become_ordered_and_back(hours: Reader) -> None:
    hours.arguments["ordered"] = False
    hours.world.land("day=1/hour=0/b.json")
    assert hours.plan() == ["day=1/hour=0/b.json"]
    hours.world.land("day=1/hour=0/c.json")
    hours.arguments["ordered"] = True
    hours.world.now_ms += HOUR * 1000
    assert hours.plan() == ["day=1/hour=0/c.json"]


def test_a_position_that_was_set_back_gets_the_same_batches_again(hours: Reader) -> None:
    assert hours.plan() == []
    hours.position = None
    assert hours.sees()
    assert [hours.plan() for _ in range(4)] == [*[[f"day=1/hour={hour}/a.json"] for hour in range(3)], []]


def test_cleaned_files_leave_the_order_as_it_is(world: World) -> None:
    archive = world.root / "archive"
    reader = Reader(world, clean_source="archive", archive_dir=str(archive))
    for turn in range(6):
        world.land(f"{turn}.json")
        start = reader.position
        assert reader.plan() == [f"{turn}.json"]
        assert reader.position is not None
        source = world.open(**reader.arguments)
        source.release(start, reader.position)
        source.commit(reader.position)
        world.now_ms += HOUR * 300
    assert list(world.landing.iterdir()) == []
    assert sorted(path.name for path in archive.iterdir()) == [f"{turn}.json" for turn in range(6)]


def test_a_data_interval_has_all_its_files_wherever_they_sort(hours: Reader) -> None:
    world = hours.world
    world.land("day=1/hour=0/late.json", age=2000)
    hours.plan()
    interval = Interval(start_ms=world.now_ms - 2_100_000, end_ms=world.now_ms - 1_900_000)
    source = world.open(lane="interval", ordered=True)
    assert source.survey_interval(interval, {}).unread
    start, end = source.plan_interval(interval, {})
    assert world.names(source.read(start, end)) == ["day=1/hour=0/late.json"]


def test_a_record_that_cannot_be_written_fails_no_plan(
    hours: Reader, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = PosixStore.put_if_absent

    def full_disk(self: PosixStore, path: str, data: bytes) -> bool:
        if path.startswith(ORDER):
            raise CheckpointError("no space left")
        return put(self, path, data)

    monkeypatch.setattr(PosixStore, "put_if_absent", full_disk)
    hours.world.land("day=1/hour=3/a.json")
    assert hours.plan() == ["day=1/hour=3/a.json"]
    assert "no space left" in caplog.text
    monkeypatch.undo()
    hours.world.land("day=1/hour=4/a.json")
    assert hours.plan() == ["day=1/hour=4/a.json"]


def test_a_backlog_costs_the_memory_of_a_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    cut = file_batch.BatchLimits.cut

    def spy(self: file_batch.BatchLimits, files: Any) -> Any:
        most.append(len(files))
        return cut(self, files)

    monkeypatch.setattr(file_batch, "_ROOM", 10)
    monkeypatch.setattr(file_batch.BatchLimits, "cut", spy)
    for number in range(100):
        world.land(f"{number:02}.json", age=number)
    source = world.open(max_files=3)
    assert world.names(source.read(None, source.latest_offset(None))) == ["99.json", "98.json", "97.json"]
    assert max(most) == 10
