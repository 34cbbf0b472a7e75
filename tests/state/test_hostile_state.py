"""By its state, whoever can write a checkpoint removes no files elsewhere, fills no memory and stops no batch."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import struct
import tracemalloc
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_microbatch.execution.state_files import Needed, cut_off, remove_unneeded, unreadable_snapshot
from airflow_provider_microbatch.runtime.streaming_folder import make_folder, remove_folder
from airflow_provider_microbatch.runtime.streaming_job import Streaming
from tests.state.counting import CountingWorld

if TYPE_CHECKING:
    from typing_extensions import Buffer

WINNER, LOSER = (str(uuid.UUID(int=number)) for number in (1, 2))
NEEDED = Needed(newest=11, oldest=10, ids={9: frozenset({WINNER})}, parts_before_ms=2**60)
SNAPSHOT = f"10_{WINNER}.zip"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of another program's, whose names look like Spark's."""
    made = tmp_path / "victim"
    for name in (
        "task.log",
        "a.sst",
        f"2_{LOSER}.changelog",
        "SSTs/a.sst",
        "logs/task.log",
        "0-1/dag.py",
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("theirs")
    (made / "state").symlink_to(made / "logs")
    return made


def content(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def partition(state: Path, *names: str) -> Path:
    """Of the first operator, with a loser's file and a part that no snapshot names."""
    folder = state / "0" / "0"
    for name in (f"2_{LOSER}.changelog", "SSTs/a.sst", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("place", ["0/0/logs", "0/1", "1", "0/0/default"])
def test_files_behind_a_link_in_the_state_stay(
    tmp_path: Path, victim: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "checkpoint" / "state"
    partition(state)
    (state / place).symlink_to(victim)
    before = content(victim)
    remove_unneeded(state, NEEDED)

    assert content(victim) == before
    assert not (state / "0" / "0" / f"2_{LOSER}.changelog").exists()
    assert f"{state / place} is a link" in caplog.text


def test_state_that_is_a_link_as_a_whole_is_left_alone(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state").symlink_to(victim)
    before = content(victim)
    with pytest.raises(NotADirectoryError, match="a link in place of the folder of state"):
        remove_unneeded(tmp_path / "checkpoint" / "state", NEEDED)

    assert content(victim) == before


def told(path: Path, metadata: str, *, how: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("metadata", metadata)


def long_list(path: Path) -> None:
    """An archive that says of its list of contents that it is as long as the file, which has holes."""
    with path.open("wb") as file:
        file.truncate(200_000_000)
        file.seek(200_000_000)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 200_000_000, 0, 0))


STRANGE: dict[str, Callable[[Path], None]] = {
    "no archive": lambda path: path.write_text("no archive") and None,
    "a list": lambda path: told(path, "v1\n[]"),
    "a list of lists": lambda path: told(path, 'v1\n{"sstFiles": [[]]}'),
    "a number": lambda path: told(path, 'v1\n{"sstFiles": 7}'),
    "deep": lambda path: told(path, "v1\n" + "[" * 100_000),
    "long": lambda path: told(path, "v1\n" + " " * 100_000_000),
    "compressed otherwise": lambda path: told(path, "v1\n{}", how=zipfile.ZIP_LZMA),
    "a long list of contents": long_list,
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_a_snapshot_that_spark_did_not_write_keeps_its_parts_and_holds_nothing_else(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What it is made of is not known, so nothing is removed that it may be made of."""
    state = tmp_path / "checkpoint" / "state"
    folder = partition(state)
    make(folder / SNAPSHOT)
    other = state / "0" / "1"
    other.mkdir()
    (other / f"2_{LOSER}.changelog").touch()
    tracemalloc.start()
    try:
        remove_unneeded(state, NEEDED)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (folder / "SSTs" / "a.sst").exists()
    assert not (other / f"2_{LOSER}.changelog").exists()
    assert f"{folder / SNAPSHOT}" in caplog.text
    assert most < 32_000_000


@pytest.mark.parametrize("told", ["", "7", "[]", '{"mainFileSize": "7"}', "[" * 10_000, "\xff"])
def test_a_checksum_that_spark_did_not_write_says_nothing_of_its_file(tmp_path: Path, told: str) -> None:
    folder = partition(tmp_path, f"3_{WINNER}.changelog")
    (folder / f"2_{LOSER}.changelog.crc").write_text(told, encoding="latin-1")
    (folder / f"2_{LOSER}.changelog").write_text("whole")
    assert cut_off(tmp_path, [(2, LOSER)]) is None


def test_a_snapshot_that_a_disk_does_not_give_is_not_said_to_be_none_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a mount is away for a moment: whoever followed what is said of a broken snapshot would lose the state."""

    class Away(io.FileIO):
        def readinto(self, buffer: Buffer, /) -> int:
            raise OSError(errno.EIO, "Input/output error")

    state = tmp_path / "checkpoint" / "state"
    folder = partition(state)
    told(folder / SNAPSHOT, "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": "a.sst"}], "logFiles": []}))
    version, _, id = SNAPSHOT.removesuffix(".zip").partition("_")
    assert unreadable_snapshot(state, int(version), {id}) is None
    monkeypatch.setattr(io, "FileIO", Away)
    with pytest.raises(OSError, match="Input/output error"):
        unreadable_snapshot(state, int(version), {id})
    remove_unneeded(state, NEEDED)

    assert (folder / "SSTs" / "a.sst").exists()
    assert f"{folder / SNAPSHOT} cannot be read" in caplog.text
    assert "no snapshot" not in caplog.text


def test_what_spark_has_not_named_or_made_is_passed_over(tmp_path: Path) -> None:
    state = tmp_path / "checkpoint" / "state"
    folder = partition(state, "strangers.zip")
    (folder / f"3_{LOSER}.changelog").mkdir()
    told(folder / SNAPSHOT, "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": "b.sst"}], "logFiles": []}))
    remove_unneeded(state, NEEDED)

    assert not (folder / "SSTs" / "a.sst").exists()


