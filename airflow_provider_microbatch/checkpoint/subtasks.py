"""Subtasks: the parts of a batch that a dead attempt had finished, and that the next attempt need not do again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import is_digest
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_lane, is_whole
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.checkpoint.records import check_progress, corrupt, decode_record, encode_record
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

_CLOSED = "closed"
_ENTRY = re.compile(r"(?P<name>[0-9a-f]{1,64})-(?P<epoch>[0-9]{1,15})")


@dataclass(frozen=True, kw_only=True)
class SubtaskDone:
    """A subtask's finished output.

    :param name: name of the subtask: the same for each attempt that reads the same split in the same way.
    :param made_of: digest of everything else that the output is made of: the plan, the code, the settings, and the
        clear that it was made for.
    :param epoch: epoch of the attempt that wrote the output.
    :param split: the split's id, for people.
    :param files: path below the subtask's folder → bytes.
    :param result: the runtime's result for the subtask.
    """

    name: str
    made_of: str
    epoch: int
    split: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)


class Subtasks:
    """Files ``<lane>/<id>/<made of>/<name>-<epoch>``, each written once, by put-if-absent, before the output leaves the
    stage of the attempt that wrote it. Only output on record passes to another attempt, and only to an attempt that is
    made of the same. ``<lane>/<id>/closed/<epoch>`` says that the stage of an attempt may have been dropped: from then
    on, output under the attempt's name may be only a part of what it was. All these files go when the batch is
    committed.

    :param store: scoped to ``subtasks``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def location(self) -> str:
        """Address of the folder, for messages."""
        return self._store.location

    def add(self, key: BatchKey, done: SubtaskDone) -> None:
        """Record a finished subtask, unless it is on record. Durable on return."""
        values = {"split": done.split, "files": dict(done.files), "result": dict(done.result)}
        self._store.put_if_absent(f"{_folder(key)}/{done.made_of}/{done.name}-{done.epoch}", encode_record(values))

    def close(self, key: BatchKey, epoch: int) -> None:
        """Close the stage of an attempt: none of its output is put on record any more. Durable on return."""
        self._store.put_if_absent(f"{_folder(key)}/{_CLOSED}/{epoch}", encode_record({}))

    def is_closed(self, key: BatchKey, epoch: int) -> bool:
        """Whether the stage of the attempt is closed."""
        return self._store.get(f"{_folder(key)}/{_CLOSED}/{epoch}") is not None

    def all(self, key: BatchKey, made_of: str) -> Iterator[SubtaskDone]:
        """The finished subtasks of the batch that are made of ``made_of``, the newest attempt's first. An entry that
        cannot be read is left out, and its subtask is done again."""
        found = []
        for name in self._store.list(f"{_folder(key)}/{made_of}"):
            match = _ENTRY.fullmatch(name)
            if match is not None:
                found.append((int(match["epoch"]), match["name"]))
        for epoch, name in sorted(found, reverse=True):
            try:
                done = self._read(key, made_of, name, epoch)
            except CorruptEntryError:
                continue
            if done is not None:
                yield done

    def unreadable(self, key: BatchKey) -> Iterator[tuple[str, str]]:
        """Entries of the batch that cannot be read, as paths below :attr:`location`, with the reason."""
        for made_of in self._store.list(_folder(key)):
            for name in self._store.list(f"{_folder(key)}/{made_of}"):
                match = _ENTRY.fullmatch(name)
                try:
                    if match is not None:
                        self._read(key, made_of, match["name"], int(match["epoch"]))
                except CorruptEntryError as error:
                    yield f"{_folder(key)}/{made_of}/{name}", str(error)

    def batches(self) -> list[BatchKey]:
        """Batches of which something is on record."""
        lanes = sorted(filter(is_lane, self._store.folders("")))
        return [BatchKey(lane, number) for lane in lanes for number in sorted(numbers(self._store.list(lane)))]

    def purge(self, before: BatchKey) -> None:
        """Remove everything of the lane's batches before ``before``."""
        for number in numbers(self._store.list(before.lane)) if is_lane(before.lane) else ():
            if number < before.id:
                self.forget(BatchKey(before.lane, number))

    def forget(self, key: BatchKey) -> None:
        """Remove everything of the batch."""
        for made_of in self._store.list(_folder(key)):
            names = self._store.list(f"{_folder(key)}/{made_of}")
            self._store.delete_many([f"{_folder(key)}/{made_of}/{name}" for name in names])
            self._store.delete(f"{_folder(key)}/{made_of}")
        self._store.delete(_folder(key))

    def _read(self, key: BatchKey, made_of: str, name: str, epoch: int) -> SubtaskDone | None:
        path = f"{_folder(key)}/{made_of}/{name}-{epoch}"
        data, where = self._store.get(path), f"{self._store.location}/{path}"
        if data is None:
            return None
        values = decode_record(data, where=where)
        split, files, result = values.get("split"), values.get("files"), values.get("result")
        if not isinstance(split, str) or not isinstance(files, dict) or not isinstance(result, dict):
            corrupt(where, "not what it should be: it lacks split, files or result")
        if not all(is_whole(size) for size in files.values()):
            corrupt(where, "not what it should be: its files have sizes that are none")
        check_progress(result, where=where)
        return SubtaskDone(name=name, made_of=made_of, epoch=epoch, split=split, files=files, result=result)


def is_subtask(name: object, made_of: object) -> bool:
    """Whether texts from a manifest, which user code can write, can be a subtask's: both become names of files."""
    return is_digest(name) and is_digest(made_of)


def _folder(key: BatchKey) -> str:
    return f"{key.lane}/{key.id}"
