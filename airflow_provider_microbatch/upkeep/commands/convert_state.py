"""The step of an import that converts the state of a streaming query."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import STATE_IDS
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.state_conf import check_state_conf
from airflow_provider_microbatch.execution.stateful import ATTEMPTS
from airflow_provider_microbatch.execution.told_state import local_folder
from airflow_provider_microbatch.runtime.converted_state import OldState, OldStore, convert_state
from airflow_provider_microbatch.runtime.streaming import FORMAT, PROVIDER, ROCKSDB
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.stores import Store

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PROVIDERS = (HDFS, ROCKSDB)
"""Providers whose state is read, by the name that Spark pins."""

_SIDES = {f"{side}-{kind}" for side in ("left", "right") for kind in ("keyToNumValues", "keyWithIndexToValue")}
_ALONE = {"default"}
_STORES: Mapping[str, Collection[str]] = {
    "stateStoreSave": _ALONE,
    "dedupe": _ALONE,
    "dedupeWithinWatermark": _ALONE,
    "symmetricHashJoin": _SIDES,
    "sessionWindowStateStoreSaveExec": _ALONE,
    "globalLimit": _ALONE,
}
"""Spark's names of operators, and of the stores of each, that have one family of columns. What others keep would be
read in part."""


@dataclass(frozen=True, kw_only=True)
class ConvertState:
    """Convert the state of the newest batch that a streaming query has committed. The copy's entries name the new files
    already, which this step writes.

    :param batch_id: the batch.
    :param provider: the provider that has kept the state.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "convert state"

    batch_id: int
    provider: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return f"the state of batch {self.batch_id}"

    def check(self) -> None:
        """Check what becomes the name of a class. :raises MaintenanceError: if it is none of Spark's providers."""
        if self.provider not in PROVIDERS or type(self.batch_id) is not int:
            raise MaintenanceError(f"{self.provider!r:.200} is no provider whose state is converted.")

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Convert what is not converted yet, and remove the old files.

        :raises MaintenanceError: if Spark cannot read the state.
        """
        checkpoint = Checkpoint(store)
        identity, entry = checkpoint.identity(), checkpoint.offset_log.get(self.batch_id)
        assert identity is not None, "it was copied"
        assert entry is not None, "it was copied"
        check_state_conf(entry.conf, where=checkpoint.location)
        conf = {name: value for name, value in entry.conf.items() if name != FORMAT}
        old = OldState(
            state=str(local_folder(checkpoint) / STATE),
            unfinished=str(local_folder(checkpoint) / ATTEMPTS),
            query_id=identity.query_id,
            batch_id=self.batch_id,
            conf={**conf, PROVIDER: self.provider},
            stores=list(old_stores(store, query_id=identity.query_id, batch_id=self.batch_id)),
        )
        try:
            convert_state(old, is_over=is_over)
        except Exception as error:  # any error of Spark's
            said = str(error).strip().splitlines() or [""]
            raise MaintenanceError(
                f"the state of {checkpoint.location} cannot be converted: {type(error).__name__}: {said[0]}"
            ) from error


def converted_entries(origin: Checkpoint, store: Store, *, batch_id: int) -> dict[str, str]:
    """The entries of a committed batch as the query would have written them by RocksDB in checkpoint format 2, by path.

    :raises MaintenanceError: if its state cannot be converted.
    """
    identity, entry, commit = origin.identity(), origin.offset_log.get(batch_id), origin.commit_log.get(batch_id)
    assert identity is not None, "it has batches"
    assert entry is not None, "it is committed"
    assert commit is not None, "it is committed"
    format = {FORMAT: "2"} if FORMAT in entry.conf else {}
    pinned = replace(entry, conf={**entry.conf, PROVIDER: ROCKSDB, **format})
    check_state_conf(pinned.conf, where=origin.location)
    ids: dict[str, list[list[str]]] = {}
    for kept in old_stores(store, query_id=identity.query_id, batch_id=batch_id):
        of_operator = ids.setdefault(str(kept.operator), [[] for _ in kept.ids])
        for partition, id in enumerate(kept.ids):
            of_operator[partition].append(id)
    named = replace(commit, extra={**commit.extra, STATE_IDS: ids})
    return {
        f"offsets/{batch_id}": origin.offset_log.encoded(pinned).decode(),
        f"commits/{batch_id}": origin.commit_log.encoded(named).decode(),
    }


def old_stores(store: Store, *, query_id: str, batch_id: int) -> Iterator[OldStore]:
    """The stores of a query's operators, in the order in which Spark names their files.

    The new files have ids of their own for each query, batch and store, so that a step that is done again finds what it
    has written.

    :raises MaintenanceError: if the query has not written down what its operators keep.
    """
    for operator in sorted(filter(str.isdecimal, store.list("state")), key=int):
        for name, prefix, partitions in sorted(_stores_of(store, operator)):
            named = f"{query_id}/{batch_id}/{operator}/{name}"
            yield OldStore(
                operator=int(operator),
                name=name,
                prefix=prefix,
                ids=[str(uuid.uuid5(uuid.NAMESPACE_OID, f"{named}/{number}")) for number in range(partitions)],
            )


def _stores_of(store: Store, operator: str) -> Sequence[tuple[str, int, int]]:
    """Name, columns of a prefix and number of partitions of each store of an operator, as Spark has written them."""
    path = f"state/{operator}/_metadata/metadata"
    data = store.get(path)
    if data is None:
        raise MaintenanceError(
            f"{store.location}/{path} is not there, by which Spark knows the state of an operator, since 4.0: let the "
            "query make a batch by Spark 4, then import. Nothing was done."
        )
    try:
        version, _, text = data.decode().partition("\n")
        values: Mapping[str, Any] = json.loads(text)
        kind = str(values["operatorInfo"]["operatorName"])
        found = [
            (str(one["storeName"]), int(one["numColsPrefixKey"]), int(one["numPartitions"]))
            for one in values["stateStoreInfo"]
        ]
        if version != "v1":
            raise ValueError("it is of another version")
        if {name for name, _, _ in found} != set(_STORES.get(kind, ())):
            raise ValueError(f"the stores of {kind!r:.100} are none that are known here")
    except (KeyError, TypeError, ValueError) as error:
        raise MaintenanceError(
            f"{store.location}/{path} tells nothing that can be converted: {error}. Begin a checkpoint and a table of "
            "their own, which read from the beginning. Nothing was done."
        ) from error
    return found
