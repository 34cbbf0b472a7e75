"""What every store must do. A new store is added to ``SYSTEMS`` and passes all of this unchanged."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from tests.contract.registered import registered

Make = Callable[[Path], Store]
SYSTEMS: dict[str, Make] = {
    "posix": lambda folder: open_store(str(folder / "checkpoint")),
    "sqlite, of another package": lambda folder: open_store(f"sqlite://{folder}/checkpoint.db"),
}
SPAWN = multiprocessing.get_context("spawn")
WHOLE = 200_000


system_name = registered(SYSTEMS)


@pytest.fixture
def store(system_name: str, tmp_path: Path) -> Store:
    return SYSTEMS[system_name](tmp_path)


def test_nothing_is_there_and_reading_writes_nothing(store: Store, tmp_path: Path) -> None:
    assert store.get("offsets/0") is None
    assert store.list("offsets") == []
    assert store.list("") == []
    assert store.delete("offsets/0") is False
    assert list(tmp_path.iterdir()) == []


def test_what_was_put_is_got(store: Store) -> None:
    data = bytes(range(256))
    assert store.put_if_absent("offsets/0", data) is True
    assert store.get("offsets/0") == data


def test_a_part_of_an_entry_is_got(store: Store) -> None:
    store.put_if_absent("index/0-9", bytes(range(256)))
    assert store.get_range("index/0-9", 16, 4) == bytes(range(16, 20))
    assert store.get_range("index/0-9", 250, 16) == bytes(range(250, 256)), "fewer where it ends"
    assert store.get_range("index/0-9", 256, 16) == b""
    assert store.get_range("index/10-19", 0, 16) is None


def test_an_empty_entry_is_there(store: Store) -> None:
    assert store.put_if_absent("offsets/0", b"") is True
    assert store.get("offsets/0") == b""
    assert store.put_if_absent("offsets/0", b"x") is False


def test_the_first_put_wins_and_stays(store: Store) -> None:
    store.put_if_absent("offsets/0", b"first")
    assert store.put_if_absent("offsets/0", b"second") is False
    assert store.get("offsets/0") == b"first"


def test_list_names_files_and_folders_of_one_level(store: Store) -> None:
    for path in ("attempts/live/0/1", "attempts/live/0/1.end", "attempts/live/12/1", "attempts/live/3"):
        store.put_if_absent(path, b"x")
    assert sorted(store.list("attempts/live")) == ["0", "12", "3"]
    assert sorted(store.list("attempts/live/0")) == ["1", "1.end"]
    assert store.list("") == ["attempts"]


def test_each_folder_is_named_among_the_folders(store: Store) -> None:
    for path in ("attempts/live/0/1", "attempts/README"):
        store.put_if_absent(path, b"x")
    assert {"live"} <= set(store.folders("attempts")) <= {"live", "README"}
    assert store.folders("") == ["attempts"]
    assert store.folders("leases") == []


def test_delete_removes_one_entry_and_frees_its_name(store: Store) -> None:
    store.put_if_absent("offsets/0", b"x")
    store.put_if_absent("offsets/1", b"y")
    assert store.delete("offsets/0") is True
    assert store.delete("offsets/0") is False
    assert store.list("offsets") == ["1"]
    assert store.put_if_absent("offsets/0", b"again") is True


def test_many_are_deleted_at_once_and_missing_ones_do_not_matter(store: Store) -> None:
    for number in range(4):
        store.put_if_absent(f"offsets/{number}", b"x")
    store.delete_many(f"offsets/{number}" for number in (0, 2, 7))
    store.delete_many([])
    assert sorted(store.list("offsets")) == ["1", "3"]


def test_an_entry_is_deleted_only_if_it_is_the_one_that_is_meant(store: Store) -> None:
    store.put_if_absent("offsets/0", b"x")
    assert store.delete_if("offsets/0", b"y") is False
    assert store.get("offsets/0") == b"x"
    assert store.delete_if("offsets/0", b"x") is True
    assert store.delete_if("offsets/0", b"x") is False
    assert store.list("offsets") == []
    assert store.put_if_absent("offsets/0", b"again") is True


def test_delete_leaves_a_folder_that_holds_something(store: Store) -> None:
    store.put_if_absent("attempts/live/0/1", b"x")
    store.delete("attempts/live/0")
    assert store.get("attempts/live/0/1") == b"x"


def test_a_scope_is_the_same_store_from_within(store: Store) -> None:
    scoped = store.scoped("lanes/backfill").scoped("offsets")
    assert scoped.put_if_absent("7", b"x") is True
    assert store.get("lanes/backfill/offsets/7") == b"x"
    assert scoped.list("") == ["7"]
    assert store.put_if_absent("lanes/backfill/offsets/7", b"y") is False


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", ".hidden", "a/.b", "a\0b"])
def test_paths_that_leave_the_store_or_hide_in_it_are_refused(store: Store, path: str) -> None:
    for call in (
        lambda: store.put_if_absent(path, b"x"),
        lambda: store.get(path),
        lambda: store.delete(path),
        lambda: store.delete_if(path, b"x"),
    ):
        with pytest.raises(CheckpointError, match="path of a checkpoint"):
            call()


def test_an_entry_tells_when_it_was_written_by_the_stores_own_clock(store: Store) -> None:
    before = store.now_ms()
    assert store.modified_ms("leases/live/0-1-1") is None
    store.put_if_absent("leases/live/0-1-1", b"x")
    written = store.modified_ms("leases/live/0-1-1")
    assert written is not None
    assert before <= written <= store.now_ms()
    assert store.put_if_absent("leases/live/0-1-1", b"y") is False
    assert store.modified_ms("leases/live/0-1-1") == written


def test_asking_the_clock_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    store.now_ms()
    store.scoped("leases").now_ms()
    assert list(tmp_path.iterdir()) == []


def _race(system: str, folder: Path, rounds: int, number: int, barrier: Any, wins: Any) -> None:
    store = SYSTEMS[system](folder)
    for turn in range(rounds):
        barrier.wait()
        if store.put_if_absent(f"offsets/{turn}", f"{number}".encode()):
            wins.put((turn, number))
    wins.put(None)


def test_of_many_processes_exactly_one_puts(system_name: str, store: Store, tmp_path: Path) -> None:
    workers, rounds = 4, 25
    barrier, wins = SPAWN.Barrier(workers), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_race, args=(system_name, tmp_path, rounds, number, barrier, wins))
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    won: list[tuple[int, int]] = []
    ended = 0
    while ended < workers:
        message = wins.get(timeout=60)
        ended += message is None
        won += [message] if message else []
    for process in processes:
        process.join()
    assert sorted(turn for turn, _ in won) == list(range(rounds)), "one winner a round"
    assert all(store.get(f"offsets/{turn}") == str(number).encode() for turn, number in won)


def _put_forever(system: str, folder: Path, lane: int, started: Any) -> None:
    store = SYSTEMS[system](folder)
    number = 0
    while True:
        store.put_if_absent(f"lane-{lane}/{number}", f"{number:08d}".encode() * (WHOLE // 8))
        number += 1
        if number == 3:
            started.set()


def test_a_writer_killed_at_any_moment_leaves_whole_entries_alone(
    system_name: str, store: Store, tmp_path: Path
) -> None:
    for lane in range(4):
        started = SPAWN.Event()
        process = SPAWN.Process(target=_put_forever, args=(system_name, tmp_path, lane, started))
        process.start()
        assert started.wait(timeout=60)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        names = store.list(f"lane-{lane}")
        assert sorted(map(int, names)) == list(range(len(names))), "no gap, and no name of an unfinished write"
        for name in names:
            assert store.get(f"lane-{lane}/{name}") == f"{int(name):08d}".encode() * (WHOLE // 8)
        assert store.put_if_absent(f"lane-{lane}/{len(names)}", b"x"), "what the dead writer left blocks nobody"
