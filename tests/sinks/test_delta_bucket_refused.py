"""What is refused of a Delta table in a bucket, in which words, and where its secrets are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import OpenSink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.object_store import bucket
from tests.sinks.delta_bucket import OPTIONS, keys, opened, publish, rows, table, uri
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, NOTHING_KNOWN, batch_of
from tests.support import object_store
from tests.support.faulty_proxy import Asked, FaultyProxy, done_but_lost, error

pytestmark = pytest.mark.slow

KEY, SECRET, TOKEN = "AKIALAKE", "the-secret-of-lake", "the-token-of-lake"


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(object_store.endpoint())
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def lake(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Connection]:
    """Connections by id, as Airflow would find them; nothing of the environment leads anywhere."""
    found = {"lake": connection(proxy.url)}
    monkeypatch.setattr(connections, "_found_by", [found.__getitem__])
    for name in object_store.environment(""):
        monkeypatch.delenv(name)
    monkeypatch.setattr(bucket, "PATIENCE_SECONDS", 0.3)
    return found


def connection(url: str, **extra: Any) -> Connection:
    told = {"endpoint_url": url, "region_name": "us-east-1", "aws_session_token": TOKEN, **extra}
    return Connection(conn_id="lake", conn_type="aws", login=KEY, password=SECRET, extra=told)


@pytest.fixture
def sink(lake: dict[str, Connection], tmp_path: Path) -> OpenSink:
    return DeltaSink(f"s3://lake@{object_store.BUCKET}{tmp_path}/orders", packages=[]).open(SinkContext())


def is_log(asked: Asked) -> bool:
    return "/_delta_log/" in asked.key


def is_commit(asked: Asked) -> bool:
    return is_log(asked) and asked.method == "PUT"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("s3://lake@bucket", "needs a folder of its own"),
        ("s3://AKIA:secret@bucket/orders", "is the id of an Airflow connection"),
        ("s3://lake@bucket/50% of orders", "other signs than letters"),
        ("s3://lake@bucket--x-s3/orders", "directory bucket"),
        ("gs://lake@bucket/orders", "only local paths"),
    ],
)
def test_an_address_that_cannot_be_a_tables_is_refused_where_it_is_written(path: str, named: str) -> None:
    with pytest.raises(DefinitionError, match=named) as told:
        DeltaSink(path)
    assert "secret" not in str(told.value)


def test_a_table_lies_in_one_place_by_whichever_connection() -> None:
    one, other = DeltaSink("s3://lake@bucket/table"), DeltaSink("s3a://bucket/table")
    assert one.is_same_place(other)
    assert one.is_same_place(FileSink("s3://bucket/table"))
    assert not one.is_same_place(DeltaSink("/bucket/table"))
    assert one.would_show("s3://elsewhere@bucket/table/checkpoint")
    assert not one.would_show("s3://bucket/table2")
    assert one.unlike(DeltaSink("/orders", partition_by=("day",))) is not None


def test_a_connection_of_no_use_is_named(lake: dict[str, Connection], sink: OpenSink) -> None:
    lake["lake"] = Connection(conn_id="lake", conn_type="http")
    with pytest.raises(SinkError, match="is of type 'http'"):
        sink.check()
    lake["lake"] = connection("http://127.0.0.1:1", verify="/etc/own.pem")
    with pytest.raises(SinkError, match=r"/etc/own\.pem"):
        sink.check()


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "TOKEN", "session_token"])
def test_a_token_of_the_environment_is_not_sent_with_the_keys_of_the_connection(
    lake: dict[str, Connection], sink: OpenSink, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lake["lake"] = connection(proxy.url, aws_session_token=None)
    monkeypatch.setenv(name, "of somebody else")
    with pytest.raises(SinkError, match=f"variable {name} "):
        sink.check()
    lake["lake"] = connection(proxy.url)
    sink.check()
    assert {asked.headers["x-amz-security-token"] for asked in proxy.asked if is_log(asked)} == {TOKEN}


def test_the_environment_does_not_lead_elsewhere(
    lake: dict[str, Connection], sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake["lake"] = connection("")
    monkeypatch.setenv("ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(SinkError, match="variable ENDPOINT "):
        sink.contains(EXPECTED)


@pytest.mark.parametrize(
    "name", ["AWS_ENDPOINT_URL_S3", "aws_endpoint_url_s3", "AWS_ENDPOINT_URL", "AWS_SKIP_SIGNATURE"]
)
def test_the_connection_wins_over_the_environment(
    sink: OpenSink, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "true" if "SKIP" in name else "http://127.0.0.1:1")
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    assert any(is_log(asked) for asked in proxy.asked)
    assert all("authorization" in asked.headers for asked in proxy.asked)


@pytest.mark.parametrize(("name", "field"), [("REGION", "region_name"), ("AWS_S3_ASSUME_ROLE_ARN", None)])
def test_what_delta_rs_alone_would_go_by_is_refused(
    lake: dict[str, Connection],
    sink: OpenSink,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    field: str | None,
) -> None:
    if field is not None:
        lake["lake"] = connection(proxy.url, **{field: None})
    monkeypatch.setenv(name, "elsewhere")
    with pytest.raises(SinkError, match=f"variable {name} "):
        sink.contains(EXPECTED)


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (error(404, "NoSuchBucket", "The specified bucket does not exist"), "no bucket 'microbatch': make it"),
        (error(403, "AccessDenied", "Access Denied"), "the rights to list bucket 'microbatch'"),
        (error(403, "InvalidAccessKeyId", f"No {KEY}.", more=f"<K>{KEY}</K>"), "keys of connection 'lake'"),
        (error(400, "ExpiredToken", "It has expired.", more=f"<Token-0>{TOKEN}</Token-0>"), "has expired: renew it"),
    ],
)
@pytest.mark.parametrize("of_all", [True, False], ids=["of all", "of the log"])
def test_what_goes_wrong_is_said_with_a_remedy_and_without_secrets(
    sink: OpenSink, proxy: FaultyProxy, answer: Any, remedy: str, of_all: bool
) -> None:
    proxy.fail(lambda asked: of_all or is_log(asked), lambda asked, forward: answer, times=1000)
    for ask in (sink.check, lambda: sink.contains(EXPECTED)):
        with pytest.raises(SinkError, match=remedy) as told:
            ask()
        assert not any(secret in str(told.value) for secret in (KEY, SECRET, TOKEN)), told.value


def test_who_may_not_write_the_log_learns_it_at_once(sink: OpenSink, proxy: FaultyProxy) -> None:
    write_delta_stage(sink, 1)
    denied = error(403, "AccessDenied", "Access Denied")
    proxy.fail(is_commit, lambda asked, forward: denied, times=1000)
    with pytest.raises(SinkError, match="the rights to list bucket 'microbatch'"):
        sink.publish(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None


def test_a_service_that_ignores_conditions_is_refused_before_spark_begins(
    sink: OpenSink, proxy: FaultyProxy, tmp_path: Path
) -> None:
    proxy.fail(lambda asked: True, lambda asked, forward: forward("if-none-match", "if-match"), times=1000)
    with pytest.raises(SinkError, match=r"If-None-Match.*no table can be kept there"):
        sink.begin(BATCH, 1)
    assert keys(tmp_path, "_microbatch") == []


def test_a_commit_whose_answer_is_lost_is_known_as_ours(sink: OpenSink, proxy: FaultyProxy, tmp_path: Path) -> None:
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_delta_stage(sink, 2)
    proxy.fail(is_commit, done_but_lost)
    assert sink.replace(EXPECTED, 2).epoch == 2
    proxy.fail(is_commit, done_but_lost)
    sink.withdraw(EXPECTED, 2)
    assert sink.contains(EXPECTED) is None
    assert sink.stages(CHECKPOINT) == []


def test_each_version_is_put_on_the_condition_that_it_is_not_there(sink: OpenSink, proxy: FaultyProxy) -> None:
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    put = [asked for asked in proxy.asked if is_commit(asked) and asked.key.endswith(".json")]
    assert [asked.headers.get("if-none-match") for asked in put] == ["*", "*"]


def test_the_secrets_of_the_connection_are_in_no_stage_object_or_environment(sink: OpenSink, tmp_path: Path) -> None:
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    stage = sink.stage(BATCH, 2)
    (name,) = sink.secrets()
    assert stage.arguments["access"] == name
    assert SECRET in sink.secrets()[name]
    of_children = subprocess.run(["env"], check=True, capture_output=True, text=True).stdout
    stored = [stage, sink.definition.to_dict(), of_children, dict(os.environ)]
    for key in object_store.keys(tmp_path):
        found = object_store.client().get_object(Bucket=object_store.BUCKET, Key=f"{str(tmp_path).strip('/')}/{key}")
        stored.append(found["Body"].read().decode("latin-1"))
    assert not any(secret in str(one) for one in stored for secret in (SECRET, TOKEN))


def test_a_table_that_asks_for_what_we_do_not_do_is_refused_by_name(tmp_path: Path) -> None:
    sink = DeltaSink(f"{object_store.address(tmp_path)}/orders", packages=[]).open(SinkContext())
    schema = Schema([Field("id", "long"), Field("lane", "string"), Field("batch_id", "long")])
    DeltaTable.create(uri(tmp_path), schema, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(SinkError, match="deletionVectors"):
        sink.check()


@pytest.mark.parametrize("copied", [(5, 6, 7), (0, 1, 2)])
def test_rows_that_were_copied_are_named_however_often_the_first_batch_is_tried(
    tmp_path: Path, copied: tuple[int, ...]
) -> None:
    """The stage of an attempt that was refused left the batch behind as taken out: the next one was let in, or sent to
    undo a RESTORE that nobody had made, and each later batch came in beside its rows."""
    object_store.endpoint()
    made = [{"id": row, "epoch": 1, "lane": "live", "batch_id": id} for id in copied for row in range(3)]
    write_deltalake(uri(tmp_path), pa.Table.from_pylist(made), storage_options=OPTIONS)
    before, first, told = rows(tmp_path), batch_of(BatchKey("live", 0)), ", ".join(f"live/{id}" for id in copied)
    for epoch in (1, 2, 3):
        with pytest.raises(SinkError, match=f"9 rows of batches {told}, and its log has no record of them"):
            publish(opened(tmp_path), 0, epoch=epoch)
        assert opened(tmp_path).drop_stage(first, epoch)
    assert rows(tmp_path) == before
    assert not opened(tmp_path).came_back("live", [0], NOTHING_KNOWN)
    table(tmp_path).delete(f"batch_id BETWEEN {copied[0]} AND {copied[-1]}")
    for number in sorted({0, *copied}):
        publish(opened(tmp_path), number, epoch=4)
    assert rows(tmp_path) == {(id, 4): 3 for id in {0, *copied}}


def test_nobody_who_partitions_a_table_before_its_first_batch_is_told_to_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed attempt had made the table, and its stage was dropped: neither is a batch."""
    sink, by = opened(tmp_path), ["id"]
    write_delta_stage(sink, 1)
    with monkeypatch.context() as dying:
        dying.setattr(DeltaLog, "commit", _dies)
        with pytest.raises(KeyboardInterrupt):
            sink.publish(EXPECTED, 1)
    assert sink.drop_stage(BATCH, 1)
    of_nobody = pa.table({"id": [1], "epoch": [9]})
    write_deltalake(
        uri(tmp_path), of_nobody, mode="overwrite", schema_mode="overwrite", partition_by=by, storage_options=OPTIONS
    )
    with pytest.raises(SinkError, match=r"and the sink says \[\]: DeltaSink\(…, partition_by=\['id'\]\)"):
        opened(tmp_path).check()
    opened(tmp_path, partition_by=by).check()


def _dies(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt
