"""A stranger who may write in the checkpoint and is quick: between two system calls of ours, whichever two, a folder or
an entry is exchanged with a link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.sinks.file.posix import exchange
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.stores.posix.litter import find_litter, move_litter

CALLS = ("open", "link", "unlink", "rmdir", "rename", "mkdir", "stat", "lstat", "listdir", "scandir", "readlink")
MOST = 80
"""No operation makes as many calls."""

OWN = blake2b(b"own", digest_size=16).hexdigest()
"""The version of our own entry."""

Act = Callable[[Path], object]

ACTS: dict[str, Act] = {
    "get": lambda root: PosixStore(root).get("offsets/0"),
    "get in a scope": lambda root: PosixStore(root).scoped("offsets").get("0"),
    "get_range": lambda root: PosixStore(root).get_range("offsets/0", 0, 6),
    "modified_ms": lambda root: "secret" if PosixStore(root).modified_ms("offsets/0") == 0 else "own",
    "list": lambda root: PosixStore(root).list("offsets"),
    "present": lambda root: PosixStore(root).present("offsets", ["secret"]),
    "compare_and_put": lambda root: PosixStore(root).compare_and_put("offsets/0", b"x", version=OWN),
    "delete_if": lambda root: PosixStore(root).delete_if("offsets/0", b"own"),
    "put": lambda root: PosixStore(root).put_if_absent("offsets/7", b"x"),
    "put into a new folder": lambda root: PosixStore(root).put_if_absent("offsets/deep/er/7", b"x"),
    "delete": lambda root: PosixStore(root).delete("offsets/0"),
    "delete a folder": lambda root: PosixStore(root).delete("offsets/empty"),
    "delete_many": lambda root: PosixStore(root).delete_many(["offsets/0", "offsets/1"]),
    "clock": lambda root: PosixStore(root).scoped("offsets").now_ms(),
    "find litter": lambda root: find_litter(root, now_ms=0),
    "move litter": lambda root: move_litter(root, "offsets/.0.crc", "repaired/1/0.crc"),
    "move litter to": lambda root: move_litter(root, "litter/.0.crc", "offsets/new/0.crc"),
}


class Stranger:
    """Exchanges two names right before our system call of that number."""

    def __init__(self, patch: pytest.MonkeyPatch, one: Path, other: Path, *, before: int) -> None:
        self._names = one, other
        self._left = before
        for name in CALLS:
            patch.setattr(os, name, self._watched(getattr(os, name)))

    @property
    def came(self) -> bool:
        """Whether there were so many calls."""
        return self._left < 0

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._left == 0:
                assert exchange(*self._names)
            self._left -= 1
            return call(*arguments, **named)

        return watched


def made(folder: Path, text: str) -> Path:
    (folder / "empty").mkdir(parents=True)
    for name in ("0", "1", ".0.crc", f".{text}.crc", text):
        (folder / name).write_text(text)
        if text == "secret":
            os.utime(folder / name, (0, 0))
    return folder


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("place", ["offsets", "offsets/0", "offsets/.0.crc", "offsets/empty"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nothing_is_done_behind_a_link_whenever_it_comes(tmp_path: Path, act: Act, place: str) -> None:
    for before in range(MOST):
        world = tmp_path / str(before)
        for folder in ("offsets", "litter"):
            made(world / "checkpoint" / folder, "own")
        victim = made(world / "offsets", "secret")
        (world / "link").symlink_to(world / place)
        kept, told = state(victim), None
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(CheckpointError):
            stranger = Stranger(patch, world / "checkpoint" / place, world / "link", before=before)
            told = act(world / "checkpoint")
        assert state(victim) == kept, f"before call {before}"
        assert "secret" not in str(told), f"before call {before}"
        if not stranger.came:
            return
    pytest.fail("it makes more calls than are tried")


def test_what_is_linked_is_never_what_a_link_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in place of our temporary: the entry would be a second name of the secret."""
    secret, real = tmp_path / "secret", os.link
    secret.write_text("secret")

    def late(source: Any, target: Any, **named: Any) -> None:
        (temporary,) = (tmp_path / "checkpoint").glob("offsets/.*.tmp")
        temporary.unlink()
        temporary.symlink_to(secret)
        real(source, target, **named)

    monkeypatch.setattr(os, "link", late)
    PosixStore(tmp_path / "checkpoint").put_if_absent("offsets/0", b"x")
    assert secret.stat().st_nlink == 1


def test_the_mode_of_a_new_folder_is_never_given_to_what_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, real = tmp_path / "victim", os.mkdir
    victim.mkdir(mode=0o711)

    def late(path: Any, *arguments: Any, **named: Any) -> None:
        real(path, *arguments, **named)
        for hidden in (tmp_path / "checkpoint").glob(".offsets.*.tmp"):
            hidden.rmdir()
            hidden.symlink_to(victim)

    PosixStore(tmp_path / "checkpoint").put_if_absent("metadata", b"x")
    monkeypatch.setattr(os, "mkdir", late)
    with pytest.raises(CheckpointError):
        PosixStore(tmp_path / "checkpoint").put_if_absent("offsets/0", b"x")
    assert stat.S_IMODE(victim.stat().st_mode) == 0o711


def test_a_link_that_has_gone_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, real = tmp_path / "checkpoint" / "0", os.readlink
    link.parent.mkdir()
    link.symlink_to(tmp_path / "secret")

    def gone(*arguments: Any, **named: Any) -> str:
        link.unlink(missing_ok=True)
        return real(*arguments, **named)

    monkeypatch.setattr(os, "readlink", gone)
    with pytest.raises(CheckpointError, match=rf"{link} is a link.*it has gone since"):
        PosixStore(tmp_path / "checkpoint").get("0")
