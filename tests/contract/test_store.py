"""What every store must do. A new store is added to ``ADDRESSES`` and passes all of this unchanged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store, Versioned, look_by_listing
from airflow_provider_microbatch.stores.location import open_store
from tests.contract.registered import registered
from tests.contract.store_processes import WHOLE, Place, count_up, put_forever, race
from tests.support import object_store, object_store_azure, sql
from tests.support.forks import FORKS
from tests.support.waiting import wait_until

Address = Callable[[Path], str]
ADDRESSES: dict[str, Address] = {
    "posix": lambda folder: str(folder / "checkpoint"),
    "sqlite, of another package": lambda folder: f"sqlite://{folder}/checkpoint.db",
    "sql-sqlite": sql.in_sqlite,
    "sql-postgres": sql.in_postgres,
    "s3": lambda folder: object_store.address(folder / "checkpoint"),
    "azure": lambda folder: object_store_azure.address(folder / "checkpoint"),
}


def _at(address: Address) -> Callable[[Path], Store]:
    return lambda folder: open_store(address(folder))


SYSTEMS = {name: _at(address) for name, address in ADDRESSES.items()}

system_name = registered(SYSTEMS, slow=["azure", "s3", "sql-postgres"])


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


def test_an_entry_is_replaced_by_who_has_read_it(store: Store) -> None:
    store.put_if_absent("leases/live/0-1-1", b"first")
    read = store.get_versioned("leases/live/0-1-1")
    assert read is not None
    assert read.data == b"first"
    second = store.compare_and_put("leases/live/0-1-1", b"second", version=read.version)
    assert second is not None
    assert store.get("leases/live/0-1-1") == b"second"
    third = store.compare_and_put("leases/live/0-1-1", b"third", version=second)
    assert third is not None, "what the put told is the version of what it has put"
    assert store.get_versioned("leases/live/0-1-1") == Versioned(data=b"third", version=third)
    assert store.list("leases/live") == ["0-1-1"]


def test_and_by_nobody_who_has_read_another_one_or_none(store: Store) -> None:
    assert store.get_versioned("leases/live/0-1-1") is None
    assert store.compare_and_put("leases/live/0-1-1", b"x", version="") is None
    assert store.list("") == [], "nothing is made"
    store.put_if_absent("leases/live/0-1-1", b"first")
    read = store.get_versioned("leases/live/0-1-1")
    assert read is not None
    assert store.compare_and_put("leases/live/0-1-1", b"second", version=read.version) is not None
    assert store.compare_and_put("leases/live/0-1-1", b"third", version=read.version) is None
    assert store.get("leases/live/0-1-1") == b"second"
    store.delete("leases/live/0-1-1")
    assert store.compare_and_put("leases/live/0-1-1", b"third", version=read.version) is None
    assert store.get("leases/live/0-1-1") is None
    assert store.list("leases/live") == []


def test_an_entry_is_as_old_as_what_replaced_it_even_by_the_same_bytes(store: Store) -> None:
    store.put_if_absent("leases/live/0-1-1", b"x")
    written, read = store.modified_ms("leases/live/0-1-1"), store.get_versioned("leases/live/0-1-1")
    assert written is not None
    assert read is not None
    wait_until(lambda: store.now_ms() > written)  # clocks may show whole seconds
    assert store.compare_and_put("leases/live/0-1-1", b"x", version=read.version) is not None
    replaced = store.modified_ms("leases/live/0-1-1")
    assert replaced is not None
    assert written < replaced <= store.now_ms()


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


def test_names_are_listed_page_by_page_in_the_order_of_texts(store: Store) -> None:
    for name in ("9", "10", "11", "100", "100-2", "é", "a b", "Z", "_"):
        store.put_if_absent(f"offsets/{name}", b"x")
    store.put_if_absent("offsets/10x/1", b"x")
    store.put_if_absent("offsets/10x/2", b"x")
    store.put_if_absent("offsets-2/3", b"x")
    everything = sorted(["9", "10", "11", "100", "100-2", "é", "a b", "Z", "_", "10x"])
    assert list(store.list_after("offsets")) == everything
    assert list(store.list_after("offsets", "10")) == everything[1:], "what it begins after is not among them"
    assert list(store.list_after("offsets", "10", limit=2)) == everything[1:3]
    assert list(store.list_after("offsets", "10a", limit=2)) == ["10x", "11"], "it need not be there"
    assert list(store.list_after("offsets", "é")) == []
    assert list(store.list_after("nothing")) == []
    assert list(store.list_after("")) == ["offsets", "offsets-2"]
    assert list(store.scoped("offsets").list_after("", "9", limit=2)) == ["Z", "_"]
    pages, after = [], ""
    while page := store.list_after("offsets", after, limit=4):
        pages += page
        after = page[-1]
    assert pages == everything


def test_entries_are_looked_for_together(store: Store) -> None:
    assert store.present("offsets", ["0"]) == set()
    for number in (*range(90, 120), 905, 1003):
        store.put_if_absent(f"offsets/{number}", b"x")
    asked = [str(number) for number in range(85, 125)]
    assert store.present("offsets", asked) == {str(number) for number in range(90, 120)}
    assert store.scoped("offsets").present("", ["1003", "1004"]) == {"1003"}
    assert store.present("offsets", []) == set()


def test_a_store_that_lists_by_name_finds_the_same(store: Store) -> None:
    there = {*range(3), *range(90, 120), 905, *range(1000, 1010)}
    for number in there:
        store.put_if_absent(f"offsets/{number}", b"x")
    for low, high in ((0, 12), (85, 125), (95, 105), (900, 910), (998, 1012)):
        asked, found = [str(number) for number in range(low, high)], {str(number) for number in there}
        for page in (1, 7, 40, 1_000):
            assert look_by_listing(store, "offsets", asked, page=page) == found.intersection(asked)
            assert look_by_listing(store.scoped("offsets"), "", asked, page=page) == found.intersection(asked)


def test_an_address_for_spark_is_one_that_leads_back_here(store: Store) -> None:
    store.put_if_absent("offsets/0", b"x")
    scoped = store.scoped("offsets")
    if store.for_spark is not None:
        assert open_store(store.for_spark).get("offsets/0") == b"x"
        assert scoped.for_spark == f"{store.for_spark}/offsets"
    else:
        assert scoped.for_spark is None


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
        lambda: store.get_versioned(path),
        lambda: store.compare_and_put(path, b"x", version=""),
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


@pytest.fixture
def place(store: Store, system_name: str, tmp_path: Path) -> Place:
    """The store's, for other processes."""
    return Place(ADDRESSES[system_name](tmp_path))


@pytest.mark.slow
def test_of_many_processes_exactly_one_puts(store: Store, place: Place) -> None:
    workers, rounds = 4, 15
    barrier, wins = FORKS.Barrier(workers), FORKS.Queue()
    processes = [FORKS.Process(target=race, args=(place, rounds, number, barrier, wins)) for number in range(workers)]
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


@pytest.mark.slow
def test_of_many_processes_that_replace_none_overwrites_another(store: Store, place: Place) -> None:
    workers, rounds = 3, 8
    store.put_if_absent("count", b"0")
    barrier = FORKS.Barrier(workers)
    processes = [FORKS.Process(target=count_up, args=(place, rounds, barrier)) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert store.get("count") == str(workers * rounds).encode()
    assert store.list("") == ["count"]


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_whole_entries_alone(store: Store, place: Place) -> None:
    for lane in range(4):
        started = FORKS.Event()
        process = FORKS.Process(target=put_forever, args=(place, lane, started))
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
