"""What each of the four statements allows, given the table that is there."""

from __future__ import annotations

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.staging.stage_table import CREATE, CREATE_IF_NOT_EXISTS, REPLACE, Owner, Table


def admits(table: Table, key: BatchKey, *, exists: bool, owner: Owner | None) -> bool:
    """Whether the batch may make or replace the table.

    :param exists: a table of that name is there.
    :param owner: the attempt that made it; None if it was not this package.
    :return: False if there is nothing to do (``IF NOT EXISTS``, and it is there).
    :raises SinkError: if the statement does not allow it.
    """
    if owner is not None and (owner.pipeline, owner.key) == (table.pipeline, key):
        return True  # its own work: published and not committed yet, or replayed
    check_order(table, key, owner)
    if exists and table.mode == CREATE_IF_NOT_EXISTS:
        return False
    if exists and table.mode == CREATE:
        made = f"by batch {owner.key} of pipeline {owner.pipeline!r}" if owner else "by somebody else"
        raise SinkError(
            f"CREATE TABLE {table.name} AS: the table exists, made {made}. Nothing was run; drop it, or use the mode "
            "'create_or_replace' or 'create_if_not_exists'."
        )
    if not exists and table.mode == REPLACE:
        raise SinkError(
            f"REPLACE TABLE {table.name} AS: there is no such table. Nothing was run; make it, or use the mode "
            "'create_or_replace'."
        )
    return True


def check_order(table: Table, key: BatchKey, owner: Owner | None) -> None:
    """:raises PublishConflictError: if a later batch has replaced the table: an attempt that slept since before, or
    the replay of an older batch, would put old rows back."""
    if owner is None or (owner.pipeline, owner.key.lane) != (table.pipeline, key.lane) or owner.key.id <= key.id:
        return
    raise PublishConflictError(
        f"table {table.name} is the output of batch {owner.key}, which is later than batch {key}. Nothing was replaced."
    )
