"""A table in a bucket: what no other table has, and who may publish what is about to be removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch import open_dataset, published_files
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError, SourceError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.objects import OpenObjectTable
from airflow_provider_microbatch.sinks.file.objects.published import Manifests
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.stores.object_store.bucket import Bucket
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN, batch_of, expect
from tests.sources.support import World
from tests.support import object_store
from tests.support.foreach_sinks import RowsInSqlite
from tests.support.object_stages import place_of, write_stage

pytestmark = pytest.mark.slow

MANIFEST = "_symlink_format_manifest/lane=live/batch_id=7/manifest"


@pytest.fixture
def table(tmp_path: Path) -> OpenObjectTable:
    opened = FileSink(f"{object_store.address(tmp_path)}/table", format="json", packages=[]).open(SinkContext())
    assert isinstance(opened, OpenObjectTable)
    return opened


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"{object_store.address(tmp_path)}/table"


def text_at(tmp_path: Path, key: str) -> str:
    key = f"{str(tmp_path).strip('/')}/table/{key}"
    found: str = object_store.client().get_object(Bucket=object_store.BUCKET, Key=key)["Body"].read().decode()
    return found


def remove_at(tmp_path: Path, key: str) -> None:
    object_store.client().delete_object(Bucket=object_store.BUCKET, Key=f"{str(tmp_path).strip('/')}/table/{key}")


def keys_of(tmp_path: Path) -> list[str]:
    return object_store.keys(tmp_path / "table")


def test_a_manifest_names_the_files_of_its_batch_a_line_each(table: OpenObjectTable, tmp_path: Path) -> None:
    write_stage(table, 1, files=2)
    table.publish(EXPECTED, 1)
    folder = f"s3://{object_store.BUCKET}{tmp_path}/table/_batches/lane=live/batch_id=7/{CHECKPOINT}.1"
    assert text_at(tmp_path, MANIFEST) == f"{folder}/part-00000-1.json\n{folder}/part-00001-1.json\n"


def test_who_lists_the_folder_finds_nothing_in_it(table: OpenObjectTable, tmp_path: Path) -> None:
    write_stage(table, 1)
    table.publish(EXPECTED, 1)
    write_stage(table, 2)
    assert {key.partition("/")[0][0] for key in keys_of(tmp_path)} <= {"_", "."}


def test_a_table_is_refused_as_a_source(table: OpenObjectTable, address: str, tmp_path: Path) -> None:
    write_stage(table, 1)
    with pytest.raises(SourceError, match="is a table that a pipeline of this package writes"):
        World(tmp_path / "world").open(address).latest_offset(None)


def test_a_batch_without_rows_is_in_and_names_a_file_of_none(
    table: OpenObjectTable, address: str, tmp_path: Path
) -> None:
    write_stage(table, 1, files=0)
    table.publish(EXPECTED, 1)
    assert text_at(tmp_path, MANIFEST).endswith(".1/nothing.json\n")
    found = table.contains(EXPECTED)
    assert found is not None
    assert table.damage(EXPECTED, found) is None
    assert list(published_files(address)) == []


class Interrupted:
    """Somebody does something right before a method of the table's runs for the first time."""

    def __init__(self, owner: type, name: str, do: Callable[[], object]) -> None:
        real, left = getattr(owner, name), [do]

        def first(*args: Any, **kwargs: Any) -> Any:
            while left:
                left.pop()()
            return real(*args, **kwargs)

        self.patch = mock.patch.object(owner, name, first)


def test_who_sleeps_before_his_put_does_not_publish_what_was_dropped_meanwhile(
    table: OpenObjectTable, tmp_path: Path
) -> None:
    write_stage(table, 1)
    with (
        Interrupted(Manifests, "put", lambda: table.drop_stage(BATCH, 1)).patch,
        pytest.raises(SinkError, match=r"no complete stage|was dropped"),
    ):
        table.publish(EXPECTED, 1)
    assert table.contains(EXPECTED) is None
    assert table.stages(CHECKPOINT) == []
    assert [key for key in keys_of(tmp_path) if key.startswith("_batches/")] == []
    write_stage(table, 2)
    assert table.publish(EXPECTED, 2).epoch == 2


