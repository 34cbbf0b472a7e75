"""What ``clean_source`` may take away: only what a batch of this checkpoint has read, while it was switched on."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file.cleaning import Cleaning, CleaningRecord, Entries
from airflow_provider_microbatch.sources.intervals import CommittedRange, HeldRange
from tests.execution.world import Killed
from tests.sources.support import World, paths


def offset(number: int) -> str:
    return f'{{"logOffset":{number}}}'


def left(world: World) -> list[str]:
    return sorted(path.name for path in world.landing.rglob("*.json"))


class Batches:
    """One file a batch, each with the definition of its day."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.number = -1

    def plan(self, **options: Any) -> OpenSource:
        self.world.land(f"{self.number + 1}.json", age=1000 - self.number)
        source = self.world.open(**options)
        start = offset(self.number) if self.number >= 0 else None
        self.number += 1
        assert source.latest_offset(start) == offset(self.number)
        return source

    def commit(self, **options: Any) -> None:
        """One batch from plan to commit."""
        start = offset(self.number) if self.number >= 0 else None
        source = self.plan(**options)
        source.release(start, offset(self.number))
        source.commit(offset(self.number))


@pytest.fixture
def batches(world: World) -> Batches:
    return Batches(world)


def archive(world: World, name: str = "archive") -> dict[str, Any]:
    return {"clean_source": "archive", "archive_dir": str(world.root / name)}


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_switched_on_late_it_cleans_what_is_committed_from_then_on(world: World, batches: Batches, how: str) -> None:
    options = {"clean_source": how, "archive_dir": str(world.root / "archive") if how == "archive" else None}
    batches.commit()
    batches.commit()
    late = world.open(**options)
    late.commit(offset(1))
    assert left(world) == ["0.json", "1.json"], "what the next plan says again is of before"
    batches.commit(**options)
    assert left(world) == ["0.json", "1.json"]
    assert late.not_replayable(None, offset(1)) is None
    assert (late.not_replayable(offset(1), offset(2)) is None) == (how == "archive")


def test_an_archive_that_a_link_leads_back_into_the_source_is_refused_before_anything_is_planned(world: World) -> None:
    """What is archived was read again, and archived one level deeper, at each run."""
    world.land("0.json")
    (world.root / "alias").symlink_to(world.landing)
    looped = {"clean_source": "archive", "archive_dir": str(world.root / "alias" / "arch"), "recursive": True}
    with pytest.raises(SourceError, match="leads by a link to what it lists"):
        world.open(**looped).check()
    world.open(**{**looped, "archive_dir": str(world.root / "alias" / "_arch")}).check()
    world.open(**{**looped, "recursive": False}).check()


def test_switched_off_and_on_again_it_leaves_what_was_committed_in_between(world: World, batches: Batches) -> None:
    batches.commit(clean_source="delete")
    batches.commit()
    source = batches.plan(clean_source="delete")
    source.release(offset(1), offset(2))
    world.open().commit(offset(2))  # its commit is said by a run that has it switched off
    batches.commit(clean_source="delete")
    assert left(world) == ["1.json", "2.json"]


def test_what_was_archived_is_read_from_the_archive_also_if_its_twin_lies_where_it_was(
    world: World, batches: Batches
) -> None:
    batches.commit(**archive(world))
    old = world.root / "archive" / "0.json"
    twin = world.land("0.json", '{"id": 2}\n')  # as `cp -p` and tar bring one: of the same size and mtime
    os.utime(twin, ns=(old.stat().st_mtime_ns,) * 2)
    assert twin.stat().st_size == old.stat().st_size
    source = world.open(**archive(world))
    read = source.read(None, offset(0))
    assert paths(read) == [str(old)]
    source.verify(None, offset(0), {"files": 1, "left_out": []})
    old.unlink()
    assert paths(source.read(None, offset(0))) == [str(twin)], "put back by hand, as the error says"