@pytest.mark.parametrize("place", ["streaming", "streaming/0-1"])
def test_folders_behind_a_link_in_place_of_the_attempts_stay_and_batches_go_on(
    tmp_path: Path, victim: Path, place: str
) -> None:
    world = CountingWorld(tmp_path)
    world.batch(0, head=1)
    (tmp_path / "checkpoint" / place).parent.mkdir(exist_ok=True)
    (tmp_path / "checkpoint" / place).symlink_to(victim)
    before = content(victim)
    world.come(2)
    world.staged(1)  # and its process died
    world.run(1, world.engine(), try_number=2)

    assert content(victim) == before
    assert world.table() == {0: [1], 1: [2]}
    ends = [world.checkpoint.attempts.ended(key, epoch) for key, epoch in world.checkpoint.leases.unfinished()]
    assert ends == []


def test_of_an_attempt_that_is_a_link_the_link_goes(tmp_path: Path, victim: Path) -> None:
    own = tmp_path / "checkpoint" / "streaming" / "0-1"
    own.parent.mkdir(parents=True)
    own.symlink_to(victim)
    before = content(victim)
    remove_folder(str(own))

    assert content(victim) == before
    assert not os.path.lexists(own)


def test_no_attempt_makes_its_folder_behind_a_link(tmp_path: Path, victim: Path) -> None:
    """Its rows would lie there for good."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "streaming").symlink_to(victim)
    folder = str(tmp_path / "checkpoint" / "streaming" / "2-1")
    before = content(victim)
    with pytest.raises(NotADirectoryError, match=r"a link in place of .*remove it: .*streaming"):
        make_folder(Streaming(folder=folder, state="/state", query_id="q", output_mode="append", sources={}))

    assert content(victim) == before


def test_a_batch_is_committed_and_retention_goes_on_whatever_lies_in_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> int:
        raise AttributeError("'list' object has no attribute 'get'")

    monkeypatch.setattr("airflow_provider_microbatch.execution.stateful.remove_unneeded", fails)
    world = CountingWorld(tmp_path, min_batches_to_retain=2)
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            world.batch(number, head=number + 1)

    assert world.checkpoint.offset_log.ids() == [2, 3]
    assert "of its state something could not be removed: 'list' object has no attribute 'get'" in caplog.text


def test_an_entry_that_tells_less_of_its_state_holds_no_removal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = CountingWorld(tmp_path)
    for number in range(2):
        world.batch(number, head=number + 1)
    entry = tmp_path / "checkpoint" / "commits" / "1"
    entry.write_text(entry.read_text().replace('"base"', '"bass"'))
    folder = partition(tmp_path / "checkpoint" / "state", f"1_{WINNER}.changelog")
    world.batch(2, head=3)

    assert "could not be removed" not in caplog.text
    assert (folder / f"1_{WINNER}.changelog").exists()  # nobody knows whether batch 1 has gone on from it