def test_who_sleeps_in_a_replay_does_not_publish_what_was_dropped_meanwhile(table: OpenObjectTable) -> None:
    write_stage(table, 1)
    table.publish(EXPECTED, 1)
    write_stage(table, 2)
    with (
        Interrupted(Manifests, "put", lambda: table.drop_stage(BATCH, 2)).patch,
        pytest.raises(SinkError, match=r"no complete stage|was dropped"),
    ):
        table.replace(EXPECTED, 2)
    found = table.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 1
    assert table.damage(EXPECTED, found) is None
    write_stage(table, 3)
    assert table.replace(EXPECTED, 3).epoch == 3


def test_who_drops_a_stage_that_is_published_at_that_moment_takes_nothing_away(table: OpenObjectTable) -> None:
    write_stage(table, 1)
    with Interrupted(Stages, "give_up", lambda: table.publish(EXPECTED, 1)).patch:
        assert table.drop_stage(BATCH, 1) is False
    found = table.contains(EXPECTED)
    assert found is not None
    assert table.damage(EXPECTED, found) is None
    assert table.stages(CHECKPOINT) == []


def test_a_drop_that_was_cut_off_is_gone_on_with(table: OpenObjectTable, tmp_path: Path) -> None:
    write_stage(table, 1)

    def die(*_: object) -> bool:
        raise SinkError("the process died")

    with mock.patch.object(Stages, "remove", die), pytest.raises(SinkError, match="died"):
        table.drop_stage(BATCH, 1)
    with pytest.raises(SinkError, match="no complete stage"):
        table.publish(EXPECTED, 1)
    assert table.stages(CHECKPOINT) == [(KEY, 1)]
    assert table.drop_stage(BATCH, 1) is True
    assert [key for key in keys_of(tmp_path) if key.startswith(("_batches/", "_staging/"))] == []


def test_two_replays_that_meet_leave_the_later_one(table: OpenObjectTable) -> None:
    for epoch in (1, 2, 3):
        write_stage(table, epoch, rows=epoch)
    table.publish(EXPECTED, 1)
    with (
        Interrupted(Manifests, "put", lambda: table.replace(EXPECTED, 3)).patch,
        pytest.raises(SinkError, match="attempt 3 is published"),
    ):
        table.replace(EXPECTED, 2)
    found = table.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 3


