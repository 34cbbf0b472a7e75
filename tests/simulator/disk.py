"""A store in memory that misbehaves as real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Store, Versioned, check_path

if TYPE_CHECKING:
    from tests.simulator.world import World

FULL, READ_ONLY, UNREACHABLE = "full", "read-only", "unreachable"


@dataclass
class Entry:
    """:param data: the bytes.
    :param written_ms: when, by the store's clock.
    """

    data: bytes
    written_ms: int


@dataclass
class Disk:
    """What a store holds, and how it is broken at the moment.

    :param keeps_folders: whether a folder stays when its last entry has gone, as on a file system.
    :param trouble: ``full``, ``read-only``, ``unreachable``, or None.
    """

    keeps_folders: bool = True
    trouble: str | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    folders: dict[str, set[str]] = field(default_factory=dict)
    changes: int = 0

    def address(self, folder: str) -> str:
        """The address by which Spark would open a folder."""
        return f"/disk/{folder}".rstrip("/")

    def get(self, path: str) -> Entry | None:
        """The entry, or None."""
        return self.entries.get(path)

    def names(self, folder: str) -> set[str]:
        """What is in a folder."""
        return self.folders.get(folder, set())

    def put(self, path: str, entry: Entry) -> bool:
        """False if something is there."""
        if path in self.entries or path in self.folders:
            return False
        self.entries[path] = entry
        self.changes += 1
        while path:
            folder, _, name = path.rpartition("/")
            names = self.folders.setdefault(folder, set())
            if name in names:
                break
            names.add(name)
            path = folder
        return True

    def replace(self, path: str, data: bytes, *, written_ms: int) -> None:
        """Put another entry in the place of one."""
        self.entries[path] = Entry(data, written_ms)
        self.changes += 1

    def remove(self, path: str) -> bool:
        """Remove an entry, or an empty folder."""
        if path in self.folders and not self.folders[path]:
            del self.folders[path]
        elif path not in self.entries:
            return False
        self.entries.pop(path, None)
        self.changes += 1
        folder, _, name = path.rpartition("/")
        self.folders[folder].discard(name)
        while folder and not self.folders[folder] and not self.keeps_folders:
            del self.folders[folder]
            folder, _, name = folder.rpartition("/")
            self.folders[folder].discard(name)
        return True

    def below(self, prefix: str) -> dict[str, Entry]:
        """All entries whose path begins so."""
        return {path: entry for path, entry in self.entries.items() if path.startswith(prefix)}


class DiskStore(Store):
    """A folder of the world's disk, as a process sees it. Each call is an operation of the process.

    :param world: the world.
    :param folder: with a slash at its end, or empty.
    """

    def __init__(self, world: World, folder: str) -> None:
        self._world = world
        self._folder = folder

    @property
    def folder(self) -> str:
        """Of the world's disk, with a slash at its end."""
        return self._folder

    @property
    def location(self) -> str:
        return f"/disk/{self._folder}".rstrip("/")

    @property
    def for_spark(self) -> str:
        return self._world.disk.address(self._folder)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        full = self._at("put", path)
        disk, lost = self._world.disk, self._world.answer_lost()
        self._refuse(FULL, READ_ONLY, doing=f"write {full}")
        if lost == "not done":
            raise CheckpointError(f"no answer to the put of {full}")
        done = disk.put(full, Entry(data, self._world.now_ms))
        if lost:
            raise CheckpointError(f"no answer to the put of {full}")
        return done

    def get(self, path: str) -> bytes | None:
        found = self._world.disk.get(self._at("get", path))
        return None if found is None else found.data

    def get_versioned(self, path: str) -> Versioned | None:
        data = self.get(path)
        return None if data is None else Versioned(data=data, version=_version(data))

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        full = self._at("replace", path)
        disk, lost = self._world.disk, self._world.answer_lost()
        self._refuse(FULL, READ_ONLY, doing=f"replace {full}")
        if lost == "not done":
            raise CheckpointError(f"no answer to the put of {full}")
        found = disk.get(full)
        done = found is not None and _version(found.data) == version
        if done:
            disk.replace(full, data, written_ms=self._world.now_ms)
        if lost:
            raise CheckpointError(f"no answer to the put of {full}")
        return _version(data) if done else None

    def list(self, folder: str) -> list[str]:
        full = self._at("list", folder) if folder else self._look("list", self._folder.rstrip("/"))
        return sorted(self._world.disk.names(full))

    def delete_if(self, path: str, data: bytes) -> bool:
        return self._delete(path, data)

    def delete(self, path: str) -> bool:
        return self._delete(path, None)

    def _delete(self, path: str, data: bytes | None) -> bool:
        """:param data: what it has to be; None for anything."""
        full = self._at("delete", path)
        lost = self._world.answer_lost()
        self._refuse(READ_ONLY, doing=f"delete {full}")
        if lost == "not done":
            raise CheckpointError(f"no answer to the removal of {full}")
        found = self._world.disk.get(full)
        done = (data is None or (found is not None and found.data == data)) and self._world.disk.remove(full)
        if "/leases/" in full:
            self._world.touched = True  # with it a stage may lose its owner
        if lost:
            raise CheckpointError(f"no answer to the removal of {full}")
        return done

    def now_ms(self) -> int:
        self._look("clock", self._folder)
        return self._world.now_ms

    def modified_ms(self, path: str) -> int | None:
        found = self._world.disk.get(self._at("stat", path))
        return None if found is None else found.written_ms

    def scoped(self, folder: str) -> DiskStore:
        return DiskStore(self._world, f"{self._folder}{check_path(folder)}/")

    def _at(self, doing: str, path: str) -> str:
        return self._look(doing, self._folder + check_path(path))

    def _look(self, doing: str, full: str) -> str:
        self._world.point(f"{doing} {full}")
        self._refuse(doing=f"{doing} {full}")
        return full

    def _refuse(self, *troubles: str, doing: str) -> None:
        trouble = self._world.disk.trouble
        if self._world.processes.current is not None and trouble in (UNREACHABLE, *troubles):
            raise CheckpointError(f"cannot {doing}: the disk is {trouble}")


def _version(data: bytes) -> str:
    """As an object store's etag, of which the same bytes have the same."""
    return sha256(data).hexdigest()
