"""Facts that a file source has learned by reading its files, pinned in the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator

from airflow_provider_microbatch.checkpoint.records import corrupt, parse_object
from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.stores import Store

SCHEMA = "schema"
PARTITIONS = "partitions"

_SCHEMA_ANEW = "schema.anew"


class Learned:
    """An inferred schema, and partition columns that the schema does not name. A pinned fact is never changed.

    A schema without fields counts as none: it would take the columns from every later batch, and an earlier version
    pinned such a schema where the first files were empty. The schema that is learned afterwards lies beside it.

    :param state: the source's own state in the checkpoint.
    """

    def __init__(self, state: Store) -> None:
        self._state = state

    def get(self, name: str) -> str | None:
        """The pinned fact, as JSON; None if there is none. :raises CorruptEntryError: if it cannot be read."""
        return self._read(self._place(name))

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the facts that cannot be read, each with the reason."""
        for name in (SCHEMA, _SCHEMA_ANEW, PARTITIONS):
            try:
                self._read(name)
            except CorruptEntryError as error:
                yield name, str(error)

    def pin(self, name: str, value: str) -> bool:
        """Pin a fact, unless it has no fields. False if another fact is pinned under the name."""
        if not _has_fields(value) or self._state.put_if_absent(self._place(name), value.encode()):
            return True
        pinned = self.get(name)
        return pinned is not None and json.loads(pinned) == json.loads(value)

    def _place(self, name: str) -> str:
        pinned = self._read(name) if name == SCHEMA else None
        return name if pinned is None or _has_fields(pinned) else _SCHEMA_ANEW

    def _read(self, name: str) -> str | None:
        data, where = self._state.get(name), f"{self._state.location}/{name}"
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        if not isinstance(parse_object(text, where=where).get("fields"), list):
            corrupt(where, "not what it should be: no schema, which has a list of fields")
        return text


def _has_fields(schema: str) -> bool:
    return bool(json.loads(schema)["fields"])
