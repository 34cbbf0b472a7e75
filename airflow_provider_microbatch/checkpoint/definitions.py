"""Pipelines as their attempts ran them, for processes without the DAG file that call hooks and clean sinks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.stores import Store


class Definitions:
    """Files named by the SHA-256 of their content: a pipeline that does not change is written once.

    :param store: scoped to ``microbatch/pipelines``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, bytes] = {}
        """What was read, and is what its name says: nothing else is ever under that name."""

    def put(self, definition: Mapping[str, Any]) -> str:
        """Write the values of ``Pipeline.to_dict``; durable on return.

        :return: the name by which :meth:`get` finds the definition.
        """
        data = encode_record(definition)
        name = hashlib.sha256(data).hexdigest()
        if self._store.modified_ms(name) is None:  # a put that is refused would be asked about: two requests
            self._store.put_if_absent(name, data)
        return name

    def where(self, name: str) -> str:
        """The address of a definition, for messages."""
        return f"{self._store.location}/{name}"

    def get(self, name: str) -> dict[str, Any] | None:
        """The definition, or None. :raises CorruptEntryError: if it cannot be read."""
        data, where = self._read.get(name) or self._store.get(name), self.where(name)
        if data is None:
            return None
        if hashlib.sha256(data).hexdigest() == name:
            self._read[name] = data
        values = decode_record(data, where=where)
        arguments = values.get("arguments")
        if not isinstance(arguments, dict) or not isinstance(arguments.get("sources", {}), dict):
            corrupt(where, "not what it should be: no definition of a pipeline")
        return values

    def sink(self, name: str) -> Mapping[str, Any] | None:
        """The plain form of the definition's sink as this version writes it, or None. No class is loaded.

        :raises CorruptEntryError: if the definition cannot be read.
        :raises DefinitionError: if the sink's part of the definition is nested too deep.
        """
        found = self.get(name)
        return None if found is None else of_today(found["arguments"].get("sink"))

    def names(self) -> list[str]:
        """All names. One listing."""
        return sorted(self._store.list(""))

    def forget(self, name: str) -> bool:
        """Remove the definition; False if it was gone."""
        self._read.pop(name, None)
        return self._store.delete(name)
