"""Tables of Spark's catalog, on a real Hive metastore behind a Spark Connect server: the contract of sinks, each
statement where the table exists and where it does not, and what is in storage when."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    DefinitionError,
    HookError,
    SinkError,
    TransformError,
)
from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.continuous import MADE
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from tests.contract.test_sink import (  # noqa: F401
    Kind,
    test_a_batch_that_is_withdrawn_is_out_and_can_come_back,
    test_a_replay_replaces_and_an_older_one_cannot_come_back,
    test_a_stage_is_published_once_and_saying_it_again_changes_nothing,
    test_batches_and_lanes_do_not_meet,
    test_making_and_asking_touch_nothing,
    test_of_two_attempts_the_first_wins_and_the_other_learns_it,
    test_output_that_is_recognised_counts_and_an_adopted_one_is_older_than_every_attempt,
    test_the_definition_survives_a_round_trip,
    test_what_is_at_a_batchs_place_and_not_the_batch_is_an_error_with_the_ways_on,
    test_what_was_withdrawn_is_kept_and_goes_as_replaced_output_does,
)
from tests.sinks.stages import BATCH, EXPECTED
from tests.support.inline_engine import InlineEngine
from tests.support.late_server import late
from tests.tables.spark_shop import Make, Shop
from tests.tables.stages import write_stage_table

# PySpark 4.1's Connect client warns so about itself when a session is closed.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")]

KEY = BatchKey("live", 0)


class Killed(BaseException):
    """The process is gone."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def kind(server: ConnectStatements, name: str) -> Kind:
    def make(folder: Path) -> Sink:
        catalog = SparkCatalog(server, str(folder / "lake"))
        return TableSink(catalog, name, format="json", schema="id long, epoch long")

    return Kind(make=make, write_stage=write_stage_table, elsewhere=True)


@pytest.fixture
def sink(kind: Kind, tmp_path: Path) -> Sink:
    return kind.make(tmp_path)


def test_what_no_metastore_could_hold_is_refused_where_it_is_written() -> None:
    catalog = SparkCatalog(ConnectStatements("sc://localhost"), "/lake")
    with pytest.raises(DefinitionError, match="give it a schema"):
        TableSink(catalog, "sales.orders")
    with pytest.raises(DefinitionError, match="'lane' is a column of ours"):
        TableSink(catalog, "sales.orders", schema="id long, lane string", partition_by=("lane",))
    for url in ("http://localhost", "sc://", "sc://localhost/;token=x", "sc://me:secret@localhost"):
        with pytest.raises(DefinitionError):
            ConnectStatements(url)


@pytest.mark.parametrize("mode", ["create", "create_if_not_exists", "create_or_replace"])
def test_a_table_that_is_not_there_is_made(shop: Make, mode: str) -> None:
    made = shop(mode)
    made.world.run(0)
    assert made.ids() == [1, 2]
    assert made.tables() == []
    assert made.world.stages() == []


def test_without_a_schema_the_table_has_the_columns_of_the_query(shop: Make) -> None:
    made = shop("create", schema=None, format="parquet")
    made.run(0, function="with_everything")
    rows = made.rows()
    assert rows is not None
    assert [(row["id"], row["a note"], row["tags"]) for row in rows] == [(1, "it's", ["x"]), (2, "it's", ["x"])]
    assert made.tables() == []
    assert made.world.stages() == []


@pytest.mark.parametrize(
    ("mode", "exists", "said"),
    [("replace", False, "there is no such table"), ("create", True, "the table exists, made by somebody else")],
)
def test_what_the_statement_does_not_allow_fails_before_anything_is_written(
    shop: Make, mode: str, exists: bool, said: str
) -> None:
    made, engine = shop(mode), InlineEngine()
    if exists:
        made.somebody_else_makes_it()
    with pytest.raises(SinkError, match=said):
        made.world.run(0, engine)
    assert engine.jobs == []
    assert made.world.checkpoint.offset_log.ids() == []
    assert made.ids() == ([7] if exists else None)


def test_if_not_exists_of_a_table_that_is_there_does_nothing(shop: Make) -> None:
    made = shop("create_if_not_exists")
    made.somebody_else_makes_it()
    assert made.world.run(0) is None
    assert made.world.checkpoint.offset_log.ids() == []
    assert made.ids() == [7]


