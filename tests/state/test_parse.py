"""What of a pipeline with stateful=True is refused when its DAG is parsed, and what of its files is kept."""

from __future__ import annotations

import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.execution.state_files import Needed, remove_unneeded
from airflow_provider_microbatch.execution.told_state import state_of
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job, Stage
from airflow_provider_microbatch.runtime.streaming_job import Stream, Streaming
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.stores.location import open_store

STORE = "spark.sql.streaming.stateStore."
CONF: dict[str, object] = {
    STORE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    STORE + "compression.codec": "lz4",
    STORE + "rocksdb.formatVersion": "5",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
}
WINNER, LOSER, NEXT = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


def stateful(tmp_path: Path, **changes: Any) -> Pipeline:
    values: dict[str, Any] = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "sources": {"orders": FileSource(str(tmp_path / "landing"), format="json", schema="id long")},
        "sink": FileSink(str(tmp_path / "lake"), format="json"),
        "transform": "orders_job.py:transform",
        "stateful": True,
    }
    return Pipeline("orders", **(values | changes))


def test_it_comes_back_from_a_checkpoint_as_it_was(tmp_path: Path) -> None:
    pipeline = stateful(tmp_path, output_mode="update")

    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


class WithoutColumns(CounterSource):
    """A third party's source that has no stream."""

    @property
    def refuses_streams(self) -> str | None:
        return "it has its columns only once it was read. Use another one"


@pytest.mark.parametrize(
    ("source", "message"),
    [(FileSource("/landing", format="json"), "Give it schema="), (WithoutColumns("/head"), "Use another one")],
    ids=["files without a schema", "a third party's"],
)
def test_a_source_that_is_no_stream_is_refused_by_its_name_with_the_way_on(
    tmp_path: Path, source: Source, message: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"source 'customers' \(.*cannot be: .*{message}"):
        stateful(tmp_path, sources={"customers": source})


@pytest.mark.parametrize(
    "source",
    [
        FileSource("/landing", schema="id long", clean_source="delete"),
        FileSource("s3://bucket/landing", schema="id long"),
        JdbcSource("orders", "crm"),
    ],
    ids=["files that are deleted", "objects", "rows of a table"],
)
def test_what_spark_would_not_find_again_or_has_no_stream_of_is_copied(tmp_path: Path, source: Source) -> None:
    pipeline = stateful(tmp_path, sources={"customers": source})
    checkpoint = Checkpoint(open_store(pipeline.checkpoint), sources=("customers",))
    opened = OpenedSources(pipeline.sources, checkpoint=checkpoint, lane="live", clock_ms=lambda: 0)

    assert opened.streams(Ranges({"customers": None}, {"customers": None})) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"no_data_batches": False, "plan": "interval"},
        {"split_wise": True},
        {"on_failure": "set_aside"},
        {"output_mode": "complete"},
        {"stateful": "yes"},
    ],
)
def test_what_does_not_go_with_state_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(changes))):
        stateful(tmp_path, **changes)


def test_its_intervals_may_be_independent(tmp_path: Path) -> None:
    pipeline = stateful(tmp_path, plan="interval", lookback=3600)

    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


def test_a_job_says_of_streams_only_what_a_stateful_one_has() -> None:
    stage = Stage(writer="m:f", arguments={}, report="file:///stage")
    plain = Job(
        pipeline="p", lane="live", batch_id=1, epoch=1, batch_timestamp_ms=1, watermark_ms=0, sources={},
        stages={"": stage},
    )  # fmt: skip
    stream = Stream(reader="m:f", arguments={"path": "/a"}, start=None, end='{"logOffset":0}', log={"0": "v1"})
    streaming = Streaming(
        folder="/c/streaming/1-1", state="/c/state", query_id="q", output_mode="append", sources={"orders": stream}
    )

    assert "streaming" not in json.loads(plain.to_json())
    assert Job.from_json(plain.to_json()) == plain
    kept = Job.from_json(Job(**{**vars(plain), "streaming": streaming}).to_json())
    assert kept.streaming == streaming


