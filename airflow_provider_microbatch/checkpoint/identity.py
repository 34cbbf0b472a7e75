"""How a batch is known outside of its checkpoint: by its checkpoint and pipeline, and not by its number alone.

Numbers count from 0 in every checkpoint. So a table that is kept under a new checkpoint, that two pipelines write, or
that is younger than the backup its checkpoint was restored from, has a batch 7 that is not this checkpoint's batch 7.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_provider_microbatch.checkpoint.key import BatchKey, is_whole
from airflow_provider_microbatch.exceptions import DefinitionError

_DIGEST = re.compile(r"[0-9a-f]{1,64}")
_CHECKPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def is_checkpoint_id(text: object) -> bool:
    """Whether the text can be the id of a checkpoint. An id becomes a folder beside tables, so it is no path."""
    return isinstance(text, str) and _CHECKPOINT.fullmatch(text) is not None


def digest_of(data: bytes) -> str:
    """The digest of an offset log entry: two plans of one batch differ in it, even if their ranges are the same."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: object) -> bool:
    """Whether the text can be a digest. A digest becomes the name of a file, so it must not be a path."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class BatchIdentity:
    """A batch of a checkpoint and pipeline, in one of its plans. Travels in the job and in the manifest.

    :param checkpoint: id of the checkpoint: Spark's query id. Empty for output of versions that knew a batch only by
        lane and id.
    :param pipeline: name of the pipeline.
    :param key: lane and id.
    :param digest: of the offset log entry's bytes; empty as long as nothing is planned.
    :param location: where the checkpoint lies, for messages. It identifies nothing, since a checkpoint can be moved.
    :param planned_ms: the batch's timestamp, milliseconds since the epoch, UTC; for messages.
    :raises DefinitionError: if the checkpoint's id cannot be the name of a folder.
    """

    checkpoint: str
    pipeline: str
    key: BatchKey
    digest: str
    location: str = field(default="", compare=False)
    planned_ms: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.checkpoint and not is_checkpoint_id(self.checkpoint):
            raise DefinitionError(f"{self.checkpoint!r} is no id of a checkpoint.")

    @classmethod
    def at(cls, key: BatchKey, *, checkpoint: str = "", location: str = "") -> BatchIdentity:
        """The place of a batch, whatever is planned there. Without ``checkpoint``, the place in output of versions
        without identities."""
        return cls(checkpoint=checkpoint, pipeline="", key=key, digest="", location=location)

    def __str__(self) -> str:
        """The pipeline and checkpoint of the batch, in words."""
        if not self.checkpoint:
            return "nobody that it names"
        place = f" at {self.location}" if self.location else ""
        planned = ""
        if self.planned_ms:
            stamp = datetime.fromtimestamp(self.planned_ms / 1000, tz=UTC).isoformat(timespec="seconds")
            planned = f", planned {stamp}"
        return f"pipeline {self.pipeline!r} (checkpoint {self.checkpoint}{place}{planned})"

    def to_dict(self) -> dict[str, Any]:
        """The identity as JSON values."""
        return {
            "checkpoint": self.checkpoint,
            "pipeline": self.pipeline,
            "lane": self.key.lane,
            "batchId": self.key.id,
            "digest": self.digest,
            "location": self.location,
            "plannedMs": self.planned_ms,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BatchIdentity:
        """The identity that :meth:`to_dict` wrote. :raises ValueError: if the values are something else."""
        try:
            checkpoint, pipeline, digest = (values[name] for name in ("checkpoint", "pipeline", "digest"))
            key = BatchKey(values["lane"], values["batchId"])
            location, planned_ms = str(values.get("location", "")), values.get("plannedMs", 0)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no identity of a batch: {error!r}") from error
        texts = isinstance(pipeline, str) and isinstance(digest, str)
        if not is_checkpoint_id(checkpoint) or not texts or not is_whole(planned_ms):
            raise ValueError(f"no identity of a batch: {dict(values)!r}")
        return cls(
            checkpoint=checkpoint,
            pipeline=pipeline,
            key=key,
            digest=digest,
            location=location,
            planned_ms=planned_ms,
        )
