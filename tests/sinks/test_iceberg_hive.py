"""The Iceberg sink on a real Hive metastore: what its commits rest on. (tests/contract/test_sink.py has what every sink
does, on this catalog too.)"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import EnvironmentContext, MetaException
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.iceberg.catalog import CatalogBusyError
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import batch_of, expect
from tests.support import iceberg_catalogs
from tests.support.connect_server import free_port
from tests.support.iceberg_table import connection_of, sink_in

pytestmark = pytest.mark.slow  # a server is started

ALTER = "alter_table_with_environment_context"


class KilledError(BaseException):
    """The process ends here."""


def opened(folder: Path, uri: str) -> OpenIceberg:
    definition = sink_in(folder, namespace=iceberg_catalogs.namespace_of(folder))
    found = definition.open(SinkContext(connect=lambda _: connection_of(folder, uri=uri)))
    assert isinstance(found, OpenIceberg)
    return found


@pytest.fixture
def sink(tmp_path: Path) -> OpenIceberg:
    return opened(tmp_path, iceberg_catalogs.hive())


def publish(sink: OpenIceberg, number: int, *, epoch: int = 1) -> None:
    key = BatchKey("live", number)
    write_delta_stage(sink, epoch, batch=batch_of(key))
    sink.publish(expect(key), epoch)


def attempts_of(sink: OpenIceberg) -> Counter[tuple[int, int]]:
    """How many rows there are of each batch and attempt."""
    look = sink._log.look()
    assert look is not None
    found = look.table.scan(selected_fields=("batch_id", "epoch")).to_arrow().to_pylist()
    return Counter((row["batch_id"], row["epoch"]) for row in found)


def metastore() -> HiveCatalog:
    """As others use it."""
    found = load_catalog("others", uri=iceberg_catalogs.hive())
    assert isinstance(found, HiveCatalog)
    return found


def test_a_call_that_outlives_its_task_takes_nothing_back(sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink, 7)
    late: list[tuple[Any, ...]] = []
    with monkeypatch.context() as dying:

        def die(client: Client, *call: Any) -> None:
            late.append(call)
            raise KilledError

        dying.setattr(Client, ALTER, die)
        with pytest.raises(KilledError):
            publish(sink, 8)
    publish(sink, 8, epoch=2)
    publish(sink, 9)
    with metastore()._client as client, pytest.raises(MetaException, match="The table has been modified"):
        client.alter_table_with_environment_context(*late[0])
    assert set(attempts_of(sink)) == {(7, 1), (8, 2), (9, 1)}


def test_its_own_tables_need_no_lock_and_those_of_others_are_locked(
    sink: OpenIceberg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[str] = []
    real = Client.lock

    def lock(client: Client, request: Any) -> Any:
        locked.append(request.component[0].tablename)
        return real(client, request)

    monkeypatch.setattr(Client, "lock", lock)
    publish(sink, 7)
    assert locked == []
    other = tmp_path / "other"
    namespace, schema = iceberg_catalogs.namespace_of(other), pa.schema([("id", pa.int64()), ("epoch", pa.int64())])
    metastore().create_namespace(namespace)
    own = [pa.field("lane", pa.string()), pa.field("batch_id", pa.int64())]
    metastore().create_table(f"{namespace}.orders", pa.schema([*schema, *own]), location=f"file://{other}/orders")
    publish(opened(other, iceberg_catalogs.hive()), 7)
    assert set(locked) == {"orders"}


def test_a_metastore_that_heeds_no_condition_is_refused_and_nothing_is_published(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(Client, ALTER)

    def heedless(client: Client, place: str, name: str, table: Any, context: EnvironmentContext) -> None:
        told = {key: value for key, value in context.properties.items() if not key.startswith("expected_")}
        real(client, place, name, table, EnvironmentContext(properties=told))

    monkeypatch.setattr(Client, ALTER, heedless)
    with pytest.raises(SinkError, match=r"heeds no condition.*Nothing was published. Take a metastore of Hive 2.3.10"):
        publish(sink, 7)
    assert sink.contains(expect(BatchKey("live", 7))) is None
    assert not attempts_of(sink)


def test_a_metastore_that_is_away_is_named(tmp_path: Path) -> None:
    away = opened(tmp_path, f"thrift://127.0.0.1:{free_port()}")
    with pytest.raises(
        CatalogBusyError, match=r"cannot read the Iceberg table .*orders of connection 'iceberg_of_tests'"
    ):
        away.contains(expect(BatchKey("live", 7)))
