"""A Delta table in a bucket: what no other table has, and who may publish what is about to be removed.
(tests/contract/test_sink.py has what it shares with every sink, test_delta_sink.py what the log knows anywhere.)"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyarrow import Table as ArrowTable

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.known_tables import KnownTables
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.delta.objects.records import ObjectRecords
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.taken_away import TellsTakenAway
from airflow_provider_microbatch.stores.object_store import ObjectStore
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sinks.delta_bucket import OPTIONS, keys, opened, optimize_and_vacuum, publish, rows, table, uri
from tests.sinks.delta_bucket import sink as sink
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN, batch_of, expect
from tests.support import object_store
from tests.support.interrupted import interrupted

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")


def test_a_batch_is_one_commit_and_says_whose_it_is(sink: OpenSink, tmp_path: Path) -> None:
    publish(sink, 6)
    before = table(tmp_path).version()
    publish(sink, 7)
    assert table(tmp_path).version() == before + 1
    told = table(tmp_path).history(1)[0]["microbatch"]
    assert told["identity"] == BATCH.to_dict()
    assert (told["batch"], told["epoch"]) == ("live/7", 1)
    assert rows(tmp_path) == {(6, 1): 3, (7, 1): 3}


def test_a_copy_elsewhere_is_the_table_by_the_id_of_its_log(sink: OpenSink, tmp_path: Path) -> None:
    tables = KnownTables(PosixStore(str(tmp_path / "tables")))
    key, s3 = BatchKey("live", 6), object_store.client()
    write_delta_stage(sink, 1, batch=batch_of(key))
    sink.publish(replace(expect(key), tables=tables), 1)
    for name in object_store.keys(tmp_path / "orders"):
        own = f"{str(tmp_path).strip('/')}/orders/{name}"
        s3.copy_object(
            Bucket=object_store.BUCKET,
            Key=own.replace("/orders/", "/copy/orders/"),
            CopySource={"Bucket": object_store.BUCKET, "Key": own},
        )
    copy, other = opened(tmp_path / "copy"), opened(tmp_path / "other")
    publish(other, 6)
    assert copy.contains(expect(key)) is not None
    assert [one.is_table_of(sink.definition, tables) for one in (copy, other)] == [True, False]
    assert not copy.is_table_of(sink.definition, NOTHING_KNOWN), "of a version before, nothing is on record"


def test_what_is_in_is_known_when_the_log_was_cleaned_up_and_files_were_merged_and_vacuumed(
    sink: OpenSink, tmp_path: Path
) -> None:
    for number in (5, 6, 7):
        publish(sink, number)
    known = {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)}
    optimize_and_vacuum(tmp_path)
    table(tmp_path).create_checkpoint()
    newest, s3 = table(tmp_path).version(), object_store.client()
    for version in range(newest):
        key = f"{str(tmp_path).strip('/')}/orders/_delta_log/{version:020}.json"
        s3.delete_object(Bucket=object_store.BUCKET, Key=key)
    assert {number: sink.contains(expect(BatchKey("live", number))) for number in (5, 6, 7)} == known
    publish(sink, 8)
    assert sink.batches("live", NOTHING_KNOWN) == [5, 6, 7, 8]
    assert list(sink.batches_after("live", 6, NOTHING_KNOWN)) == [7, 8]
    assert sink.contains(expect(BatchKey("live", 9))) is None


def test_rows_that_were_taken_out_are_found_when_they_came_back_whether_or_not_their_number_is_in(
    sink: OpenSink, tmp_path: Path
) -> None:
    for number in (6, 7):
        publish(sink, number)
    before, (key, other) = table(tmp_path).version(), (BatchKey("live", number) for number in (6, 7))
    for one in (other, key):
        assert sink.withdraw(expect(one), 1)
    write_delta_stage(sink, 2, batch=batch_of(key, digest="bbb"), rows=6)
    sink.publish(expect(key, digest="bbb"), 2)
    assert not sink.came_back("live", None, NOTHING_KNOWN)
    table(tmp_path).restore(before)
    digests = frozenset({batch_of(key).digest})
    assert sink.came_back("live", None, NOTHING_KNOWN) == {6: digests, 7: digests}
    with pytest.raises(SinkError, match=r"of batch live/7: .* Nothing was published"):
        publish(sink, 7, epoch=3)
    assert sink.withdraw(expect(other), 1)
    assert sink.withdraw(expect(key, digest="bbb"), 2)
    assert rows(tmp_path) == {}


def test_a_number_that_is_in_again_is_looked_at_without_a_listing(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewind may have taken out a thousand, and each plan looks at them since."""
    for number in (6, 7):
        publish(sink, number)
    key = BatchKey("live", 7)
    assert sink.withdraw(expect(key), 1)
    write_delta_stage(sink, 2, batch=batch_of(key, digest="bbb"))
    sink.publish(expect(key, digest="bbb"), 2)
    monkeypatch.setattr(ObjectStore, "list_after", None)
    assert not sink.came_back("live", [7], NOTHING_KNOWN)


