"""A checkpoint in an object store: S3 and compatible services, Google Cloud Storage, Azure Blob Storage.

Each entry is an object. The service's own conditional put (``If-None-Match: *``) keeps two writers apart; a service
that accepts the header and ignores it is refused at the first put.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self

from airflow_provider_microbatch.stores import PAGE, Store, Versioned, check_path, look_by_listing
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.clock import service_ms
from airflow_provider_microbatch.stores.object_store.conditional import ConditionalPuts
from airflow_provider_microbatch.stores.object_store.failures import Failure
from airflow_provider_microbatch.stores.object_store.forks import library
from airflow_provider_microbatch.stores.object_store.names import first_names

_LAST = "\U0010ffff"
"""No name begins with a later character."""

_AT_ONCE = 1_000
"""The largest number of keys that a service lists, or removes, by one request."""


class ObjectStore(Store):
    """The objects below a prefix of a bucket.

    :param bucket: the bucket.
    :param puts: the conditional puts of the whole checkpoint.
    :param folder: the prefix, without a slash at its end.
    """

    def __init__(self, bucket: Bucket, puts: ConditionalPuts, *, folder: str) -> None:
        self._address = bucket.address
        self._bucket = bucket
        self._puts = puts
        self._folder = folder

    @classmethod
    def at(cls, location: str) -> Self:
        """Return the store at ``s3://conn_id@bucket/prefix`` (``gs://``, ``abfs://``); without ``conn_id@`` it uses the
        credentials of the environment. Connections and clients are looked up when the first request is made."""
        address = Address.parse(location)
        bucket = Bucket(address)
        return cls(bucket, ConditionalPuts(bucket, address.prefix), folder=address.prefix)

    @property
    def location(self) -> str:
        """The address, with the connection's id and without any secret."""
        return str(self._address) + self._folder.removeprefix(self._address.prefix)

    @property
    def place(self) -> str:
        """Bucket and folder."""
        return f"{self._address.scheme}://{self._address.bucket}/{self._folder}"

    @property
    def for_spark(self) -> str | None:
        """The folder as Hadoop's file systems name it. Spark uses its own credentials there."""
        top = self._address.for_spark
        return None if top is None else top + self._folder.removeprefix(self._address.prefix)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write ``data`` at ``path`` unless something is there; see :meth:`ConditionalPuts.create`."""
        return self._puts.create(self._key(path), data)

    def get(self, path: str) -> bytes | None:
        """The bytes at ``path``, or None."""
        found = self.get_versioned(path)
        return None if found is None else found.data

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """``size`` bytes at ``path`` from ``start`` on, or None."""
        key = self._key(path)

        def call(client: Any) -> bytes:
            obs = library()
            try:
                return bytes(obs.get_range(client, key, start=start, length=size))
            except obs.exceptions.GenericError as error:
                if Failure.of(error).is_beyond_the_end:
                    return b""
                raise

        if size <= 0:
            return None if self.modified_ms(path) is None else b""
        try:
            return self._bucket.ask("read", key, call)
        except FileNotFoundError:
            return None

    def get_versioned(self, path: str) -> Versioned | None:
        """The object at ``path`` with its ETag, or None."""
        return self._puts.get(self._key(path))

    def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
        """Replace the object of that version; see :meth:`ConditionalPuts.replace`."""
        return self._puts.replace(self._key(path), data, version=version)

    def list(self, folder: str) -> list[str]:
        """Names directly in ``folder``: one request for each thousand names."""
        objects, folders = self._level(folder)
        return sorted({*objects, *folders})

    def list_after(self, folder: str, after: str = "", *, limit: int = PAGE) -> Sequence[str]:
        """At most ``limit`` names that come after ``after``: by one request, where the folder's entries are objects, as
        those of a log are. The objects below a subfolder are listed too, at most a thousand keys for each subfolder."""
        key = self._folder_key(folder)
        return self._bucket.ask(
            "list",
            key,
            lambda client: first_names(_keys(client, key, after), after=after, limit=limit),
        )

    def present(self, folder: str, names: Collection[str]) -> set[str]:
        """Those of ``names`` that are in ``folder``: consecutive numbers take one request, or two."""
        return look_by_listing(self, folder, names, page=_AT_ONCE)

    def folders(self, folder: str) -> Sequence[str]:
        """Names of the folders directly in ``folder`` that have objects below them."""
        return self._level(folder)[1]

    def delete(self, path: str) -> bool:
        """Remove the object at ``path``. A service does not say whether it was there: a request before that asks."""
        if self.modified_ms(path) is None:
            return False
        self._delete([self._key(path)])
        return True

    def delete_if(self, path: str, data: bytes) -> bool:
        """Remove the object at ``path`` if it is ``data``. The object is read right before each request that removes
        it: a removal that is sent again, because no answer came, would otherwise remove an object that has replaced
        it."""
        key, was_sent = self._key(path), False

        def call(client: Any) -> bool:
            nonlocal was_sent
            obs = library()
            try:
                if bytes(obs.get(client, key).bytes()) != data:
                    return False
                was_sent = True
                obs.delete(client, key)
            except FileNotFoundError as error:
                if Failure.of(error).is_no_bucket:
                    raise
                return was_sent
            return True

        return self._bucket.ask("delete", key, call)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove objects, by one request for each thousand where the service has such a request."""
        keys = iter([self._key(path) for path in paths])
        while some := list(islice(keys, _AT_ONCE)):
            self._delete(some)

    def now_ms(self) -> int:
        """The service's clock, in whole seconds like :meth:`modified_ms`."""
        return service_ms(self._bucket)

    def modified_ms(self, path: str) -> int | None:
        """When the object was written, or None."""
        key = self._key(path)
        try:
            found = self._bucket.ask("look at", key, lambda client: library().head(client, key))
        except FileNotFoundError:
            return None
        return int(found["last_modified"].timestamp() * 1000)

    def scoped(self, folder: str) -> ObjectStore:
        """The same store seen from ``folder``, with the same client."""
        return ObjectStore(self._bucket, self._puts, folder=self._key(folder))

    def _key(self, path: str) -> str:
        return f"{self._folder}/{check_path(path)}"

    def _folder_key(self, folder: str) -> str:
        return self._key(folder) if folder else self._folder

    def _level(self, folder: str) -> tuple[Sequence[str], Sequence[str]]:
        """Names of objects and of folders directly in ``folder``."""
        key = self._folder_key(folder)
        found = self._bucket.ask("list", key, lambda client: library().list_with_delimiter(client, key))
        objects = _names([one["path"] for one in found["objects"]], key)
        return objects, _names(found["common_prefixes"], key)

    def _delete(self, keys: Sequence[str]) -> None:
        def call(client: Any) -> None:
            delete = library().delete
            try:
                delete(client, keys)
            except FileNotFoundError as error:
                if Failure.of(error).is_no_bucket:
                    raise
                # Google and Azure raise this when one object is gone: others of these keys may be there.
                for key in keys:
                    try:
                        delete(client, key)
                    except FileNotFoundError:
                        continue

        self._bucket.ask("delete", keys[0] if len(keys) == 1 else f"{keys[0]} and more", call)


