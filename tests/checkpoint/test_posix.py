"""What is special about files: durability, leftovers of Spark, and file systems that cannot be used."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Versioned
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.stores.posix import folder as posix_folder
from airflow_provider_microbatch.stores.posix.folder import Folder


def test_bytes_and_every_new_folder_are_synced_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, link = os.fsync, os.link

    def recording_fsync(descriptor: int) -> None:
        calls.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(str(tmp_path)))
        fsync(descriptor)

    def recording_link(source: str, target: str, **named: Any) -> None:
        calls.append("link")
        link(source, target, **named)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "link", recording_link)
    PosixStore(tmp_path / "a" / "b").put_if_absent("offsets/0", b"x")
    file_sync = next(position for position, call in enumerate(calls) if call.endswith(".tmp"))
    assert set(calls[:file_sync]) == {"", "/a", "/a/b"}, "the folders above each folder that was made"
    assert calls[file_sync + 1 :] == ["link", "/a/b/offsets"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "offsets").mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"offsets/0.*No space left"):
        PosixStore(tmp_path).put_if_absent("offsets/0", b"x")
    assert list((tmp_path / "offsets").iterdir()) == []


def test_what_another_puts_while_the_bytes_are_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two planners, neither of which has found the entry: it is the one's who gives it its name first."""
    write = Folder.write

    def late(folder: Folder, name: str, data: bytes) -> None:
        write(folder, name, data)
        with monkeypatch.context() as another:
            another.setattr(Folder, "write", write)
            assert PosixStore(tmp_path).put_if_absent("offsets/0", b"theirs")

    monkeypatch.setattr(Folder, "write", late)
    assert not PosixStore(tmp_path).put_if_absent("offsets/0", b"mine")
    assert PosixStore(tmp_path).get("offsets/0") == b"theirs"
    assert PosixStore(tmp_path).list("offsets") == ["0"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: str, target: str, **_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CheckpointError, match="cannot make hard links"):
        PosixStore(tmp_path).put_if_absent("offsets/0", b"x")
    assert list((tmp_path / "offsets").iterdir()) == []


