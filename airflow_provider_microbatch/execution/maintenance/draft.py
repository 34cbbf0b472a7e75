"""A draft of a checkpoint: reads go to the store below, writes stay in memory. A plan is tried out on it."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.store import Store


class Draft(Store):
    """A store over another one that nothing is ever written to.

    :param base: what lies below.
    """

    def __init__(self, base: Store, *, _changes: dict[str, bytes | None] | None = None, _folder: str = "") -> None:
        self._base = base
        self._changes: dict[str, bytes | None] = {} if _changes is None else _changes
        self._folder = _folder

    @property
    def location(self) -> str:
        """The address of what lies below: a draft has none of its own."""
        return self._base.scoped(self._folder.rstrip("/")).location if self._folder else self._base.location

    @property
    def changes(self) -> dict[str, bytes | None]:
        """What was written, by path from the top; None for what was deleted."""
        return dict(self._changes)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As a store does it, in memory."""
        if self.get(path) is not None:
            return False
        self._changes[self._folder + path] = data
        return True

    def get(self, path: str) -> bytes | None:
        """The bytes as they would be."""
        full = self._folder + path
        return self._changes[full] if full in self._changes else self._base.get(full)

    def list(self, folder: str) -> list[str]:
        """Names as they would be."""
        full = (self._folder + folder).rstrip("/")
        names = set(self._base.list(full))
        for path, data in self._changes.items():
            inside = path.removeprefix(f"{full}/") if full else path
            if not full or inside != path:
                name, _, deeper = inside.partition("/")
                if data is not None:
                    names.add(name)
                elif not deeper:
                    names.discard(name)
        return sorted(names)

    def delete(self, path: str) -> bool:
        """As a store does it, in memory."""
        if self.get(path) is None:
            return False
        self._changes[self._folder + path] = None
        return True

    def now_ms(self) -> int:
        """The clock of the store below."""
        return self._base.now_ms()

    def modified_ms(self, path: str) -> int | None:
        """When it was written; what is only drafted, now."""
        full = self._folder + path
        if full not in self._changes:
            return self._base.modified_ms(full)
        return None if self._changes[full] is None else self.now_ms()

    def scoped(self, folder: str) -> Draft:
        """The same draft seen from ``folder``."""
        return Draft(self._base, _changes=self._changes, _folder=f"{self._folder}{folder}/")
