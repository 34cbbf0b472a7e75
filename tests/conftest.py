"""Every test session has an Airflow home of its own, and finds the spark-submit of the Python it runs in."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from airflow_provider_microbatch import configuration, connections
from airflow_provider_microbatch.settings import Settings, hand_down
from tests.environments import ENVIRONMENTS
from tests.support import local_files
from tests.support.spark_classes import shared

ROOT = Path(__file__).resolve().parent.parent
TRUSTED = (
    "tests.support.foreach_sinks",
    "tests.support.hooks",
    "tests.execution.model",
    "jobs",
    "number_streams",
    "parted_numbers",
    "tests.sources",
)

# Modules of a user's: where Airflow finds them, they are beside the DAG files.
sys.path += [str(ROOT / "dags"), str(ROOT / "tests" / "user_code")]

# How fast a machine makes examples says nothing of the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def _isolate() -> Path:
    """Runs before any test module is imported: Airflow reads its environment when it is first imported. With xdist
    every worker is a process, and a session, of its own."""
    home = Path(tempfile.mkdtemp(prefix="microbatch-airflow-"))
    (home / "dags").mkdir()
    for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # The janitor has to call the hooks of killed tasks from the checkpoint alone.
        "AIRFLOW__MICROBATCH__TRUSTED_MODULES": ",".join(TRUSTED),
        **shared(ENVIRONMENTS / "spark-classes"),
        **local_files.behind(ENVIRONMENTS / "local-files"),
        # A PyPI pyspark's spark-submit finds its home only through PATH.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    return home


_HOME = _isolate()
# Tests below the face have nobody else to say it; the face says the same, out of Airflow's configuration.
configuration.hand_down()
hand_down(lambda: Settings(trusted_modules=TRUSTED))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: of ten thousand tests Python would look through all of it again and again,
    for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """The session's Airflow home goes with it."""
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _connections_of_before() -> Iterator[None]:
    """Who says to this process how connections are found says so for one test: the next one of the worker, whatever it
    is, would be led to that test's database."""
    before = list(connections._found_by)
    yield
    connections._found_by[:] = before


AIRFLOW_SCOPE = "airflow"
"""Tests that run DAGs share a worker, whatever their file: two Airflows at once starve each other on two cores, and the
one that they share, a session each, would be started twice."""


METASTORE_SCOPE = "metastore"
"""Tests that share a metastore, which is a server of its own."""


CATALOGS_SCOPE = "catalogs"
"""Tests that share the catalogs of Iceberg tables, which are servers of their own."""
_IN_CATALOGS = ("tests/contract/test_sink.py", "tests/sinks/test_iceberg_hive.py")


LAKES_SCOPE = "jars of lakes"
JARS_SCOPES = {
    "tests/sinks/test_delta_bucket_spark.py": LAKES_SCOPE,
    "tests/sinks/test_delta_compaction_spark.py": LAKES_SCOPE,
    "tests/sinks/test_delta_merge_spark.py": LAKES_SCOPE,
    "tests/sinks/test_object_table_spark.py": LAKES_SCOPE,
    "tests/sources/test_delta_source_spark.py": LAKES_SCOPE,
    "tests/sources/test_file_objects_spark.py": LAKES_SCOPE,
    "tests/sinks/test_iceberg_spark.py": LAKES_SCOPE,
    "tests/sources/test_iceberg_source_spark.py": LAKES_SCOPE,
    "tests/sources/test_kafka_spark.py": "jars of Kafka's connector",
    "tests/state/test_copied_systems.py": LAKES_SCOPE,
    "tests/state/test_kafka.py": "jars of Kafka's connector",
}
"""Tests that share a JVM which has these jars: another one takes a core ten seconds and more until it is as quick. Who
needs the most of them comes first, by its name."""


def scope_of(nodeid: str) -> str:
    """What runs in one worker: a file, so that its Spark session is started once; or all tests that run DAGs, that ask
    the same servers, or whose Spark has the same jars."""
    path = nodeid.partition("::")[0]
    if path in JARS_SCOPES:
        return JARS_SCOPES[path]
    if path.startswith("tests/tables/test_spark_"):
        return METASTORE_SCOPE
    if path in _IN_CATALOGS:
        return CATALOGS_SCOPE
    return AIRFLOW_SCOPE if path.startswith(("tests/scheduler/", "tests/demo/test_demo")) else path


LONGEST_FIRST = (AIRFLOW_SCOPE, METASTORE_SCOPE, LAKES_SCOPE)
"""Scopes that take minutes. One that begins when the others are done keeps one worker busy, while the others idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest scopes begin first; and what a database is started for is none of the inner loop's."""
    for item in items:
        if "postgres_server" in _asked_for(item):
            item.add_marker(pytest.mark.slow)
    items.sort(key=_turn)


def _asked_for(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Who starts an Airflow of its own comes before those who share one, which would idle meanwhile."""
    scope = scope_of(item.nodeid)
    turn = LONGEST_FIRST.index(scope) if scope in LONGEST_FIRST else len(LONGEST_FIRST)
    return turn, scope == AIRFLOW_SCOPE and "shop" in _asked_for(item)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out scopes. (xdist's own groups have no effect with this version of pytest.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Scopes(config, log)


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Rights are not checked for root: go on as another user, in a folder that is this user's."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    opened = [folder for folder in tmp_path.parents if folder.stat().st_mode & 0o005 != 0o005]
    modes = [(folder, folder.stat().st_mode) for folder in opened]
    for folder in opened:
        folder.chmod(0o755)
    os.chown(tmp_path, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in modes:
            folder.chmod(mode & 0o7777)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The session's Airflow home; ``dags`` in it is the DAGs folder."""
    return _HOME


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[None]:
    """The PostgreSQL that sinks and stores of tests are led to, see :mod:`tests.postgres.database`."""
    from tests.postgres.database import server

    with server():
        yield
