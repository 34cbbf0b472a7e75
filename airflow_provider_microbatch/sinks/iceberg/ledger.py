"""The record of which batches of a branch are in, kept in the table's properties.

One property per lane holds the newest page of batches, id → number of the manifest, and for each older page the digest
that names its small file: so the data that each commit writes again stays small, however many batches there are. A page
is never changed. If an old batch is replaced, a new page is written, which the commit names in place of the old page.

A branch that was made of another, or fast-forwarded to it, has the other's rows: its record goes on from the other's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_name
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.posix import put_file
from airflow_provider_microbatch.sinks.file.reading import read_regular

PAGE = 128
"""Number of ids in a page."""

_PREFIX = "microbatch.batches"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9a-f]{16}")

Page = dict[int, int]
"""Id of a batch → number of its manifest."""


@dataclass(frozen=True)
class Ledger:
    """:param root: the table's folder.
    :param folder: the folder below it for pages.
    :param branch: the branch to publish to.
    """

    root: Path
    folder: Path
    branch: str

    def name(self, lane: str) -> str:
        """The name of the lane's property."""
        branch = quote(self.branch, safe="").replace(".", "%2E")
        return f"{_PREFIX}.{branch}.{lane}"

    def lanes(self, properties: Mapping[str, str]) -> list[str]:
        """Lanes that have batches, ascending."""
        prefix = self.name("")
        names = {key.removeprefix(prefix) for key in properties if key.startswith(prefix)}
        return sorted(name for name in names if any(True for _ in self._newest_first(properties, name)))

    def number(self, properties: Mapping[str, str], lane: str, id: int) -> int | None:
        """The number of the manifest of a batch that is in; None if the batch is not in."""
        pages = self._pages(properties, lane)
        return self._page(pages.get(id // PAGE, {})).get(id)

    def numbers_by_branch(self, properties: Mapping[str, str], key: BatchKey) -> dict[str, int]:
        """The numbers by which the records of all branches have a batch, also those of branches that are gone."""
        names = (name.removeprefix(f"{_PREFIX}.") for name in properties if name.startswith(f"{_PREFIX}."))
        branches = [unquote(branch) for branch, _, lane in (name.partition(".") for name in names) if lane == key.lane]
        found = ((one, replace(self, branch=one).number(properties, key.lane, key.id)) for one in branches)
        return {branch: number for branch, number in found if number is not None}

    def ids(self, properties: Mapping[str, str], lane: str, *, after: int = -1) -> list[int]:
        """Ids of the batches of the lane that are in, ascending.

        :param after: ids up to this one are not asked for, and pages of these alone are not read.
        """
        found = self._newest_first(properties, lane, after=after)
        return sorted(id for id, _ in found if id > after)

    def batches(self, properties: Mapping[str, str]) -> dict[BatchKey, int]:
        """All batches that are in, with the numbers of their manifests. A lane of a name that no lane has is left
        out."""
        return dict(self.items(properties))

    def items(self, properties: Mapping[str, str]) -> Iterator[tuple[BatchKey, int]]:
        """The same one by one, of each lane the newest page first, which is in the property: the file of a page is read
        when all of the pages behind it are through. Whether there is any batch is asked between look and commit."""
        prefix = self.name("")
        for lane in (key.removeprefix(prefix) for key in properties if key.startswith(prefix)):
            if is_name(lane):
                yield from ((BatchKey(lane, id), number) for id, number in self._newest_first(properties, lane))

    def change(self, properties: Mapping[str, str], lane: str, id: int, number: int | None) -> dict[str, str]:
        """The properties that a commit has to set so that the batch is in by that number, or out (None). Pages that
        they name are on disk."""
        pages = self._pages(properties, lane)
        self._set(pages, id, number)
        newest = max(pages)
        for at, page in pages.items():
            if at != newest and not isinstance(page, str):
                pages[at] = self._put(json.dumps(_encoded(page), sort_keys=True).encode())
        return {self.name(lane): _text(pages)}

    def going_on(
        self, properties: Mapping[str, str], *, base: Ledger | None, since: Mapping[BatchKey, int | None]
    ) -> Mapping[str, str]:
        """The properties as if this branch's record went on from another branch's. Writes nothing.

        :param base: the record of the other branch; None if this one begins without any.
        :param since: the batches that came in since, with the numbers of their manifests, or that went out (None).
        """
        own, other = self.name(""), None if base is None else base.name("")
        found = {name: "{}" if name.startswith(own) else value for name, value in properties.items()}
        for name, value in properties.items():
            if other is not None and name.startswith(other):
                found[self.name(name.removeprefix(other))] = value
        for lane in {key.lane for key in since}:
            pages = self._pages(found, lane)
            for id, number in ((key.id, number) for key, number in since.items() if key.lane == lane):
                self._set(pages, id, number)
            found[self.name(lane)] = _text(pages)
        return found

    def _newest_first(self, properties: Mapping[str, str], lane: str, *, after: int = -1) -> Iterator[tuple[int, int]]:
        """What the pages of a lane hold that may have an id behind ``after``, the newest page first."""
        for at, page in sorted(self._pages(properties, lane).items(), reverse=True):
            if at >= (after + 1) // PAGE:
                yield from self._page(page).items()

    def _set(self, pages: dict[int, Page | str], id: int, number: int | None) -> None:
        """Have a batch be in by that number, or out (None)."""
        page = dict(self._page(pages.get(id // PAGE, {})))
        page.pop(id, None)
        pages[id // PAGE] = page if number is None else {**page, id: number}

    def _pages(self, properties: Mapping[str, str], lane: str) -> dict[int, Page | str]:
        text = properties.get(self.name(lane))
        if text is None:
            return {}
        try:
            return {int(at): page if isinstance(page, str) else _decoded(page) for at, page in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise SinkError(
                f"the property {self.name(lane)} of the table at {self.root} does not say which batches are in: "
                f"{error}. Somebody changed it; set it to what it was (SHOW TBLPROPERTIES of an older backup)."
            ) from error

    def _page(self, page: Page | str) -> Page:
        """:raises SinkError: if the page's file is gone, or does not have the digest that names it."""
        if not isinstance(page, str):
            return page
        path = self.folder / f"{page}.json"
        try:
            if not _DIGEST.fullmatch(page):
                raise ValueError(f"{page:.80} names no page")
            data = read_regular(path)
            if hashlib.sha256(data).hexdigest() != page:
                raise ValueError("somebody changed it")
            return _decoded(json.loads(data))
        except (ValueError, TypeError, AttributeError, RecursionError, FileNotFoundError) as error:
            raise SinkError(
                f"{path}, which tells which batches of the table at {self.root} are in, cannot be read: {error}. Bring "
                "the folder _microbatch of the table back from its backup. Nothing was published."
            ) from error

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{digest}.json"
        if not path.exists():
            put_file(self.root, path, data)
        return digest


def _text(pages: Mapping[int, Page | str]) -> str:
    """The pages of a lane as its property has them."""
    told = {str(at): page if isinstance(page, str) else _encoded(page) for at, page in sorted(pages.items())}
    return json.dumps(told, separators=(",", ":"))


def _encoded(page: Page) -> dict[str, str]:
    return {str(id): f"{number:016x}" for id, number in sorted(page.items())}


def _decoded(page: Mapping[str, str]) -> Page:
    found = {}
    for id, number in page.items():
        if not _NUMBER.fullmatch(number):
            raise ValueError(f"{number!r:.40} is no number of a manifest")
        found[int(id)] = int(number, 16)
    return found
