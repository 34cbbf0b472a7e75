"""A draft of a checkpoint: reads go to the store below, writes stay in memory. Commands try a plan out on it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_microbatch.stores import Store, Versioned


class Changes:
    """The drafted changes: ``files`` by path from the top, None for deleted files; ``names`` by folder."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | None] = {}
        self.names: dict[str, set[str]] = {}

    def put(self, path: str, data: bytes) -> None:
        """Add a file, and its name to each folder above it."""
        self.files[path] = data
        while path:
            path, _, name = path.rpartition("/")
            self.names.setdefault(path, set()).add(name)


class Draft(Store):
    """A store over another store. Nothing is ever written to the store below.

    :param base: the store below.
    """

    def __init__(self, base: Store, *, _changes: Changes | None = None, _folder: str = "") -> None:
        self._base = base
        self._changes = _changes or Changes()
        self._folder = _folder

    def changes(self) -> dict[str, bytes | None]:
        """The changes that were drafted so far, by path from the top; None for deleted files."""
        return dict(self._changes.files)

    @property
    def location(self) -> str:
        """The address of the store below: a draft has no address of its own."""
        return self._base.scoped(self._folder.rstrip("/")).location if self._folder else self._base.location

    @property
    def is_draft(self) -> bool:
        return True

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put the file in memory, as a store would."""
        if self.get(path) is not None:
            return False
        self._changes.put(self._folder + path, data)
        return True

    def get(self, path: str) -> bytes | None:
        """The bytes as they would be after the drafted changes."""
        full = self._folder + path
        return self._changes.files[full] if full in self._changes.files else self._base.get(full)

    def get_versioned(self, path: str) -> Versioned | None:
        """The bytes as they would be after the drafted changes, with a digest."""
        data = self.get(path)
        return None if data is None else Versioned.of(data)

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Replace the file in memory, as a store would."""
        there = self.get_versioned(path)
        if there is None or there.version != version:
            return None
        self._changes.put(self._folder + path, data)
        return Versioned.of(data).version

    def list(self, folder: str) -> list[str]:
        """Names as they would be after the drafted changes."""
        full = (self._folder + folder).rstrip("/")
        names = {*self._base.list(full), *self._changes.names.get(full, ())}
        gone = self._changes.files
        return sorted(name for name in names if gone.get(f"{full}/{name}" if full else name, b"") is not None)

    def folders(self, folder: str) -> Sequence[str]:
        """Names of folders as they would be after the drafted changes."""
        full = (self._folder + folder).rstrip("/")
        prefix = f"{full}/" if full else ""
        files = {*self._base.list(full)}.difference(self._base.folders(full))
        return [name for name in self.list(folder) if name not in files and prefix + name not in self._changes.files]

    def delete(self, path: str) -> bool:
        """Delete the file in memory, as a store would."""
        if self.get(path) is None:
            return False
        self._changes.files[self._folder + path] = None
        return True

    def now_ms(self) -> int:
        """The clock of the store below."""
        return self._base.now_ms()

    def modified_ms(self, path: str) -> int | None:
        """When the file was written; now for a file that is only drafted."""
        full = self._folder + path
        if full not in self._changes.files:
            return self._base.modified_ms(full)
        return None if self._changes.files[full] is None else self.now_ms()

    def cut_off(self, path: str) -> Sequence[bytes]:
        """The cut-off files of the store below: drafted changes are never cut off."""
        return self._base.cut_off(self._folder + path)

    def scoped(self, folder: str) -> Draft:
        """The same draft seen from ``folder``."""
        return Draft(self._base, _changes=self._changes, _folder=f"{self._folder}{folder}/")
