"""Conditional puts, and what is known when the service's answer to one is lost.

A put is sent and done, and its answer is lost: when the writer sends the put again, its own first put refuses the
second. So each put carries a mark of its own, in the object's metadata, and a refused writer reads the mark to learn
whose object is there. The refusal alone proves nothing: S3 also answers 409 when two puts meet, and leaves no object.
Equal bytes prove nothing either: two writers may well write the same.

Where the outcome can no longer be known (the object may have been removed, or replaced, before the writer looked), an
error is raised. It counts as a crash at this place, for which all callers are prepared.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.stores import Versioned
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.forks import library

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutMode, PutResult, UpdateVersion
    from obstore.store import ObjectStore as Client

_MARK = "microbatchput"
"""Name of the mark in the metadata. One word: Azure allows no hyphen, and some proxies no underscore."""

_TRIES = 20
_PAUSE = 0.1

RECORD = ".microbatch"
"""Below the prefix: the object with which the service is tested. No entry has such a name."""

_WHY = b"The service is tried by this object: a second put that creates it must be refused.\n"
_NO_ETAG = '"microbatch-no-such-version"'


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The object at a key. :param mark: mark of its put; None if another program put it, or the service dropped it."""

    mark: str | None
    entry: Versioned


class ConditionalPuts:
    """Puts below the prefix of a checkpoint or a table, after a check that the service refuses puts when it should.

    :param bucket: the bucket.
    :param prefix: prefix of the checkpoint's keys.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._record = f"{prefix}/{RECORD}"
        self._creates_once = False
        self._compares = False

    def create(self, key: str, data: bytes) -> bool:
        """Put ``data`` unless an object is there; False if one is, whichever program wrote it.

        :raises CheckpointError: if the service is not fit; if it does not answer; or if it cannot be known whose put it
            was.
        """
        self._try_creating()
        return self._create(key, data)

    def replace(self, key: str, data: bytes, *, version: str) -> str | None:
        """Put ``data`` in place of that version; return the new version, or None if another object, or none, is there.

        :raises CheckpointError: as :meth:`create`.
        """
        mode = _mode(version)
        if mode is None:
            return None
        self._try_comparing()
        return self._replace(key, data, mode)

    def get(self, key: str) -> Versioned | None:
        """The object at ``key`` with its version, or None."""
        found = self._find(key)
        return None if found is None else found.entry

    def _create(self, key: str, data: bytes) -> bool:
        put, refused = _Put(self._bucket, key, data), library().exceptions.AlreadyExistsError
        for _ in range(_TRIES):
            try:
                put.send("create")
                return True
            except refused:
                found = self._find(key)
            if found is not None:
                if found.mark == put.mark:
                    return True
                if put.doubtful and found.mark is None and found.entry.data == data:
                    raise self._unknown(
                        key, "an equal one is there, and the service keeps no metadata that tells whose"
                    )
                return False
            if put.doubtful:
                raise self._unknown(key, "something was there, and is gone")
            time.sleep(_PAUSE)  # two puts have met (409), or the object was removed since
        raise self._unknown(key, "the service goes on refusing it, and nothing is there")

    def _replace(self, key: str, data: bytes, mode: UpdateVersion) -> str | None:
        put, errors = _Put(self._bucket, key, data), library().exceptions
        for _ in range(_TRIES):
            try:
                return _version(put.send(mode))
            except (errors.AlreadyExistsError, errors.PreconditionError, FileNotFoundError):
                found = self._find(key)
            if found is not None and found.mark == put.mark:
                return found.entry.version
            if found is None or _mode(found.entry.version) != mode:
                if put.doubtful:
                    raise self._unknown(key, "another one is there, or none, and it may have come in its place")
                return None
            time.sleep(_PAUSE)  # two puts have met (409)
        raise self._unknown(key, "the service goes on refusing it, and nothing has changed")

    def _find(self, key: str) -> _Found | None:
        try:
            return self._bucket.ask("read", key, lambda client: _read(client, key))
        except FileNotFoundError:
            return None

    def _try_creating(self) -> None:
        """Check once that a second put that creates is refused. Takes one request, except for a new checkpoint: the
        first put was long ago. Results of earlier checks do not count: the service may be another one since."""
        refused = library().exceptions.AlreadyExistsError
        for _ in range(2 if not self._creates_once else 0):
            try:
                _Put(self._bucket, self._record, _WHY).send("create")
            except refused:
                self._creates_once = True
                return
        if not self._creates_once:
            raise self._unfit("put an object for which it was asked only if there was none (If-None-Match: *)")

    def _try_comparing(self) -> None:
        if self._compares:
            return
        self._try_creating()
        wrong: UpdateVersion = {"e_tag": _NO_ETAG, "version": "1"}
        if self._replace(self._record, _WHY, wrong) is not None:
            raise self._unfit("replaced an object of another version than the one it was asked to (If-Match)")
        self._compares = True

    def _unfit(self, done: str) -> CheckpointError:
        address = self._bucket.address
        return CheckpointError(
            f"the service of bucket {address.bucket!r} ({address.who}) {done}. On it two attempts could both win, so "
            f"no {address.of} can be kept there: nothing was done at {address}. Use a service with conditional writes "
            "(Amazon S3, Google Cloud Storage, Azure Blob Storage, newer MinIO, Ceph, R2), or a folder of a disk."
        )

    def _unknown(self, key: str, why: str) -> CheckpointError:
        address = self._bucket.address
        return CheckpointError(
            f"nobody knows whether {key} of bucket {address.bucket!r} was put by this process ({address.of} {address}, "
            f"by {address.who}): an answer was lost or refused, and {why}. Let the task run again: it looks what is "
            "there."
        )


class _Put:
    """One put, which may be sent more than once."""

    def __init__(self, bucket: Bucket, key: str, data: bytes) -> None:
        self.mark = uuid.uuid4().hex
        self.doubtful = False
        """Whether the put may have been done already, although no answer said so."""
        self._bucket = bucket
        self._key = key
        self._data = data

    def send(self, mode: PutMode) -> PutResult:
        def call(client: Client) -> PutResult:
            answer: PutResult = library().put(client, self._key, self._data, attributes={_MARK: self.mark}, mode=mode)
            return answer

        return self._bucket.ask("write", self._key, call, doubted=self._doubt)

    def _doubt(self) -> None:
        self.doubtful = True


def _read(client: Client, key: str) -> _Found:
    answer: GetResult = library().get(client, key)
    data = bytes(answer.bytes())
    mark = answer.attributes.get(_MARK)
    return _Found(mark=mark, entry=Versioned(data=data, version=_version(answer.meta)))


def _version(told: ObjectMeta | PutResult) -> str:
    """Join ETag and generation into one text: Google compares generations, the other services ETags."""
    return " ".join(one for one in (told["e_tag"], told["version"]) if one)


def _mode(version: str) -> UpdateVersion | None:
    """The condition that a text of :func:`_version` stands for; None for a text that no put here has returned."""
    e_tag, _, generation = version.partition(" ")
    if not e_tag:
        return None
    return {"e_tag": e_tag, "version": generation} if generation else {"e_tag": e_tag}