def test_a_first_read_looks_at_each_file_once(world: World, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    batches.commit(**archive(world))
    source = batches.plan(**archive(world))
    looks = []
    real = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        looks.append(path)
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    source.read(offset(0), offset(1))
    assert [path for path in looks if path.suffix == ".json"] == [world.landing / "1.json"]


def test_what_is_in_the_archive_already_is_not_missed(world: World, batches: Batches) -> None:
    batches.commit(**archive(world))
    source = world.open(**archive(world))
    source.release(None, offset(0))  # a rewound batch, made again of the archived file
    source.commit(offset(0))
    assert not left(world)
    assert not CleaningRecord(world.state).read().due.runs
    # Nor is a later file of its name, which is nobody's of ours, in the way.
    source.release(None, offset(0))
    twin = world.land("0.json")
    os.utime(twin, ns=((world.root / "archive" / "0.json").stat().st_mtime_ns,) * 2)
    source.commit(offset(0))
    assert left(world) == ["0.json"]
    assert not CleaningRecord(world.state).read().due.runs
    twin.unlink()
    # While its file system is away, a file that is in no archive may be there still.
    source = batches.plan(**archive(world))
    (world.landing / "1.json").unlink()
    source.release(offset(0), offset(1))
    with pytest.raises(SourceError, match="as if it were not mounted"):
        source.commit(offset(1))


def test_another_archive_later_and_both_are_found(world: World, batches: Batches) -> None:
    batches.commit(**archive(world, "old"))
    batches.commit(**archive(world, "new"))
    assert left(world) == []
    for source in (world.open(), world.open(**archive(world, "new")), world.open(clean_source="delete")):
        assert paths(source.read(None, offset(1))) == [f"{world.root}/old/0.json", f"{world.root}/new/1.json"]
        assert source.not_replayable(None, offset(1)) is None


def test_an_archive_is_found_after_the_path_was_changed(world: World) -> None:
    world.land("2026/a.json")
    first = world.open(f"{world.landing}/*", **archive(world))
    assert first.latest_offset(None) == offset(0)
    first.release(None, offset(0))
    first.commit(offset(0))
    assert (world.root / "archive/2026/a.json").exists()
    moved = world.open(f"{world.landing}/2026", **archive(world, "other"))
    assert paths(moved.read(None, offset(0))) == [f"{world.root}/archive/2026/a.json"]


def test_files_of_an_adopted_query_are_left_where_they_are(world: World, batches: Batches) -> None:
    files = [world.land(f"spark-{number}.json", age=2000) for number in range(2)]
    for number, path in enumerate(files):
        line = {"path": f"file://{path}", "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": number}
        world.log.put_if_absent(str(number), f"v1\n{json.dumps(line)}".encode())
    batches.number = 1
    world.open(clean_source="delete").commit(offset(1))
    batches.commit(clean_source="delete")
    assert left(world) == ["spark-0.json", "spark-1.json"]


def test_what_does_not_lie_below_the_source_is_left(world: World, tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious.json"
    elsewhere.write_text("{}")
    stat = elsewhere.stat()
    for number, path in enumerate([elsewhere, f"{world.landing}/../precious.json"]):
        line = {"path": f"file://{path}", "timestamp": stat.st_mtime_ns // 1_000_000, "batchId": number}
        world.log.put_if_absent(str(number), f"v1\n{json.dumps(line)}".encode())
    source = world.open(clean_source="delete")
    source.release(None, offset(1))
    source.commit(offset(1))
    assert elsewhere.exists()


def test_a_range_that_somebody_reads_stays_until_the_next_commit(world: World, batches: Batches) -> None:
    source = batches.plan(clean_source="delete")
    source.release(None, offset(0))
    world.being_read.append(HeldRange(key=BatchKey(LIVE, 0), start=None, end=offset(0)))
    source.commit(offset(0))
    assert left(world) == ["0.json"]
    world.being_read.clear()
    source.commit(offset(0))
    assert left(world) == []


@pytest.mark.parametrize(
    ("committed", "stays"),
    [
        ([], [0, 1, 2, 3]),
        ([(None, 1, True)], [2, 3]),
        ([(1, 3, True)], [0, 1]),
        ([(2, 3, True), (1, 2, False), (None, 1, True)], [2]),
        ([(3, 1, False), (None, 3, True)], [2, 3]),
        ([(1, 2, True), (3, 1, False), (None, 3, True)], [3]),
        ([(1, 3, True), (3, 1, False), (None, 3, True)], []),
    ],
    ids=["none", "not so far", "not so early", "one is set aside", "set back", "and half read", "and read"],
)
def test_what_is_due_and_not_committed_by_the_logs_stays(
    world: World, batches: Batches, committed: list[tuple[int | None, int, bool]], stays: list[int]
) -> None:
    for _ in range(4):
        source = batches.plan(clean_source="delete")
    source.release(None, offset(3))

    def given(number: int | None) -> str | None:
        return None if number is None else offset(number)

    world.committed = [CommittedRange(start=given(one), end=given(end), is_read=read) for one, end, read in committed]
    source.commit(offset(3))
    assert left(world) == [f"{number}.json" for number in stays]
    world.committed = None
    source.commit(offset(3))
    assert left(world) == [], "once it is, it goes"


def test_no_more_of_the_logs_is_read_than_tells_of_what_is_due(world: World, batches: Batches) -> None:
    class Long(list[CommittedRange]):
        def __iter__(self) -> Iterator[CommittedRange]:
            yield from super().__iter__()
            pytest.fail("the rest of the log is read")

    for _ in range(4):
        source = batches.plan(clean_source="delete")
    source.release(offset(1), offset(3))
    world.committed = Long([CommittedRange(start=offset(1), end=offset(2), is_read=True)])
    source.commit(offset(2))
    source.commit(offset(2))
    assert left(world) == ["0.json", "1.json", "3.json"]


def test_a_file_that_our_archiver_moved_is_never_skipped(world: World, batches: Batches) -> None:
    batches.commit(on_missing="skip", **archive(world))
    (world.root / "archive/0.json").unlink()
    for options in ({}, archive(world), {"clean_source": "delete"}):
        source = world.open(on_missing="skip", **options)
        with pytest.raises(SourceChangedError, match=r"archived or deleted by clean_source.*0\.json"):
            source.read(None, offset(0))
        assert "clean_source" in (source.not_replayable(None, offset(0)) or "")


@pytest.mark.parametrize("later", [{"clean_source": "delete"}, {}], ids=["goes on", "switched off"])
def test_another_file_in_the_place_of_one_that_was_deleted_is_not_read_for_it(
    world: World, batches: Batches, later: dict[str, Any]
) -> None:
    batches.commit(clean_source="delete", on_changed="read")
    was = world.landing / "0.json"
    assert not was.exists()
    was.write_text("another\n")
    source = world.open(on_changed="read", **later)
    with pytest.raises(SourceChangedError, match=r"deleted by clean_source.*another file lies there.*cp -p"):
        source.read(None, offset(0))
    assert "was deleted by clean_source" in (source.not_replayable(None, offset(0)) or "")
    assert "0.json" in (source.not_read() or "")


def test_a_file_that_is_put_back_is_read_again(world: World, batches: Batches) -> None:
    batches.plan(clean_source="delete", on_changed="read")
    path = world.landing / "0.json"
    content, times = path.read_bytes(), path.stat()
    source = world.open(clean_source="delete", on_changed="read")
    source.release(None, offset(0))
    source.commit(offset(0))
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert paths(source.read(None, offset(0))) == [str(path)]
    assert source.not_replayable(None, offset(0)) is None


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_file_that_had_changed_before_it_was_read_is_left_and_read_again(
    world: World, batches: Batches, how: str
) -> None:
    """It lay there whole, and no clear of its batch could read it; who landed it anew, as check said, had it twice."""
    options = archive(world) if how == "archive" else {"clean_source": how}
    batches.plan(on_changed="read", **options)
    changed = world.landing / "0.json"
    changed.write_text("as it was read\n")
    source = world.open(on_changed="read", **options)
    for _ in range(2):  # a clear, and one more
        source.release(None, offset(0))
        source.commit(offset(0))
        assert left(world) == ["0.json"]
        for later in (source, world.open(on_changed="read")):
            assert paths(later.read(None, offset(0))) == [str(changed)]
            assert later.not_replayable(None, offset(0)) is None
            assert later.not_read() is None
    (world.root / "archive").mkdir(exist_ok=True)
    (world.root / "archive" / "0.json").write_text("of somebody else\n")
    assert paths(source.read(None, offset(0))) == [str(changed)]


@contextmanager
def not_mounted(world: World) -> Iterator[str]:
    away = world.landing.rename(world.root / "away")
    world.landing.mkdir()
    yield "as if it were not mounted"
    world.landing.rmdir()
    away.rename(world.landing)


@contextmanager
def not_permitted(world: World) -> Iterator[str]:
    def stat(path: Any, real: Any = os.stat, **named: Any) -> os.stat_result:
        if str(path).endswith("0.json"):
            raise PermissionError(13, "Permission denied")
        return real(path, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", stat)
        yield "Permission denied"


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("failing", [not_mounted, not_permitted])
def test_so_it_is_where_a_try_could_not_look_at_it(
    world: World, batches: Batches, failing: Callable[[World], AbstractContextManager[str]], begun: bool
) -> None:
    """Nothing was taken by that try, and from then on it counted as taken for ever."""
    source = batches.plan(clean_source="delete", on_changed="read")
    changed = world.land("0.json", "as it was read\n")
    source.release(None, offset(0))
    if begun:
        source.commit(offset(0))
        source.release(None, offset(0))  # a clear
    with failing(world) as why, pytest.raises(SourceError, match=rf"delete 1 file.*0\.json'.*{why}.* Mend it"):
        source.commit(offset(0))
    source.commit(offset(0))
    for later in (source, world.open(on_changed="read")):
        assert later.not_read() is None
        assert paths(later.read(None, offset(0))) == [str(changed)]


def test_that_it_was_left_is_known_to_a_restored_checkpoint(world: World, batches: Batches) -> None:
    world.checkpoint_id = "0" * 32
    source = batches.plan(clean_source="delete", on_changed="read")
    changed = world.land("0.json", "as it was read\n")
    source.release(None, offset(0))
    for name in world.state.list("cleaning"):
        backup = world.state.get(f"cleaning/{name}") or b""
    source.commit(offset(0))
    for name in world.state.list("cleaning"):
        world.state.delete(f"cleaning/{name}")
    world.state.put_if_absent("cleaning/0", backup)
    for _ in range(2):
        assert paths(source.read(None, offset(0))) == [str(changed)]
        source.commit(offset(0))
    assert source.not_read() is None


class Part:
    """An entry of two files, of which a cleaner deletes the first."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.second = world.land("0.json"), world.land("1.json", age=100)
        self.source = world.open(clean_source="delete", on_changed="read")
        assert self.source.latest_offset(None) == offset(0)
        self.source.release(None, offset(0))
        self._patch = monkeypatch

    def commit(self, error: BaseException) -> None:
        """Try, and get the error at the second file."""
        real = os.unlink

        def unlink(path: Any, **named: Any) -> None:
            if path == self.second.name:
                raise error
            real(path, **named)

        with self._patch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            with pytest.raises((SourceError, Killed)):
                self.source.commit(offset(0))
        assert [self.first.exists(), self.second.exists()] == [False, True]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), Killed()], ids=["fails", "dies"])
def test_another_file_is_not_read_for_one_of_an_entry_that_was_deleted_in_part(
    world: World, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    part = Part(world, monkeypatch)
    part.commit(error)
    assert world.open(on_changed="read").not_read() is None, "the second one is what was read"
    part.first.write_text("another\n")
    for clean in (None, "delete"):
        source = world.open(on_changed="read", clean_source=clean)
        with pytest.raises(SourceChangedError, match=r"0\.json.*another file lies there"):
            source.read(None, offset(0))
        source.commit(offset(0))
        told = source.not_read() or ""
        assert ["0.json" in told, "1.json" in told] == [True, False]


def test_nor_by_the_record_of_a_version_that_told_no_files_that_were_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(world, monkeypatch)
    part.commit(PermissionError(13, "Permission denied"))
    (name,) = world.state.list("cleaning")
    told = json.loads(world.state.get(f"cleaning/{name}") or b"")
    world.state.delete(f"cleaning/{name}")
    world.state.put_if_absent(f"cleaning/{name}", json.dumps({k: told[k] for k in told if k != "left"}).encode())
    part.first.write_text("another\n")
    with pytest.raises(SourceChangedError, match=r"0\.json.*another file lies there"):
        world.open(on_changed="read").read(None, offset(0))
    world.open(clean_source="delete").commit(offset(0))
    assert not part.second.exists(), "the cleaner goes on"


def test_nor_by_a_checkpoint_that_was_restored_since(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.checkpoint_id = "0" * 32
    part = Part(world, monkeypatch)
    backup = [world.state.get(f"cleaning/{name}") or b"" for name in world.state.list("cleaning")]
    part.source.commit(offset(0))
    for name in world.state.list("cleaning"):
        world.state.delete(f"cleaning/{name}")
    world.state.put_if_absent("cleaning/0", backup[-1])
    part.first.write_text("another\n")
    part.source.commit(offset(0))
    with pytest.raises(SourceChangedError, match="another file lies there"):
        part.source.read(None, offset(0))


def test_the_range_of_a_batch_that_is_set_aside_waits_for_its_replay(world: World, batches: Batches) -> None:
    source = batches.plan(clean_source="delete")
    source.keep(None, offset(0))
    batches.commit(clean_source="delete")
    assert left(world) == ["0.json"]
    world.open(clean_source="delete").release(None, offset(0))
    world.open(clean_source="delete").commit(offset(1))
    assert left(world) == []


def test_a_record_of_an_older_version_is_read_and_what_it_kept_is_not_done(world: World, batches: Batches) -> None:
    for _ in range(3):
        batches.plan(clean_source="delete")
    world.state.put_if_absent("cleaned/1", b"v1")
    world.state.put_if_absent("kept/0", b"v1")
    (world.landing / "1.json").unlink()
    source = world.open(clean_source="delete", on_missing="skip")
    assert source.not_replayable(None, offset(0)) is None
    assert source.not_replayable(offset(0), offset(1)) is not None
    source.release(offset(1), offset(2))
    source.commit(offset(2))
    assert left(world) == ["0.json"]
    with pytest.raises(SourceError):
        world.open(on_missing="skip").read(offset(0), offset(1))


def test_many_at_once_lose_no_change_of_the_record(world: World) -> None:
    def add(first: int) -> None:
        record = CleaningRecord(world.state)
        for number in range(first, 40, 4):
            record.change(lambda found, number=number: Cleaning(due=found.due.with_([number]), done=found.done))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CleaningRecord(world.state).read().due == Entries(((0, 39),))
    assert len(world.state.list("cleaning")) == 1


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 12))), max_size=8))
def test_entries_are_a_set(steps: list[tuple[bool, set[int]]]) -> None:
    found, expected = Entries(), set[int]()
    for add, ids in steps:
        found, expected = (found.with_(ids), expected | ids) if add else (found.without(ids), expected - ids)
    assert list(found) == sorted(expected)
    assert all((number in found) == (number in expected) for number in range(-1, 14))
    for _, ids in steps:
        assert found.with_(Entries().with_(ids)) == found.with_(ids)
    for number in range(-1, 14):
        assert list(found.after(number)) == sorted(one for one in expected if one > number)
    assert all(after[0] > before[1] + 1 for before, after in zip(found.runs, found.runs[1:], strict=False))
