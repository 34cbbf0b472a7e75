"""Where an attempt has ended that read from a start, of which the end may be on record by now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from airflow_provider_microbatch.checkpoint.entries import Offset
from airflow_provider_microbatch.sources import OpenSource


@runtime_checkable
class ComesTo(Protocol):
    """An opened source that chooses the end of a batch by more than its reader tells, such as a setting of its server,
    which may be another one when the batch is made again. An ``OpenSource`` need not."""

    def comes_to(self, start: Offset | None, end: Offset | None, told: Mapping[str, Any]) -> bool:
        """Whether an attempt has ended at ``end``, by what its reader tells alone.

        :raises SourceError: if the reader's result does not contain the end.
        """


def resolved(
    source: OpenSource, start: Offset | None, told: Mapping[str, Any], *, on_record: Collection[Offset | None] = ()
) -> Offset | None:
    """As :meth:`OpenSource.resolve`; the end on record, if the attempt has come to that. Chosen once more, by the
    settings of now, it would be another one for good, and the batch could never be made or cleared again.

    :param on_record: the end of the batch, if it has one.
    :raises SourceError: if the reader's result does not contain the end.
    """
    if isinstance(source, ComesTo):
        for end in on_record:
            if source.comes_to(start, end, told):
                return end
    return source.resolve(start, told)