def test_a_manifest_may_have_any_text_on_one_line(table: OpenObjectTable) -> None:
    write_stage(table, 1)
    (bucket, prefix), s3 = place_of(table, 1), object_store.client()
    told = next(one for one in s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/_manifest/")["Contents"])["Key"]
    first, *rest = s3.get_object(Bucket=bucket, Key=told)["Body"].read().decode().split("\n")
    line = json.loads(first)
    line["result"]["read"] = {"orders": "one\u2028two\x85three"}
    text = "\n".join([json.dumps(line, ensure_ascii=False), *rest])
    s3.put_object(Bucket=bucket, Key=told, Body=text.encode())
    assert table.publish(EXPECTED, 1).files


@pytest.mark.slow
def test_what_a_driver_that_nobody_could_stop_writes_after_the_drop_is_found(table: OpenObjectTable) -> None:
    write_stage(table, 1)
    table.fence(BATCH, 1, by="a test")
    table.drop_stage(BATCH, 1)
    bucket, prefix = place_of(table, 1)
    object_store.client().put_object(Bucket=bucket, Key=f"{prefix}/part-9.json", Body=b"{}\n")
    assert table.stages(CHECKPOINT) == [(KEY, 1)]
    assert table.drop_stage(BATCH, 1) is True
    assert table.stages(CHECKPOINT) == []


def test_replaced_output_stays_for_its_readers_and_goes_when_it_is_asked_to(
    table: OpenObjectTable, tmp_path: Path
) -> None:
    for epoch in (1, 2):
        write_stage(table, epoch)
    table.publish(EXPECTED, 1)
    table.replace(EXPECTED, 2)
    first = f"_batches/lane=live/batch_id=7/{CHECKPOINT}.1/part-00000-1.json"
    assert table.drop_replaced(CHECKPOINT, older_seconds=3600) == []
    assert table.drop_stage(BATCH, 1) is False
    assert first in keys_of(tmp_path)
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert first not in keys_of(tmp_path)


def test_a_mark_of_a_replay_that_never_came_takes_nothing_away(table: OpenObjectTable) -> None:
    for epoch in (1, 2):
        write_stage(table, epoch)
    table.publish(EXPECTED, 1)

    def die(*_: object) -> bool:
        raise SinkError("the process died")

    with mock.patch.object(Manifests, "put", die), pytest.raises(SinkError, match="died"):
        table.replace(EXPECTED, 2)
    assert table.drop_replaced(CHECKPOINT, older_seconds=0) == []
    found = table.contains(EXPECTED)
    assert found is not None
    assert table.damage(EXPECTED, found) is None


def test_batches_are_told_without_those_that_were_taken_out(table: OpenObjectTable) -> None:
    for number in (7, 8, 10):
        batch = expect(BatchKey("live", number))
        write_stage(table, 1, batch=batch.identity)
        table.publish(batch, 1)
    table.withdraw(expect(BatchKey("live", 8)), 1)
    assert table.batches("live", NOTHING_KNOWN) == [7, 10]
    assert list(table.batches_after("live", 7, NOTHING_KNOWN)) == [10]
    assert list(table.batches_after("live", -1, NOTHING_KNOWN)) == [7, 10]
    assert list(table.batches_after("live", 10, NOTHING_KNOWN)) == []


def changed_manifest(tmp_path: Path, body: str) -> None:
    key = f"{str(tmp_path).strip('/')}/table/{MANIFEST}"
    object_store.client().put_object(Bucket=object_store.BUCKET, Key=key, Body=body.encode())


@pytest.mark.parametrize(
    "body",
    [
        "",
        "s3://elsewhere/part.json\n",
        "s3://microbatch{path}/table/_batches/lane=live/batch_id=8/x.1/part.json\n",
        "s3://microbatch{path}/table/_batches/lane=live/batch_id=7/x.1/../../part.json\n",
        "s3://microbatch{path}/table/_batches/lane=live/batch_id=7/x.1/a\n"
        "s3://microbatch{path}/table/_batches/lane=live/batch_id=7/x.2/b\n",
    ],
)
def test_a_manifest_that_somebody_changed_is_an_error(table: OpenObjectTable, tmp_path: Path, body: str) -> None:
    write_stage(table, 1)
    table.publish(EXPECTED, 1)
    changed_manifest(tmp_path, body.format(path=tmp_path))
    with pytest.raises(SinkError, match="is no manifest of batch live/7"):
        table.contains(EXPECTED)


def test_files_that_are_gone_or_left_out_are_told(table: OpenObjectTable, tmp_path: Path) -> None:
    write_stage(table, 1, files=2)
    found = table.publish(EXPECTED, 1)
    changed_manifest(tmp_path, text_at(tmp_path, MANIFEST).splitlines()[0] + "\n")
    assert "does not name the files" in (table.damage(EXPECTED, found) or "")
    write_stage(table, 1, batch=batch_of(BatchKey("live", 8)))
    other = expect(BatchKey("live", 8))
    found = table.publish(other, 1)
    remove_at(tmp_path, f"_batches/lane=live/batch_id=8/{CHECKPOINT}.1/part-00000-1.json")
    assert "missing: part-00000-1.json" in (table.damage(other, found) or "")


def test_a_stage_in_which_somebody_else_has_written_is_not_published(table: OpenObjectTable) -> None:
    write_stage(table, 1)
    bucket, prefix = place_of(table, 1)
    object_store.client().put_object(Bucket=bucket, Key=f"{prefix}/part-9.json", Body=b"{}\n")
    with pytest.raises(SinkError, match=r"not in the manifest: part-9\.json"):
        table.publish(EXPECTED, 1)


def test_what_is_no_part_of_the_table_is_told(table: OpenObjectTable, tmp_path: Path) -> None:
    write_stage(table, 1)
    table.publish(EXPECTED, 1)
    s3, top = object_store.client(), f"{str(tmp_path).strip('/')}/table"
    for key in ("stray.json", "_symlink_format_manifest/lane=live/other/manifest"):
        s3.put_object(Bucket=object_store.BUCKET, Key=f"{top}/{key}", Body=b"{}")
    told = table.strays(NOTHING_KNOWN)
    assert [one.rpartition("/table/")[2].partition(" ")[0] for one in told] == [
        "stray.json",
        "_symlink_format_manifest/lane=live/other/manifest",
    ]


def test_the_secrets_of_the_connection_are_in_no_stage(tmp_path: Path) -> None:
    def lake(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, conn_type="aws", login="AKIALAKE", password="very-secret")

    sink = FileSink("s3://lake@bucket/table", packages=[]).open(SinkContext(connect=lake))
    stage = sink.stage(BATCH, 1)
    assert "very-secret" not in str(stage)
    (name,) = sink.secrets()
    assert stage.arguments["access"] == name
    assert "very-secret" in sink.secrets()[name]


def test_a_connection_of_another_type_is_named() -> None:
    def lake(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, conn_type="http")

    with pytest.raises(SinkError, match="is of type 'http'"):
        FileSink("s3://lake@bucket/table", packages=[]).open(SinkContext(connect=lake)).check()


def test_a_table_lies_in_one_place_by_whichever_connection() -> None:
    one, other = FileSink("s3://lake@bucket/table"), FileSink("s3a://bucket/table")
    assert one.is_same_place(other)
    assert not one.is_same_place(FileSink("s3://lake@bucket/table2"))
    assert not one.is_same_place(FileSink("/bucket/table"))
    assert one.would_show("s3://elsewhere@bucket/table/checkpoint")
    assert not one.would_show("s3://bucket/table2")
    assert replace(one, packages=["org:a:1"]).packages == ["org:a:1"]
    with pytest.raises(DefinitionError, match="format"):
        replace(one, format="avro")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PathCatalog("s3://bucket/lake"),
        lambda: PostgresSink("warehouse", "public.orders", stages="s3://bucket/stages"),
        lambda: RowsInSqlite("s3://bucket/stages", "/rows.db", format="json"),
    ],
)
def test_sinks_that_rename_refuse_a_bucket(make: Callable[[], object]) -> None:
    with pytest.raises(DefinitionError, match="only local paths"):
        make()


