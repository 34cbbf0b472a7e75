"""The rules of each of the four statements, given the table that exists."""

from __future__ import annotations

from shlex import quote

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.exceptions import PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, Manifest
from airflow_provider_microbatch.sinks.table.stage_table import (
    CREATE,
    CREATE_IF_NOT_EXISTS,
    CREATE_OR_REPLACE,
    REPLACE,
    Owner,
    Table,
)


def admits(table: Table, batch: BatchIdentity, *, exists: bool, owner: Owner | None) -> bool:
    """Whether the batch may make or replace the table.

    :param exists: whether a table of that name exists.
    :param owner: the attempt that made the table; None if this package did not make it.
    :return: False if there is nothing to do (``IF NOT EXISTS``, and the table exists).
    :raises SinkError: if the statement does not allow the batch.
    """
    if owner is not None and owner.may_be_of(table, batch.checkpoint) and owner.key == batch.key:
        return True  # the batch's own output: published and not committed yet, or replayed
    check_order(table, batch, owner)
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


def find(table: Table, batch: ExpectedBatch, found: Manifest) -> Manifest | None:
    """The table as the batch's output. None if it is another output, and the statement replaces any table.

    :raises ForeignBatchError: if the table is another output, and the statement replaces none.
    """
    if table.mode in (REPLACE, CREATE_OR_REPLACE):
        return batch.find(found)
    return batch.check(found, where=f"table {table.name}")


def check_order(table: Table, batch: BatchIdentity, owner: Owner | None) -> None:
    """:raises PublishConflictError: if a later batch has replaced the table: an attempt that has slept since, or the
    replay of an older batch, would put old rows back. Ids of another checkpoint's batches are not compared."""
    key = batch.key
    if owner is None or not owner.may_be_of(table, batch.checkpoint):
        return
    if owner.key.lane != key.lane or owner.key.id <= key.id:
        return
    raise PublishConflictError(
        f"table {table.name} is the output of batch {owner.key}, which is later than batch {key}. Nothing was "
        f"replaced. If this checkpoint is a new one, or was restored from an older backup, `microbatch start-behind "
        f"{quote(batch.location or 'LOCATION')}` has it count on behind that batch."
    )