@pytest.mark.parametrize("mode", ["replace", "create_or_replace"])
def test_a_table_of_the_same_columns_is_replaced_in_one_call(
    shop: Make, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop(mode)
    made.somebody_else_makes_it()
    monkeypatch.setattr(Metastore, "rename", die)
    made.world.run(0)
    assert made.ids() == [1, 2]
    made.world.land(3)
    made.world.run(1)
    assert made.ids() == [3]
    assert made.tables() == []
    assert made.world.janitor().actions == []
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    assert made.ids() == [3]
    assert made.world.janitor(grace_seconds=0).actions == []


def test_a_table_of_other_columns_is_replaced_and_kept(shop: Make) -> None:
    """For a while, if no file of somebody else goes with it: Spark removes those of a managed table."""
    made = shop("create_or_replace", schema=None)
    made.somebody_else_makes_it("id BIGINT, note STRING", "7L, 'x'")
    made.run(0)
    assert made.rows() == [{"id": 1}, {"id": 2}]
    (kept,) = made.tables()
    assert made.server.run([f"SELECT * FROM sales.{kept}"]) == [[{"id": 7, "note": "x"}]]
    assert made.world.janitor(grace_seconds=0).of("replaced output removed") == []
    made.world.land(3)
    made.run(1, function="with_everything")
    assert len(made.tables()) == 2
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 2, "a table and its files"
    assert made.tables() == [kept]
    assert made.server.run([f"SELECT * FROM sales.{kept}"]) == [[{"id": 7, "note": "x"}]]
    assert made.ids() == [3]


@pytest.mark.parametrize("janitor", [True, False])
def test_killed_between_the_two_renames_the_old_table_is_put_back(
    shop: Make, monkeypatch: pytest.MonkeyPatch, janitor: bool
) -> None:
    made = shop("replace")
    made.somebody_else_makes_it("id BIGINT, note STRING", "7L, 'x'")
    real = Metastore.rename

    def rename(self: Metastore, name: str, new: str) -> None:
        if "__stage_" in name:
            raise Killed
        real(self, name, new)

    with monkeypatch.context() as patch:
        patch.setattr(Metastore, "rename", rename)
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", die)
        with pytest.raises(Killed):
            made.world.run(0)
    assert made.rows() is None
    if janitor:
        made.world.expire_leases()
        assert not made.world.janitor().failed
        assert made.rows() == [{"id": 7, "note": "x"}]
    made.world.run(0, try_number=2)
    assert made.rows() == [{"id": 1}, {"id": 2}]
    assert len(made.tables()) == 1, "the one that was replaced"


@pytest.mark.parametrize("mode", ["create", "replace", "append"])
def test_the_stage_table_is_there_from_created_until_the_end(shop: Make, mode: str) -> None:
    made = shop(mode)
    if mode == "replace":
        made.somebody_else_makes_it()
    before = made.ids()
    seen: list[object] = []

    def look(job: Job) -> None:
        seen.append((made.ids(), len(made.tables()), made.world.stages()))

    with pytest.raises(TransformError):
        made.world.run(0, InlineEngine(before_stage=look, transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    with pytest.raises(AttemptCanceledError):
        made.world.run(0, InlineEngine(after_stage=look), should_stop=lambda: True)
    during = [] if mode == "append" else before
    assert seen == [(during, 1, ["live/0 attempt 1"]), (during, 1, ["live/0 attempt 2"])]
    assert made.tables() == []
    assert made.world.stages() == []
    assert made.ids() == during, "a continuous table is there before batch 0, and stays"


def test_a_continuous_table_has_each_batch_once_and_a_replay_replaces_its_own(shop: Make) -> None:
    made = shop("append", format="parquet")
    made.run(0)
    made.world.land(3)
    made.run(1)
    expected = [(1, "live", 0), (2, "live", 0), (3, "live", 1)]
    assert [(row["id"], row["lane"], row["batch_id"]) for row in made.rows() or []] == expected
    made.run(0, function="doubled", clear_number=1)
    assert made.ids() == [2, 3, 4]
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    assert made.ids() == [2, 3, 4]
    made.world.land(4)
    with pytest.raises(BatchFailure, match="Drop it in the transform"):
        made.run(2, function="with_everything")
    assert made.tables() == []


def write(made: Shop, **changes: Any) -> None:
    """The definition of the DAG from now on."""
    made.world.options["sink"] = dataclasses.replace(made.world.options["sink"], **changes)


@pytest.mark.parametrize("partition_by", [(), ("n",)], ids=["of batches", "of partitions"])
def test_columns_that_a_continuous_table_does_not_have_are_added_in_the_catalog_first(
    shop: Make, server: ConnectStatements, partition_by: tuple[str, ...]
) -> None:
    before, after = "id long, day date, n int", "Land string, n int, id long, day date"
    made = shop("append", format="parquet", schema=before, partition_by=partition_by)
    made.run(0, function="by_day_one")
    made.world.land(3)
    write(made, schema=after)
    with pytest.raises(
        SinkError, match=r"does not have Land, .*ALTER TABLE .* ADD COLUMNS \(`Land` string\)"
    ) as refused:
        made.run(1, function="in_lands")
    assert made.world.checkpoint.offset_log.ids() == [0], "nothing is planned"
    server.run([str(refused.value).rpartition("add it: ")[2].partition(";")[0]])
    made.run(1, function="in_lands")
    assert [(row["id"], row["Land"], row["n"]) for row in made.rows() or []] == [
        (1, None, 1),
        (2, None, 1),
        (3, None, 1),
    ]
    made.world.land(4)
    write(made, schema="ID bigint COMMENT 'the key', day date, n int", options={"compression": "gzip"})
    made.run(2, function="by_day_one")
    assert made.ids() == [1, 2, 3, 4]


def test_what_a_continuous_table_would_misread_is_not_planned(shop: Make, server: ConnectStatements) -> None:
    made = shop("append", format="csv", schema="id long, day date")
    made.run(0, function="by_day")
    made.world.land(3)
    for changes, said in (
        ({"schema": "day date, id long"}, "reads day, id otherwise"),
        ({"schema": "id long, n int, day date"}, "reads n otherwise"),
        ({"schema": "id int, day date"}, "reads id otherwise"),
        ({"schema": "id long, day date", "options": {"sep": ";"}}, r"other options \(sep\)"),
    ):
        write(made, **changes)
        with pytest.raises(SinkError, match=said):
            made.run(1, function="by_day_one")
    assert made.world.checkpoint.offset_log.ids() == [0], "nothing is planned"
    server.run([f"ALTER TABLE {made.name} ADD COLUMNS (n int)"])
    as_before = {"Compression": "gzip", "Header": "False", "delimiter": ",", "encoding": "utf-8", "inferSchema": "true"}
    write(made, schema="id long, day date", options=as_before)
    made.run(1, function="by_day")
    made.world.land(4)
    write(made, schema="id long, day date, n int")
    made.run(2, function="by_day_one")
    assert [(row["id"], row["day"].day, row["n"]) for row in made.rows() or []] == [
        (1, 1, None),
        (2, 2, None),
        (3, 3, None),
        (4, 4, 1),
    ]


def test_a_continuous_table_that_is_gone_from_the_catalog_is_not_made_anew(
    shop: Make, server: ConnectStatements
) -> None:
    made = shop("append")
    made.run(0)
    made.world.land(3)
    server.run([f"ALTER TABLE {made.name} RENAME TO {made.name}_kept"])
    with pytest.raises(SinkError, match=r"not in the catalog any more.*remove .*_made\.json"):
        made.run(1)
    assert made.world.checkpoint.offset_log.ids() == [0], "nothing is planned"
    with pytest.raises(HookError, match="not in the catalog any more"):
        made.run(0, clear_number=1)
    assert made.ids() is None
    server.run([f"ALTER TABLE {made.name}_kept RENAME TO {made.name}"])
    made.run(1)
    assert made.ids() == [1, 2, 3]
    server.run([f"DROP TABLE {made.name}"])
    (made.world.root / "lake").joinpath(*made.name.split("."), MADE).unlink()
    made.world.land(4)
    made.run(2)
    assert made.ids() == [4]


def test_what_somebody_else_has_made_stays(shop: Make, server: ConnectStatements) -> None:
    made = shop("create")
    sink = made.world.pipeline.sink
    assert isinstance(sink, TableSink)
    assert isinstance(sink.catalog, SparkCatalog)
    stage = sink.catalog.create_stage_table(sink.as_table, made.world.place(KEY), 1)
    theirs = f"sales.{sink.catalog._names(stage).stage}"
    server.run([f"CREATE TABLE {theirs} (x INT) USING json"])
    with pytest.raises(HookError, match="is there already"):
        made.world.run(0)
    assert server.run([f"SELECT * FROM {theirs}"]) == [[]]
    assert made.world.run(0, try_number=2) is not None, "the next attempt's stage table has another name"
    assert made.ids() == [1, 2]


def test_a_continuous_table_of_another_pipeline_or_of_nobody_is_not_touched(shop: Make) -> None:
    made = shop("append")
    made.somebody_else_makes_it()
    with pytest.raises(SinkError, match="not made by this catalog"):
        made.world.run(0)
    assert made.ids() == [7]
    made.server.run([f"DROP TABLE {made.name}"])
    made.world.run(0)
    with pytest.raises(SinkError, match='is written by pipeline "orders"'):
        made.world.pipeline.sink.of_pipeline("other").admits(BatchIdentity.at(KEY))


def test_the_janitor_drops_the_stage_table_of_a_dead_attempt(shop: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop("create")
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", die)
        patch.setattr(InlineEngine, "result", die)
        with pytest.raises(Killed):
            made.world.run(0)
    assert made.world.stages() == ["live/0 attempt 1"]
    made.world.expire_leases()
    assert made.world.janitor().of("stage dropped") == ["live/0 attempt 1"]
    assert made.tables() == []
    assert not list((made.world.root / "lake").rglob("attempt=*"))
    made.world.run(1)
    assert made.ids() == [1, 2]


def test_killed_after_the_publish_the_batch_is_in_and_committed_by_the_next_run(
    shop: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop("create")
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", die)
        patch.setattr(Metastore, "drop", die)
        with pytest.raises(Killed):
            made.world.run(0)
    assert made.ids() == [1, 2]
    made.world.expire_leases()
    summary = made.world.run(1)
    assert summary is not None
    assert (summary.key, summary.epoch, summary.state) == (KEY, 1, "committed")
    made.world.janitor()
    assert made.ids() == [1, 2]
    assert made.tables() == []


PUBLISH = """
import json, sys
from airflow_provider_microbatch.sinks import Sink
from tests.sinks.stages import EXPECTED
Sink.from_dict(json.loads(sys.argv[1]), any_server=True).publish(EXPECTED, 1)
"""


@pytest.mark.parametrize("arrives", ["late", "in time"])
def test_a_statement_of_a_publisher_that_died_names_no_folder_that_was_dropped(
    server: ConnectStatements, name: str, tmp_path: Path, arrives: str
) -> None:
    with late(server.url, b"ADD IF NOT EXISTS") as network:
        catalog = SparkCatalog(ConnectStatements(network.url), str(tmp_path / "lake"))
        sink = TableSink(catalog, name, format="json", schema="id long, epoch long")
        write_stage_table(sink, 1)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", PUBLISH, json.dumps(sink.to_dict())]
        with subprocess.Popen(command, env=environment) as publisher:
            try:
                assert network.held.wait(120)
            finally:
                publisher.kill()
        if arrives == "in time":
            network.arrive()
        dropped = sink.drop_stage(BATCH, 1)
        if arrives == "late":
            network.arrive()
        published = sink.contains(EXPECTED)
    assert dropped is True
    # Either the batch is in with its files, or it is not in: a later attempt can go on in both cases.
    (rows,) = server.run([f"SELECT * FROM {name}"])
    assert len(rows) == (3 if published else 0)
    assert arrives == "in time" or not published
    assert not list((tmp_path / "lake").rglob("_statements"))


def test_the_catalog_is_told_to_the_janitor_as_json(shop: Make) -> None:
    sink = shop("create").world.pipeline.sink
    assert Sink.from_dict(json.loads(json.dumps(sink.to_dict()))) == sink


def test_a_server_that_is_not_there_is_an_error_of_the_sink() -> None:
    catalog = SparkCatalog(ConnectStatements("sc://127.0.0.1:1"), "/lake")
    with pytest.raises(SinkError, match=r"127\.0\.0\.1:1"):
        TableSink(catalog, "sales.orders", schema="id long").admits(BatchIdentity.at(KEY))
