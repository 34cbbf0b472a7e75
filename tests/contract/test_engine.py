"""What every engine must do, wherever it runs a job. A new engine adds a factory to ``SYSTEMS``.

Each case runs a real Spark; what is an engine's own is in ``tests/engines``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from acme_microbatch.engine import ProcessEngine

from airflow_provider_microbatch.engines.lookup import Wanted, engine_for, find_engine
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.engines.spark_submit import SparkSubmitEngine
from airflow_provider_microbatch.exceptions import EngineError, HandleError
from airflow_provider_microbatch.execution.engine import Engine, EngineState
from airflow_provider_microbatch.runtime.job import Read, Requirements
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.contract.registered import registered
from tests.engines.conftest import World
from tests.support.waiting import wait_until
from tests.support.warm import warm_server
from tests.support.yarn import Yarn, yarn_cluster

pytestmark = pytest.mark.spark

CONN_ID = "of_the_contract"


@dataclass(frozen=True)
class System:
    """How an engine is reached.

    :param kind: the engine's class.
    :param connection: of the Airflow connection that leads to it; None for a warm server, which is started then.
    :param on_yarn: whether a YARN is started for it.
    :param failed: what it says of a job that failed, a pattern; None if that is nothing of its own.
    """

    kind: type[Engine]
    connection: dict[str, object] | None
    on_yarn: bool = False
    failed: str | None = None


def _yarn(deploy_mode: str) -> System:
    connection: dict[str, object] = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": deploy_mode}}
    return System(SparkSubmitEngine, connection, on_yarn=True)


SYSTEMS = {
    # Its hook keeps the last lines of what Spark printed, maybe an executor's farewell: the cause is in the report.
    "spark-submit": System(SparkSubmitEngine, {"conn_type": "spark", "host": "local[1]"}, failed="exit code 1"),
    "spark-connect": System(SparkConnectEngine, None),
    "acme's process": System(ProcessEngine, {"conn_type": "acme_process"}),
    "yarn": _yarn("cluster"),
    "yarn-client": _yarn("client"),
}

system_name = registered(SYSTEMS, asked_for=[name for name, system in SYSTEMS.items() if system.on_yarn])


@pytest.fixture(scope="module")
def warm_connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """The connection to a warm server, as ``microbatch engine start`` writes it down."""
    with warm_server(tmp_path_factory.mktemp("warm")) as running:
        yield running.connection


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.fixture
def make(system_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Engine]:
    """The engine as any process makes it, from the connection alone."""
    system = SYSTEMS[system_name]
    connection = system.connection or request.getfixturevalue("warm_connection")
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(connection))
    conf = {"spark.ui.enabled": "false"}
    if system.on_yarn:
        yarn: Yarn = request.getfixturevalue("yarn")
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        conf |= yarn.spark
    return lambda: engine_for(Wanted(conn_id=CONN_ID, conf=conf))


@pytest.fixture
def world(tmp_path: Path, make: Callable[[], Engine]) -> Iterator[World]:
    made = World(tmp_path, engine=make())
    try:
        yield made
    finally:
        made.close()


def test_it_is_found_by_its_connection_and_by_its_name(system_name: str, make: Callable[[], Engine]) -> None:
    engine, kind = make(), SYSTEMS[system_name].kind
    assert isinstance(engine, kind)
    assert isinstance(find_engine(engine.name), kind)


READER = """
from airflow_provider_microbatch.runtime.files import ReadResult

def read(spark, arguments):
    return ReadResult(frame=spark.range(arguments["count"]), columns=("id",))
"""

TO_TWO_SINKS = """
def transform(batch):
    orders = batch.sources["orders"]
    return {"notes": orders.where("id = 2").select("note"), "orders": orders.join(batch.sources["numbers"], "id")}
