"""Requests to a bucket: repeated while that may help, and explained when it does not."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property, partial
from threading import Event
from typing import TYPE_CHECKING, TypeVar, cast, overload

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.lifetime import kept
from airflow_provider_microbatch.stores import PAGE
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.credentials import Opened, open_client
from airflow_provider_microbatch.stores.object_store.failures import Failure, refused_key
from airflow_provider_microbatch.stores.object_store.forks import library

if TYPE_CHECKING:
    from arro3.core import RecordBatch
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""The time for which a request is repeated. A lease lasts as long by default, and is renewed after a third of it."""

IDENTITY_SECONDS = 10.0
"""The same where a machine's identity is asked for and nobody answers: most often there is no such service, and whoever
has named no credentials is told so."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

T = TypeVar("T")


class Listed(Sequence["ObjectMeta"]):
    """A page of a listing. The keys and sizes of its objects are columns: to make each of a million objects a mapping
    takes as long as to list them.

    :param rows: what the client has listed; None for nothing.
    """

    def __init__(self, rows: RecordBatch | None) -> None:
        self._rows = rows
        self.keys: list[str] = [] if rows is None else cast("list[str]", rows["path"].to_pylist())
        self.sizes: list[int] = [] if rows is None else cast("list[int]", rows["size"].to_pylist())

    def __len__(self) -> int:
        return len(self.keys)

    def not_ascending(self, after: str | None) -> list[int]:
        """The positions of the objects with bytes whose keys do not sort behind all that is listed before them.

        :param after: the key that the page begins behind.
        """
        found = []
        for position, key in enumerate(self.keys):
            if after is None or key > after:
                after = key
            elif self.sizes[position]:
                found.append(position)
        return found

    def without(self, positions: Collection[int]) -> Listed:
        """Return the page without some of its objects."""
        if self._rows is None or not positions:
            return self
        from arro3.core import Array, DataType

        kept = [one for one in range(len(self)) if one not in positions]
        return Listed(self._rows.take(Array(kept, DataType.uint64())))

    @overload
    def __getitem__(self, position: int) -> ObjectMeta: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[ObjectMeta]: ...
    def __getitem__(self, position: int | slice) -> ObjectMeta | Sequence[ObjectMeta]:
        if isinstance(position, slice):
            return [self[one] for one in range(len(self))[position]]
        if self._rows is None:
            raise IndexError(position)
        rows = self._rows
        return cast("ObjectMeta", {name: rows[name][position].as_py() for name in rows.column_names})

    def __iter__(self) -> Iterator[ObjectMeta]:
        if self._rows is not None:
            names, rows = self._rows.column_names, self._rows
            for one in zip(*(rows[name].to_pylist() for name in names), strict=True):
                yield cast("ObjectMeta", dict(zip(names, one, strict=True)))


class _Clients:
    """The clients of a bucket by one connection: the newest, or None before the first request and after a refusal; and
    the secrets of all, which an error of one may hold while another thread opens the next."""

    def __init__(self) -> None:
        self.newest: Opened | None = None
        self.secrets = set[str]()


class Bucket:
    """The client of a bucket, created when it is first needed, and again when its credentials are refused. One for all
    that a task has in the bucket by one connection: to look the connection up takes Airflow a request of its own.

    :param address: address of a folder of the bucket, for messages.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._named: set[str] = set()

    @cached_property
    def _clients(self) -> _Clients:
        return kept((Bucket, self.address.scheme, self.address.conn_id, self.address.bucket), _Clients)

    def ask(
        self, doing: str, path: str, call: Callable[[Client], T], *, doubted: Callable[[], None] = lambda: None
    ) -> T:
        """Return the result of ``call``. ``call`` is repeated, for at most :data:`PATIENCE_SECONDS`, or
        :data:`IDENTITY_SECONDS`, as long as the service is busy or gives no complete answer; and once more with newer
        credentials when the present ones are refused.

        :param doing: verb, for messages.
        :param path: key, for messages.
        :param doubted: called before ``call`` is repeated although the request may have been done.
        :raises FileNotFoundError: if the service says that there is no such key.
        :raises obstore.exceptions.AlreadyExistsError: as the service refuses a put that creates.
        :raises obstore.exceptions.PreconditionError: as the service refuses a put that compares.
        :raises CheckpointError: if ``call`` fails for good.
        """
        errors = library().exceptions
        began, pause, renewed = time.monotonic(), _FIRST_PAUSE, False
        while True:
            opened = self.opened()
            try:
                return call(opened.client)
            except FileNotFoundError as error:
                failure = Failure.of(error)
                if not failure.is_no_bucket:
                    raise
            except (errors.AlreadyExistsError, errors.PreconditionError):
                raise
            except (errors.GenericError, errors.PermissionDeniedError, errors.UnauthenticatedError, OSError) as error:
                failure = Failure.of(error)
            except (errors.BaseError, ValueError) as error:
                key = refused_key(error)
                raise CheckpointError(
                    f"cannot {doing} {path!r} of {self.address.of} {self.address}: the client takes no such key"
                    + (f" ({type(error).__name__})." if key is None else f" as {key!r}. Give the object another one.")
                ) from None
            if failure.is_of_credentials and not renewed:
                renewed = True
                self._forget(opened)
                continue
            patience = IDENTITY_SECONDS if failure.nobody else PATIENCE_SECONDS
            if not failure.is_passing or time.monotonic() + pause > began + patience:
                raise self.explained(failure, doing, path) from None  # the text of the original error may hold secrets
            doubted()
            time.sleep(pause * random.uniform(0.5, 1.0))  # here, where Python handles signals
            pause = min(2 * pause, _LONGEST_PAUSE)

    def objects(self, folder: str, *, after: str | None = None, page: int = PAGE) -> Iterator[ObjectMeta]:
        """Yield the objects below a folder, ascending by key; sends a request for each ``page`` of them, as the caller
        takes them. An object whose key ends in a slash marks a folder. The client cuts the slash off: where what is
        listed before it tells, such a mark is left out if it has bytes, with a warning.

        :param folder: a key without a slash at its end.
        :param after: a key: leave out the objects up to it.
        :param page: number of objects for each request.
        :raises CheckpointError: as :meth:`ask`.
        """
        for found in self.pages(folder, after=after, page=page, ahead=False):
            yield from found

    def pages(self, folder: str, *, after: str | None = None, page: int = PAGE, ahead: bool = True) -> Iterator[Listed]:
        """Yield what :meth:`objects` does, page by page.

        :param ahead: ask for the next page while the caller works on one: a listing of millions takes as long as the
            service's answers, and no longer.
        """
        # The client cuts a slash off, so that the service begins with what sorts between the key and the slash.
        after = None if after is None else after.rstrip("/")
        with ThreadPoolExecutor(1) if ahead else nullcontext() as beside:
            found = self._page(folder, after, page)
            while len(found) == page:
                # What is not in this page sorts behind it, and no object that is does. A folder mark may come again.
                before, after = after, max(found.keys)
                following = None if beside is None else _begun(beside, partial(self._page, folder, after, page))
                yield self._in_order(found, folder, before)
                found = self._page(folder, after, page) if following is None else following.result()
            yield self._in_order(found, folder, after)

    def _page(self, folder: str, after: str | None, size: int) -> Listed:
        return self.ask("list", folder, partial(_page, folder=folder, after=after, size=size))

    def _in_order(self, found: Listed, folder: str, after: str | None) -> Listed:
        """Return the page without the marks of folders that would be taken for objects of other keys."""
        marks = found.not_ascending(after)
        for key in (found.keys[position] for position in marks):
            # A listing is in the order of the whole keys, so that such a key has lost its slash. Otherwise there is no
            # order: each page begins behind the keys of the one before, and objects would be passed over.
            if self._page(key, None, 1).keys[:1] != [key]:
                raise CheckpointError(
                    f"bucket {self.address.bucket!r} lists {folder!r} in no order of keys ({self.address.of} "
                    f"{self.address}): objects would be passed over. Use a bucket that lists in order, as general "
                    "purpose buckets of S3 do."
                )
            if key not in self._named:
                self._named.add(key)
                log.warning(
                    "bucket %r has an object %r, with bytes: a key that ends in a slash marks a folder, and is no "
                    "data. It is left out. If it is data, copy it to another key.", self.address.bucket, f"{key}/",
                )  # fmt: skip
        return found.without(marks)

    def opened(self) -> Opened:
        """Return the current client, created in this process. :raises CheckpointError: as :func:`open_client`."""
        opened = self._clients.newest
        if opened is None or opened.process != os.getpid():
            opened = self._clients.newest = open_client(self.address)
            self._clients.secrets.update(opened.secrets)
        return opened

    def explained(self, failure: Failure, doing: str, path: str) -> CheckpointError:
        """Return the error with an explanation for people."""
        secrets = tuple(self._clients.secrets)
        where = f"{path} of bucket {self.address.bucket!r}" if path else f"bucket {self.address.bucket!r}"
        said, remedy = failure.words(secrets=secrets), failure.remedy(bucket=self.address.bucket, who=self.address.who)
        return CheckpointError(
            f"cannot {doing} {where} ({self.address.of} {self.address}, by {self.address.who}): {said}. {remedy}"
        )

    def _forget(self, opened: Opened) -> None:
        if self._clients.newest is opened:
            self._clients.newest = None


def _begun(beside: ThreadPoolExecutor, page: Callable[[], Listed]) -> Future[Listed]:
    """Have another thread ask for a page, and wait until that thread runs: Python lets a thread run for milliseconds
    before another one may, so that the request would go out only when the caller has worked through the page before."""
    runs = Event()

    def ask() -> Listed:
        runs.set()
        return page()

    following = beside.submit(ask)
    runs.wait()
    return following


def _page(client: Client, *, folder: str, after: str | None, size: int) -> Listed:
    """Return a page of a listing, by one request: a request that fails is repeated from the end of the last page."""
    pages = library().list(client, folder, offset=after, chunk_size=size, return_arrow=True)
    return Listed(next(iter(pages), None))
