"""Hands state over from a streaming query to a pipeline, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_provider_microbatch.checkpoint.by_hand import is_position
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import STATE_IDS
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.identity import digest_of
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import numbers
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.position import Position
from airflow_provider_microbatch.execution.query_state import state_of_query
from airflow_provider_microbatch.execution.told_state import local_folder, published_result, state_of
from airflow_provider_microbatch.runtime.operator_schemas import (
    ADDRESSES,
    SCHEMAS,
    addressed,
    lent_names,
    names_in,
    parse,
)
from airflow_provider_microbatch.runtime.streaming import PROVIDER, ROCKSDB, state_settings
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.convert_state import HDFS, PROVIDERS, ConvertState, converted_entries
from airflow_provider_microbatch.upkeep.commands.plan import Drafting
from airflow_provider_microbatch.upkeep.commands.site import Recorded

_AGAIN = "Begin a checkpoint and a table of their own, which read from the beginning. Nothing was done."


@dataclass(frozen=True, kw_only=True)
class HandedOver:
    """How the state of a pipeline gets into the copy that a streaming query goes on from.

    :param changed: files that have another content in the copy, or are only there, by path.
    :param again: files that the copy has under another path too, by this path.
    """

    changed: Mapping[str, str] = field(default_factory=dict)
    again: Mapping[str, str] = field(default_factory=dict)


def state_for_query(drafting: Drafting, position: Position, *, place: str) -> HandedOver:
    """What a streaming query goes on from, in Spark's form: its commit entry names the state files of the attempt whose
    output is published, its offset entries the settings that the state was made with. Nothing for a checkpoint without
    state.

    :param place: Spark's address of the copy.
    :raises CheckpointError: if nothing tells which files these are.
    """
    checkpoint = drafting.checkpoint
    if not checkpoint.keeps_state:
        return HandedOver()
    number = position.batch_id - 1
    if number < 0:
        raise MaintenanceError(
            f"no batch of {checkpoint.location} is committed, so its state is nobody's yet. Run the pipeline once, "
            "then export."
        )
    key = BatchKey(LIVE, number)
    lane = checkpoint.lane(LIVE)
    commit = lane.commit_of(number)
    assert commit is not None, "it is the newest that is committed"
    sinks = Recorded(checkpoint).sinks() if commit.epoch is not None else []
    state = state_of(published_result(checkpoint, key, sinks), where=f"batch {key} of {checkpoint.location}")
    if state is None or not state["ids"]:
        raise MaintenanceError(
            f"batch {key} of {checkpoint.location} does not name its files of state. Run the pipeline once, "
            "then export."
        )
    found = dict[str, str]()
    for kept in (number,) if position.planned is None else (number, position.batch_id):
        read = lane.offset_log.read(kept)
        assert read is not None, "it is the newest that is planned, or committed"
        entry, data = read
        # The batch's identity in the table is made of the entry as it is in this checkpoint.
        pinned = replace(entry, conf={**entry.conf, **state["conf"]}, stands_for=entry.digest(data))
        found[f"offsets/{kept}"] = lane.offset_log.encoded(pinned).decode()
    handed = replace(
        commit,
        next_watermark_ms=int(state["nextWatermarkMs"]),
        plan=None if commit.plan is None else digest_of(found[f"offsets/{number}"].encode()),
        # After a replay the entry still has what the first attempt told: a pipeline would go on from that.
        progress={**commit.progress, "state": state},
        extra={**commit.extra, STATE_IDS: state["ids"]},
    )
    found[f"commits/{number}"] = lane.commit_log.encoded(handed).decode()
    again = dict[str, str]()
    for operator, told in state.get("schemas", {}).items():
        folder = f"state/{operator}"
        found[f"{folder}/{ADDRESSES}/{number}"] = addressed(told, operator=f"{place}/{folder}", batch_id=number)
        for name, lent in lent_names(told, batch_id=number).items():
            again[f"{folder}/{SCHEMAS}/{lent}"] = f"{folder}/{SCHEMAS}/{name}"
    settings = ", ".join(f"{name}={value}" for name, value in state_settings().items())
    drafting.note(f"the query needs {_spark_for(state)}, the transform's operators as they are, and {settings}.")
    return HandedOver(changed=found, again={path: origin for path, origin in again.items() if path != origin})


def _spark_for(state: Mapping[str, Any]) -> str:
    """The versions of Spark that read the state, in words: 4.0 and later ones do not read each other's."""
    kept_by = str(state.get("sparkVersion", ""))
    if not kept_by:
        return "the version of Spark that has kept the state"
    return "Spark 4.0" if kept_by.startswith("4.0.") else "Spark 4.1 or newer"


@dataclass(frozen=True, kw_only=True)
class TakenOver:
    """How the state of a streaming query gets into the copy that a pipeline goes on from.

    :param changed: entries that have another content in the copy, by path.
    :param conversion: what is to be done with the copied files; None if they are good as they are.
    """

    changed: Mapping[str, str] = field(default_factory=dict)
    conversion: ConvertState | None = None


