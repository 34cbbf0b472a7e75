"""The progress in a commit entry: the runtime's result, and figures of the ranges and of the published output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.sinks import Manifest

if TYPE_CHECKING:  # its sources ask what is told of committed batches
    from airflow_provider_microbatch.execution.opened_sources import Lag

_NOT_OF_THE_BATCH = ("learned", "identity", "warnings", "sink", "heldTo")
"""Parts of a result that stand elsewhere, or say which table's manifest it is in."""


def progress_of(manifest: Manifest, sources: Mapping[str, Mapping[str, Any]], lag: Lag | None = None) -> dict[str, Any]:
    """``progress`` of the commit entry.

    :param manifest: the batch's manifest in the sink.
    :param sources: the figures of each source for its range.
    :param lag: how much data lay after the batch then; None if that is not asked, as for a replay or a data interval.
    """
    result = {key: value for key, value in manifest.result.items() if key not in _NOT_OF_THE_BATCH}
    return {
        **result,
        **({"forgotten": list(manifest.forgotten)} if manifest.forgotten else {}),
        "sources": dict(sources),
        **({"lag": dict(lag.by_source)} if lag is not None and lag.by_source else {}),
        **({"lagBySplit": dict(lag.by_split)} if lag is not None and lag.by_split else {}),
        "numOutputFiles": len(manifest.files),
        "numOutputBytes": sum(manifest.files.values()),
    }


def told(checkpoint: Checkpoint, result: Mapping[str, Any], part: str = "read") -> Mapping[str, Mapping[str, Any]]:
    """The readers' reports of an attempt, by the present names of its sources.

    :param result: the runtime's, as it stands in a manifest and in ``progress`` of a commit entry.
    :param part: ``read``: on their reading; ``learned``: on the data, which no commit entry has.
    """
    values = result.get(part)
    found = values.items() if isinstance(values, Mapping) else ()
    return {checkpoint.names.of(name): one for name, one in found if isinstance(one, Mapping)}
