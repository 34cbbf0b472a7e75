"""Requests of a bucket: asked again while it may help, and explained when not."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import PAGE
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.credentials import Opened, open_client
from airflow_provider_microbatch.stores.object_store.failures import Failure, refused_key
from airflow_provider_microbatch.stores.object_store.forks import library

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

PATIENCE_SECONDS = 60.0
"""So long a request is asked again. A lease lasts as long by default, and is renewed at a third of it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

T = TypeVar("T")


class Bucket:
    """The client of a bucket, made when it is first needed, and anew when its credentials are refused.

    :param address: of a folder of it, for messages.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._opened: Opened | None = None

    def ask(
        self, doing: str, path: str, call: Callable[[Client], T], *, doubted: Callable[[], None] = lambda: None
    ) -> T:
        """What ``call`` returns. It is called again, for :data:`PATIENCE_SECONDS` at most, as long as the service is
        busy or gives no whole answer; and once more with newer credentials when those that there are are refused.

        :param doing: verb, for messages.
        :param path: key, for messages.
        :param doubted: told before it is called again though it may have been done.
        :raises FileNotFoundError: if the service says that there is no such key.
        :raises obstore.exceptions.AlreadyExistsError: as the service refuses a put that creates.
        :raises obstore.exceptions.PreconditionError: as the service refuses a put that compares.
        :raises CheckpointError: if it fails for good.
        """
        errors = library().exceptions
        deadline, pause, renewed = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE, False
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
            if not failure.is_passing or time.monotonic() + pause > deadline:
                raise self.explained(failure, doing, path) from None  # its words may hold secrets
            doubted()
            time.sleep(pause * random.uniform(0.5, 1.0))  # here, where a signal of Python's is heard
            pause = min(2 * pause, _LONGEST_PAUSE)

    def objects(self, folder: str, *, after: str | None = None, page: int = PAGE) -> Iterator[ObjectMeta]:
        """Objects below a folder, ascending by key: a request for each ``page`` of them, as they are taken.

        :param folder: a key without a slash at its end.
        :param after: a key: leave out those up to it.
        :raises CheckpointError: as :meth:`ask`.
        """
        while True:
            found = self.ask("list", folder, partial(_page, folder=folder, after=after, size=page))
            yield from found
            if len(found) < page:
                return
            after = found[-1]["path"]

    def opened(self) -> Opened:
        """The client of today. :raises CheckpointError: as :func:`open_client`."""
        opened = self._opened
        if opened is None or opened.process != os.getpid():
            opened = self._opened = open_client(self.address)
        return opened

    def explained(self, failure: Failure, doing: str, path: str) -> CheckpointError:
        """The error for a person."""
        secrets = () if self._opened is None else self._opened.secrets
        where = f"{path} of bucket {self.address.bucket!r}" if path else f"bucket {self.address.bucket!r}"
        said, remedy = failure.words(secrets=secrets), failure.remedy(bucket=self.address.bucket, who=self.address.who)
        return CheckpointError(
            f"cannot {doing} {where} ({self.address.of} {self.address}, by {self.address.who}): {said}. {remedy}"
        )

    def _forget(self, opened: Opened) -> None:
        if self._opened is opened:
            self._opened = None


def _page(client: Client, *, folder: str, after: str | None, size: int) -> Sequence[ObjectMeta]:
    """A page of a listing, by one request: what fails is asked again from where the last page has ended."""
    return next(iter(library().list(client, folder, offset=after, chunk_size=size)), ())
