"""What lies where in a table of objects: keys below the table's own, and back from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import TABLE_BATCHES
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.object_table import MANIFESTS

BATCHES, STAGING, REPLACED, FENCED = TABLE_BATCHES, "_staging", "_replaced", "_fenced"
NOTHING, INDEX = "_nothing", "_index"

_NOBODY = "-"
"""In place of the id of a checkpoint, of what was written before there were ids."""

_ATTEMPT = re.compile(
    r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)/(?P<checkpoint>-|[A-Za-z0-9][A-Za-z0-9_-]*)\.(?P<epoch>\d+)"
)
_MARK = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)[/.]attempt=(?P<epoch>\d+)")
_MANIFEST = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)/manifest")


@dataclass(frozen=True, order=True)
class Written:
    """What one attempt has written.

    :param checkpoint: whose attempt; empty for one of before there were ids.
    """

    key: BatchKey
    checkpoint: str
    epoch: int

    @classmethod
    def by(cls, batch: BatchIdentity, epoch: int) -> Self:
        """An attempt's."""
        return cls(batch.key, batch.checkpoint, epoch)

    @classmethod
    def at(cls, path: str) -> Self | None:
        """By the path that its name is, or that begins with it; None if there is none such."""
        found = _ATTEMPT.match(path)
        if found is None or path[found.end() :][:1] not in ("", "/"):
            return None
        try:
            key = BatchKey(found["lane"], int(found["id"]))
        except DefinitionError:
            return None
        return cls(key, "" if found["checkpoint"] == _NOBODY else found["checkpoint"], int(found["epoch"]))

    @property
    def name(self) -> str:
        """Of the folder of its files, below :data:`BATCHES`: the batch is told by folders, as in a table of files."""
        return f"{folder_of(self.key)}/{self.checkpoint or _NOBODY}.{self.epoch}"

    @property
    def folder(self) -> str:
        """Of its files."""
        return f"{BATCHES}/{self.name}"

    @property
    def stage_mark(self) -> str:
        """An object: it is, or is about to be, written, and is not known to be published."""
        return f"{marks_of(STAGING, self.checkpoint)}/{folder_of(self.key)}/attempt={self.epoch}"

    @property
    def fence_mark(self) -> str:
        """An object: tells its Spark to end."""
        return f"{marks_of(FENCED, self.checkpoint)}/{folder_of(self.key)}.attempt={self.epoch}"

    def replaced_mark(self, by: str) -> str:
        """An object: it is about to be put out, or was, by that checkpoint."""
        return f"{marks_of(REPLACED, by)}/{self.name}"


def folder_of(key: BatchKey) -> str:
    """Folders that tell of which batch something is."""
    return f"lane={key.lane}/batch_id={key.id}"


def manifest_of(key: BatchKey) -> str:
    """The object that publishes a batch."""
    return f"{MANIFESTS}/{folder_of(key)}/manifest"


def key_of_manifest(path: str) -> BatchKey | None:
    """The batch of an object below :data:`MANIFESTS`; None if it is no batch's."""
    return _key(_MANIFEST.fullmatch(path))


def marks_of(kind: str, checkpoint: str) -> str:
    """The folder of a checkpoint's marks of a kind."""
    return f"{kind}/{checkpoint or _NOBODY}"


def attempt_of_mark(path: str, checkpoint: str) -> Written | None:
    """Of which attempt a mark is.

    :param path: below :func:`marks_of`.
    """
    found = _MARK.fullmatch(path)
    key = _key(found)
    return None if found is None or key is None else Written(key, checkpoint, int(found["epoch"]))


def _key(found: re.Match[str] | None) -> BatchKey | None:
    try:
        return None if found is None else BatchKey(found["lane"], int(found["id"]))
    except DefinitionError:
        return None
