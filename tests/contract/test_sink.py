"""What every sink must do. A new sink joins by an entry in SYSTEMS: how to make it, and how the runtime would leave a
stage in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.database_sink import DatabaseSink

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import ForeignBatchError, MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import Compaction, ExpectedBatch, OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.manifest import as_adopted
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from tests.contract.registered import registered
from tests.postgres import database, stages
from tests.sinks.delta_stages import write_changes_stage, write_delta_stage
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN, batch_of, expect, write_stage
from tests.support import iceberg_catalogs, iceberg_table, kafka, kafka_stages, object_stages, object_store
from tests.support.foreach_sinks import RowsInSqlite
from tests.tables.stages import write_stage_table


@dataclass(frozen=True)
class Kind:
    """:param tables: of so many the sink consists.
    :param keeps_replaced: so many of them keep what was replaced until it is asked to go.
    :param needs: a fixture that it is made with.
    :param catalog: finds the address of the catalog that it is in, if that is a server.
    :param elsewhere: whether another of the sinks says in the same way whose a batch is, and lies in another place.
    """

    make: Callable[[Path], Sink]
    write_stage: Callable[..., object]
    tables: int = 1
    keeps_replaced: int | None = None
    needs: str | None = None
    catalog: Callable[[], str] | None = None
    elsewhere: bool = False

    @property
    def foreign(self) -> Sequence[BatchIdentity]:
        """Batches of others that are tried in it."""
        return FOREIGN[::3] if self.elsewhere else FOREIGN

    @property
    def kept(self) -> int:
        """In so many tables there is something to drop after a replay."""
        return self.tables if self.keeps_replaced is None else self.keeps_replaced


def write_stages(sink: OpenSink, epoch: int, **given: Any) -> None:
    for table in sink.tables:
        write_stage(table, epoch, **given)


def postgres_sink(folder: Path, **given: Any) -> PostgresSink:
    table = f"{database.quoted(database.schema_of(folder))}.Orders"
    return PostgresSink(database.CONN_ID, table, stages=str(folder / "stages"), **given)


def kafka_sink(folder: Path) -> KafkaSink:
    topic = kafka.running().topic(partitions=2)
    return KafkaSink(topic, conn_id="kafka", stages=str(folder / "stages"), on_replay="append")


SYSTEMS = {
    "file": Kind(make=lambda folder: FileSink(str(folder / "table"), format="json"), write_stage=write_stage),
    "s3-table": Kind(
        make=lambda folder: FileSink(f"{object_store.address(folder)}/table", format="json", packages=[]),
        write_stage=object_stages.write_stage,
        needs="bucket",
    ),
    "path table": Kind(
        make=lambda folder: TableSink(PathCatalog(str(folder / "lake")), "sales.orders", format="json"),
        write_stage=write_stage_table,
    ),
    "acme's database": Kind(
        make=lambda folder: DatabaseSink("acme_rows", stages=str(folder / "stages")), write_stage=write_stage
    ),
    "delta": Kind(
        make=lambda folder: DeltaSink(str(folder / "orders")),
        write_stage=write_delta_stage,
        keeps_replaced=0,  # it belongs to the table's history, and VACUUM removes it
    ),
    "delta-merged": Kind(
        make=lambda folder: DeltaSink(
            str(folder / "orders"), merge=Merge(keys=("id",), sequence_by=("epoch",)), schema_policy="add_columns"
        ),
        write_stage=write_changes_stage,
        keeps_replaced=0,  # rows belong to the table's history, and the changes of an attempt go with it
    ),
    "delta-versions": Kind(
        make=lambda folder: DeltaSink(
            str(folder / "orders"),
            merge=Merge(keys=("id",), sequence_by=("epoch",), scd_type=2),
            schema_policy="add_columns",
        ),
        write_stage=write_changes_stage,
        keeps_replaced=0,  # as of the newest states
    ),
    "delta-merged-s3": Kind(
        make=lambda folder: DeltaSink(
            f"{object_store.address(folder)}/orders",
            merge=Merge(keys=("id",), sequence_by=("epoch",)),
            schema_policy="add_columns",
            packages=[],
        ),
        write_stage=write_changes_stage,
        keeps_replaced=0,  # as on a file system
        needs="bucket",
        elsewhere=True,
    ),
    "delta-s3": Kind(
        make=lambda folder: DeltaSink(f"{object_store.address(folder)}/orders", packages=[]),
        write_stage=write_delta_stage,
        keeps_replaced=0,  # as on a file system
        needs="bucket",
        elsewhere=True,
    ),
    "iceberg": Kind(
        make=iceberg_table.sink_in,
        write_stage=write_delta_stage,
        keeps_replaced=0,  # it belongs to the table's history, and expiry removes it
    ),
    "iceberg-rest": Kind(
        make=lambda folder: iceberg_table.sink_in(folder, namespace=iceberg_catalogs.namespace_of(folder)),
        write_stage=write_delta_stage,
        keeps_replaced=0,  # as above
        catalog=iceberg_catalogs.rest,
        elsewhere=True,
    ),
    "iceberg-hive": Kind(
        make=lambda folder: iceberg_table.sink_in(folder, namespace=iceberg_catalogs.namespace_of(folder)),
        write_stage=write_delta_stage,
        keeps_replaced=0,  # as above
        catalog=iceberg_catalogs.hive,
        elsewhere=True,
    ),
    "iceberg-merged": Kind(
        make=lambda folder: iceberg_table.sink_in(
            folder, merge=Merge(keys=("id",), sequence_by=("epoch",)), schema_policy="add_columns"
        ),
        write_stage=write_changes_stage,
        keeps_replaced=0,  # as Delta's
    ),
    "iceberg-versions": Kind(
        make=lambda folder: iceberg_table.sink_in(
            folder, merge=Merge(keys=("id",), sequence_by=("epoch",), scd_type=2), schema_policy="add_columns"
        ),
        write_stage=write_changes_stage,
        keeps_replaced=0,  # as Delta's
    ),
    "foreach": Kind(
        make=lambda folder: RowsInSqlite(str(folder / "stages"), str(folder / "rows.db"), format="json"),
        write_stage=write_stage,
    ),
    "kafka-sink": Kind(make=kafka_sink, write_stage=kafka_stages.write_stage, keeps_replaced=0),
    "postgres": Kind(make=postgres_sink, write_stage=stages.write_stage, needs="postgres_server"),
    "postgres, merged": Kind(
        make=lambda folder: postgres_sink(folder, merge=Merge(keys=("id",), sequence_by=("epoch",))),
        write_stage=stages.write_stage,
        needs="postgres_server",
    ),
    "postgres, versions": Kind(
        make=lambda folder: postgres_sink(folder, merge=Merge(keys=("id",), sequence_by=("epoch",), scd_type=2)),
        write_stage=stages.write_stage,
        needs="postgres_server",
    ),
    "several": Kind(
        make=lambda folder: Sinks(
            {
                "orders": FileSink(str(folder / "orders"), format="json"),
                "daily": DatabaseSink("acme_rows", stages=str(folder / "stages")),
                "audit": FileSink(str(folder / "audit"), format="json"),
            }
        ),
        write_stage=write_stages,
        tables=3,
    ),
}


system_name = registered(SYSTEMS, slow=["kafka-sink", *(n for n, one in SYSTEMS.items() if one.needs or one.catalog)])


@pytest.fixture
def bucket() -> None:
    object_store.endpoint()


@pytest.fixture
def kind(system_name: str) -> Kind:
    return SYSTEMS[system_name]


@pytest.fixture
def sink(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> OpenSink:
    if kind.needs is not None:
        request.getfixturevalue(kind.needs)

    def connect(conn_id: str) -> Connection:
        if conn_id == iceberg_table.CONN_ID:
            return iceberg_table.connection_of(tmp_path, uri=kind.catalog and kind.catalog())
        if conn_id == "kafka":
            return kafka.connection()
        if conn_id == database.CONN_ID:
            return database.connection_of(conn_id)
        return Connection(conn_id=conn_id, conn_type="acme", host=str(tmp_path / f"{conn_id}.db"))

    return kind.make(tmp_path).open(SinkContext(connect=connect))


def test_the_definition_survives_a_round_trip(sink: OpenSink) -> None:
    assert Sink.from_dict(sink.definition.to_dict()) == sink.definition


def test_making_and_asking_touch_nothing(sink: OpenSink, tmp_path: Path) -> None:
    sink.check()
    assert sink.stage(BATCH, 1) == sink.stage(BATCH, 1)
    assert sink.location()
    assert sink.contains(EXPECTED) is None
    assert sink.manifest(BATCH, 1) is None
    assert sink.failure(BATCH, 1) is None
    assert sink.stages(CHECKPOINT) == []
    assert sink.drop_stage(BATCH, 1) is False
    assert list(tmp_path.iterdir()) == []


def test_attempts_lanes_and_checkpoints_never_share_a_stage(sink: OpenSink) -> None:
    others = [batch_of(BatchKey("live", 8)), batch_of(BatchKey("backfill", 7)), batch_of(checkpoint="another")]
    stages = [sink.stage(batch, 1) for batch in (BATCH, *others)]
    assert len({str(stage) for stage in (*stages, sink.stage(BATCH, 2))}) == len(stages) + 1


def test_a_stage_is_published_once_and_saying_it_again_changes_nothing(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1)
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert sink.contains(EXPECTED) is None
    staged = sink.manifest(BATCH, 1)
    assert staged is not None
    assert sink.publish(EXPECTED, 1) == staged
    assert sink.contains(EXPECTED) == sink.seen(EXPECTED) == staged
    assert sink.publish(EXPECTED, 1) == staged
    assert sink.stages(CHECKPOINT) == []


def test_of_two_attempts_the_first_wins_and_the_other_learns_it(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1)
    kind.write_stage(sink, 2)
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert sink.publish(EXPECTED, 1).epoch == 2
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert sink.drop_stage(BATCH, 1) is True
    assert sink.stages(CHECKPOINT) == []
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 2


def test_an_unfinished_or_missing_stage_is_never_published(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1, complete=False)
    for epoch in (1, 2):
        with pytest.raises(SinkError):
            sink.publish(EXPECTED, epoch)
    assert sink.contains(EXPECTED) is None


def test_batches_and_lanes_do_not_meet(kind: Kind, sink: OpenSink) -> None:
    other = expect(BatchKey("backfill", 7))
    kind.write_stage(sink, 1)
    kind.write_stage(sink, 1, batch=other.identity)
    sink.publish(EXPECTED, 1)
    assert sink.contains(other) is None
    sink.publish(other, 1)
    assert sink.drop_stage(BATCH, 1) is False
    assert sink.contains(EXPECTED) is not None
    assert sink.lanes(NOTHING_KNOWN) in (["backfill", "live"], None)
    for table in sink.tables:
        assert [list(table.batches_after("live", number, NOTHING_KNOWN)) for number in (-1, 6, 7)] == [[7], [7], []]


def test_a_replay_replaces_and_an_older_one_cannot_come_back(kind: Kind, sink: OpenSink) -> None:
    for epoch in (1, 2, 3):
        kind.write_stage(sink, epoch, rows=epoch)
    sink.publish(EXPECTED, 1)
    assert sink.replace(EXPECTED, 3).result["numOutputRows"] == 3
    assert sink.replace(EXPECTED, 3).epoch == 3
    with pytest.raises(PublishConflictError, match="attempt 3"):
        sink.replace(EXPECTED, 2)
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 3
    assert sink.stages(CHECKPOINT) == [(KEY, 2)]


def test_a_replay_needs_a_complete_stage(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    kind.write_stage(sink, 2, complete=False)
    with pytest.raises(MicroBatchError):
        sink.replace(EXPECTED, 2)
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 1


def test_a_batch_that_is_withdrawn_is_out_and_can_come_back(kind: Kind, sink: OpenSink) -> None:
    assert sink.withdraw(EXPECTED, 1) is False
    for epoch in (1, 2):
        kind.write_stage(sink, epoch)
    sink.publish(EXPECTED, 1)
    sink.replace(EXPECTED, 2)
    if not sink.definition.can_withdraw:
        return stays(sink, 2)
    with pytest.raises(SinkError, match="attempt 2"):
        sink.withdraw(EXPECTED, 1)
    assert sink.contains(EXPECTED) is not None
    assert sink.withdraw(EXPECTED, 2) is True
    assert sink.contains(EXPECTED) is None
    assert sink.withdraw(EXPECTED, 2) is False
    for epoch in (3, 4):
        kind.write_stage(sink, epoch)
        assert sink.publish(EXPECTED, epoch).epoch == epoch
        assert sink.withdraw(EXPECTED, epoch) is True


def stays(sink: OpenSink, epoch: int) -> None:
    """Of a sink that cannot take back: it says so, and nothing has changed."""
    with pytest.raises(SinkError, match="cannot be taken back"):
        sink.withdraw(EXPECTED, epoch)
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == epoch


def test_what_was_withdrawn_is_kept_and_goes_as_replaced_output_does(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    if not sink.definition.can_withdraw:
        return stays(sink, 1)
    sink.withdraw(EXPECTED, 1)
    assert sink.stages(CHECKPOINT) == []
    assert sink.drop_replaced(CHECKPOINT, older_seconds=3600) == []
    assert len(sink.drop_replaced(CHECKPOINT, older_seconds=0)) == kind.kept
    assert sink.drop_replaced(CHECKPOINT, older_seconds=0) == []


ALL = Compaction(checkpoint=CHECKPOINT, tables=NOTHING_KNOWN, left_alone=lambda found: None)


def test_a_compaction_joins_files_and_the_batch_is_in_as_before(kind: Kind, sink: OpenSink) -> None:
    if sink.definition.not_compactable() is not None:
        with pytest.raises(SinkError, match="cannot be compacted"):
            sink.compact(ALL)
        return
    kind.write_stage(sink, 1, files=3)
    published = sink.publish(EXPECTED, 1)
    done = sink.compact(ALL)
    assert (done.files_before, done.files_after, done.batches, done.left) == (3, 1, {KEY}, {})
    found = sink.contains(EXPECTED)
    assert found is not None
    assert (found.identity, found.epoch, found.result) == (published.identity, published.epoch, published.result)
    assert sink.damage(EXPECTED, found) is None
    assert sink.publish(EXPECTED, 1) == found
    assert (sink.stages(CHECKPOINT), sink.strays(NOTHING_KNOWN)) == ([], [])
    assert sink.compact(ALL).files_before == 0


def test_a_compacted_batch_is_replaced_and_taken_out(kind: Kind, sink: OpenSink) -> None:
    if sink.definition.not_compactable() is not None:
        return
    kind.write_stage(sink, 1, files=3)
    sink.publish(EXPECTED, 1)
    sink.compact(ALL)
    kind.write_stage(sink, 2, files=3)
    assert sink.replace(EXPECTED, 2).epoch == 2
    with pytest.raises(PublishConflictError, match="attempt 2"):
        sink.replace(EXPECTED, 1)
    assert sink.compact(ALL).batches == {KEY}
    assert sink.withdraw(EXPECTED, 2) is True
    assert sink.contains(EXPECTED) is None
    assert sink.compact(ALL).files_before == 0
    kind.write_stage(sink, 3)
    assert sink.publish(EXPECTED, 3).epoch == 3


def test_a_compaction_leaves_the_batches_of_others(kind: Kind, sink: OpenSink) -> None:
    if sink.definition.not_compactable() is not None:
        return
    other = batch_of(checkpoint="another", location="/checkpoints/another")
    kind.write_stage(sink, 1, batch=other, files=3)
    known = ExpectedBatch(identity=other, tables=NOTHING_KNOWN)
    before = sink.publish(known, 1)
    assert sink.compact(ALL).files_before == 0
    assert sink.contains(known) == before


FOREIGN = (
    batch_of(KEY, checkpoint="another", location="/checkpoints/another"),
    batch_of(BatchKey("live", 8), pipeline="returns"),
    batch_of(BatchKey("live", 9), digest="d2"),  # another plan
    BatchIdentity.at(BatchKey("live", 10)),  # of an older version
)


def theirs(kind: Kind, sink: OpenSink, foreign: BatchIdentity, epoch: int = 1) -> ExpectedBatch:
    """Published under the same number by somebody else."""
    kind.write_stage(sink, epoch, batch=foreign)
    known = ExpectedBatch(
        identity=foreign, tables=NOTHING_KNOWN, recognise=lambda found: found if found.identity is None else None
    )
    sink.publish(known, epoch)
    return known


def test_what_is_at_a_batchs_place_and_not_the_batch_is_an_error_with_the_ways_on(kind: Kind, sink: OpenSink) -> None:
    for foreign in kind.foreign:
        known, own = theirs(kind, sink, foreign), expect(foreign.key)
        kind.write_stage(sink, 2, batch=own.identity)
        for asked in (
            lambda own=own: sink.publish(own, 2),
            lambda own=own: sink.replace(own, 2),
            lambda own=own: sink.withdraw(own, 1),
            lambda own=own: sink.contains(own),
        ):
            with pytest.raises(ForeignBatchError, match="is another one than pipeline 'orders'") as error:
                asked()
        text = str(error.value)
        assert "another path or table" in text
        assert f"microbatch adopt /checkpoints/orders {foreign.key}" in text
        restored = foreign.checkpoint == CHECKPOINT
        taken_out = restored and sink.definition.can_withdraw
        back = f"microbatch rewind /checkpoints/orders --to {foreign.key.id - 1} --drop-output"
        assert (back in text) is taken_out
        assert ("microbatch start-behind /checkpoints/orders" in text) is not taken_out
        assert foreign.location in text
        found = sink.contains(known)
        assert found is not None
        assert found.epoch == 1
        assert (foreign.key, 2) in sink.stages(CHECKPOINT)
    assert sink.batches("live", NOTHING_KNOWN) == [foreign.key.id for foreign in kind.foreign]
    assert sink.batches("backfill", NOTHING_KNOWN) == []
    assert sink.lanes(NOTHING_KNOWN) in (["live"], None)


def test_output_that_is_recognised_counts_and_an_adopted_one_is_older_than_every_attempt(
    kind: Kind, sink: OpenSink
) -> None:
    for foreign in kind.foreign:
        theirs(kind, sink, foreign, epoch=5)
        own = expect(foreign.key)
        adopting = replace(own, recognise=as_adopted)
        found = sink.contains(adopting)
        assert found is not None
        assert found.epoch == 0
        kind.write_stage(sink, 1, batch=own.identity)
        assert sink.replace(adopting, 1).epoch == 1
        assert sink.contains(own) is not None


def test_a_stage_of_another_plan_is_not_published(kind: Kind, sink: OpenSink) -> None:
    kind.write_stage(sink, 1, batch=batch_of(digest="d2"))
    with pytest.raises(SinkError, match="written for another plan of batch live/7"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None


def test_stages_fence_marks_and_replaced_output_of_another_checkpoint_stay(kind: Kind, sink: OpenSink) -> None:
    another = batch_of(checkpoint="another")
    for batch in (BATCH, another):
        kind.write_stage(sink, 1, batch=batch)
        sink.fence(batch, 1, by="a test")
    assert sink.stages("another") == sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert len(sink.drop_fences(CHECKPOINT, older_seconds=0)) == 1
    assert sink.drop_stage(BATCH, 1)
    assert sink.stages("another") == [(KEY, 1)]
    theirs_now = expect(checkpoint="another")
    sink.publish(theirs_now, 1)
    kind.write_stage(sink, 2, batch=another)
    sink.replace(theirs_now, 2)
    assert sink.drop_replaced(CHECKPOINT, older_seconds=0) == []
    assert len(sink.drop_replaced("another", older_seconds=0)) == kind.kept
    assert len(sink.drop_fences("another", older_seconds=0)) == 1
