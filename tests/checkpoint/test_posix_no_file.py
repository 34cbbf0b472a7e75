"""Something in place of an entry that is no file: a FIFO would hang whoever opens it, for as long as nobody writes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.stores.posix.litter import find_litter, move_litter

pytestmark = pytest.mark.timeout(20)


def bind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)  # its address must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


KINDS: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "a socket": bind,
}

READS: dict[str, Callable[[Path], object]] = {
    "get": lambda root: PosixStore(root).get("offsets/0"),
    "get_range": lambda root: PosixStore(root).get_range("offsets/0", 0, 1),
    "find_litter": lambda root: find_litter(root, now_ms=0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_no_file_is_named_and_not_read(
    tmp_path: Path, read: Callable[[Path], object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint" / "offsets"
    folder.mkdir(parents=True)
    (folder / ".0.crc").write_bytes(b"crc\0\0\0\0\1")
    KINDS[kind](folder / "0", monkeypatch)
    with pytest.raises(CheckpointError, match=rf"{folder}/0 is {kind}, where a file should be\. .* remove it\."):
        read(tmp_path / "checkpoint")


@pytest.mark.parametrize("name", [".0.crc", f".0.{'a' * 32}.tmp"])
def test_litter_that_is_no_file_is_named_and_not_moved(tmp_path: Path, name: str) -> None:
    litter = tmp_path / "offsets" / name
    litter.parent.mkdir()
    (tmp_path / "offsets" / "0").write_text("x")
    os.mkfifo(litter)
    os.utime(litter, (0, 0))
    for act in (
        lambda: find_litter(tmp_path, now_ms=10**13),
        lambda: move_litter(tmp_path, f"offsets/{name}", "repaired/1/x"),
    ):
        with pytest.raises(CheckpointError, match=rf"{litter} is a FIFO, where a file should be"):
            act()
    assert litter.is_fifo()
