"""What a file source has learned of its files by reading them, pinned in the checkpoint."""

from __future__ import annotations

import json

from airflow_provider_microbatch.checkpoint.store import Store

SCHEMA = "schema"
PARTITIONS = "partitions"

_SCHEMA_ANEW = "schema.anew"


class Learned:
    """An inferred schema, and partition columns that the schema does not name. What is pinned is never changed.

    A schema without fields is none: it would take the columns from every later batch, and an earlier version pinned it
    where the first files were empty. The schema that is learned after it lies beside it.

    :param state: the source's own state in the checkpoint.
    """

    def __init__(self, state: Store) -> None:
        self._state = state

    def get(self, name: str) -> str | None:
        """What is pinned, as JSON; None if nothing is."""
        data = self._state.get(self._place(name))
        return None if data is None else data.decode()

    def all(self) -> dict[str, str]:
        """What is pinned, by name."""
        return {name: value for name in (SCHEMA, PARTITIONS) if (value := self.get(name)) is not None}

    def pin(self, name: str, value: str) -> bool:
        """Pin it, unless it has no fields. False if something else is pinned."""
        if not _has_fields(value) or self._state.put_if_absent(self._place(name), value.encode()):
            return True
        pinned = self.get(name)
        return pinned is not None and json.loads(pinned) == json.loads(value)

    def _place(self, name: str) -> str:
        pinned = self._state.get(name) if name == SCHEMA else None
        return name if pinned is None or _has_fields(pinned) else _SCHEMA_ANEW


def _has_fields(schema: str | bytes) -> bool:
    return bool(json.loads(schema)["fields"])