"""


def test_a_job_runs_to_the_stages_of_its_sinks_and_what_a_reader_requires_travels(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "here" / "travelling"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(package.parent))
    notes = FileSink(str(tmp_path / "notes"), format="json")
    sinks = Sinks({"orders": world.sink, "notes": notes}).open(SinkContext())
    paths = [world.land("a.json", [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}])]
    job, code = world.job(world.transform(TO_TWO_SINKS), paths)
    requires = Requirements(modules=("travelling",))
    numbers = Read(reader="travelling.reader:read", arguments={"count": 2}, requires=requires)
    stages = sinks.stages_by_name(world.batch, 1)
    handle = world.start(replace(job, sources={**job.sources, "numbers": numbers}, stages=stages), code)
    assert json.loads(json.dumps(handle)) == handle
    assert handle["engine"] == world.engine.name
    assert world.engine.poll(handle) is EngineState.RUNNING
    world.engine.result(handle)
    assert world.engine.poll(handle) is EngineState.SUCCEEDED
    assert world.engine.cancel(handle) is False
    published = sinks.publish(world.expected, 1)
    assert published.result["numInputRows"] == {"orders": 2, "numbers": 2}
    assert published.result["numOutputRowsBySink"] == {"orders": 1, "notes": 1}
    assert [path.read_text() for path in notes.root.glob("lane=live/*/*.json")] == ['{"note":"y"}\n']


def test_a_transform_that_fails_fails_the_job_and_leaves_its_reason(system_name: str, world: World) -> None:
    transform = world.transform("def transform(batch):\n    helper()\ndef helper():\n    raise ValueError('no good')\n")
    handle = world.start(*world.job(transform, [world.land("a.json", [{"id": 1}])]))
    with pytest.raises(EngineError, match=SYSTEMS[system_name].failed):
        world.engine.result(handle)
    assert world.engine.poll(handle) in (EngineState.FAILED, EngineState.UNKNOWN)
    failure = world.sink.failure(world.batch, 1)
    assert failure is not None
    assert failure["origin"] == "transform"
    assert "no good" in failure["error"]
    assert "in helper" in failure["traceback"]
    assert "runtime" not in failure["traceback"]
    assert world.sink.manifest(world.batch, 1) is None
    assert world.sink.drop_stage(world.batch, 1)


def test_another_process_ends_it_by_the_handle_alone(world: World, make: Callable[[], Engine], tmp_path: Path) -> None:
    flag = tmp_path / "begun"
    transform = world.transform(
        f"import time\ndef transform(batch):\n    open({str(flag)!r}, 'w').close()\n    time.sleep(600)\n"
    )
    handle = world.start(*world.job(transform, [world.land("a.json", [{"id": 1}])]))
    wait_until(lambda: flag.exists() or world.engine.poll(handle) is not EngineState.RUNNING)
    other = make()
    assert other.poll(json.loads(json.dumps(handle))) is EngineState.RUNNING
    assert other.cancel(json.loads(json.dumps(handle))) is True
    assert other.poll(handle) is not EngineState.RUNNING
    with pytest.raises(EngineError):
        world.engine.result(handle)
    assert other.cancel(handle) is False
    assert world.sink.manifest(world.batch, 1) is None


def test_a_handle_that_a_stranger_wrote_ends_nothing(world: World, make: Callable[[], Engine]) -> None:
    handle = dict(world.engine.handle(pipeline="orders", key=world.key, epoch=1))
    world.tags.append(str(handle["tag"]))
    for change in ({"tag": "python"}, {"tag": "../.."}, {"tag": None}, {"engine": "another"}):
        with pytest.raises(HandleError):
            make().cancel({**handle, **change})


def test_no_two_handles_are_the_same(world: World) -> None:
    handles = [dict(world.engine.handle(pipeline="orders", key=world.key, epoch=1)) for _ in range(2)]
    world.tags += [str(handle["tag"]) for handle in handles]
    assert handles[0]["tag"] != handles[1]["tag"]
    for handle in handles:
        world.engine.cancel(handle)