def told_of(name: object) -> dict[str, object]:
    """What an operator has written down that has one file with columns."""
    return {"operatorInfo": {}, "stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [name]}]}


@pytest.mark.parametrize("id", ["../../etc/passwd", "", "1", 7, {"a": 1}])
def test_ids_that_are_none_of_sparks_are_no_names_of_files(id: object) -> None:
    told = {"state": {"conf": CONF, "nextWatermarkMs": 0, "base": None, "ids": {"0": [[id]]}}}

    with pytest.raises(CheckpointError, match="cannot be read"):
        state_of(told, where="batch 0")


@pytest.mark.parametrize(
    "schemas",
    [
        {"../0": told_of(f"default/0_{WINNER}")},
        {"0": told_of("../../../secrets")},
        {"0": told_of(f"default/../0_{WINNER}")},
        {"0": told_of(7)},
        {"0": {"stateStoreInfo": [{}]}},
        {"0": {}},
        ["0"],
    ],
)
def test_columns_that_lie_nowhere_in_the_state_are_no_names_of_files(schemas: object) -> None:
    told = state_with(CONF)
    assert state_of({"state": {**told["state"], "schemas": {"0": told_of(f"default/0_{WINNER}")}}}, where="batch 0")
    with pytest.raises(CheckpointError, match="cannot be read"):
        state_of({"state": {**told["state"], "schemas": schemas}}, where="batch 0")


def state_with(conf: dict[str, object]) -> dict[str, dict[str, object]]:
    return {"state": {"conf": conf, "nextWatermarkMs": 0, "base": None, "ids": {"0": [[WINNER]]}}}


@pytest.mark.parametrize("codec", ["lz4", "ZSTD", "org.apache.spark.io.SnappyCompressionCodec"])
def test_state_with_settings_of_spark_is_gone_on_from(codec: str) -> None:
    told = state_with({**CONF, STORE + "compression.codec": codec})

    assert state_of(told, where="batch 0") == told["state"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (STORE + "providerClass", "com.example.Provider"),
        (STORE + "providerClass", None),
        (STORE + "compression.codec", "com.example.Codec"),
        (STORE + "checkpointFormatVersion", "1"),
        ("spark.sql.shuffle.partitions", 2),
        ("spark.sql.streaming.streamingQueryListeners", "com.example.Listener"),
        ("spark.plugins", "Example"),
    ],
)
def test_settings_that_spark_would_make_a_class_of_are_refused_with_the_way_on(name: str, value: object) -> None:
    told = state_with({**CONF, name: value})

    with pytest.raises(
        CheckpointError, match=f"batch 0: its state was made with {name}=.* table of their own"
    ) as raised:
        state_of(told, where="batch 0")
    assert repr(value) in str(raised.value)


def test_state_by_a_provider_that_nobody_names_is_refused() -> None:
    with pytest.raises(CheckpointError, match="providerClass=None"):
        state_of(state_with({"spark.sql.shuffle.partitions": "2"}), where="batch 0")


def partition(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "state" / "0" / "0"
    (folder / "SSTs").mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return folder


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_files_of_losers_go_once_a_later_batch_has_gone_on_from_the_winner(tmp_path: Path) -> None:
    folder = partition(
        tmp_path, f"2_{WINNER}.changelog", f"2_{LOSER}.changelog", f".2_{LOSER}.changelog.crc", f"3_{NEXT}.changelog"
    )
    at_newest = Needed(newest=1, oldest=0, ids={}, parts_before_ms=0)
    later = Needed(newest=2, oldest=0, ids={1: frozenset({WINNER})}, parts_before_ms=0)

    assert remove_unneeded(tmp_path / "state", at_newest) == 0  # a replay of it may be on its way
    assert remove_unneeded(tmp_path / "state", later) == 2
    assert left(folder) == {f"2_{WINNER}.changelog", f"3_{NEXT}.changelog"}


def test_what_is_older_than_the_snapshot_that_counts_goes_with_its_parts(tmp_path: Path) -> None:
    folder = partition(
        tmp_path, f"9_{WINNER}.changelog", f"10_{WINNER}.zip", f"11_{WINNER}.changelog", "SSTs/a.sst", "SSTs/b.sst"
    )
    with zipfile.ZipFile(folder / f"10_{WINNER}.zip", "w") as archive:
        parts = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": "a.sst", "sizeBytes": 0}], "numKeys": 1}
        archive.writestr("metadata", "v1\n" + json.dumps(parts))
    needed = Needed(newest=11, oldest=10, ids={}, parts_before_ms=2**60)

    remove_unneeded(tmp_path / "state", needed)

    assert left(folder) == {f"10_{WINNER}.zip", f"11_{WINNER}.changelog", "a.sst"}