def test_a_replay_after_files_were_merged_takes_out_just_the_rows_of_its_batch(sink: OpenSink, tmp_path: Path) -> None:
    for number in (6, 7, 8):
        publish(sink, number)
    optimize_and_vacuum(tmp_path)
    assert len(table(tmp_path).file_uris()) == 1
    write_delta_stage(sink, 2, rows=5)
    before = table(tmp_path).version()
    sink.replace(EXPECTED, 2)
    assert table(tmp_path).version() == before + 1
    assert rows(tmp_path) == {(6, 1): 3, (7, 2): 5, (8, 1): 3}
    assert sink.withdraw(EXPECTED, 2)
    assert rows(tmp_path) == {(6, 1): 3, (8, 1): 3}


def test_others_commit_meanwhile_and_nothing_is_lost(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 7)

    def append() -> None:
        row = ArrowTable.from_pylist([{"id": 1, "epoch": 0}])
        write_deltalake(uri(tmp_path), row, mode="append", schema_mode="merge", storage_options=OPTIONS)

    write_delta_stage(sink, 2)
    with interrupted(monkeypatch, DeltaLog, "commit", append):
        sink.replace(EXPECTED, 2)
    write_delta_stage(sink, 1, batch=batch_of(BatchKey("live", 8)))
    with interrupted(monkeypatch, DeltaLog, "commit", append):
        sink.publish(expect(BatchKey("live", 8)), 1)
    assert rows(tmp_path) == {(7, 2): 3, (8, 1): 3, (None, 0): 2}


def test_columns_are_added_where_that_is_said(sink: OpenSink, tmp_path: Path) -> None:
    publish(sink, 6)
    wider = {"id": "long", "epoch": "long", "note": "string"}
    write_rows(sink, 1, [[{"id": 1, "epoch": 1, "note": "a"}]], wider)
    with pytest.raises(SinkError, match=r"does not have 'note'.*schema_policy='add_columns'"):
        sink.publish(EXPECTED, 1)
    opened(tmp_path, schema_policy="add_columns").publish(EXPECTED, 1)
    assert rows(tmp_path) == {(6, 1): 3, (7, 1): 1}


def test_partitions_of_any_value_are_read_back(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by=["country"])
    values = ["DE", "a b", "50%/ü=?", "_c", None, "it's [1]#&+"]
    given = [{"id": id, "country": value} for id, value in enumerate(values)]
    for epoch in (1, 2):
        write_rows(sink, epoch, [given], {"id": "long", "country": "string"}, partition_by="country")
    sink.publish(EXPECTED, 1)
    sink.replace(EXPECTED, 2)
    found = table(tmp_path).to_pyarrow_table(columns=["id", "country"]).to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == given
    assert all(
        path.isascii() and "%" not in path for path in table(tmp_path).get_add_actions().column("path").to_pylist()
    )


