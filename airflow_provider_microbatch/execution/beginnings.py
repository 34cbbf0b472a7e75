"""Where a batch began in a source that begins as asked, once its entry does not tell that any more."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_microbatch.checkpoint.by_hand import is_rebuilt
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.checkpoint.lane import command
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.planned import PlannedBatch
from airflow_provider_microbatch.execution.position import Offsets
from airflow_provider_microbatch.sources.ways_on import is_asked


def untold(entry: OffsetEntry, starts: Offsets) -> Iterator[str]:
    """Yield the sources in which nobody knows where the batch began, if they begin as asked: repair has written its
    lost entry again, and nothing told it. A plan has recorded what such a source answered.

    :param starts: where the batch began, by source, as its entry says.
    """
    for name, start in starts.items():
        if start is None and entry.ends.get(name) is not None and is_rebuilt(entry):
            yield name


def check_told(sources: OpenedSources, planned: PlannedBatch) -> None:
    """Check that a batch is not read from where a source that begins as asked says by now that it begins: what lies
    between would go out of the table, or come into it.

    :raises SourceError: if it would be, or a source cannot be asked.
    """
    key = planned.key
    for name in untold(planned.entry, planned.starts):
        source = sources.open(name) if name in sources.names else None
        begins = source.initial_offset() if source is not None and is_asked(source) else None
        if begins is not None:
            raise SourceError(
                f"batch {key} cannot be read: where it began in source {name!r} is not known, since its entry "
                f"was lost, and the source begins at {begins} by now. Nothing was done. Restore the entry from a "
                "backup; or have the source begin where it began, or before that (its initial_offset), and "
                f"{command(sources.checkpoint.lane(key.lane), f'rewind --to {key.id - 1} --drop-output --allow-skip')} "
                "plans it and those after it again."
            )