def test_unfinished_writes_and_hadoop_checksums_are_not_listed(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put_if_absent("offsets/0", b"x")
    for name in (".0.crc", ".1.0f3c.tmp", ".2.tmp"):
        (tmp_path / "offsets" / name).write_bytes(b"")
    assert store.list("offsets") == ["0"]


def test_a_checksum_of_a_former_entry_does_not_outlive_it(tmp_path: Path) -> None:
    """Spark verifies ``.N.crc`` where there is one and refuses an entry that does not fit it."""
    store = PosixStore(tmp_path)
    checksum = tmp_path / "offsets" / ".0.crc"
    store.put_if_absent("offsets/0", b"x")
    checksum.write_bytes(b"old")
    store.delete("offsets/0")
    assert not checksum.exists()
    checksum.write_bytes(b"older")
    store.put_if_absent("offsets/0", b"y")
    assert not checksum.exists()


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = PosixStore(tmp_path / "file")
    for call in (lambda: store.list(""), lambda: store.get("a"), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(CheckpointError, match=r"/file.*Not a directory.*choose another path"):
            call()


@pytest.fixture
def not_root() -> Iterator[None]:
    """Root may read everything, so these tests are somebody else."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_missing_permission_says_who_and_what(locked: Path, not_root: None) -> None:
    store = PosixStore(locked)
    for call in (
        lambda: store.list("offsets"),
        lambda: store.get("offsets/0"),
        lambda: store.put_if_absent("a/0", b""),
    ):
        with pytest.raises(CheckpointError, match=rf"{locked}.* user id {os.geteuid()} has no permission"):
            call()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint that nobody may read or write."""
    folder = tmp_path / "checkpoint"
    PosixStore(folder).put_if_absent("offsets/0", b"x")
    (folder / "offsets").chmod(0)
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)
    (folder / "offsets").chmod(0o700)


@pytest.mark.parametrize("form", ["{0}", "file://{0}", "file:{0}", "file://localhost{0}", "{0}/"])
def test_the_forms_of_a_local_location(tmp_path: Path, form: str) -> None:
    location = tmp_path / "a b%20é"
    open_store(form.format(location)).put_if_absent("metadata", b"x")
    assert (location / "metadata").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("ftp://bucket/x", "no checkpoint store for ftp://"),
        ("relative/path", "not absolute"),
        ("file:relative", "not absolute"),
        ("file://host/x", "names host 'host'"),
        ("", "not absolute"),
    ],
)
def test_other_locations_are_refused(location: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_store(location)


@pytest.mark.parametrize("scheme", ["postgresql", "S3", "abfss", "file"])
def test_a_password_in_an_address_that_no_store_has_is_not_repeated(scheme: str) -> None:
    """The error of a DAG file is stored, and shown to all who see the DAG."""
    with pytest.raises(CheckpointError) as told:
        open_store(f"{scheme}://me:hunter2@host/orders")
    assert "hunter2" not in str(told.value)
    assert "host/orders" in str(told.value)


READS: dict[str, Callable[[PosixStore, str], object]] = {
    "get": lambda store, path: store.get(path),
    "get_range": lambda store, path: store.get_range(path, 0, 1),
    "get_versioned": lambda store, path: store.get_versioned(path),
    "compare_and_put": lambda store, path: store.compare_and_put(path, b"x", version=""),
    "modified_ms": lambda store, path: store.modified_ms(path),
    "present": lambda store, path: store.present(path.rpartition("/")[0], [path.rpartition("/")[2]]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("linked", ["offsets/0", "offsets", "offsets/gone"])
def test_nothing_is_read_through_a_link(tmp_path: Path, read: Callable[[PosixStore, str], object], linked: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0").write_text("secret")
    link = tmp_path / "checkpoint" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to({"offsets": secret, "offsets/0": secret / "0"}.get(linked, secret / "nothing"))
    with pytest.raises(CheckpointError, match=rf"{link} is a link"):
        read(PosixStore(tmp_path / "checkpoint"), linked if "/" in linked else "offsets/0")


def test_the_checkpoint_itself_may_be_a_link(tmp_path: Path) -> None:
    PosixStore(tmp_path / "real").put_if_absent("offsets/0", b"x")
    (tmp_path / "checkpoint").symlink_to(tmp_path / "real")
    assert PosixStore(tmp_path / "checkpoint").scoped("offsets").get("0") == b"x"


def test_a_folder_that_its_other_maker_replaces_while_it_is_open_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He moves his own over it, which is empty: what is open then has no place any more."""
    store, write, replaced = PosixStore(tmp_path / "checkpoint"), Folder.write, []

    def replaced_first(folder: Folder, name: str, data: bytes) -> None:
        if not replaced:
            replaced.append(name)
            (tmp_path / "checkpoint/other").mkdir()
            (tmp_path / "checkpoint/other").rename(tmp_path / "checkpoint/commits")
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", replaced_first)
    assert store.put_if_absent("commits/0", b"entry")
    assert replaced
    assert store.get("commits/0") == b"entry"


def test_an_entry_that_comes_just_before_the_removal_of_another_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = PosixStore(tmp_path), Folder.move
    store.put_if_absent("offsets/0", b"old")

    def move(*given: Any) -> None:
        (tmp_path / "offsets" / "0").unlink()
        store.put_if_absent("offsets/0", b"new")
        real(*given)

    monkeypatch.setattr(Folder, "move", move)
    assert store.delete_if("offsets/0", b"old") is False
    assert store.get("offsets/0") == b"new"
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == ["0"]


def test_of_two_entries_that_come_just_then_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, move, link = PosixStore(tmp_path), Folder.move, Folder.link
    store.put_if_absent("offsets/0", b"old")

    def slow_move(*given: Any) -> None:
        (tmp_path / "offsets" / "0").unlink()
        store.put_if_absent("offsets/0", b"new")
        move(*given)
        monkeypatch.setattr(Folder, "link", slow_link)

    def slow_link(*given: Any) -> None:
        monkeypatch.setattr(Folder, "link", link)
        store.put_if_absent("offsets/0", b"newer")
        link(*given)

    monkeypatch.setattr(Folder, "move", slow_move)
    assert store.delete_if("offsets/0", b"old") is False
    assert sorted(path.read_bytes() for path in (tmp_path / "offsets").iterdir()) == [b"new", b"newer"]
    assert store.get("offsets/0") == b"newer"


def test_a_removal_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PosixStore(tmp_path)
    store.put_if_absent("offsets/0", b"old")
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(any((tmp_path / "offsets").iterdir())))
    assert store.delete_if("offsets/0", b"old") is True
    assert synced == [False]


def test_what_is_replaced_is_on_disk_and_its_checksum_gone_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PosixStore(tmp_path)
    store.put_if_absent("offsets/0", b"old")
    (tmp_path / "offsets" / ".0.crc").write_bytes(b"crc of old")
    read = store.get_versioned("offsets/0")
    assert read is not None
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append((tmp_path / "offsets" / "0").read_bytes()))
    assert store.compare_and_put("offsets/0", b"new", version=read.version) is not None
    assert synced == [b"old", b"new"], "the bytes first, then the name"
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == ["0"]


def with_old_entry(store: PosixStore) -> Versioned:
    """``offsets/0``, as somebody has read it."""
    store.put_if_absent("offsets/0", b"old")
    read = store.get_versioned("offsets/0")
    assert read is not None
    return read


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens between the look at what is replaced and its replacement."""
    done, real = list[Callable[[], object]](), Folder.write

    def slow(*given: Any) -> None:
        while done:
            done.pop(0)()
        real(*given)

    monkeypatch.setattr(Folder, "write", slow)
    return done


@pytest.mark.parametrize("removal", ["delete", "delete_if", "delete_many"])
def test_what_is_removed_while_it_is_replaced_does_not_come_back_and_waits_for_nobody(
    tmp_path: Path, meanwhile: list[Callable[[], object]], removal: str
) -> None:
    """Who replaces it may be stopped, with the lock, for as long as it likes."""
    store = PosixStore(tmp_path)
    read = with_old_entry(store)
    removals: dict[str, Callable[[], object]] = {
        "delete": lambda: store.delete("offsets/0"),
        "delete_if": lambda: store.delete_if("offsets/0", b"old"),
        "delete_many": lambda: store.delete_many(["offsets/0"]),
    }
    meanwhile.append(removals[removal])
    assert store.compare_and_put("offsets/0", b"new", version=read.version) is None
    assert [*(tmp_path / "offsets").iterdir()] == []


def test_what_was_put_in_the_place_of_what_is_replaced_stays(
    tmp_path: Path, meanwhile: list[Callable[[], object]]
) -> None:
    store = PosixStore(tmp_path)
    read = with_old_entry(store)
    meanwhile += [lambda: store.delete("offsets/0"), lambda: store.put_if_absent("offsets/0", b"another")]
    assert store.compare_and_put("offsets/0", b"new", version=read.version) is None
    assert store.get("offsets/0") == b"another"


def test_nor_can_anybody_replace_what_is_taken_back_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: list[Callable[[], object]]
) -> None:
    """What was put there by who had compared it would be gone with what is swapped back."""
    monkeypatch.setattr(posix_folder, "_LOCK_SECONDS", 0.05)
    store, swapped, real = PosixStore(tmp_path), list[int](), Folder.exchange
    read = with_old_entry(store)

    def exchange(*names: Any) -> None:
        real(*names)
        swapped.append(1)
        if len(swapped) == 1:
            new = store.get_versioned("offsets/0")
            assert new is not None
            with pytest.raises(CheckpointError, match="has it locked"):
                store.compare_and_put("offsets/0", b"newer", version=new.version)

    monkeypatch.setattr(Folder, "exchange", exchange)
    meanwhile += [lambda: store.delete("offsets/0"), lambda: store.put_if_absent("offsets/0", b"another")]
    assert store.compare_and_put("offsets/0", b"new", version=read.version) is None
    assert len(swapped) == 2
    assert store.get("offsets/0") == b"another"


def test_nobody_waits_for_ever_for_one_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix_folder, "_LOCK_SECONDS", 0.05)
    store = PosixStore(tmp_path)
    read = with_old_entry(store)
    with Folder.open(tmp_path, ["offsets"]) as folder, folder.locked("0"):
        with pytest.raises(CheckpointError, match="has it locked"):
            store.compare_and_put("offsets/0", b"new", version=read.version)
        assert store.delete("offsets/0")


def test_where_no_files_can_be_swapped_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any, **__: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(posix_folder, "rename_with", unsupported)
    store = PosixStore(tmp_path)
    read = with_old_entry(store)
    with pytest.raises(CheckpointError, match="swaps no files"):
        store.compare_and_put("offsets/0", b"new", version=read.version)
    assert [path.read_bytes() for path in (tmp_path / "offsets").iterdir()] == [b"old"]


def test_where_nothing_can_be_locked_nothing_is_replaced_and_what_is_old_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store = PosixStore(tmp_path)
    read = with_old_entry(store)
    with pytest.raises(CheckpointError, match="without locks"):
        store.compare_and_put("offsets/0", b"new", version=read.version)
    assert store.get("offsets/0") == b"old"
    assert store.delete("offsets/0")


def test_sparks_form_of_the_address_is_one_that_leads_back_here(tmp_path: Path) -> None:
    address = PosixStore(tmp_path / "100% new").for_spark
    assert address == f"file://{tmp_path}/100% new"
    assert PosixStore.at(address).location == str(tmp_path / "100% new")
