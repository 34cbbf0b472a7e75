"""Small files of a table in a bucket become few: whoever dies, sleeps, replays or tidies up meanwhile, each batch has
its rows once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import published_files
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Compacted, Compaction, SinkContext
from airflow_provider_microbatch.sinks.compaction import CHANGED
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file.objects import OpenObjectTable
from airflow_provider_microbatch.sinks.file.objects.compacting import ObjectCompacting
from airflow_provider_microbatch.sinks.file.objects.published import Manifests
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.stores.object_store import ObjectStore
from tests.sinks.stages import CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN
from tests.support import object_store
from tests.support.object_stages import write_stage

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"{object_store.address(tmp_path)}/table"


@pytest.fixture
def table(address: str) -> OpenObjectTable:
    opened = FileSink(address, format="json", packages=[]).open(SinkContext())
    assert isinstance(opened, OpenObjectTable)
    return opened


def wanted(**given: Any) -> Compaction:
    return Compaction(**{"checkpoint": CHECKPOINT, "tables": NOTHING_KNOWN, "left_alone": lambda found: None, **given})


def rows(address: str) -> Counter[tuple[int, int]]:
    """How often a reader of the manifests finds each row, by attempt and id."""
    found: Counter[tuple[int, int]] = Counter()
    for one in published_files(address):
        bucket, _, key = one.address.removeprefix("s3://").partition("/")
        text = object_store.client().get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        found.update((row["epoch"], row["id"]) for row in map(json.loads, text.splitlines()))
    return found


def files(address: str) -> list[str]:
    return [one.address.rpartition("/")[2] for one in published_files(address)]


def data(tmp_path: Path) -> list[str]:
    """Keys of all data files in the table's folder."""
    return [key for key in object_store.keys(tmp_path / "table") if key.startswith("_batches") and "/_" not in key]


def publish(table: OpenObjectTable, *, files: int = 3) -> None:
    write_stage(table, 1, files=files)
    table.publish(EXPECTED, 1)


THREE = {(1, 0): 3, (1, 1): 3, (1, 2): 3}


def test_files_of_a_batch_become_one_and_readers_of_manifests_find_the_same_rows(
    table: OpenObjectTable, address: str, tmp_path: Path
) -> None:
    publish(table)
    before = table.contains(EXPECTED)
    done = table.compact(wanted())
    assert (done.files_before, done.files_after, done.batches) == (3, 1, {KEY})
    assert (rows(address), len(files(address))) == (THREE, 1)
    after = table.contains(EXPECTED)
    assert before is not None
    assert after is not None
    assert (after.identity, after.epoch, after.result) == (before.identity, before.epoch, before.result)
    assert table.compact(wanted()) == Compacted()
    assert len(data(tmp_path)) == 4, "readers that have looked before can read on"
    assert table.drop_replaced(CHECKPOINT, older_seconds=3600) == []
    assert len(table.drop_replaced(CHECKPOINT, older_seconds=0)) == 1
    assert (len(data(tmp_path)), rows(address)) == (1, THREE)


def test_large_files_come_along_and_small_ones_are_joined(table: OpenObjectTable, address: str) -> None:
    publish(table, files=5)
    size = 3 * len('{"id": 0, "epoch": 1}\n')
    done = table.compact(wanted(target_bytes=2 * size))
    assert (done.files_before, done.files_after, len(files(address))) == (4, 2, 3)
    assert rows(address) == {(1, 0): 5, (1, 1): 5, (1, 2): 5}
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert rows(address) == {(1, 0): 5, (1, 1): 5, (1, 2): 5}


def test_a_dry_run_counts_and_writes_nothing(table: OpenObjectTable, tmp_path: Path) -> None:
    publish(table)
    before = object_store.keys(tmp_path / "table")
    assert table.compact(wanted(dry_run=True)).files_after == 1
    assert object_store.keys(tmp_path / "table") == before


def test_a_replay_and_a_rewind_after_it(table: OpenObjectTable, address: str, tmp_path: Path) -> None:
    publish(table)
    table.compact(wanted())
    write_stage(table, 2)
    assert table.replace(EXPECTED, 2).epoch == 2
    assert rows(address) == {(2, 0): 1, (2, 1): 1, (2, 2): 1}
    assert len(table.drop_replaced(CHECKPOINT, older_seconds=0)) == 2
    assert len(data(tmp_path)) == 1
    assert table.withdraw(EXPECTED, 2)
    assert rows(address) == Counter()
    assert table.compact(wanted()) == Compacted()


