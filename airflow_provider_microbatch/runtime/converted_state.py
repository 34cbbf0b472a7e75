"""Converts the state that a streaming query has kept into RocksDB's of checkpoint format 2, whose files have ids.

Spark has no call for that, and no query goes on in another provider or format than the one that it began with. But a
store of Spark's is read and written row by row, whatever its provider: the old store is opened as it was made, all its
rows are put into an empty new one, and that one's files get the number that the batch's have.
"""

from __future__ import annotations

import logging
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime.own_session import own_session
from airflow_provider_microbatch.runtime.streaming import (
    CHANGELOG,
    FORMAT,
    PROVIDER,
    ROCKSDB,
    close_state,
    state_settings,
)
from airflow_provider_microbatch.runtime.streaming_folder import STATE, remove_folder, write_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("microbatch")

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_DEFAULT = "default"
_PARTS = "SSTs"
_COPY = f"""
public Object apply(Object old, Object empty) {{
  {_PACKAGE}.StateStore to = ({_PACKAGE}.StateStore) empty;
  scala.collection.Iterator rows = (scala.collection.Iterator) (({_PACKAGE}.ReadStateStore) old).iterator("{_DEFAULT}");
  while (rows.hasNext()) {{
    {_PACKAGE}.UnsafeRowPair row = ({_PACKAGE}.UnsafeRowPair) rows.next();
    to.put(row.key(), row.value(), "{_DEFAULT}");
  }}
  return null;
}}
"""
"""Java, compiled by what Spark itself compiles queries with: a loop in Python would take minutes for each million of
rows."""

_WITHOUT_ID = re.compile(r"\.?[0-9]+\.(delta|snapshot|zip|changelog)(\.crc)*")
"""Names of files of formats that have no ids, in a partition's folder."""


@dataclass(frozen=True, kw_only=True)
class OldStore:
    """A store of an operator, as the query has kept it.

    :param operator: number of the operator in the query.
    :param name: Spark's name of the store.
    :param prefix: number of the key's columns by which the operator looks up rows together; 0 for whole keys.
    :param ids: by partition, the id that its files get.
    """

    operator: int
    name: str
    prefix: int
    ids: Sequence[str]

    def folder(self, state: Path, partition: int) -> Path:
        """Where the store of a partition lies in a folder of state."""
        folder = state / str(self.operator) / str(partition)
        return folder if self.name == _DEFAULT else folder / self.name


@dataclass(frozen=True, kw_only=True)
class OldState:
    """The state that a committed batch has left.

    :param state: the folder of all state, of this host's, which is changed.
    :param unfinished: where files lie that are not whole yet, in the same file system.
    :param query_id: id of the query.
    :param batch_id: the batch.
    :param conf: the settings that the state was made with.
    :param stores: all its stores.
    """

    state: str
    unfinished: str
    query_id: str
    batch_id: int
    conf: Mapping[str, str]
    stores: Sequence[OldStore]

    @property
    def version(self) -> int:
        """The number of the batch's files."""
        return self.batch_id + 1

    def is_converted(self, store: OldStore, partition: int) -> bool:
        """Whether the new files are there; the snapshot comes last."""
        folder = store.folder(Path(self.state), partition)
        return (folder / f"{self.version}_{store.ids[partition]}.zip").exists()


def convert_state(old: OldState, *, is_over: Callable[[], bool]) -> None:
    """Convert the state where it lies, in a Spark of this process, and remove its old files. What a killed process has
    converted is not converted again.

    :param is_over: asked before each store of each partition; what is left then is not done.
    :raises Exception: any of Spark's, if it cannot read the state.
    """
    if not all(old.is_converted(store, number) for store in old.stores for number in range(len(store.ids))):
        with own_session("microbatch import", old.conf) as spark:
            if not convert_in(spark, old, is_over=is_over):
                return
    for store in old.stores:
        for partition in range(len(store.ids)):
            if is_over():
                return
            for path in store.folder(Path(old.state), partition).iterdir():
                if _WITHOUT_ID.fullmatch(path.name):
                    path.unlink(missing_ok=True)


def convert_in(spark: SparkSession, old: OldState, *, is_over: Callable[[], bool]) -> bool:
    """Write the new files beside the old ones.

    :return: False if it was over before the last one.
    """
    assert not spark.streams.active  # stores ask a coordinator, which Spark starts at the first access
    with _own_folder(old) as own:
        try:
            copy = _compiled(spark)
            for store in old.stores:
                key, value = _schemas(spark, own, old, store)
                for partition in range(len(store.ids)):
                    if is_over():
                        return False
                    if not old.is_converted(store, partition):
                        _convert(spark, copy, Path(own), old, store, partition, key, value)
        finally:
            close_state(spark)
    return True


