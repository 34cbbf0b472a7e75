"""Decides who may publish an attempt's files, and who may remove them.

An attempt's files stay where they were written, so only a mark tells a stage from published output. A publisher of an
attempt sets its mark to ``publishing``, then checks that all files are there, and puts the batch's manifest on the
condition that it is unchanged since before the mark. A process that drops an attempt sets its mark too; and if a
publish had begun, it changes the batch's manifest before it removes a file: so a publisher that sleeps, and puts the
manifest later, is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from enum import StrEnum

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.objects.layout import FENCED, STAGING, Written
from airflow_provider_microbatch.stores import Versioned
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from airflow_provider_microbatch.stores.object_store.forks import library

_TRIES = 20


class Mark(StrEnum):
    """The state that a stage's mark records."""

    OPEN = "open"
    """The stage is written, or about to be."""
    PUBLISHING = "publishing"
    """A process is publishing the stage, or has died while publishing it."""
    DROPPED = "dropped"
    """The stage is being removed. No publish had begun."""
    TAKEN_BACK = "taken back"
    """The stage is being removed, and a publish had begun."""


class Stages:
    """The stages of a table.

    :param store: store of the table's objects.
    :param bucket: the table's bucket.
    :param layout: the table's layout.
    """

    def __init__(self, store: ObjectStore, bucket: Bucket, layout: type[Written]) -> None:
        self._store = store
        self._bucket = bucket
        self._layout = layout

    def begin(self, written: Written) -> None:
        """Record that an attempt is about to write. Idempotent."""
        self._store.put_if_absent(written.stage_mark, _encode(Mark.OPEN))

    def is_there(self, written: Written) -> bool:
        """Whether the attempt has a stage that may be published."""
        mark = _decode(self._store.get_versioned(written.stage_mark), written)
        return mark in (Mark.OPEN, Mark.PUBLISHING)

    def is_marked(self, written: Written) -> bool:
        """Whether the attempt has a stage, which may be published, or is being removed."""
        return self._store.modified_ms(written.stage_mark) is not None

    def claim(self, written: Written) -> None:
        """Record that the stage is being published.

        :raises SinkError: if there is no stage, or it is being removed.
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

    def give_up(self, written: Written, *, marked: bool = False) -> bool | None:
        """Record that the stage is being removed. From now on no publish of it begins.

        :param marked: only if it has a mark. One that has none any more was published.
        :return: whether a publish had begun; None if nothing was recorded.
        """
        for _ in range(_TRIES):
            found = self._store.get_versioned(written.stage_mark)
            mark = _decode(found, written)
            if marked and found is None:
                return None
            if mark in (Mark.DROPPED, Mark.TAKEN_BACK):
                return mark is Mark.TAKEN_BACK
            wanted = Mark.TAKEN_BACK if mark is Mark.PUBLISHING else Mark.DROPPED
            if self._put(written, found, wanted):
                return wanted is Mark.TAKEN_BACK
        raise self._outrun(written)

    def forget(self, written: Written) -> None:
        """Remove the stage's mark: it is published, or gone."""
        self._store.delete_many([written.stage_mark])

    def objects(self, written: Written) -> dict[str, int]:
        """The objects in the attempt's folder: path below the folder → bytes."""
        folder = f"{self._bucket.address.prefix}/{written.folder}"
        return {one["path"].removeprefix(f"{folder}/"): one["size"] for one in self._bucket.objects(folder)}

    def copy(self, old: str, new: str) -> None:
        """Copy an object within the table."""
        top = self._bucket.address.prefix
        source, target = f"{top}/{old}", f"{top}/{new}"
        self._bucket.ask("copy", source, lambda client: library().copy(client, source, target))

    def remove(self, written: Written) -> bool:
        """Remove all of the attempt's objects, its manifest first; False if there were none. Objects that a driver
        which could not be stopped writes meanwhile stay for the next removal."""
        paths = sorted(self.objects(written), key=lambda path: (not path.startswith("_"), path))
        self._store.delete_many(f"{written.folder}/{path}" for path in paths)
        return bool(paths)

    def all(self, checkpoint: str) -> Iterator[Written]:
        """Attempts of a checkpoint that have a mark, and fenced attempts that still have objects: a driver that could
        not be stopped may have written them after the stage was dropped."""
        marked = set(self._attempts(STAGING, checkpoint))
        yield from sorted(marked)
        for fenced in self._attempts(FENCED, checkpoint):
            if fenced not in marked and self.is_any(fenced):
                yield fenced

    def is_any(self, written: Written) -> bool:
        """Whether the attempt's folder has any object: one request."""
        folder = f"{self._bucket.address.prefix}/{written.folder}"
        return next(self._bucket.objects(folder, page=1), None) is not None

    def _attempts(self, kind: str, checkpoint: str) -> Iterator[Written]:
        folder = f"{self._bucket.address.prefix}/{self._layout.marks(kind, checkpoint)}"
        for one in self._bucket.objects(folder):
            found = self._layout.of_mark(one["path"].removeprefix(f"{folder}/"), checkpoint)
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
    # The number makes each mark unique: an equal mark that came back would pass for the one that was read.
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
