"""A pipeline whose checkpoint lies in an object store, by an Airflow connection, as DAGs and people use it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.configuration import hand_down
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.operators.janitor import MicroBatchJanitorOperator
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.object_store.s3a import check_one_endpoint
from tests.airflow_face.support import InlineOperator, context, transform_file
from tests.airflow_face.test_new_data import event, fires, triggered
from tests.execution.world import CODE, World, run_identity
from tests.support import object_store
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # a bucket is served

CONNECTION = {"conn_type": "aws", "login": "AKIALAKE", "password": "the-secret-of-lake"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({**CONNECTION, "extra": extra}))
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    hand_down()
    transform_file(tmp_path / "bundle")
    world = World(tmp_path, checkpoint=f"s3://lake@{object_store.BUCKET}{tmp_path}/checkpoint")
    world.landing()
    return world


@pytest.mark.spark
def test_a_real_batch_by_spark_submit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    world.land(1, 2, 3)
    operator = MicroBatchOperator(task_id="micro_batch", pipeline=world.pipeline, conf={"spark.ui.enabled": "false"})
    summary = operator.execute(context(world.root / "bundle"))
    assert world.table() == {0: [1, 2, 3]}
    assert (summary["key"], summary["state"], summary["rows_out"]) == ("live/0", "committed", 3)
    assert {"metadata", "offsets/0", "commits/0"} <= set(object_store.keys(world.root / "checkpoint"))
    assert not (world.root / "checkpoint").exists(), "no file of it is on this machine"
    with pytest.raises(AirflowSkipException, match="nothing new"):
        operator.execute(context(world.root / "bundle", number=2))


@pytest.mark.parametrize("kind", ["two sources", "a source and its table"])
def test_buckets_of_one_name_at_two_endpoints_are_not_in_one_job(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Hadoop has one client for a bucket's name: rows of the one service would be read for the other's, in green."""
    extra = {"endpoint_url": object_store.endpoint().replace("127.0.0.1", "localhost"), "region_name": "us-east-1"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**CONNECTION, "extra": extra}))
    top = f"{object_store.BUCKET}{world.root}"
    object_store.client().put_object(
        Bucket=object_store.BUCKET, Key=f"{str(world.root).strip('/')}/landing/a.json", Body=b'{"id": 1}\n'
    )
    landing = FileSource(f"s3://lake@{top}/landing", schema="id long", packages=[])
    world.sources = {"orders": landing}
    if kind == "two sources":
        world.sources["refunds"] = replace(landing, path=f"s3://other@{top}/refunds")
    else:
        world.options["sink"] = FileSink(f"s3://other@{top}/lake", packages=[])
    operator = InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine())
    with pytest.raises(DefinitionError, match=rf"bucket '{object_store.BUCKET}' at two endpoints"):
        operator.execute(context(world.root / "bundle"))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", os.environ["AIRFLOW_CONN_LAKE"])
    check_one_endpoint(world.execution.planner.sources.secrets() | world.execution.sink.secrets())


def test_amazons_endpoint_is_the_same_whether_it_is_written_or_not() -> None:
    written = {"orders/fs.s3a.bucket.lake.endpoint": "https://s3.eu-west-1.amazonaws.com"}
    check_one_endpoint({**written, "refunds/fs.s3a.bucket.lake.endpoint.region": "eu-west-1"})
    for other in ("https://minio:9000", "https://s3.amazonaws.com.minio"):
        with pytest.raises(DefinitionError, match="'lake' at two endpoints"):
            check_one_endpoint({**written, "refunds/fs.s3a.bucket.lake.endpoint": other})
    check_one_endpoint({**written, "refunds/fs.s3a.bucket.pond.endpoint": "https://minio:9000"})


@pytest.mark.slow
def test_no_secret_is_in_any_entry(world: World) -> None:
    world.land(1)
    InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=InlineEngine()).execute(
        context(world.root / "bundle")
    )
    store = open_store(world.pipeline.checkpoint)
    for key in object_store.keys(world.root / "checkpoint"):
        if not key.startswith("."):
            data = store.get(key) or b""
            assert CONNECTION["login"].encode() not in data
            assert CONNECTION["password"].encode() not in data


def test_a_trigger_fires_for_new_data_alone_and_writes_nothing(world: World) -> None:
    assert not fires(triggered(world))
    assert object_store.keys(world.root / "checkpoint") == []
    world.land(1)
    assert event(triggered(world))
    assert object_store.keys(world.root / "checkpoint") == []


@pytest.mark.slow
def test_what_a_dead_task_left_is_cleaned_up(world: World) -> None:
    world.land(1)
    planned = world.execution.plan(run_identity(0))
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run_identity(0), code=CODE, engine=InlineEngine())
    world.execution.checkpoint.leases.renew(attempt.key, attempt.epoch, seconds=0.0)
    world.stage_folder().mkdir(parents=True)
    MicroBatchJanitorOperator(task_id="janitor", pipelines=[world.pipeline], grace_seconds=0.0).execute(
        context(world.root / "bundle")
    )
    assert world.stages() == []


@pytest.mark.slow
def test_commands_take_the_address(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    location = world.pipeline.checkpoint
    for number in range(2):
        world.land(number)
        world.run(number)
    for command in (["log"], ["show", "0"], ["check"], ["janitor"]):
        assert main([command[0], location, *command[1:]]) == 0, capsys.readouterr().out
    assert "nothing wrong (live: 2 planned, 2 committed" in capsys.readouterr().out
    assert main(["log", f"s3://lake@{object_store.BUCKET}/nothing/there"]) != 0
    assert "is not a checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_is_exported_into_a_folder_and_comes_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        world.land(number)
        world.run(number)
    folder = world.root / "exported"
    assert main(["export", world.pipeline.checkpoint, str(folder)]) == 0, capsys.readouterr()
    assert (folder / "commits" / "1").exists()
    world.options["checkpoint"] = str(folder)
    assert world.checkpoint.lane("live").tail() is not None


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [("s3://bucket", "a folder of its own"), ("s3://key:secret@bucket/x", "no key or password"), ("s4://b/x", "s4")],
)
def test_what_is_no_address_is_refused_where_the_pipeline_is_written(world: World, checkpoint: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why) as told:
        replace(world.pipeline, checkpoint=checkpoint)
    assert "secret" not in str(told.value)
