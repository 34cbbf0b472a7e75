"""What every way to run statements must do, wherever it runs them. A new one adds a factory to ``SYSTEMS``.

A sink that publishes by statements runs each as a step: its handle is on record before it begins (``StatementSteps``),
so that whoever comes after a process that died over one can end it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acme_microbatch.statements import ProcessStatements

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.registry import STATEMENTS
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements, StatementError, Statements
from tests.contract.registered import registered
from tests.support.metastore import metastore
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Make = Callable[[pytest.FixtureRequest], Statements]

SYSTEMS: dict[str, tuple[str, Make]] = {
    "spark-connect": ("spark-connect", lambda request: ConnectStatements(request.getfixturevalue("server"))),
    "acme's process": ("acme-process", lambda request: ProcessStatements({"spark.sql.shuffle.partitions": "1"})),
}

system_name = registered(SYSTEMS)

MAKES_A_FILE = "INSERT OVERWRITE DIRECTORY '{folder}' USING json SELECT 1 AS id"
MAKES_FILES_FOR_LONG = (
    "INSERT OVERWRITE DIRECTORY '{folder}' USING json "
    "SELECT java_method('java.lang.Thread', 'sleep', 100L) AS slept FROM range(0, 5000, 1, 5000)"
)
"""A file each tenth of a second, each by a task of its own: whoever sees none more sees that it has ended."""

DIES_OVER_A_STEP = """
import json, sys
from dataclasses import replace
from pathlib import Path
from airflow_provider_microbatch import settings
from airflow_provider_microbatch.sinks.table.statements import Statements
from airflow_provider_microbatch.sinks.table.statement_steps import StatementSteps
definition, records, statements, servers = json.loads(sys.argv[1])
given = replace(settings.settings(), trusted_servers=tuple(servers))
settings.hand_down(lambda: given)
StatementSteps(Statements.from_dict(definition), Path(records)).run(statements)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore(tmp_path_factory.mktemp("metastore")) as url:
        yield url


@pytest.fixture
def statements(system_name: str, request: pytest.FixtureRequest) -> Statements:
    return SYSTEMS[system_name][1](request)


def test_it_is_found_by_its_name_and_comes_back_from_a_definition(system_name: str, statements: Statements) -> None:
    assert STATEMENTS.load(SYSTEMS[system_name][0]) is type(statements)
    assert Statements.from_dict(json.loads(json.dumps(statements.to_dict())), live=[statements]) == statements


def test_rows_come_back_in_order_and_what_is_refused_ends_the_rest(statements: Statements, tmp_path: Path) -> None:
    assert statements.run(["SELECT 1 AS id", "SELECT 2 AS id, 'x' AS note"]) == [[{"id": 1}], [{"id": 2, "note": "x"}]]
    with pytest.raises(StatementError) as refused:
        statements.run(["SELECT * FROM nobody_has_made_it", MAKES_A_FILE.format(folder=tmp_path / "after")])
    assert refused.value.condition == "TABLE_OR_VIEW_NOT_FOUND"
    assert not (tmp_path / "after").exists()


def test_a_step_whose_process_died_is_ended_by_the_next_holder(statements: Statements, tmp_path: Path) -> None:
    records, folder = tmp_path / "records", tmp_path / "made"
    step = [MAKES_FILES_FOR_LONG.format(folder=folder)]
    given = (statements.to_dict(), str(records), step, sorted(statements.servers()))

    def files() -> set[Path]:
        return set(folder.rglob("*.json"))

    def writes_on(seconds: float = 1.5) -> bool:
        before = files()
        threading.Event().wait(seconds)
        return not files() <= before

    dying = subprocess.Popen([sys.executable, "-c", DIES_OVER_A_STEP, json.dumps(given)])
    wait_until(lambda: bool(files()) or dying.poll() is not None)
    dying.kill()
    dying.wait()
    assert len(list(records.glob("*.json"))) == 1
    wait_until(writes_on)

    StatementSteps(statements, records).end_all()

    assert not records.exists()
    wait_until(lambda: not writes_on(), seconds=30)
    assert not (folder / "_SUCCESS").exists()


def test_a_record_that_somebody_else_wrote_ends_nothing(statements: Statements) -> None:
    for handle in ({}, {"tag": ""}, {"tag": "python"}, {"url": "sc://evil:1", "session": "x", "user": "y"}):
        with pytest.raises(SinkError):
            statements.end(handle)
