"""Who may publish what an attempt has written, and who remove it.

A stage is where its files will stay, so nothing tells a stage from published output but a mark. Who publishes an
attempt says so in its mark, then looks whether all is there, and puts the batch's manifest on the condition of what he
had looked at before the mark. Who drops an attempt says so in the mark, too; and where somebody had begun to publish
it, he has the manifest be another one before he removes a file: whoever sleeps, and puts later, is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from enum import StrEnum

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.objects.layout import (
    FENCED,
    STAGING,
    Written,
    attempt_of_mark,
    marks_of,
)
from airflow_provider_microbatch.stores import Versioned
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.object_store.bucket import Bucket

_TRIES = 20


class Mark(StrEnum):
    """What a stage's mark says."""

    OPEN = "open"
    """It is written, or about to be."""
    PUBLISHING = "publishing"
    """Somebody publishes it, or has died at it."""
    DROPPED = "dropped"
    """It is being removed. Nobody had begun to publish it."""
    TAKEN_BACK = "taken back"
    """It is being removed, and somebody had."""


class Stages:
    """The stages of a table.

    :param store: of the table.
    :param bucket: the table's.
    """

    def __init__(self, store: ObjectStore, bucket: Bucket) -> None:
        self._store = store
        self._bucket = bucket

    def begin(self, written: Written) -> None:
        """An attempt is about to write. Idempotent."""
        self._store.put_if_absent(written.stage_mark, _encode(Mark.OPEN))

    def is_there(self, written: Written) -> bool:
        """Whether the attempt has a stage that may be published."""
        mark = _decode(self._store.get_versioned(written.stage_mark), written)
        return mark in (Mark.OPEN, Mark.PUBLISHING)

    def claim(self, written: Written) -> None:
        """Say that it is being published.

        :raises SinkError: if it is not there, or being removed.
        """
        for _ in range(_TRIES):
            found = self._store.get_versioned(written.stage_mark)
            mark = _decode(found, written)
            if found is None or mark in (Mark.DROPPED, Mark.TAKEN_BACK):
                raise SinkError(
                    f"the stage of batch {written.key} attempt {written.epoch} was dropped. Run the batch again."
                )
            if mark is Mark.PUBLISHING or self._put(written, found, Mark.PUBLISHING):
                return
        raise self._outrun(written)

    def give_up(self, written: Written) -> bool:
        """Say that it is being removed. From now on nobody begins to publish it.

        :return: whether somebody had begun to.
        """
        for _ in range(_TRIES):
            found = self._store.get_versioned(written.stage_mark)
            mark = _decode(found, written)
            if mark in (Mark.DROPPED, Mark.TAKEN_BACK):
                return mark is Mark.TAKEN_BACK
            wanted = Mark.TAKEN_BACK if mark is Mark.PUBLISHING else Mark.DROPPED
            if self._put(written, found, wanted):
                return wanted is Mark.TAKEN_BACK
        raise self._outrun(written)

    def forget(self, written: Written) -> None:
        """It is published, or gone."""
        self._store.delete_many([written.stage_mark])

    def objects(self, written: Written) -> dict[str, int]:
        """What lies in its folder: path below it → bytes."""
        folder = f"{self._bucket.address.prefix}/{written.folder}"
        return {one["path"].removeprefix(f"{folder}/"): one["size"] for one in self._bucket.objects(folder)}

    def remove(self, written: Written) -> bool:
        """Remove all of it, what makes it whole first; False if nothing was there. What a driver that nobody could stop
        writes meanwhile stays for the next time."""
        paths = sorted(self.objects(written), key=lambda path: (not path.startswith("_"), path))
        self._store.delete_many(f"{written.folder}/{path}" for path in paths)
        return bool(paths)

    def all(self, checkpoint: str) -> Iterator[Written]:
        """Attempts of a checkpoint that have a mark; and those that were fenced, and something lies there of: a driver
        that nobody could stop may have written it after the stage was dropped."""
        marked = set(self._attempts(STAGING, checkpoint))
        yield from sorted(marked)
        for fenced in self._attempts(FENCED, checkpoint):
            if fenced not in marked and self.is_any(fenced):
                yield fenced

    def is_any(self, written: Written) -> bool:
        """Whether anything lies in its folder: one request."""
        folder = f"{self._bucket.address.prefix}/{written.folder}"
        return next(self._bucket.objects(folder, page=1), None) is not None

    def _attempts(self, kind: str, checkpoint: str) -> Iterator[Written]:
        folder = f"{self._bucket.address.prefix}/{marks_of(kind, checkpoint)}"
        for one in self._bucket.objects(folder):
            found = attempt_of_mark(one["path"].removeprefix(f"{folder}/"), checkpoint)
            if found is not None:
                yield found

    def _put(self, written: Written, before: Versioned | None, mark: Mark) -> bool:
        if before is None:
            return self._store.put_if_absent(written.stage_mark, _encode(mark))
        return self._store.compare_and_put(written.stage_mark, _encode(mark), version=before.version) is not None

    def _outrun(self, written: Written) -> SinkError:
        return SinkError(
            f"the mark of batch {written.key} attempt {written.epoch} is changed by others all the time. Nothing was "
            "done; run the batch again."
        )


def _encode(mark: Mark) -> bytes:
    # The number, so that no two are alike: one that comes back would be taken for the one that was looked at.
    return json.dumps({"stage": mark.value, "number": uuid.uuid4().hex}).encode()


def _decode(found: Versioned | None, written: Written) -> Mark | None:
    if found is None:
        return None
    try:
        return Mark(json.loads(found.data)["stage"])
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(
            f"{written.stage_mark} is no mark of a stage ({type(error).__name__}): somebody changed it. Remove the "
            "object: the stage cannot be published then, and the batch is run again."
        ) from error
