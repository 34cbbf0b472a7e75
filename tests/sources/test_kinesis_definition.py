"""What a KinesisSource refuses before anything is touched, and how a connection reaches a stream."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.definition import Definition
from airflow_provider_microbatch.exceptions import DefinitionError, SourceError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.kinesis import KinesisSource
from airflow_provider_microbatch.sources.kinesis.access import Access
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from tests.sources.channel_world import Tunnel, TunnelSource
from tests.support import sql

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"stream": "a/b"}, "a/b"),
        ({"stream": ""}, "name of a stream"),
        ({"region": "http://elsewhere"}, "region"),
        ({"conn_id": " "}, "conn_id"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-11-21T00:00:00"}, "offset from UTC"),
        ({"start": -1}, "start"),
        ({"max_records": 0}, "max_records"),
        ({"max_records": True}, "max_records"),
        ({"max_partitions": 0}, "max_partitions"),
        ({"idle_seconds": -1}, "idle_seconds"),
        ({"timeout": "9"}, "timeout"),
        ({"on_data_loss": "ignore"}, "on_data_loss"),
        ({"ends_dir": "relative"}, "ends_dir"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(DefinitionError, match=rf"KinesisSource.*{what}"):
        KinesisSource(**{"stream": "orders", **arguments})


def test_a_definition_travels_and_tells_what_it_reads() -> None:
    source = KinesisSource("orders", region="eu-central-1", start="2026-11-21T01:00:00+01:00", max_partitions=4)
    assert Definition.from_dict(json.loads(json.dumps(source.to_dict()))) == source
    assert source.begins_ms == 1_795_219_200_000
    assert source.location() == "kinesis://eu-central-1/orders"
    assert source.shares_with(KinesisSource("orders", region="eu-central-1"))
    assert not source.shares_with(KinesisSource("returns", region="eu-central-1"))


def test_a_pace_is_refused_since_nobody_knows_how_much_a_batch_has() -> None:
    with pytest.raises(DefinitionError, match="max_records"):
        Pipeline(
            "orders",
            checkpoint="/data/checkpoints/orders",
            sources={"orders": KinesisSource("orders")},
            sink=FileSink("/data/lake"),
            target_seconds=60,
        )


def test_a_connection_gives_keys_region_and_endpoint() -> None:
    extra = {"region_name": "eu-west-1", "aws_session_token": "t", "endpoint_url": "http://localhost:1"}
    found = Access.of_connection(Connection(conn_id="aws", conn_type="aws", login="key", password="hush", extra=extra))
    assert (found.region, found.endpoint) == ("eu-west-1", "http://localhost:1")
    assert found.secrets == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hush",
        "aws_session_token": "t",
    }
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("given", "what"),
    [({"extra": {"role_arn": "arn:aws:iam::1:role/x"}}, "role_arn"), ({"login": "key"}, "without its secret")],
)
def test_a_login_that_executors_could_not_follow_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(SourceError, match=rf"'aws'.*{what}"):
        Access.of_connection(Connection(conn_id="aws", conn_type="aws", **given))


def test_a_checkpoint_that_executors_cannot_write_to_asks_for_a_folder_that_they_can(tmp_path: Path) -> None:
    Tunnel()
    store = open_store(sql.in_sqlite(tmp_path))
    context = SourceContext(name="orders", log=store.scoped("log"), state=store.scoped("state"), clock_ms=lambda: 0)
    source = TunnelSource().open(context)
    with pytest.raises(SourceError, match=r"'orders'.*ends_dir"):
        source.check()
    assert source.why_not_from(None) is None, "a command asks whether it can be read, and reads nothing"
    shared = TunnelSource(ends_dir="/shared/ends").open(context)
    shared.check()
    assert shared.read_late(None).arguments["ends"].startswith("/shared/ends/ends/")


def test_a_look_through_a_draft_of_the_checkpoint_leaves_nothing_in_the_folder_of_ends(tmp_path: Path) -> None:
    """``microbatch peek`` reads what is planned, and nobody removes what its executors would write there."""
    Tunnel()
    store = Draft(open_store(str(tmp_path)))
    context = SourceContext(name="orders", log=store.scoped("log"), state=store.scoped("state"), clock_ms=lambda: 0)
    looked = TunnelSource(ends_dir=str(tmp_path / "shared")).open(context)
    looked.check()
    end = json.dumps({"0": {"rows": 1, "after": "0"}})
    assert looked.read(json.dumps({}), end).arguments["ends"] is None


def test_the_documented_dag_is_one() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kinesis.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    pipeline = names["pipeline"]
    assert Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    assert pipeline.sources["orders"].stream == "orders"


def test_a_definition_imports_no_client() -> None:
    code = (
        "import sys; from airflow_provider_microbatch import KinesisSource; KinesisSource('orders'); "
        "print([name for name in ('boto3', 'botocore', 'pyspark', 'pyarrow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
