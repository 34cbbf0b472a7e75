"""What the Delta sink refuses of a table, by name and before anything runs, and what it does to tables of others."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from pyarrow import Table as ArrowTable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.delta_world import opened, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, batch_of, expect

SCHEMA = Schema([Field("id", "long"), Field("epoch", "long"), Field("lane", "string"), Field("batch_id", "long")])


@pytest.mark.parametrize(
    ("configuration", "named"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
        ({"delta.columnMapping.mode": "name"}, "column mapping"),
        ({"delta.checkpointPolicy": "v2"}, "v2 checkpoints"),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "forgets application transactions"),
    ],
)
def test_a_table_that_asks_for_what_we_do_not_do_is_refused_by_name(
    sink: OpenSink, root: Path, configuration: dict[str, str | None], named: str
) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA, configuration=configuration)
    with pytest.raises(SinkError, match=named):
        sink.check()
    write_delta_stage(sink, 1)
    with pytest.raises(SinkError, match=named):
        sink.publish(EXPECTED, 1)
    assert table(root).version() == 0


@pytest.mark.parametrize("feature", ["rowTracking", "inCommitTimestamp", "icebergCompatV1", "clustering", "a_new_one"])
def test_a_feature_that_nobody_here_knows_is_refused_by_name(sink: OpenSink, root: Path, feature: str) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA)
    entry = root / "_delta_log" / f"{1:020}.json"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature, "domainMetadata"]}
    entry.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(SinkError, match=feature):
        sink.check()


def test_nothing_is_taken_out_of_a_table_that_has_got_deletion_vectors(sink: OpenSink, root: Path) -> None:
    """A file is known by its path and its vector: a removal by the path alone would leave its rows in."""
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    entry = root / "_delta_log" / f"{table(root).version() + 1:020}.json"
    entry.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(SinkError, match="deletionVectors"):
        sink.withdraw(EXPECTED, 1)
    assert sink.contains(EXPECTED) is not None


def test_columns_and_constraints_with_rules_are_refused_by_name(sink: OpenSink, root: Path) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(SinkError, match="the constraint positive"):
        sink.check()
    shutil.rmtree(root)
    metadata: dict[str, Any] = {"delta.generationExpression": "id + 1"}
    fields = [Field("id", "long", nullable=False), Field("more", "long", metadata=metadata)]
    DeltaTable.create(root.as_uri(), Schema([*SCHEMA.fields[1:], *fields]))
    with pytest.raises(SinkError, match=r"the column id that is.*NOT NULL, the column more with a generated value"):
        sink.check()


def test_a_table_of_other_partitions_is_refused_with_what_to_say(sink: OpenSink, root: Path) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA, partition_by=["epoch"])
    with pytest.raises(SinkError, match=r"partition_by=\['epoch'\]"):
        sink.check()


def test_a_table_that_somebody_has_partitioned_anew_is_brought_back_by_what_is_told(sink: OpenSink, root: Path) -> None:
    """What the sink would have to say then is not what its batches have on record: nobody could go on so."""
    for number in (6, 7):
        publish(sink, number)
    sink.check_whole()
    before, had = table(root).version(), table(root).to_pyarrow_table()
    write_deltalake(str(root), had, mode="overwrite", partition_by=["id"], schema_mode="overwrite")
    for ask in (sink.check, sink.check_whole, lambda: publish(sink, 8)):
        with pytest.raises(SinkError, match=r"is partitioned by \['id'\] since version 2: WRITE by .* back") as told:
            ask()
    (command,) = re.findall(r"python -c '.*restore\(\d+\)'|python -c \".*restore\(\d+\)\"", str(told.value))
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert table(root).version() == before + 2
    sink.check_whole()
    publish(sink, 9)
    assert sink.withdraw(expect(BatchKey("live", 7)), 1)
    assert rows(root) == {(6, 1): 3, (9, 1): 3}


def test_nor_is_one_that_was_partitioned_anew_before_a_batch_of_this_package(root: Path) -> None:
    """A RESTORE, as the error said, takes out all that came since; the sink was named by a wrong column."""
    DeltaTable.create(root.as_uri(), SCHEMA, partition_by=["epoch"])
    write_deltalake(
        str(root), table(root).to_pyarrow_table(), mode="overwrite", partition_by=["id"], schema_mode="overwrite"
    )
    for _ in range(2):
        wrong, right = (opened(root, partition_by=[name]) for name in ("epoch", "id"))
        with pytest.raises(SinkError, match=r"and the sink says \['epoch'\]: DeltaSink\(…, partition_by=\['id'\]\)"):
            wrong.check()
        wrong.check_whole()
        publish(right, 7, rows=0)


def test_a_log_that_has_lost_the_commits_of_all_batches_leads_back_too(sink: OpenSink, root: Path) -> None:
    """It was told to have the sink partition anew: then none of these batches could be made again, nor taken out."""
    publish(sink, 0)
    had = table(root).to_pyarrow_table()
    write_deltalake(str(root), had.slice(0, 0), mode="append")
    table(root).create_checkpoint()
    write_deltalake(str(root), had, mode="overwrite", schema_mode="overwrite", partition_by=["epoch"])
    (root / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(SinkError, match=r"is partitioned by \['epoch'\] since version 2: .* Bring version 1 back"):
        publish(opened(root), 1)


def test_one_that_never_had_the_sinks_partitions_is_none_of_those(sink: OpenSink, root: Path) -> None:
    """A plan that was refused has named it so, once, and the pipeline goes on with what it was told to say."""
    DeltaTable.create(root.as_uri(), SCHEMA, partition_by=["epoch"])
    write_deltalake(str(root), table(root).to_pyarrow_table(), mode="overwrite")
    sink.check_whole()


def test_an_append_only_table_takes_batches_and_gives_none_back(sink: OpenSink, root: Path) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA, configuration={"delta.appendOnly": "true"})
    publish(sink, 7)
    write_delta_stage(sink, 2)
    for asked in (lambda: sink.replace(EXPECTED, 2), lambda: sink.withdraw(EXPECTED, 1)):
        with pytest.raises(SinkError, match="append-only"):
            asked()
    assert rows(root) == {(7, 1): 3}


def test_rows_of_others_do_not_come_twice_to_who_follows_the_changes(sink: OpenSink, root: Path) -> None:
    DeltaTable.create(root.as_uri(), SCHEMA, configuration={"delta.enableChangeDataFeed": "true"})
    for number in (7, 8):
        publish(sink, number)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    table(root).optimize.compact()
    write_delta_stage(sink, 3)
    with pytest.raises(SinkError, match="enableChangeDataFeed"):
        sink.replace(EXPECTED, 3)
    assert rows(root) == {(7, 2): 3, (8, 1): 3}


def test_a_table_of_others_gets_our_columns_where_that_is_said(root: Path) -> None:
    write_deltalake(root.as_uri(), ArrowTable.from_pylist([{"id": 1, "epoch": 0}]))
    with pytest.raises(SinkError, match="does not have 'lane', 'batch_id'"):
        publish(opened(root), 7)
    nothing = opened(root)
    write_rows(nothing, 1, [], {}, batch=batch_of(BatchKey("live", 8)))  # of a source without a frame
    with pytest.raises(SinkError, match="does not have 'lane', 'batch_id'"):
        nothing.publish(expect(BatchKey("live", 8)), 1)
    publish(opened(root, schema_policy="add_columns"), 7)
    assert rows(root) == {(7, 1): 3, (None, 0): 1}


def test_a_version_that_somebody_else_has_given_a_batch_is_no_batch(sink: OpenSink, root: Path) -> None:
    publish(sink, 6)
    schema = table(root).schema()
    properties = CommitProperties(app_transactions=[Transaction("microbatch/live/7", 7)])
    table(root).create_write_transaction([], "append", schema, commit_properties=properties)
    with pytest.raises(SinkError, match=r"live.7\..*is gone"):
        sink.contains(EXPECTED)


def test_a_mark_that_is_none_of_ours_keeps_no_stage_from_being_dropped(sink: OpenSink, root: Path) -> None:
    write_delta_stage(sink, 1)
    marks = root / "_microbatch" / "_placed" / CHECKPOINT / "lane=live" / "batch_id=7"
    marks.mkdir(parents=True)
    (marks / "attempt=1.somebody").touch()
    assert sink.drop_stage(BATCH, 1)
    assert sink.stages(CHECKPOINT) == []


def test_a_record_that_was_changed_is_not_believed(sink: OpenSink, root: Path) -> None:
    publish(sink, 7)
    (record,) = (root / "_microbatch" / "batches" / "lane=live").iterdir()
    record.write_text(record.read_text().replace('"epoch": 1', '"epoch": 9'))
    with pytest.raises(SinkError, match="somebody changed it"):
        sink.contains(EXPECTED)


def test_a_file_that_was_vacuumed_before_its_commit_is_missed(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: Any, **kwargs: Any) -> bool:
        raise KeyboardInterrupt

    publish(sink, 6)
    write_delta_stage(sink, 1)
    monkeypatch.setattr(DeltaLog, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        sink.publish(EXPECTED, 1)
    monkeypatch.undo()
    optimize_and_vacuum(root)
    with pytest.raises(SinkError, match=r"is gone: somebody removed|no complete stage"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"path": "hdfs://bucket/orders"}, "only local paths"),
        ({"path": "/lake/50%"}, "'%'"),
        ({"path": "/lake", "schema_policy": "ignore"}, "schema_policy"),
        ({"path": "/lake", "partition_by": "country"}, "partition_by"),
        ({"path": "/lake", "partition_by": ["batch_id"]}, "batch_id"),
    ],
)
def test_a_definition_that_cannot_be_is_refused_where_it_is_made(given: dict[str, Any], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        DeltaSink(**given)


def test_a_missing_client_is_named_with_the_command(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sinks.delta.find_spec", lambda name: None)
    with pytest.raises(DefinitionError, match=r"pip install 'airflow-provider-microbatch\[delta\]'"):
        opened(root)


def test_the_key_of_a_lane_is_its_own(sink: OpenSink, root: Path) -> None:
    lane = batch_of(BatchKey("interval-20260101T000000Z-20260102T000000Z", KEY.id))
    for batch in (BATCH, lane):
        write_delta_stage(sink, 1, batch=batch)
        sink.publish(expect(batch.key), 1)
    optimize_and_vacuum(root)
    assert sink.withdraw(expect(lane.key), 1)
    assert rows(root) == {(7, 1): 3}