def _compiled(spark: SparkSession) -> Any:
    """The function that puts all rows of one store into another."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    compiler = jvm.org.codehaus.janino.ClassBodyEvaluator()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    interfaces = gateway.new_array(jvm.java.lang.Class, 1)
    interfaces[0] = jvm.java.lang.Class.forName("java.util.function.BiFunction")
    compiler.setImplementedInterfaces(interfaces)
    compiler.setClassName(f"microbatch.Copy{uuid.uuid4().hex}")  # Py4J knows methods by the name of their class
    compiler.cook(_COPY)
    made = compiler.getClazz().getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    return made.newInstance(gateway.new_array(jvm.java.lang.Object, 0))


@contextmanager
def _own_folder(old: OldState) -> Iterator[str]:
    """A folder of this process alone, without those of processes that were killed."""
    parent, prefix = Path(old.unfinished), "converting-"
    parent.mkdir(exist_ok=True)
    for left in parent.glob(f"{prefix}*"):
        remove_folder(str(left))
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        yield folder
    finally:
        remove_folder(folder)


def _schemas(spark: SparkSession, own: str, old: OldState, store: OldStore) -> tuple[Any, Any]:
    """What keys and values of a store are made of, by Spark's state reader."""
    folder = f"{own}/{store.operator}-{store.name}"
    write_committed(
        folder,
        state=old.state,
        query_id=old.query_id,
        batch_id=old.batch_id,
        watermark_ms=0,
        ids={},
        conf=old.conf,
    )
    session = _session(spark, {**old.conf, **state_settings()})
    reader = session.read.format("statestore").option("batchId", old.batch_id).option("operatorId", store.operator)
    frame = reader.option("storeName", store.name).load("file://" + folder)
    # Of an aggregate over all rows the key has no columns.
    key, value = (spark._jsparkSession.parseDataType(frame.schema[part].dataType.json()) for part in ("key", "value"))
    return key, value


def _convert(
    spark: SparkSession, copy: Any, own: Path, old: OldState, store: OldStore, partition: int, key: Any, value: Any
) -> None:
    jvm: Any = spark._jvm
    none, target = jvm.scala.Option.empty(), own / STATE
    with ExitStack() as stack:

        def opened(root: Path, settings: Mapping[str, str]) -> Any:
            session = _session(spark, {**old.conf, **settings})
            found = _provider(session, root, store, partition, key, value)
            stack.callback(found.close)
            return found

        rows = opened(Path(old.state), {FORMAT: "1"}).getReadStore(old.version, none)
        stack.callback(rows.abort)  # before its provider is closed, which otherwise waits for that
        empty = opened(target, {PROVIDER: ROCKSDB, FORMAT: "2", CHANGELOG: "false"}).getStore(0, none)
        try:
            copy.apply(rows, empty)
            empty.commit()
        except Exception:
            empty.abort()
            raise
    _take(store.folder(target, partition), store.folder(Path(old.state), partition), old, store, partition)


def _session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def _provider(session: Any, root: Path, store: OldStore, partition: int, key: Any, value: Any) -> Any:
    jvm = session._jvm
    state = jvm.org.apache.spark.sql.execution.streaming.state
    inner = session._jsparkSession.sessionState()
    hadoop, run = inner.newHadoopConf(), str(uuid.uuid4())
    hadoop.set("sql.streaming.runId", run)
    id = state.StateStoreId(f"file://{root}", store.operator, partition, store.name)
    encoder = (
        state.PrefixKeyScanStateEncoderSpec(key, store.prefix)
        if store.prefix
        else state.NoPrefixKeyStateEncoderSpec(key)
    )
    return state.StateStoreProvider.createAndInit(
        state.StateStoreProviderId(id, jvm.java.util.UUID.fromString(run)),
        key,
        value,
        encoder,
        False,
        state.StateStoreConf(inner.conf(), jvm.PythonUtils.toScalaMap({})),
        hadoop,
        False,
        jvm.scala.Option.empty(),
    )


def _take(made: Path, target: Path, old: OldState, store: OldStore, partition: int) -> None:
    """Move the files of a new store to where they belong. The snapshot goes last: it names all others."""
    (target / _PARTS).mkdir(exist_ok=True)
    for part in (made / _PARTS).glob("*"):  # none of an empty store
        part.rename(target / _PARTS / part.name)
    (snapshot,) = made.glob("1_*.zip")
    beside = [path for path in made.iterdir() if snapshot.stem in path.name and path != snapshot]
    for path in (*beside, snapshot):
        path.rename(target / path.name.replace(snapshot.stem, f"{old.version}_{store.ids[partition]}"))