def _names(keys: Iterable[str], folder: str) -> Sequence[str]:
    """Names in ``folder``, without hidden names and without the mark object that some programs create for a folder."""
    names = (key.removeprefix(f"{folder}/").rstrip("/") for key in keys if key.rstrip("/") != folder)
    return [name for name in names if name and not name.startswith(".")]


def _keys(client: Any, folder: str, after: str) -> Iterator[str]:
    """Yield the keys below ``folder`` that come after ``after``, ascending and relative to ``folder``. A subfolder with
    more than a page of keys is passed over after the first page: the caller needs only its name.

    A service of Azure's kind that does not know ``startFrom``, which is of 2026, lists from the beginning: what comes
    up to ``after`` is left out here, and nothing is passed over, since each jump would lead back."""
    # No name has a slash, and the library takes no key with an empty part.
    after = after.partition("/")[0]
    begin: str | None = f"{folder}/{after}" if after else None
    jumps = True
    while True:
        passed = None
        for page in library().list(client, folder, offset=begin, chunk_size=_AT_ONCE):
            found = [one["path"] for one in page if begin is None or one["path"] > begin]
            jumps = jumps and len(found) == len(page)
            keys = [path.removeprefix(f"{folder}/") for path in found]
            yield from keys
            passed = _one_folder(keys) if jumps else None
            if passed is not None:
                break
        if passed is None:
            return
        begin = f"{folder}/{passed}/{_LAST}"


def _one_folder(keys: Sequence[str]) -> str | None:
    """The folder in which all keys of a whole page lie; None if they do not lie in one."""
    if len(keys) < _AT_ONCE:
        return None
    first, slash, _ = keys[0].partition("/")
    return first if slash and keys[-1].startswith(f"{first}/") else None