@pytest.fixture
def two_batches(table: OpenObjectTable) -> OpenObjectTable:
    for number in (7, 8):
        batch = expect(BatchKey("live", number))
        write_stage(table, number, batch=batch.identity)
        table.publish(batch, number)
    write_stage(table, 9)
    return table


def test_microbatch_files_lists_what_is_published(
    two_batches: OpenObjectTable, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["files", address]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [one.rpartition("/")[2] for one in listed] == ["part-00000-7.json", "part-00000-8.json"]
    assert main(["files", address, "--json", "--lane", "other"]) == 0
    assert capsys.readouterr().out == ""


def test_arrow_reads_what_is_published(two_batches: OpenObjectTable, address: str) -> None:
    rows = open_dataset(address).to_table().to_pylist()
    assert sorted((row["batch_id"], row["lane"], row["epoch"], row["id"]) for row in rows) == [
        (number, "live", number, row) for number in (7, 8) for row in range(3)
    ]


def test_a_table_without_batches_needs_a_schema(address: str) -> None:
    with pytest.raises(SinkError, match="nothing is published"):
        open_dataset(address)


@pytest.mark.slow
def test_a_batch_makes_as_many_requests_of_the_table_however_long_its_history(table: OpenObjectTable) -> None:
    asked = list[str]()
    real = Bucket.ask

    def counted(self: Bucket, doing: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(doing)
        return real(self, doing, *args, **kwargs)

    def of_one(number: int) -> dict[str, int]:
        batch = expect(BatchKey("live", number))
        write_stage(table, 1, batch=batch.identity)
        counts = {}
        for what, step in (
            ("plan", lambda: list(table.batches_after("live", number - 1, NOTHING_KNOWN))),
            ("publish", lambda: table.publish(batch, 1)),
            ("commit", lambda: table.contains(batch)),
            ("janitor", lambda: table.stages(CHECKPOINT)),
        ):
            asked.clear()
            step()
            counts[what] = len(asked)
        return counts

    with mock.patch.object(Bucket, "ask", counted):
        of_one(0)  # tries the service once
        first = of_one(1)
        for number in range(2, 12):
            last = of_one(number)
    assert last == first
    assert last == {"plan": 1, "publish": 10, "commit": 1, "janitor": 2}
