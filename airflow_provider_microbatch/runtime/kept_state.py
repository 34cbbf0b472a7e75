"""Reads rows of the state that a stateful pipeline keeps, by Spark's state reader.

The reader needs a checkpoint: a temporary one holds one committed batch, and a link to the state.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.own_session import own_session
from airflow_provider_microbatch.runtime.streaming import state_settings
from airflow_provider_microbatch.runtime.streaming_folder import remove_folder, write_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_JOIN = "symmetricHashJoin"
_SIDES = ("left", "right")
_TIMERS = "TimerState"


@dataclass(frozen=True, kw_only=True)
class StateOfBatch:
    """The state that a batch has left to the next batch.

    :param batch_id: the batch.
    :param query_id: id of Spark's query.
    :param state: the folder of all attempts' state.
    :param ids: Spark's ``stateUniqueIds``, which tell the batch's files.
    :param conf: the settings that the state was made with.
    :param watermark_ms: watermark of the next batch, milliseconds since the epoch.
    :param schemas: what operators with several families of columns have written down, see :mod:`.operator_schemas`.
    """

    batch_id: int
    query_id: str
    state: str
    ids: Mapping[str, Any]
    conf: Mapping[str, str]
    watermark_ms: int
    schemas: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StateStore:
    """The rows that one operator keeps under one name; for a join, the rows of one side, and for a processor of a
    user's own those of one variable, or its timers.

    :param operator: number of the operator in the query, from 0 on.
    :param name: Spark's name of the operator, and of the store where the operator has several.
    :param frame: columns ``key`` and ``partition_id``, and Spark's of what is kept: ``value``, for most.
    """

    operator: int
    name: str
    frame: DataFrame

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the key."""
        return list(self._fields("key").names)

    def rows(self, keys: Mapping[str, str]) -> DataFrame:
        """The rows whose key has these values, given as text by the name of the column."""
        from pyspark.sql import functions as F

        found = self.frame
        for name, value in keys.items():
            found = found.where(F.col("key").getField(name).cast("string") == value)
        return found

    def oldest_event(self) -> str | None:
        """The oldest time in the store, as Spark writes it; None if no column holds a time."""
        from pyspark.sql import functions as F

        times = [F.min(path) for part in self.frame.columns for path in _times(self._fields(part), part)]
        if not times:
            return None
        (row,) = self.frame.select(F.least(*times) if len(times) > 1 else times[0]).collect()
        return None if row[0] is None else str(row[0])

    def _fields(self, part: str) -> StructType:
        from pyspark.sql.types import StructType

        found = self.frame.schema[part].dataType
        return found if isinstance(found, StructType) else StructType()


def _times(struct: StructType, path: str) -> Iterator[str]:
    from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

    for one in struct.fields:
        if isinstance(one.dataType, StructType):
            yield from _times(one.dataType, f"{path}.`{one.name}`")
        elif isinstance(one.dataType, TimestampType | TimestampNTZType):
            yield f"{path}.`{one.name}`"


@contextmanager
def opened(batch: StateOfBatch) -> Iterator[Sequence[StateStore]]:
    """The state of a batch until the ``with`` block ends, for reading only."""
    with (
        tempfile.TemporaryDirectory(prefix="microbatch-state-") as temporary,
        own_session("microbatch state", {**batch.conf, **state_settings()}) as spark,
    ):
        # The reader's stores ask a coordinator, which Spark starts at the first access to ``spark.streams``.
        assert not spark.streams.active
        folder = str(Path(temporary) / "checkpoint")
        write_committed(
            folder,
            state=batch.state,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            watermark_ms=batch.watermark_ms,
            ids=batch.ids,
            conf=batch.conf,
            schemas=batch.schemas,
        )
        try:
            yield list(_stores(spark, folder, batch.batch_id))
        finally:
            remove_folder(folder)


def _stores(spark: SparkSession, folder: str, batch_id: int) -> Iterator[StateStore]:
    metadata = spark.read.format("state-metadata").load(folder)
    found = metadata.select("operatorId", "operatorName", "stateStoreName", "operatorProperties").distinct().collect()
    rows = {(row[0], row[1], "" if row[1] == _JOIN else row[2], row[3] or "{}") for row in found}
    for operator, name, store, properties in sorted(rows):
        for said, which in _parts(name, store, json.loads(properties).get("stateVariables", ())):
            reader = spark.read.format("statestore").option("batchId", batch_id).option("operatorId", operator)
            yield StateStore(operator=operator, name=said, frame=reader.options(**which).load(folder))


def _parts(name: str, store: str, variables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """What of an operator is read by itself: its name for people, and the reader's options.

    :param variables: those of a processor of a user's own; empty for another operator.
    """
    for variable in variables:
        if variable["stateVariableType"] == _TIMERS:
            yield f"{name} timers", {"readRegisteredTimers": "true"}
        else:
            yield f"{name} {variable['stateName']}", {"stateVarName": variable["stateName"]}
    if name == _JOIN:
        yield from ((f"{name} {side}", {"joinSide": side}) for side in _SIDES)
    elif not variables:
        yield name if store == "default" else f"{name} {store}", {"storeName": store}


def as_json(frame: DataFrame, *, rows: int) -> list[Any]:
    """At most ``rows`` rows as JSON values, as Spark writes them."""
    return [json.loads(line) for line in frame.limit(rows).toJSON().collect()]
