"""The Iceberg sink on a real Hive metastore: what its commits rest on. (tests/contract/test_sink.py has what every sink
does, on this catalog too.)"""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import EnvironmentContext, MetaException, UnlockRequest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import SinkContext, hive_calls
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


def test_each_commit_is_under_the_lock_too_since_others_may_set_no_condition(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("lock", ALTER, "unlock"):
        real = getattr(Client, name)

        def call(client: Client, *given: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            calls.append(name)
            return real(client, *given, **more)

        monkeypatch.setattr(Client, name, call)
    publish(sink, 7)
    # The first call of a process asks whether conditions are heeded.
    assert calls == ["lock", ALTER, ALTER, "unlock"]


def test_a_commit_that_the_metastore_has_carried_out_and_then_refused_is_in(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that got no answer from its own database, and looks again."""
    publish(sink, 7)
    real = getattr(Client, ALTER)
    with monkeypatch.context() as losing:

        def refuse_what_is_done(client: Client, *call: Any) -> None:
            real(client, *call)
            raise MetaException("The table has been modified. The parameter value for key 'metadata_location' is …")

        losing.setattr(Client, ALTER, refuse_what_is_done)
        publish(sink, 8)
    assert attempts_of(sink) == {(7, 1): 3, (8, 1): 3}


def test_who_comes_too_late_keeps_what_the_metastore_may_have_named(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is in, and another one behind it, before its refusal is heard: no manifest of it may go."""
    publish(sink, 7)
    other, real, done = opened(sink.definition.root.parent, iceberg_catalogs.hive()), getattr(Client, ALTER), []

    def outrun(client: Client, *call: Any) -> None:
        real(client, *call)
        if not done:
            done.append(True)
            client.unlock = lambda _: None  # it is let go here, so that the other one need not wait
            Client.unlock(client, *locks)
            publish(other, 9)
            raise MetaException("The table has been modified.")

    locks: list[Any] = []
    lock = Client.lock

    def note(client: Client, request: Any) -> Any:
        given = lock(client, request)
        locks[:] = [UnlockRequest(lockid=given.lockid)]
        return given

    monkeypatch.setattr(Client, "lock", note)
    monkeypatch.setattr(Client, ALTER, outrun)
    publish(sink, 8)
    assert attempts_of(sink) == {(7, 1): 3, (8, 1): 3, (9, 1): 3}


def test_a_metastore_that_heeds_no_condition_is_refused_and_nothing_is_published(
    sink: OpenIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = getattr(Client, ALTER), list[str]()

    def heedless(client: Client, place: str, name: str, table: Any, context: EnvironmentContext) -> None:
        told = {key: value for key, value in context.properties.items() if not key.startswith("expected_")}
        real(client, place, name, table, EnvironmentContext(properties=told))
        done.append(name)

    monkeypatch.setattr(Client, ALTER, heedless)
    with pytest.raises(SinkError, match=r"heeds no condition.*Nothing was published. Take a metastore of Hive 2.3.10"):
        publish(sink, 7)
    assert sink.contains(expect(BatchKey("live", 7))) is None
    assert not attempts_of(sink)
    assert not done, "the question itself puts nothing back: whoever asks may have slept, too"


def test_a_metastore_that_does_not_answer_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host has lost its power, or a firewall has forgotten the connection."""
    monkeypatch.setattr(hive_calls, "SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute, ThreadPoolExecutor() as waiting:
        sink = opened(tmp_path, f"thrift://127.0.0.1:{mute.getsockname()[1]}")
        asked = waiting.submit(sink.contains, expect(BatchKey("live", 7)))
        line, _ = mute.accept()
        with line:
            wait([asked], timeout=5)
    with pytest.raises(CatalogBusyError, match="read timeout"):
        asked.result()


def test_a_metastore_that_is_away_is_named(tmp_path: Path) -> None:
    away = opened(tmp_path, f"thrift://127.0.0.1:{free_port()}")
    with pytest.raises(
        CatalogBusyError, match=r"cannot read the Iceberg table .*orders of connection 'iceberg_of_tests'"
    ):
        away.contains(expect(BatchKey("live", 7)))
