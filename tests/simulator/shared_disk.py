"""A disk on which state lies in real folders: tasks, driver and executors share them, and nobody asks a store."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from tests.simulator.disk import Disk, Entry

_SHARED = re.compile(r"[^/]+/(state|streaming)(/.*)?")
"""What of a checkpoint's folder lies in real folders: state, and the checkpoints that attempts show Spark."""


class SharedDisk(Disk):
    """All else is in memory. A backup has both, and who restores one puts both back.

    :param root: a real folder; need not exist.
    """

    def __init__(self, root: Path, *, keeps_folders: bool) -> None:
        super().__init__(keeps_folders=keeps_folders)
        self._root = root

    def address(self, folder: str) -> str:
        return f"file://{self._root / folder}".rstrip("/")

    def get(self, path: str) -> Entry | None:
        if not _SHARED.fullmatch(path):
            return super().get(path)
        file = self._root / path
        try:
            return Entry(file.read_bytes(), round(file.stat().st_mtime * 1000))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def names(self, folder: str) -> set[str]:
        real = self._root / folder
        if _SHARED.fullmatch(folder):
            return {one.name for one in real.iterdir()} if real.is_dir() and not real.is_symlink() else set()
        return super().names(folder) | {name for name in ("state", "streaming") if folder and (real / name).is_dir()}

    def put(self, path: str, entry: Entry) -> bool:
        if not _SHARED.fullmatch(path):
            return super().put(path, entry)
        file = self._root / path
        if file.exists():
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(entry.data)
        os.utime(file, (entry.written_ms / 1000, entry.written_ms / 1000))
        self.changes += 1
        return True

    def remove(self, path: str) -> bool:
        if not _SHARED.fullmatch(path):
            return super().remove(path)
        file = self._root / path
        if not file.is_file():
            return False
        file.unlink()
        self.changes += 1
        with contextlib.suppress(OSError):  # one is not empty
            for folder in list(file.parents)[: path.count("/") - 1]:
                folder.rmdir()
        return True

    def below(self, prefix: str) -> dict[str, Entry]:
        found = dict(super().below(prefix))
        for kind in ("state", "streaming"):
            for file in sorted((self._root / prefix / kind).rglob("*")):
                path = str(file.relative_to(self._root))
                if not file.is_symlink() and (entry := self.get(path)) is not None:
                    found[path] = entry
        return found
