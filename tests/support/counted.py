"""A store that counts what is asked of it, as a service that is paid by the request and lists by the page would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_microbatch.stores import PAGE, Litter, Store, Versioned, look_by_listing


class Count:
    """Requests by kind, and which paths they were for.

    :param page: names of a listing that cost one request.
    """

    def __init__(self, *, page: int = PAGE) -> None:
        self.page = page
        self.requests: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def add(self, kind: str, path: str, *, pages: int = 1) -> None:
        self.requests[kind] += pages
        self.asked[f"{kind} {path}"] += pages

    @property
    def total(self) -> int:
        return self.requests.total()

    @contextmanager
    def of(self) -> Iterator[Count]:
        """What is asked in the block alone."""
        found, before, asked = Count(page=self.page), self.requests.copy(), self.asked.copy()
        yield found
        found.requests, found.asked = self.requests - before, self.asked - asked


class CountedStore(Store):
    """The store ``real``, each request to which is counted.

    :param folder: where in the store this one begins, for the paths that are counted.
    """

    def __init__(self, real: Store, count: Count, *, folder: str = "") -> None:
        self._real = real
        self._count = count
        self._folder = folder

    @property
    def location(self) -> str:
        return self._real.location

    @property
    def for_spark(self) -> str | None:
        return self._real.for_spark

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._add("put", path)
        return self._real.put_if_absent(path, data)

    def get(self, path: str) -> bytes | None:
        self._add("get", path)
        return self._real.get(path)

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        self._add("get", path)
        return self._real.get_range(path, start, size)

    def get_versioned(self, path: str) -> Versioned | None:
        self._add("get", path)
        return self._real.get_versioned(path)

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        self._add("put", path)
        return self._real.compare_and_put(path, data, version=version)

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> Sequence[str]:
        return self._listed(folder, self._real.list_after(folder, after, limit=limit))

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        return look_by_listing(self, folder, names, page=self._count.page)  # whatever the real one has that is better

    def list(self, folder: str) -> list[str]:
        return list(self._listed(folder, self._real.list(folder)))

    def folders(self, folder: str) -> Sequence[str]:
        return self._listed(folder, self._real.folders(folder))

    def delete(self, path: str) -> bool:
        self._add("delete", path)
        return self._real.delete(path)

    def delete_if(self, path: str, data: bytes) -> bool:
        self._add("delete", path)
        return self._real.delete_if(path, data)

    def delete_many(self, paths: Iterable[str]) -> None:
        named = list(paths)
        for path in named:
            self._add("delete", path)
        self._real.delete_many(named)

    def now_ms(self) -> int:
        self._add("clock", "")
        return self._real.now_ms()

    def modified_ms(self, path: str) -> int | None:
        self._add("stat", path)
        return self._real.modified_ms(path)

    def unfit(self) -> str | None:
        return self._real.unfit()

    def check_own(self, path: str) -> None:
        self._real.check_own(path)

    def cut_off(self, path: str) -> Sequence[bytes]:
        return self._real.cut_off(path)

    def litter(self) -> Sequence[Litter]:
        return self._real.litter()

    def is_litter(self, name: str) -> bool:
        return self._real.is_litter(name)

    def move_litter(self, path: str, target: str) -> None:
        self._real.move_litter(path, target)

    def scoped(self, folder: str) -> CountedStore:
        return CountedStore(self._real.scoped(folder), self._count, folder=f"{self._folder}{folder}/")

    def _listed(self, folder: str, names: Sequence[str]) -> Sequence[str]:
        self._add("list", folder, pages=max(1, -(-len(names) // self._count.page)))
        return names

    def _add(self, kind: str, path: str, *, pages: int = 1) -> None:
        self._count.add(kind, self._folder + path, pages=pages)
