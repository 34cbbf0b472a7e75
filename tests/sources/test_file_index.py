"""The index says of every path what the source log says, whatever happened to the index."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.handover import INDEX
from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sources.file import index as file_index
from airflow_provider_microbatch.sources.file import seen as file_seen
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.log import SourceLog, encode
from airflow_provider_microbatch.sources.file.seen import SeenFiles
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sources.support import World


class Died(BaseException):
    """The process is gone."""


class DyingStore(Store):
    """Lets ``writes`` puts and deletes through, then dies before the next one."""

    def __init__(self, store: Store, writes: float = float("inf")) -> None:
        self._store = store
        self.writes = writes
        self.reads: list[str] = []

    @property
    def location(self) -> str:
        return self._store.location

    def _write(self) -> None:
        if self.writes < 1:
            raise Died
        self.writes -= 1

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._write()
        return self._store.put_if_absent(path, data)

    def delete(self, path: str) -> bool:
        self._write()
        return self._store.delete(path)

    def get(self, path: str) -> bytes | None:
        self.reads.append(path)
        return self._store.get(path)

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        self.reads.append(path)
        return self._store.get_range(path, start, size)

    def list(self, folder: str) -> list[str]:
        self.reads.append(f"{folder}/")
        return self._store.list(folder)

    def now_ms(self) -> int:
        return self._store.now_ms()

    def modified_ms(self, path: str) -> int | None:
        return self._store.modified_ms(path)

    def scoped(self, folder: str) -> Store:
        return self._store.scoped(folder)


class Planners:
    """A source log with an index, and what the log holds."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "state" / INDEX
        self.store = PosixStore(root / "log")
        self.log = SourceLog(self.store)
        self.state = DyingStore(PosixStore(root / "state"))
        self.entries: list[set[str]] = []
        self.numbers = itertools.count()

    def append(self, files: int) -> None:
        """An entry of new files."""
        paths = {f"/landing/{next(self.numbers)}.json" for _ in range(files)}
        number = len(self.entries)
        assert self.log.add(number, [FoundFile(path, 1, 1_000_000 * (number + 1)) for path in paths])
        self.entries.append(paths)

    def open(self) -> SeenFiles:
        """A fresh process's view."""
        seen = SeenFiles(self.log, self.state)
        seen.refresh()
        return seen

    def plan(self, *, dies_after: float = float("inf")) -> None:
        """What a planner does with the index; it may die in the middle."""
        self.state.writes = dies_after
        try:
            self.open().save()
        except Died:
            pass
        finally:
            self.state.writes = float("inf")

    def files(self) -> list[Path]:
        """The segments."""
        return sorted(path for path in self.folder.glob("[0-9]*"))

    def check(self, seen: SeenFiles | None = None) -> None:
        """Every path of the log is seen, and no other."""
        seen = seen or self.open()
        logged = sorted(set().union(*self.entries))
        others = [f"/landing/{number}.other" for number in range(20)]
        mixed = logged + others
        random.Random(len(mixed)).shuffle(mixed)
        assert set(seen.unseen(mixed)) == set(others)
        assert seen.latest == len(self.entries) - 1
        assert seen.newest_ms == (len(self.entries) or None)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """A few entries make segments, merges, wide ones and ones in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_seen, "TAIL_ENTRIES", 3)
        patch.setattr(file_seen, "TAIL_FILES", 20)
        patch.setattr(file_seen, "_IN_MEMORY", 15)
        patch.setattr(file_index, "_WIDE_FROM", 40)
        yield


@pytest.fixture
def planners(tmp_path: Path) -> Planners:
    return Planners(tmp_path)


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("plan"), st.just(0)),
    st.tuples(st.just("plan and die"), st.integers(0, 4)),
    st.tuples(st.just("lose a segment"), st.integers(0, 3)),
    st.tuples(st.just("damage a segment"), st.integers(0, 10**6)),
    st.tuples(st.just("cut a segment"), st.integers(0, 10**6)),
    st.tuples(st.just("restore an older log"), st.integers(1, 5)),
    st.tuples(st.just("poll"), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=40))
def test_the_index_says_what_the_log_says(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        planners = Planners(Path(folder))
        poller = planners.open()
        for step, argument in steps:
            segments = planners.files()
            chosen = segments[argument % len(segments)] if segments else None
            chosen = chosen if chosen and chosen.stat().st_size else None  # nothing is left to cut or to damage
            if step == "append":
                planners.append(argument)
            elif step == "plan":
                planners.plan()
            elif step == "plan and die":
                planners.plan(dies_after=argument)
            elif step == "lose a segment" and segments:
                segments[argument % len(segments)].unlink()
            elif step == "damage a segment" and chosen:
                data = bytearray(chosen.read_bytes())
                data[argument % len(data)] ^= 0x40
                chosen.write_bytes(data)
            elif step == "cut a segment" and chosen:
                os.truncate(chosen, argument % chosen.stat().st_size)
            elif step == "restore an older log":
                for number in range(max(0, len(planners.entries) - argument), len(planners.entries)):
                    planners.store.delete(str(number))
                del planners.entries[-argument:]
                poller = planners.open()
            elif step == "poll":
                poller.refresh()
                planners.check(poller)
        planners.check()
        planners.plan()
        planners.check()


def test_wherever_a_planner_dies_the_answers_stay_and_the_next_one_cleans_up(planners: Planners) -> None:
    for turn in range(12):
        for _ in range(3):
            planners.append(1 + turn % 4)
        for writes in range(6):
            planners.plan(dies_after=writes)
            planners.check()
    for _ in range(3):
        planners.append(1)
    planners.plan()
    covered = [tuple(map(int, path.name.split("-"))) for path in planners.files()]
    covered.sort()
    assert covered[0][0] == 0
    assert all(low[1] + 1 == high[0] for low, high in itertools.pairwise(covered)), "nothing is left of merged ones"


def test_a_plan_reads_the_index_and_a_short_tail_and_lists_no_log(planners: Planners) -> None:
    for _ in range(60):
        planners.append(2)
        planners.plan()
    spy = DyingStore(planners.store)
    seen = SeenFiles(SourceLog(spy), planners.state)
    seen.refresh()
    seen.unseen(["/landing/x.json"])
    assert len(spy.reads) <= 2 + file_seen.TAIL_ENTRIES, "the seal's entry, the tail, and the one after it"
    assert "/" not in spy.reads
    assert len(planners.files()) <= 6, "merged: few, however many entries"


def test_a_question_about_one_file_reads_a_small_part_of_a_large_segment(planners: Planners) -> None:
    planners.append(5_000)
    planners.plan()
    (segment,) = planners.files()
    read: list[int] = []

    def spy(start: int, size: int) -> bytes:
        data = segment.read_bytes()[start : start + size]
        read.append(len(data))
        return data

    opened = file_index.Segment(spy, name=segment.name)
    assert opened.missing(file_index.fingerprints(["/landing/1.json", "/landing/x"]), [0, 1]) == [1]
    assert sum(read) < segment.stat().st_size / 20


def test_damage_is_said_and_mended_by_the_next_plan(planners: Planners, caplog: pytest.LogCaptureFixture) -> None:
    planners.append(30)
    planners.plan()
    (segment,) = planners.files()
    good = segment.read_bytes()
    segment.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    planners.check()
    assert f"index segment {segment.name} has a damaged block 0" in caplog.text
    assert segment.read_bytes() != good, "asking writes nothing"
    seen = planners.open()
    seen.unseen([f"/landing/{number}.json" for number in range(30)])
    seen.save()
    assert segment.read_bytes() == good


def test_an_index_that_cannot_be_written_fails_no_plan(planners: Planners, caplog: pytest.LogCaptureFixture) -> None:
    planners.append(30)
    planners.folder.parent.mkdir()
    planners.folder.write_text("in the way")
    seen = SeenFiles(planners.log, planners.state)
    with pytest.raises(CheckpointError):
        seen.refresh()
    planners.folder.unlink()
    seen.refresh()
    planners.folder.write_text("in the way")
    seen.save()
    assert "a later plan will" in caplog.text
    planners.folder.unlink()
    planners.check(seen)


def test_what_spark_compacted_feeds_the_index_once(planners: Planners) -> None:
    paths = {f"/landing/{number}.json" for number in range(100)}
    files = [FoundFile(path, 1, 20_000_000) for path in sorted(paths)]
    lines = [encode(number, files[number * 5 : number * 5 + 5]).partition(b"\n")[2] for number in range(20)]
    planners.store.put_if_absent("19.compact", b"\n".join([b"v1", *lines]))
    planners.entries = [paths, *[set() for _ in range(19)]]
    planners.plan()
    planners.check()
    spy = DyingStore(planners.store)
    seen = SeenFiles(SourceLog(spy), planners.state)
    seen.refresh()
    planners.check(seen)
    assert spy.reads == ["19", "20"], "not the compacted entry, and no listing"


def test_memory_is_bounded_by_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(file_index, "_WIDE_FROM", 8_192)
    count = 100_000
    prints = file_index.fingerprints([f"/landing/{number}.json" for number in range(count)])
    data = file_index.build(file_index.Span(0, 0, 1, bytes(16)), segments=(), prints=prints)
    del prints
    segment = file_index.Segment(lambda start, size: data[start : start + size], name="0-0")
    tracemalloc.start()
    for start in range(0, count, 1_000):
        asked = file_index.fingerprints([f"/landing/{number}.json" for number in range(start, start + 1_000)])
        assert segment.missing(asked, range(1_000)) == []
    grown = file_index.build(segment.span, segments=(segment,), prints=[])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(grown) == len(data)
    assert peak < 16 * count * 4, "the blocks as they were read and the merged ones; objects would be six times more"


def test_a_source_that_has_an_index_plans_as_one_without(world: World) -> None:
    for turn in range(12):
        world.land(f"{turn}.json", age=100 - turn)
    assert len(world.drain(max_files=1)) == 12
    assert list((world.root / "checkpoint/state/orders" / INDEX).iterdir())
    world.land("late.json", age=1)
    assert world.drain(max_files=1)[-1] == ["late.json"]
    assert not world.open().has_new('{"logOffset":12}')
