"""Objects of a bucket: listed, looked at, copied and deleted without a JVM. Spark reads them by Hadoop's ``s3a``.

Objects are identified by their keys. Size and ETag tell whether an object is still the planned one, since times are
those of the service, in whole seconds. Objects of zero bytes are not data: folder marks have zero bytes, and Hadoop
takes their keys for folders.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from airflow_provider_microbatch.connections import Connect
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, SourceError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.sources.file.listing import FoundFile, Listing, Unseen, below, ends_before
from airflow_provider_microbatch.sources.file.log import PlannedFile
from airflow_provider_microbatch.sources.file.path import expand_braces, is_glob, literal_prefix, object_path
from airflow_provider_microbatch.sources.file.place import NOTES, Look, Place
from airflow_provider_microbatch.sources.file.present import archived_path, folder_of
from airflow_provider_microbatch.sources.file.tables import table_at, why_not
from airflow_provider_microbatch.stores.object_store.address import Address
from airflow_provider_microbatch.stores.object_store.bucket import Bucket, Listed
from airflow_provider_microbatch.stores.object_store.forks import library
from airflow_provider_microbatch.stores.object_store.s3a import connector, settings_of

log = logging.getLogger(__name__)

_PAGE = 1_000
"""The number of keys that a service lists by one request."""

_AT_ONCE = 16
"""The number of objects that are looked at concurrently."""

_COMPARED = 8 << 20
"""So many bytes of two objects are compared at once."""


class ObjectPlace(Place):
    """The objects of a bucket.

    :param path: ``s3a://bucket/key`` of the source, may hold globs.
    :param conn_id: id of the connection; None for the environment's credentials.
    :param connect: finds the connection.
    :param packages: Maven coordinates of Hadoop's connector; None: the connector for the installed PySpark.
    """

    def __init__(self, path: str, *, conn_id: str | None, connect: Connect, packages: Sequence[str] | None) -> None:
        self._bucket_name, _, key = literal_prefix(path).removeprefix("s3a://").partition("/")
        self._conn_id = conn_id
        self._connect = connect
        self._packages = packages
        address = Address(scheme="s3", conn_id=conn_id, bucket=self._bucket_name, prefix=key, of="source")
        self._bucket = Bucket(address)
        self._top = f"s3a://{self._bucket_name}/"

    lookups = 100  # each is a request

    # Where it was, an object that is encrypted, or uploaded in parts, would have another ETag, and nobody can set its
    # time. In an archive it is known by its size.
    put_back = (
        "Put them below a folder of the bucket, each as it lay below the source's, and name that one: "
        "clean_source='archive', archive_dir=…"
    )

    @property
    def top(self) -> str:
        return self._top

    def check(self, listing: Listing, *, archive: str | None, cleans: bool) -> None:
        """Check that the bucket may be listed. A prefix without objects is not an error: folders are not created in a
        bucket."""
        self._key(listing.base)
        if archive is not None and not archive.startswith(self._top):
            raise SourceError(
                f"archive_dir {archive!r} is in another bucket than the source. Name a folder of its own."
            )
        for name in ("_spark_metadata",):
            with self._telling():
                there = next(self._bucket.objects(self._key(f"{listing.base}/{name}"), page=1), None)
            if there is not None:
                raise SourceError(
                    f"path {listing.base!r} was written by a Structured Streaming file sink: which of its files count "
                    f"is in its {name}, which this source does not read. Copy the committed files elsewhere first."
                )

    def files(self, listing: Listing, unseen: Unseen, *, start: str | None) -> Iterator[FoundFile]:
        """Takes one request for each thousand keys below the part of the path that holds no glob."""
        met: set[str] = set()
        patterns = expand_braces(listing.path)
        for pattern in patterns:
            for page, at in self._matching(listing, pattern, start):
                if len(patterns) > 1:
                    at = {path: position for path, position in at.items() if path not in met}
                    met.update(at)
                yield from (self._found(page[at[path]]) for path in unseen(list(at)))

    def _matching(
        self, listing: Listing, pattern: str, start: str | None
    ) -> Iterator[tuple[Sequence[Mapping[str, Any]], dict[str, int]]]:
        """Yield the pages, each with the positions of the objects that match, by path."""
        base, parts = below(pattern)
        is_wanted = not parts and (start is None or base >= start) and listing.takes(pattern, base)
        if is_wanted and (alone := self._head(base)) is not None and alone["size"]:
            yield [alone], {base: 0}
        if ends_before(base, start):
            return
        for page in self._pages(base, start if start is not None and start > f"{base}/" else None):
            paths = [self._top + key for key in page.keys]
            if not listing.allow_table:
                for path in paths:
                    if "/_" in path:
                        self._check_no_table(base, path)
            known = zip(paths, page.sizes, listing.taken(pattern, paths), strict=True)
            yield (
                page,
                {
                    path: position
                    for position, (path, size, is_taken) in enumerate(known)
                    if is_taken and size and (start is None or path >= start)
                },
            )

    def _check_no_table(self, base: str, path: str) -> None:
        if (table := table_at(base, path.removeprefix(f"{base}/").split("/"))) is not None:
            raise SourceError(why_not(table))

    def _pages(self, base: str, start: str | None) -> Iterator[Listed]:
        """Yield the objects below a folder, ascending, a page at a time.

        :param start: leave out the objects that sort before this path; the last few of them may still be yielded.
        """
        after = None if start is None else self._key(start)[:-1]
        with self._telling():
            yield from self._bucket.pages(self._key(base), after=after, page=_PAGE)

    def look(self, path: str) -> FoundFile | None:
        """Takes a HEAD request."""
        found = self._head(path)
        return None if found is None else self._found(found)

    def _head(self, path: str) -> Mapping[str, Any] | None:
        key = self._key(path)
        with self._telling():
            try:
                found: Mapping[str, Any] = self._bucket.ask("look at", key, lambda client: library().head(client, key))
            except FileNotFoundError:
                return None
        return found

    def looks(self, paths: Sequence[str]) -> Look:
        """Look at many objects concurrently: a batch of thousands would wait long for one answer after the other."""
        if len(paths) < 2:
            return self.look
        self._bucket.opened()  # once, before threads ask for it
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(paths, pool.map(self.look, paths), strict=True))
        return lambda path: found[path] if path in found else self.look(path)

    def is_mark(self, file: PlannedFile) -> bool:
        """Whether it is the object whose key has a slash more, which a listing alone cannot tell. Takes a request."""
        key = self._key(file.path)
        with self._telling():
            found = next(self._bucket.objects(key, page=1), None)
        if found is None or found["path"] != key:
            return False
        there = self._found(found)
        return file.is_as_planned(there.size, there.mtime_ns, there.etag)

    def check_readable(self, path: str) -> None:
        """A colon in a name does not matter, unless Hadoop has to escape glob characters in the path: then Hadoop looks
        for the name by a walk, which takes the text before the colon for a scheme."""
        if is_glob(path) and ":" in path.removeprefix("s3a:"):
            raise SourceError(
                f"{path!r} has a colon, and one of *?[{{ beside it: Spark cannot read it. Give the object another key."
            )

    def check_folder(self, path: str) -> None:
        """Takes a HEAD request."""
        if self._head(path) is not None:
            raise SourceError(
                f"an object has the key {self._key(path)!r}, below which folders are partitions: Spark takes it for a "
                "file, and reads none of them. Remove the object, or give it another key."
            )

    def why_away(self, paths: Sequence[str], *, base: str, named: str, nothing_found: bool) -> str | None:
        """The reason if none of the files was found and a folder of them has no object, as at a site that lags behind,
        or in a bucket that is not filled yet. Files that were skipped in that state would never be read."""
        for folder in dict.fromkeys(folder_of(path, base) for path in paths) if nothing_found else ():
            if self._is_empty(folder):
                return (
                    f"all {len(paths)} planned file(s) are gone and no object is below {folder!r}, as in a bucket that "
                    f"is not filled yet: {named}. on_missing='skip' does not skip them then. See that the connection "
                    "leads to the bucket that they are in; if all was really removed, put any object there, such as an "
                    "empty '.keep'."
                )
        return None

    def _is_empty(self, folder: str) -> bool:
        """Whether no object is below a folder but notes, and the mark of the folder itself."""
        key = "" if f"{folder}/" == self._top else self._key(folder)
        with self._telling():
            found = (one["path"] for one in self._bucket.objects(key, page=_PAGE))
            return all(path == key or NOTES in path.removeprefix(key).split("/") for path in found)

    def take(self, file: PlannedFile, *, base: str, archive: str | None) -> None:
        """Archive by a copy within the bucket, which is checked, and a delete."""
        found = self.look(file.path)
        if found is None:
            raise FileNotFoundError(0, "it is gone", file.path)
        if not file.is_as_planned(found.size, found.mtime_ns, found.etag):
            log.warning("%s changed after it was planned; clean_source leaves it where it is", file.path)
            return
        key = self._key(file.path)
        try:
            if archive is not None:
                self._archive(found, archived_path(file.path, base=base, archive=archive))
            self._bucket.ask("delete", key, lambda client: _gone(client, key))
        except CheckpointError as error:
            raise OSError(0, str(error)) from error

    def _archive(self, found: FoundFile, target: str) -> None:
        there = self.look(target)
        # It may be another object of the same size; or the copy that a killed cleaner made, which has an ETag of its
        # own where objects are encrypted by KMS, or were uploaded in parts.
        if there is not None and not self._is_same(found, there):
            raise FileExistsError(0, f"{target!r} exists already")
        if there is None:
            key, into = self._key(found.path), self._key(target)
            self._bucket.ask("copy", key, lambda client: library().copy(client, key, into))
            there = self.look(target)
        if there is None or there.size != found.size:
            # The object was written again while it was copied: no batch has read the new one.
            raise OSError(0, f"it is not what has come to {target!r}: nothing was removed")
        now = self.look(found.path)
        if now is None or (now.size, now.etag) != (found.size, found.etag):
            raise OSError(0, "it was written again while it was archived: nothing was removed")

    def _is_same(self, one: FoundFile, other: FoundFile) -> bool:
        """Whether two objects have the same bytes. They are compared only if size and ETags do not tell."""
        if one.size != other.size or one.etag == other.etag:
            return one.size == other.size
        try:
            return all(
                self._part(one.path, start) == self._part(other.path, start) for start in range(0, one.size, _COMPARED)
            )
        except FileNotFoundError:  # one of them is gone by now
            return False

    def _part(self, path: str, start: int) -> bytes:
        key = self._key(path)
        return self._bucket.ask(
            "read", key, lambda client: bytes(library().get_range(client, key, start=start, length=_COMPARED))
        )

    def notes(self, base: str, beginning: str) -> list[str]:
        """Takes one request for each thousand notes."""
        after = self._key(self.note_path(base, beginning))
        folder = after.removesuffix(f"/{beginning}")
        with self._telling():
            found = (one["path"] for one in self._bucket.objects(folder, after=after, page=_PAGE))
            return [key.removeprefix(f"{folder}/") for key in takewhile(lambda key: key.startswith(after), found)]

    def read_note(self, path: str) -> bytes:
        """Takes a GET request."""
        key = self._key(path)
        with self._telling():
            return self._bucket.ask("read", key, lambda client: bytes(library().get(client, key).bytes()))

    def write_note(self, path: str, data: bytes) -> None:
        """Takes a PUT request."""
        key = self._key(path)
        with self._telling():
            self._bucket.ask("write", key, lambda client: library().put(client, key, data))

    def requires(self) -> Requirements:
        """Return Hadoop's connector, in the version of Spark's own Hadoop.

        :raises SourceError: if the version is not known.
        """
        try:
            return connector(self._packages)
        except DefinitionError as error:
            raise SourceError(str(error)) from error

    def secrets(self) -> Mapping[str, str]:
        """Return the connection as settings of ``s3a``, for this bucket alone."""
        try:
            return settings_of(self._conn_id, self._bucket_name, self._connect)
        except DefinitionError as error:
            raise SourceError(str(error)) from error

    def _found(self, one: Mapping[str, Any]) -> FoundFile:
        written = int(one["last_modified"].timestamp()) * 1_000_000_000
        return FoundFile(self._path(one), one["size"], written, etag=one["e_tag"])

    def _path(self, one: Mapping[str, Any]) -> str:
        return f"{self._top}{one['path']}"

    def _key(self, path: str) -> str:
        # A path may come out of the checkpoint: the credentials must not be used for another bucket.
        if not path.startswith(self._top):
            raise SourceError(f"{path!r} is not in bucket {self._bucket_name!r}, which is the source's.")
        try:
            return object_path(path, field="key").removeprefix(self._top)
        except DefinitionError as error:
            raise SourceError(str(error)) from error

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise SourceError(str(error)) from error


def _gone(client: Any, key: str) -> None:
    try:
        library().delete(client, key)
    except FileNotFoundError:
        return
