"""The metastore that tests of Spark's catalog share."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from tests.execution.world import World
from tests.support.metastore import hive_metastore, metastore
from tests.tables.spark_shop import Make, Shop

NUMBERS = itertools.count()


@pytest.fixture(scope="package")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, hive: str) -> Iterator[ConnectStatements]:
    with metastore(tmp_path_factory.mktemp("metastore"), thrift=hive) as url:
        statements = ConnectStatements(url)
        statements.run(["CREATE DATABASE sales"])
        # The janitor of these tests has the checkpoint alone.
        given = settings.settings()
        settings.hand_down(lambda: dataclasses.replace(given, trusted_servers=(url, hive)))
        yield statements
        settings.hand_down(lambda: given)


@pytest.fixture
def name() -> str:
    """Of a table that no other test has."""
    return f"sales.orders_{next(NUMBERS)}"


@pytest.fixture
def shop(server: ConnectStatements, tmp_path: Path, name: str) -> Make:
    def make(mode: str, *, metastore: str | None = None, **changes: Any) -> Shop:
        catalog = SparkCatalog(server, str(tmp_path / "lake"), metastore=metastore)
        given = {"mode": mode, "format": "json", "schema": "id long", **changes}
        world = World(tmp_path, sink=TableSink(catalog, name, **given))
        world.land(1, 2)
        return Shop(world, server, name)

    return make
