"""A table of Spark's catalog is replaced by one of other columns in one call of its metastore, a real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks.table import TableSink, hive_metastore
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from tests.tables.spark_shop import Make

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")]

ALTER = "alter_table_with_environment_context"


class Killed(BaseException):
    """The process is gone."""


def die(*_: object, **__: object) -> None:
    raise Killed


def test_in_one_call_and_in_two_renames_where_the_metastore_takes_no_such_columns(
    shop: Make, hive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop("create_or_replace", schema=None, format="parquet", metastore=hive)
    made.run(0)
    made.world.land(3)
    with monkeypatch.context() as patch:
        patch.setattr(Metastore, "rename", die)
        made.run(1, function="with_everything")
    assert [(row["id"], row["a note"], row["tags"]) for row in made.rows() or []] == [(3, "it's", ["x"])]
    assert made.tables() == []
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    assert made.ids() == [3]
    made.world.land(4)
    made.run(2, function="by_day")
    assert [[*row] for row in made.rows() or []] == [["id", "day"]]
    assert len(made.tables()) == 1, "the one that was replaced"


def test_a_call_that_arrives_late_does_nothing(shop: Make, hive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has died over it, and nobody can end it."""
    made, sent = shop("create_or_replace", schema=None, format="parquet", metastore=hive), list[Any]()
    made.run(0)
    made.world.land(3)
    real = getattr(Client, ALTER)

    def send(client: Client, place: str, name: str, table: Any, condition: Any) -> None:
        if name == made.name.partition(".")[2]:
            sent.append((place, name, table, condition))
            raise Killed
        real(client, place, name, table, condition)

    with monkeypatch.context() as patch:
        patch.setattr(Client, ALTER, send)
        patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", die)
        with pytest.raises(Killed):
            made.run(1, function="with_everything")
    assert made.ids() == [1, 2]
    made.run(1, function="with_everything", try_number=2)
    assert made.ids() == [3]
    with hive_metastore._client(hive) as client, pytest.raises(Exception, match="The table has been modified"):
        real(client, *sent[0])
    assert made.ids() == [3]


@pytest.mark.parametrize("by", ["Spark", "another engine"])
def test_a_table_whose_partitions_the_metastore_names_is_replaced_with_them(shop: Make, hive: str, by: str) -> None:
    """A new location, or the call, would leave them at the folders of before, where other engines read. Of those that
    another engine has named (Hive's MSCK REPAIR, Trino's sync_partition_metadata) Spark tells nothing."""
    made = shop("create_or_replace", schema=None, format="parquet", partition_by=("day",), metastore=hive)
    made.run(0, function="by_day")
    if by == "Spark":
        made.server.run([f"MSCK REPAIR TABLE {made.name}"])
        assert made.partitions() == ["day=2026-01-01", "day=2026-01-02"]
    else:
        with hive_metastore._client(hive) as client:
            client.append_partition_by_name(*made.name.split("."), "day=2026-01-01")
    made.world.land(3)
    made.run(1, function="by_day")
    assert made.ids() == [3]
    assert len(made.tables()) == 1, "the one that was replaced"


def test_an_address_of_a_metastore_is_checked_where_it_is_written() -> None:
    for uri in (
        "localhost:9083",
        "http://localhost",
        "thrift://",
        "thrift://me:secret@host",
        "thrift://host/db",
        "thrift://host:hive",
        "thrift://host:99999",
        "thrift://[::1",
        "thrift://host?db=x",
        "thrift://host#db",
    ):
        with pytest.raises(DefinitionError, match="thrift://host:port"):
            SparkCatalog(ConnectStatements("sc://localhost"), "/lake", metastore=uri)


def test_who_has_run_with_a_wrong_address_of_a_metastore_can_be_helped_by_commands() -> None:
    """What attempts have on record is found and removed by it; who corrects it cannot correct that."""
    catalog = SparkCatalog(ConnectStatements("sc://localhost"), "/lake", metastore="thrift://host:9083")
    stored = catalog.to_dict()
    stored["arguments"]["metastore"] = "thrift://host:hive"
    assert SparkCatalog.from_dict(stored, any_server=True).to_dict() == stored
    stored["arguments"]["metastore"] = 9083
    with pytest.raises(DefinitionError, match="thrift://host:port"):
        SparkCatalog.from_dict(stored, any_server=True)


def test_without_its_client_or_its_answer_nothing_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = "thrift://127.0.0.1:1"
    with pytest.raises(SinkError, match=f"{nowhere} cannot be reached"):
        hive_metastore.replace_at_once(nowhere, namespace=None, table="orders", by="ready", version="v")
    catalog = SparkCatalog(ConnectStatements("sc://localhost"), str(tmp_path), metastore=nowhere)
    assert catalog.servers() == {"sc://localhost", nowhere}
    monkeypatch.setitem(sys.modules, "thrift", None)
    with pytest.raises(SinkError, match=r"pip install 'airflow-provider-microbatch\[hive\]'"):
        TableSink(catalog, "orders", mode="create").check()
