"""The mark of a batch: a small record in a compacted topic beside the topic, within the batch's transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey, is_whole
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.manifest import Manifest

_VERSION = 1
_LARGEST = 500_000
"""Bytes of a mark; brokers refuse a record of more than a megabyte."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, DefinitionError)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The record of a batch that is in a topic.

    :param manifest: what was published.
    :param top: the highest number of the batch's lane that the topic has, this one included.
    :param topic_id: id of the topic when the batch was published.
    :param offsets: by partition, between which offsets the batch's records lie: from the first, before the second.
    :param behind: where the topic of the marks ended when the batch was published: no batch of the lane of a higher
        number than ``top`` has a mark before that. True wherever the mark lies: somebody may write it again.
    :param marks_id: id of the topic that ``behind`` is an offset of; None if that is not known.
    """

    manifest: Manifest
    top: int
    topic_id: str
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    behind: int = 0
    marks_id: str | None = None


def key_of(topic: str, key: BatchKey) -> bytes:
    """The key of a batch's mark."""
    return json.dumps([topic, key.lane, key.id]).encode()


def place_of(data: bytes | None) -> tuple[str, BatchKey] | None:
    """The topic and batch of a mark's key; None if it is the key of something else."""
    try:
        topic, lane, id = json.loads(data or b"")
        if isinstance(topic, str) and isinstance(lane, str) and is_whole(id):
            return topic, BatchKey(lane, id)
    except _UNREADABLE:
        pass
    return None


def encode(mark: Mark) -> bytes:
    """The value of a mark's record. A list of files that is too long for a record is left out: nobody needs it once
    the stage is sent."""
    manifest = mark.manifest
    values = {
        "version": _VERSION,
        "epoch": manifest.epoch,
        "identity": manifest.identity.to_dict() if manifest.identity else None,
        "top": mark.top,
        "topicId": mark.topic_id,
        "offsets": {str(partition): list(found) for partition, found in mark.offsets.items()},
        "behind": mark.behind,
        "marksId": mark.marks_id,
        "result": dict(manifest.result),
    }
    whole = json.dumps({**values, "files": dict(manifest.files)}).encode()
    return whole if len(whole) <= _LARGEST else json.dumps({**values, "files": {}}).encode()


def decode(data: bytes | None, key: BatchKey, *, where: str) -> Mark:
    """The mark in a record.

    :param where: place of the record, for messages.
    :raises SinkError: if this package cannot have written it.
    """
    try:
        values = json.loads(data or b"")
        if values["version"] != _VERSION:
            raise ValueError(f"it is of version {values['version']!r:.20}")
        identity = BatchIdentity.from_dict(values["identity"]) if values["identity"] else None
        if identity is not None and identity.key != key:
            raise ValueError(f"it is batch {identity.key}'s")
        manifest = Manifest(
            key=key,
            epoch=_whole(values["epoch"]),
            identity=identity,
            files={str(name): _whole(size) for name, size in values["files"].items()},
            result=dict(values["result"]),
        )
        offsets = {int(one): (_whole(first), _whole(last)) for one, (first, last) in values["offsets"].items()}
        marks_id = values.get("marksId")
        return Mark(
            manifest=manifest,
            top=_whole(values["top"]),
            topic_id=str(values["topicId"]),
            offsets=offsets,
            behind=_whole(values.get("behind", 0)),
            marks_id=None if marks_id is None else str(marks_id),
        )
    except _UNREADABLE as error:
        raise SinkError(
            f"{where} is no mark of batch {key} ({type(error).__name__}: {error}). Somebody else writes there, or a "
            "newer version of this package does; nothing was done. What is written later under the same key takes its "
            "place: the mark, if the batch is in; else a record without a value."
        ) from error


def _whole(value: object) -> int:
    if not is_whole(value):
        raise ValueError(f"{value!r:.50} is no whole number")
    return value
