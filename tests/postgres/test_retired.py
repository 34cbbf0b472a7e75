"""A database that the pipeline writes to no more, and that is gone for good: what was left there holds nobody up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import MaintenanceError, SinkError
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.maintaining import applied, rewind
from tests.execution.sleepers import killed
from tests.execution.two_tables import coded
from tests.execution.world import Killed, World
from tests.postgres import database
from tests.postgres.test_restored import Servers


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    for name in ("old", "other"):
        servers.make(name)
    yield servers
    connections.find_by(database.connection_of)


@pytest.fixture(params=["connection", "server"])
def retired(request: pytest.FixtureRequest, servers: Servers) -> str:
    """What is gone of the old one, once :func:`retire` is called."""
    return str(request.param)


def retire(servers: Servers, what: str) -> None:
    if what == "connection":
        servers.known.remove("old")
    else:
        with database.connect() as connection:
            connection.execute(f"DROP DATABASE {servers.name('old')} WITH (FORCE)".encode())


def dies(monkeypatch: pytest.MonkeyPatch, world: World, number: int, *, clear: int = 0) -> None:
    """A run whose process dies behind its publish."""
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "commit", killed)
        with pytest.raises(Killed):
            world.run(number, coded(), clear_number=clear)
    world.expire_leases()


def dies_there(monkeypatch: pytest.MonkeyPatch, world: World, servers: Servers, retired: str) -> None:
    """Batch 0 is committed; the attempt at batch 1 dies; and that is gone."""
    world.land(0)
    world.run(0, coded())
    world.land(1)
    dies(monkeypatch, world, 1)
    retire(servers, retired)


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_a_batch_of_which_an_attempt_died_there_is_rewound_at_the_users_word(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, retired: str, is_one_of_several: bool
) -> None:
    """Nobody could tell whether it was there: no run went on, and the rewind ended with that error too."""
    old, files = servers.sink("old"), FileSink(str(tmp_path / "files"), format="json")
    world = World(tmp_path, sink=Sinks({"orders": old, "files": files}) if is_one_of_several else old)
    dies_there(monkeypatch, world, servers, retired)
    world.options["sink"] = servers.sink("other")
    with pytest.raises(SinkError, match=r"live/1 was made for .* gone for good, `microbatch rewind .* --allow-skip`"):
        world.run(2, coded())
    with pytest.raises(MaintenanceError, match=r"Nothing was done\. postgres:old/public\.orders cannot be .*--allow-"):
        applied(world, rewind(0))
    plan = applied(world, rewind(0, allow_skip=True))
    assert any("postgres:old/public.orders is not asked, since the" in note for note in plan.notes)
    world.run(3, coded())
    assert servers.rows("other") == [1]
    assert not world.janitor().problems


def test_what_the_pipeline_writes_to_is_never_passed_over(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, retired: str
) -> None:
    """The batch may be there, and its readers would have it twice."""
    world = World(tmp_path, sink=servers.sink("old"))
    dies_there(monkeypatch, world, servers, retired)
    for allow_skip in (False, True):
        with pytest.raises(SinkError, match="old"):
            applied(world, rewind(0, allow_skip=allow_skip))


def test_the_janitor_reports_a_replay_that_died_there_and_is_no_failure(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, retired: str
) -> None:
    """It failed on each run of it from then on. What it could do nothing about is done once the table answers."""
    world = World(tmp_path, sink=servers.sink("old"))
    world.land(0)
    world.run(0, coded())
    dies(monkeypatch, world, 0, clear=1)
    world.options["sink"] = servers.sink("other")
    world.land(1)
    world.run(1, coded())
    known = [*servers.known]
    if retired == "connection":
        retire(servers, retired)
    else:
        servers.run("other", f"ALTER DATABASE {servers.name('old')} ALLOW_CONNECTIONS false")
    report = world.janitor()
    assert (report.of("table left alone"), report.problems) == (["postgres:old/public.orders"], [])
    assert report.of("attempt left alone") == ["live/0 attempt 2"]
    servers.known = known
    servers.run("other", f"ALTER DATABASE {servers.name('old')} ALLOW_CONNECTIONS true")
    report = world.janitor()
    assert (report.of("attempt left alone"), report.problems) == ([], [])
    assert report.of("clear answered") == ["live/0 attempt 2"]
