"""Adoptions: output of another checkpoint, or another life of this one, that the user has declared to be a batch's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.registry import of_today
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The output that counts as a batch's.

    :param identity: the batch identity that the output bears; None if the output bears none.
    :param epoch: the attempt that the output names: an epoch of the checkpoint that made the output.
    :param sink: the plain form of the sink that has the output: no attempt of this checkpoint tells to which tables it
        was published. None in entries of older versions.
    """

    identity: BatchIdentity | None
    epoch: int
    sink: Mapping[str, Any] | None = None


class Adoptions:
    """Files ``<lane>/<id>``, written only by ``microbatch adopt``.

    :param store: scoped to ``adopted``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: BatchKey) -> Adoption | None:
        """The output that the batch has adopted, or None. :raises CorruptEntryError: if the entry cannot be read."""
        data = self._store.get(self.path(key))
        if data is None:
            return None
        where = f"{self._store.location}/{self.path(key)}"
        values = decode_record(data, where=where)
        try:
            found = values["identity"]
            return Adoption(
                identity=BatchIdentity.from_dict(found) if found else None,
                epoch=int(values["epoch"]),
                sink=of_today(values.get("sink")),
            )
        except (KeyError, TypeError, ValueError) as error:
            corrupt(where, f"not what it should be: {error}")

    @staticmethod
    def path(key: BatchKey) -> str:
        """The path of a batch's entry."""
        return f"{key.lane}/{key.id}"

    @staticmethod
    def encode(adoption: Adoption, *, trail: Mapping[str, Any]) -> bytes:
        """The entry as bytes.

        :param trail: the command that adopts the output, its user, and its time.
        """
        identity = None if adoption.identity is None else adoption.identity.to_dict()
        sink = None if adoption.sink is None else dict(adoption.sink)
        return encode_record({"identity": identity, "epoch": adoption.epoch, "sink": sink, "by_hand": dict(trail)})
