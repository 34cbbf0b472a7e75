"""How changes are merged into a table, on record as the comment on the table that keeps them.

By another order each key would have the state that is newest by it only once it is touched again, a replay of the same
changes included. Versions of before would be taken for versions of the new order, and go, or stay beside those that the
same changes make again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged.checks import check_like_before
from airflow_provider_microbatch.sinks.postgres.database import Row, execute
from airflow_provider_microbatch.sinks.postgres.names import TableName

if TYPE_CHECKING:
    import psycopg


def record_merge(connection: psycopg.Connection[Row], place: TableName, merge: Merge) -> None:
    """Put on record how rows are made of the changes that a new table keeps."""
    told = {"keys": merge.keys, "sequence_by": merge.sequence_by, "bounds": merge.bounds}
    found = execute(connection, "SELECT quote_literal(%s)", json.dumps(told)).fetchone()
    assert found is not None
    execute(connection, f"COMMENT ON TABLE {place.sql} IS {str(found[0]).replace('%', '%%')}")


def check_merge(connection: psycopg.Connection[Row], table: TableName, merge: Merge) -> None:
    """:raises SinkError: if the rows of before were made by other keys, in another order, or with other bounds."""
    before = _recorded(connection, table.changes(merge.scd_type))
    if before is not None:
        are_same_keys = set(before.keys) == set(merge.keys)  # no row depends on the order of the keys
        known = replace(before, keys=merge.keys) if are_same_keys else before
        check_like_before(known, merge, where=f"the table {table}")


def _recorded(connection: psycopg.Connection[Row], place: TableName) -> Merge | None:
    """None if there is no record: somebody has removed it, or nothing was recorded when the table was made."""
    found = execute(connection, "SELECT obj_description(to_regclass(%s), 'pg_class')", place.text).fetchone()
    try:
        told = json.loads(found[0] if found is not None else "null")
        by = Merge(keys=told["keys"], sequence_by=told["sequence_by"])
        if not told["bounds"]:
            return by
        start, end = told["bounds"]
        return replace(by, scd_type=2, valid_from=start, valid_to=end)
    except (TypeError, ValueError, KeyError, DefinitionError):
        return None