def test_the_rows_of_a_batch_are_told_with_what_spark_takes_to_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
    lake = Connection(conn_id="lake", conn_type="aws", login="AKIALAKE", password="secret", extra=extra)
    monkeypatch.setattr(connections, "_found_by", [lambda conn_id: lake])
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    address = f"s3://lake@{object_store.BUCKET}{tmp_path}/orders"
    sink = DeltaSink(address, packages=["org.apache.hadoop:hadoop-aws:3"]).open(SinkContext())
    publish(sink, 6)
    publish(sink, 7)
    told = sink.published_rows(EXPECTED)
    assert told.base == f"s3a://{object_store.BUCKET}{tmp_path}/orders"
    assert [path.removeprefix(told.base) for path in told.paths] == [
        f"/microbatch/live/7/{CHECKPOINT}.1/part-00000-d1-1.parquet"
    ]
    assert told.requires.packages == ("org.apache.hadoop:hadoop-aws:3",)
    assert told.access is not None
    assert json.loads(sink.secrets()[told.access])[f"fs.s3a.bucket.{object_store.BUCKET}.access.key"] == "AKIALAKE"
    with pytest.raises(SinkError, match="live/8 is not in"):
        sink.published_rows(expect(BatchKey("live", 8)))


def test_who_sleeps_before_his_commit_does_not_publish_what_was_dropped_meanwhile(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delta_stage(sink, 1)
    with (
        interrupted(monkeypatch, DeltaLog, "commit", lambda: sink.drop_stage(BATCH, 1)),
        pytest.raises(SinkError, match="no complete stage"),
    ):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert sink.stages(CHECKPOINT) == []
    assert keys(tmp_path, "microbatch") == []
    assert keys(tmp_path, "_microbatch") == []
    write_delta_stage(sink, 2)
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert rows(tmp_path) == {(7, 2): 3}


def test_who_sleeps_in_a_replay_does_not_publish_what_was_dropped_meanwhile(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 7)
    write_delta_stage(sink, 2)
    with (
        interrupted(monkeypatch, DeltaLog, "commit", lambda: sink.drop_stage(BATCH, 2)),
        pytest.raises(SinkError, match="no complete stage"),
    ):
        sink.replace(EXPECTED, 2)
    assert rows(tmp_path) == {(7, 1): 3}
    write_delta_stage(sink, 3)
    assert sink.replace(EXPECTED, 3).epoch == 3
    assert rows(tmp_path) == {(7, 3): 3}


def test_who_drops_a_stage_that_is_published_at_that_moment_takes_nothing_away(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delta_stage(sink, 1)
    real = Stages.forget

    def publish_and_die() -> None:
        monkeypatch.setattr(Stages, "forget", lambda *_: None)  # the mark stays: it died before it removed it
        sink.publish(EXPECTED, 1)
        monkeypatch.setattr(Stages, "forget", real)

    with interrupted(monkeypatch, Stages, "give_up", publish_and_die):
        assert sink.drop_stage(BATCH, 1) is False
    assert rows(tmp_path) == {(7, 1): 3}
    assert sink.stages(CHECKPOINT) == []


def test_what_was_in_stays_for_who_reads_an_older_version(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the publisher died before its stage's mark was gone, and where it was fenced."""
    write_delta_stage(sink, 1)
    with monkeypatch.context() as dying:
        dying.setattr(Stages, "forget", lambda *_: None)
        sink.publish(EXPECTED, 1)
    before = table(tmp_path).version()
    sink.fence(BATCH, 1, by="a test")
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    assert sink.stages(CHECKPOINT) == []
    assert sink.drop_stage(BATCH, 1) is False
    assert sink.drop_replaced(CHECKPOINT, older_seconds=0) == []
    assert table(tmp_path, version=before).to_pyarrow_table().num_rows == 3
    optimize_and_vacuum(tmp_path)
    assert not [key for key in keys(tmp_path, "microbatch") if ".1/part-" in key]
    assert rows(tmp_path) == {(7, 2): 3}


def test_a_vacuum_takes_nothing_by_which_a_batch_is_known(sink: OpenSink, tmp_path: Path) -> None:
    publish(sink, 7)
    sink.fence(BATCH, 1, by="a test")
    table(tmp_path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert not [key for key in keys(tmp_path, "microbatch") if "/_manifest/" in key]
    assert sink.stages(CHECKPOINT) == []
    assert sink.drop_stage(BATCH, 1) is False
    assert rows(tmp_path) == {(7, 1): 3}
    write_delta_stage(sink, 2)
    assert sink.replace(EXPECTED, 2).epoch == 2


def test_who_drops_a_stage_while_it_is_published_and_replaced_leaves_it_to_history(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 6)
    write_delta_stage(sink, 1)
    with monkeypatch.context() as dying:
        dying.setattr(DeltaLog, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(EXPECTED, 1)
    versions = list[int]()

    def publish_and_replace() -> None:
        # The mark says by now that the stage is being removed, to whoever has not looked at it yet.
        monkeypatch.setattr(Stages, "claim", lambda *_: None)
        monkeypatch.setattr(Stages, "is_there", lambda *_: True)
        sink.publish(EXPECTED, 1)
        monkeypatch.undo()
        versions.append(table(tmp_path).version())
        write_delta_stage(sink, 2)
        sink.replace(EXPECTED, 2)

    with interrupted(monkeypatch, DeltaLog, "snapshots", publish_and_replace):
        assert sink.drop_stage(BATCH, 1) is False
    assert table(tmp_path, version=versions[0]).to_pyarrow_table().num_rows == 6
    assert rows(tmp_path) == {(6, 1): 3, (7, 2): 3}


def test_who_looked_at_a_stage_before_it_was_published_and_replaced_leaves_it_to_history_too(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 6)
    write_delta_stage(sink, 1)
    versions = list[int]()

    def publish_and_replace() -> None:
        sink.publish(EXPECTED, 1)
        versions.append(table(tmp_path).version())
        write_delta_stage(sink, 2)
        sink.replace(EXPECTED, 2)

    with interrupted(monkeypatch, Stages, "give_up", publish_and_replace):
        assert sink.drop_stage(BATCH, 1) is False
    assert table(tmp_path, version=versions[0]).to_pyarrow_table().num_rows == 6
    assert rows(tmp_path) == {(6, 1): 3, (7, 2): 3}


def dies(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    monkeypatch.setattr(owner, name, dies)


def after(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    real = getattr(owner, name)

    def done(*args: Any, **given: Any) -> Any:
        real(*args, **given)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, done)


@pytest.mark.parametrize(
    ("when", "owner", "name", "stands"),
    [
        (before, DeltaLog, "create", False),
        (after, DeltaLog, "create", False),
        (after, Stages, "claim", False),
        (after, ObjectRecords, "put", False),
        (before, DeltaLog, "commit", False),
        (after, DeltaLog, "commit", True),
        (before, Stages, "forget", True),
    ],
)
def test_who_dies_while_it_publishes_is_followed_by_whoever_comes_next(
    sink: OpenSink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: Callable[[pytest.MonkeyPatch, type, str], None],
    owner: type,
    name: str,
    stands: bool,
) -> None:
    write_delta_stage(sink, 1)
    with monkeypatch.context() as dying:
        when(dying, owner, name)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(EXPECTED, 1)
    assert (sink.contains(EXPECTED) is not None) is stands
    write_delta_stage(sink, 2)
    published = sink.publish(EXPECTED, 2).epoch
    assert published == (1 if stands else 2)
    for epoch in (1, 2):
        assert sink.drop_stage(BATCH, epoch) is (epoch != published)
    assert rows(tmp_path) == {(7, published): 3}
    assert sink.stages(CHECKPOINT) == []
    assert len([key for key in keys(tmp_path, "microbatch") if key.endswith(".parquet")]) == 1
    assert len(keys(tmp_path, "_microbatch/batches")) == 1


def test_what_an_attempt_has_written_is_published_by_who_takes_over(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delta_stage(sink, 1)
    staged = sink.manifest(BATCH, 1)
    with monkeypatch.context() as dying:
        dying.setattr(DeltaLog, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(EXPECTED, 1)
    assert sink.manifest(BATCH, 1) == staged
    assert sink.publish(EXPECTED, 1) == staged
    assert rows(tmp_path) == {(7, 1): 3}


def test_a_drop_that_was_cut_off_is_gone_on_with(
    sink: OpenSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delta_stage(sink, 1)
    with monkeypatch.context() as dying:
        dying.setattr(Stages, "remove", dies)
        with pytest.raises(KeyboardInterrupt):
            sink.drop_stage(BATCH, 1)
    with pytest.raises(SinkError, match="no complete stage"):
        sink.publish(EXPECTED, 1)
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert sink.drop_stage(BATCH, 1) is True
    assert keys(tmp_path, "microbatch") == []


def test_what_a_driver_that_nobody_could_stop_writes_after_the_drop_is_found(sink: OpenSink, tmp_path: Path) -> None:
    stage = write_delta_stage(sink, 1)
    sink.fence(BATCH, 1, by="a test")
    sink.drop_stage(BATCH, 1)
    key = f"{str(stage).strip('/')}/part-9.parquet"
    object_store.client().put_object(Bucket=object_store.BUCKET, Key=key, Body=b"x")
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert sink.drop_stage(BATCH, 1) is True
    assert sink.stages(CHECKPOINT) == []
    assert keys(tmp_path, "microbatch") == []


def test_a_stage_in_which_somebody_else_has_written_is_not_published(sink: OpenSink) -> None:
    stage = write_delta_stage(sink, 1)
    key = f"{str(stage).strip('/')}/part-9.parquet"
    object_store.client().put_object(Bucket=object_store.BUCKET, Key=key, Body=b"x")
    with pytest.raises(SinkError, match=r"not in the manifest: part-9\.parquet"):
        sink.publish(EXPECTED, 1)


def test_a_stage_that_has_lost_its_columns_is_not_published(sink: OpenSink, tmp_path: Path) -> None:
    stage = write_delta_stage(sink, 1)
    key = f"{str(stage).strip('/')}/_schema/part-00000.txt"
    object_store.client().delete_object(Bucket=object_store.BUCKET, Key=key)
    with pytest.raises(SinkError, match="does not tell its columns"):
        sink.publish(EXPECTED, 1)
    assert keys(tmp_path, "_delta_log") == []


def _publish_when_told(folder: Path, epoch: int, start: Any, results: Any) -> None:
    sink = opened(folder)
    start.wait()
    try:
        results.put(sink.publish(EXPECTED, epoch).epoch)
    except Exception as error:
        results.put(repr(error))


@pytest.mark.slow
def test_of_attempts_that_publish_at_once_in_processes_of_their_own_one_is_in(sink: OpenSink, tmp_path: Path) -> None:
    """Into a table that all of them make."""
    epochs = range(1, 4)
    for epoch in epochs:
        write_delta_stage(sink, epoch)
    start, results = SPAWN.Barrier(len(epochs)), SPAWN.Queue()
    processes = [SPAWN.Process(target=_publish_when_told, args=(tmp_path, epoch, start, results)) for epoch in epochs]
    for process in processes:
        process.start()
    told = {results.get(timeout=120) for _ in epochs}
    for process in processes:
        process.join(timeout=60)
    assert len(told) == 1
    (winner,) = told
    assert rows(tmp_path) == {(7, winner): 3}
    for epoch in set(epochs) - {winner}:
        assert sink.drop_stage(BATCH, epoch)
    assert sink.stages(CHECKPOINT) == []


@pytest.mark.parametrize("joined", [False, True])
def test_what_a_restore_took_is_told_though_vacuum_has_removed_its_files(
    sink: OpenSink, tmp_path: Path, joined: bool
) -> None:
    assert isinstance(sink, TellsTakenAway)
    publish(sink, 5)
    before = table(tmp_path).version()
    for number in (6, 7):
        publish(sink, number)
    if joined:
        table(tmp_path).optimize.compact()
    table(tmp_path).restore(before)
    publish(sink, 8)
    optimize_and_vacuum(tmp_path)
    (told,) = sink.taken_away("live", 9, NOTHING_KNOWN)
    assert told.ids == [6, 7]
    assert [one.ids for one in sink.taken_away("live", 7, NOTHING_KNOWN)] == [[6]]
    assert "DeltaTable(" in told.back