def state_for_pipeline(drafting: Drafting, origin: Checkpoint, position: Position) -> TakenOver:
    """Check that a pipeline can go on from the state in ``origin``, and note what the pipeline needs for that.

    :raises CheckpointError: if no pipeline can go on from the state.
    """
    if not origin.keeps_state:
        return TakenOver()
    store = open_store(origin.location)
    for place in (origin.location, drafting.store.location):
        local_folder(Checkpoint(open_store(place)))
    number = position.batch_id - 1
    commit = origin.commit_log.get(number) if number >= 0 else None
    if commit is None:
        raise MaintenanceError(
            f"{origin.location} has no committed batch, so its state is nobody's yet. Let the query commit one. "
            "Nothing was done."
        )
    key = BatchKey(LIVE, number)
    left = state_of_query(origin, key, commit)
    told, taken = commit.progress, TakenOver()
    if left is not None:
        schemas = _schemas_of_query(store, batch_id=number)
        told = _with_schemas(commit, left, schemas)
        if schemas:
            entry = origin.commit_log.encoded(replace(commit, progress=told))
            earlier = _earlier_with_schemas(origin, store, before=number)
            taken = TakenOver(changed={f"commits/{number}": entry.decode(), **earlier})
    # As the first batch reads it: what that would be refused for is refused before anything is copied.
    if state_of(told, where=f"batch {key} of {origin.location}") is None:
        taken = _converted(drafting, origin, store, number, commit)
    drafting.note(
        "the pipeline has to be stateful=True, with the query's operators in its transform and the query's "
        "output_mode; spark.sql.shuffle.partitions is kept."
    )
    return taken


def _with_schemas(commit: CommitEntry, left: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {**commit.progress, "state": {**left, **({"schemas": schemas} if schemas else {})}}


def _earlier_with_schemas(origin: Checkpoint, store: Store, *, before: int) -> dict[str, str]:
    """Commit entries of earlier batches with the columns of their state, by path, as far back as Spark has kept that: a
    pipeline that is rewound to one goes on from there."""
    found = dict[str, str]()
    for number in range(before - 1, -1, -1):
        commit = origin.commit_log.get(number)
        left = None if commit is None else state_of_query(origin, BatchKey(LIVE, number), commit)
        if commit is None or left is None:
            break
        try:
            schemas = _schemas_of_query(store, batch_id=number)
        except MaintenanceError:
            break
        entry = replace(commit, progress=_with_schemas(commit, left, schemas))
        found[f"commits/{number}"] = origin.commit_log.encoded(entry).decode()
    return found


def _converted(drafting: Drafting, origin: Checkpoint, store: Store, number: int, commit: CommitEntry) -> TakenOver:
    """How state without ids, whose files two attempts of one batch would overwrite, is turned into state with ids."""
    entry = origin.offset_log.get(number)
    provider = HDFS if entry is None else entry.conf.get(PROVIDER, HDFS)
    has_ids = provider == ROCKSDB and STATE_IDS in commit.extra
    if entry is None or is_position(entry) or commit.epoch is not None or has_ids:
        raise MaintenanceError(
            f"{origin.location} keeps state, and batch {number} does not say which: it is no query's, or had no "
            f"operator that keeps state. {_AGAIN}"
        )
    if provider not in PROVIDERS:
        raise MaintenanceError(
            f"{origin.location} keeps state by {provider}, which only its own query reads. A pipeline takes over "
            f"the state of Spark's own providers. {_AGAIN}"
        )
    try:
        spark = version("pyspark")  # pyspark-client has the module too, and no Spark
    except PackageNotFoundError:
        raise MaintenanceError(
            f"the state of {origin.location} has to be converted, for which a Spark is started here, and pyspark is "
            "not installed. Type this where it is. Nothing was done."
        ) from None
    for operator in store.list("state"):
        if store.list(f"state/{operator}/{SCHEMAS}"):
            raise MaintenanceError(
                f"operator {operator} of {origin.location} keeps several families of columns, as transformWithState "
                "does and joins of state format 3, by checkpoint format 1: such state is taken over in format 2 alone. "
                f"{_AGAIN}"
            )
    how = "of checkpoint format 1" if provider == ROCKSDB else "Spark's default provider's"
    drafting.note(
        f"the state is {how}, and is converted to RocksDB's of checkpoint format 2 by Spark {spark}: the "
        "pipeline's Spark has to read that one's state (4.0 and later versions do not read each other's)."
    )
    return TakenOver(
        changed=converted_entries(origin, store, batch_id=number),
        conversion=ConvertState(batch_id=number, provider=provider, why="so that attempts overwrite nothing"),
    )


def _schemas_of_query(store: Store, *, batch_id: int) -> dict[str, Any]:
    """What operators of a query with several families of columns have written down, up to a batch.

    :raises MaintenanceError: if it is not there, or of another form.
    """
    found = {}
    for operator in filter(str.isdecimal, store.list("state")):
        folder = f"state/{operator}"
        if not store.list(f"{folder}/{SCHEMAS}"):
            continue
        batches = [number for number in numbers(store.list(f"{folder}/{ADDRESSES}")) if number <= batch_id]
        path = f"{folder}/{ADDRESSES}/{max(batches, default=batch_id)}"
        try:
            told = parse((store.get(path) or b"").decode())
            gone = [name for name in names_in(told) if store.get(f"{folder}/{SCHEMAS}/{name}") is None]
        except ValueError as error:
            raise MaintenanceError(
                f"{store.location}/{path} does not say what operator {operator} keeps: {error}. {_AGAIN}"
            ) from error
        if gone:
            raise MaintenanceError(
                f"{store.location}/{folder}/{SCHEMAS}/{gone[0]} is not there, by which Spark reads the state of "
                f"operator {operator}. {_AGAIN}"
            )
        found[operator] = told
    return found
