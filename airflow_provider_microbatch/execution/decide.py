"""The one function that decides whether to make a batch. Sensor and plan share it, so they cannot disagree."""

from __future__ import annotations

import logging

from airflow_provider_microbatch.checkpoint.entries import CommitEntry

log = logging.getLogger(__name__)


def should_construct_next_batch(
    *, is_new_data_available: bool, last_commit: CommitEntry | None, no_data_batches: bool
) -> bool:
    """Spark's rule of the same name: there is new data, or the last batch asked for one more and may have it.

    :param is_new_data_available: some source is ahead of the committed offsets.
    :param last_commit: the newest commit entry, None before the first.
    :param no_data_batches: whether batches without data are wanted at all.
    """
    requires_another = last_commit is not None and last_commit.requires_another_batch
    decision = is_new_data_available or (no_data_batches and requires_another)
    log.debug(
        "noDataBatchesEnabled = %s, lastExecutionRequiresAnotherBatch = %s, isNewDataAvailable = %s, "
        "shouldConstructNextBatch = %s",
        *(str(flag).lower() for flag in (no_data_batches, requires_another, is_new_data_available, decision)),
    )
    return decision
