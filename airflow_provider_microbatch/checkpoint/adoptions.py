"""Adoptions: output that another checkpoint made, or another life of this one, and that a person says is a batch's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.records import corrupt, decode_record, encode_record
from airflow_provider_microbatch.stores import Store


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """What counts as a batch's output.

    :param identity: what it says of itself; None if it bears no identity.
    :param epoch: the attempt that it names; one of another checkpoint.
    """

    identity: BatchIdentity | None
    epoch: int


class Adoptions:
    """Files ``<lane>/<id>``, written by ``microbatch adopt`` alone.

    :param store: scoped to ``adopted``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: BatchKey) -> Adoption | None:
        """What the batch has adopted, or None. :raises CorruptEntryError: if the entry cannot be read."""
        data = self._store.get(self.path(key))
        if data is None:
            return None
        where = f"{self._store.location}/{self.path(key)}"
        values = decode_record(data, where=where)
        try:
            found = values["identity"]
            return Adoption(identity=BatchIdentity.from_dict(found) if found else None, epoch=int(values["epoch"]))
        except (KeyError, TypeError, ValueError) as error:
            corrupt(where, f"not what it should be: {error}")

    @staticmethod
    def path(key: BatchKey) -> str:
        """Where the entry of a batch lies."""
        return f"{key.lane}/{key.id}"

    @staticmethod
    def encode(adoption: Adoption, *, trail: Mapping[str, Any]) -> bytes:
        """The entry as bytes.

        :param trail: which command adopts it, by whom, when.
        """
        identity = None if adoption.identity is None else adoption.identity.to_dict()
        return encode_record({"identity": identity, "epoch": adoption.epoch, "by_hand": dict(trail)})