def at(
    owner: Any, step: str, what: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, after: bool = False
) -> None:
    """Have something happen once before or after a step."""
    real = getattr(owner, step)

    def changed(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, step, real)
        result = real(*given, **named) if after else None
        what()
        return result if after else real(*given, **named)

    monkeypatch.setattr(owner, step, changed)


def test_a_replay_meanwhile_stays(
    table: OpenObjectTable, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(table)
    write_stage(table, 2)
    at(ObjectCompacting, "_write", lambda: table.replace(EXPECTED, 2), monkeypatch)
    assert table.compact(wanted()).left == {CHANGED: {KEY}}
    assert rows(address) == {(2, 0): 1, (2, 1): 1, (2, 2): 1}
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert len(data(tmp_path)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "step"),
    [(ObjectCompacting, "_write"), (ObjectStore, "put_if_absent"), (Manifests, "put"), (ObjectStore, "delete_many")],
    ids=["write", "first put", "publish", "last delete"],
)
def test_killed_anywhere_the_batch_is_there_once_and_the_janitor_leaves_nothing(
    table: OpenObjectTable,
    address: str,
    tmp_path: Path,
    owner: Any,
    step: str,
    after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(table)

    def die() -> None:
        raise Killed

    at(owner, step, die, monkeypatch, after=after)
    monkeypatch.setattr(ObjectCompacting, "_give_up", lambda *_: None)
    with pytest.raises(Killed):
        table.compact(wanted())
    assert rows(address) == THREE
    found = table.contains(EXPECTED)
    assert found is not None
    assert table.damage(EXPECTED, found) is None
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert rows(address) == THREE
    table.compact(wanted())
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert (rows(address), len(data(tmp_path))) == (THREE, 1)
    write_stage(table, 2)
    table.replace(EXPECTED, 2)
    table.drop_replaced(CHECKPOINT, older_seconds=0)
    assert (rows(address), len(data(tmp_path))) == ({(2, 0): 1, (2, 1): 1, (2, 2): 1}, 1)


def test_what_the_janitor_has_removed_is_not_published(
    table: OpenObjectTable, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(table)
    at(Manifests, "put", lambda: table.drop_replaced(CHECKPOINT, older_seconds=0), monkeypatch)
    assert table.compact(wanted()).left == {CHANGED: {KEY}}
    assert rows(address) == THREE


@pytest.mark.parametrize(
    "error", [SinkError("the service is away"), OSError("the service is away")], ids=["of the table", "of the system"]
)
def test_an_error_leaves_the_batch_and_nothing_else(
    table: OpenObjectTable, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    publish(table)

    def fail() -> None:
        raise error

    at(Stages, "objects", fail, monkeypatch, after=False)
    assert "the service is away" in next(iter(table.compact(wanted()).left))
    at(ObjectCompacting, "_write", fail, monkeypatch, after=True)
    assert "the service is away" in next(iter(table.compact(wanted()).left))
    assert (rows(address), len(data(tmp_path))) == (THREE, 3)
    assert [key for key in object_store.keys(tmp_path / "table") if key.startswith("_replaced")] == []


def test_what_is_asked_to_be_left_alone_meanwhile_is(
    table: OpenObjectTable, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(table)
    told: list[str] = []
    at(ObjectCompacting, "_write", lambda: told.append("forget"), monkeypatch)
    assert table.compact(wanted(left_alone=lambda found: next(iter(told), None))).left == {"forget": {KEY}}
    assert len(files(address)) == 3


def test_a_damaged_batch_stays_and_is_named(table: OpenObjectTable, tmp_path: Path) -> None:
    publish(table)
    lost, *_ = data(tmp_path)
    object_store.client().delete_object(Bucket=object_store.BUCKET, Key=f"{str(tmp_path).strip('/')}/table/{lost}")
    assert lost.rpartition("/")[2] in next(iter(table.compact(wanted()).left))
