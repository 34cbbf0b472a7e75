"""The layout of a table of objects: keys below the table's key, and the batches and attempts that they name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import TABLE_BATCHES
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.object_table import MANIFESTS

BATCHES, STAGING, REPLACED, FENCED = TABLE_BATCHES, "_staging", "_replaced", "_fenced"
NOTHING, INDEX = "_nothing", "_index"

_NOBODY = "-"
"""Stands for the id of a checkpoint in names of objects that were written before checkpoints had ids."""

_ATTEMPT = re.compile(
    r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)/(?P<checkpoint>-|[A-Za-z0-9][A-Za-z0-9_-]*)\.(?P<epoch>\d+)"
    r"(\.(?P<joined>[0-9a-f]{32}))?"
)
_MARK = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)[/.]attempt=(?P<epoch>\d+)")
_MANIFEST = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>0|[1-9]\d*)/manifest")


@dataclass(frozen=True, order=True)
class Written:
    """The output of one attempt.

    :param checkpoint: id of the attempt's checkpoint; empty for an attempt from before checkpoints had ids.
    :param joined: number of the compaction that has joined the attempt's files; empty for the files as it wrote them.
    """

    key: BatchKey
    checkpoint: str
    epoch: int
    joined: str = ""

    marked_in: ClassVar[str] = ""
    """The folder of all marks, with a slash at its end."""

    @classmethod
    def marks(cls, kind: str, checkpoint: str) -> str:
        """The folder of a checkpoint's marks of one kind."""
        return f"{cls.marked_in}{kind}/{checkpoint or _NOBODY}"

    @classmethod
    def of_mark(cls, path: str, checkpoint: str) -> Self | None:
        """The attempt that a mark belongs to; None if it is no mark.

        :param path: path of the mark below :meth:`marks`.
        """
        found = _MARK.fullmatch(path)
        key = _key(found)
        return None if found is None or key is None else cls(key, checkpoint, int(found["epoch"]))

    @classmethod
    def by(cls, batch: BatchIdentity, epoch: int) -> Self:
        """The output of an attempt at a batch."""
        return cls(batch.key, batch.checkpoint, epoch)

    @classmethod
    def at(cls, path: str) -> Self | None:
        """The output whose name is the path, or the beginning of the path; None if no output has such a name."""
        found = _ATTEMPT.match(path)
        if found is None or path[found.end() :][:1] not in ("", "/"):
            return None
        try:
            key = BatchKey(found["lane"], int(found["id"]))
        except DefinitionError:
            return None
        checkpoint = "" if found["checkpoint"] == _NOBODY else found["checkpoint"]
        return cls(key, checkpoint, int(found["epoch"]), found["joined"] or "")

    @property
    def name(self) -> str:
        """Name of the folder of its files, below :data:`BATCHES`: its parents name lane and batch."""
        joined = f".{self.joined}" if self.joined else ""
        return f"{folder_of(self.key)}/{self.checkpoint or _NOBODY}.{self.epoch}{joined}"

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{BATCHES}/{self.name}"

    @property
    def stage_mark(self) -> str:
        """Key of the mark of output that is written, or about to be, and is not known to be published."""
        return f"{self.marks(STAGING, self.checkpoint)}/{folder_of(self.key)}/attempt={self.epoch}"

    @property
    def fence_mark(self) -> str:
        """Key of the mark that tells the attempt's Spark to end."""
        return f"{self.marks(FENCED, self.checkpoint)}/{folder_of(self.key)}.attempt={self.epoch}"

    def replaced_mark(self, by: str) -> str:
        """Key of the mark of output that was, or is about to be, replaced or withdrawn by that checkpoint."""
        return f"{self.marks(REPLACED, by)}/{self.name}"


def folder_of(key: BatchKey) -> str:
    """The folders that name a batch."""
    return f"lane={key.lane}/batch_id={key.id}"


def manifest_of(key: BatchKey) -> str:
    """Key of the manifest that publishes a batch."""
    return f"{MANIFESTS}/{folder_of(key)}/manifest"


def key_of_manifest(path: str) -> BatchKey | None:
    """The batch whose manifest is at a path below :data:`MANIFESTS`; None if the path is no batch's."""
    return _key(_MANIFEST.fullmatch(path))


def _key(found: re.Match[str] | None) -> BatchKey | None:
    try:
        return None if found is None else BatchKey(found["lane"], int(found["id"]))
    except DefinitionError:
        return None
