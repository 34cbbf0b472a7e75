"""A database that was brought back from a backup, and is reached by another connection: what it lacks is missed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError, MaintenanceError, SinkError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.two_tables import coded
from tests.execution.world import World
from tests.postgres import database

LOST = r"batch live/1 is committed, and postgres:restored/public.orders does not know it"


class Servers:
    """Connections by their ids, each of which leads to a database of that name; to none that was taken away."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known = list[str]()
        self.renamed = dict[str, str]()
        connections.find_by(self.connection_of)

    def name(self, conn_id: str) -> str:
        return f"{conn_id}_{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"

    def make(self, conn_id: str, *, of: str | None = None) -> None:
        """:param of: whose backup it is made of."""
        template = "template0" if of is None else self.name(of)
        with database.connect() as connection:
            connection.execute(f"CREATE DATABASE {self.name(conn_id)} TEMPLATE {template}".encode())
        self.known.append(conn_id)

    def connection_of(self, conn_id: str) -> Connection:
        if conn_id not in self.known:
            raise DefinitionError(f"connection {conn_id!r} does not exist")
        found = database.connection_of(conn_id)
        return Connection(**{**vars(found), "schema": self.name(self.renamed.get(conn_id, conn_id))})

    def rename(self, conn_id: str, to: str) -> None:
        """The connection gets another id; none has the old one any more."""
        self.known[self.known.index(conn_id)] = to
        self.renamed[to] = conn_id

    def sink(self, conn_id: str, table: str = "orders") -> PostgresSink:
        return PostgresSink(conn_id, table, stages=str(self.root / "stages"), patience_seconds=0.01)

    def rows(self, conn_id: str, table: str = "orders") -> list[int]:
        return [id for (id,) in self.run(conn_id, f"SELECT id FROM {table} ORDER BY id")]

    def run(self, conn_id: str, statement: str) -> list[tuple[int, ...]]:
        with database.connect(dbname=self.name(conn_id)) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """One of them, ``old``; ``restored`` is made of its backup."""
    servers = Servers(tmp_path)
    servers.make("old")
    yield servers
    connections.find_by(database.connection_of)


def backed_up(world: World, servers: Servers) -> World:
    """Batches 0 and 1, and data for the next. A backup was made after the first."""
    for number in (0, 1):
        world.land(number)
        world.run(number, coded())
        if number == 0:
            servers.make("restored", of="old")
    world.land(2)
    return world


@pytest.mark.parametrize("is_away", [True, False])
def test_what_a_backup_lacks_is_missed_by_another_connection_and_comes_back(
    tmp_path: Path, servers: Servers, is_away: bool
) -> None:
    world = backed_up(World(tmp_path, sink=servers.sink("old")), servers)
    world.options["sink"] = servers.sink("restored")
    with pytest.raises(SinkError, match=LOST):
        world.run(2, coded())
    if is_away:
        servers.known.remove("old")
        world.run(1, coded(), clear_number=1)
        world.run(2, coded(), try_number=2)
    else:
        world.expire_leases()
        applied(world, rewind(0))
        for number in (3, 4):
            world.run(number, coded())
    assert servers.rows("restored") == [0, 1, 2]


def test_another_table_of_the_backup_is_not_the_one_that_has_lost_a_batch(tmp_path: Path, servers: Servers) -> None:
    """Both have batches of this checkpoint. What was never published to it, it is not asked for."""
    both = Sinks({"orders": servers.sink("old"), "copies": servers.sink("old", "copies")})
    world = World(tmp_path, sink=both)
    world.land(0)
    world.run(0, coded())
    world.options["sink"] = servers.sink("old")
    world.land(1)
    world.run(1, coded())
    servers.make("restored", of="old")
    world.options["sink"] = servers.sink("restored", "copies")
    world.land(2)
    world.run(2, coded())
    assert servers.rows("restored", "copies") == [0, 2]


def test_a_table_of_before_ids_is_another_one_elsewhere_until_its_next_attempt(
    tmp_path: Path, servers: Servers
) -> None:
    world = backed_up(World(tmp_path, sink=servers.sink("old")), servers)
    servers.run("restored", "DROP TABLE microbatch_tables")
    world.options["sink"] = servers.sink("restored")
    world.run(2, coded())
    servers.make("again", of="restored")
    for number in (3, 4):
        world.land(number)
        world.run(number, coded())
    world.options["sink"] = servers.sink("again")
    with pytest.raises(SinkError, match=r"batch live/4 is committed, and postgres:again/.* does not know it"):
        world.run(5, coded())


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_a_table_whose_connection_was_renamed_is_asked_by_the_new_one_alone(
    tmp_path: Path, servers: Servers, is_one_of_several: bool
) -> None:
    """By the old id it could not be asked, and no check and no clear came to an end."""

    def named(conn_id: str) -> Sink:
        files = FileSink(str(tmp_path / "files"), format="json")
        return Sinks({"orders": servers.sink(conn_id), "files": files}) if is_one_of_several else servers.sink(conn_id)

    world = World(tmp_path, sink=named("old"))
    world.land(0)
    world.run(0, coded())
    servers.rename("old", to="new")
    world.options["sink"] = named("new")
    assert world.run(1, coded()) is None, "nothing is new, and the run has named it"
    assert not check_table(world.checkpoint, everything=True).findings
    assert not world.janitor().problems
    assert planned(world, rewind(-1)).steps
    assert [sink.definition for sink in Recorded(world.checkpoint).wrote_last(LIVE)] == [named("new")]
    world.land(1)
    world.run(1, coded())
    assert not check_table(world.checkpoint, everything=True).findings
    report = world.janitor()
    assert (report.of("table left alone"), report.problems) == (["postgres:old/public.orders"], [])
    world.run(0, coded(), clear_number=1)
    applied(world, rewind(-1))
    for number in (2, 3):
        world.run(number, coded())
    assert servers.rows("old") == [0, 1]
    assert not check_table(world.checkpoint, everything=True).findings
    servers.make("other")
    world.options["sink"] = servers.sink("other")
    world.land(2)
    world.run(4, coded())
    assert not check_table(world.checkpoint, everything=True).findings, "nor once it is retired"
    servers.known.remove("new")
    assert check_table(world.checkpoint, everything=True).findings, "of two ids that nobody can ask, none is gone"


def test_the_pipelines_own_connection_is_missed_though_the_one_of_before_leads_there_too(
    tmp_path: Path, servers: Servers
) -> None:
    world = World(tmp_path, sink=servers.sink("old"))
    world.land(0)
    world.run(0, coded())
    servers.rename("old", to="new")
    servers.known.append("old")
    world.options["sink"] = servers.sink("new")
    world.land(1)
    world.run(1, coded())
    assert not check_table(world.checkpoint, everything=True).findings
    servers.known.remove("new")
    told = [finding.message for finding in check_table(world.checkpoint, everything=True).findings]
    assert any("connection 'new' does not exist" in one for one in told)


def test_a_connection_that_a_table_of_before_had_and_is_gone_keeps_nothing_else_from_being_done(
    tmp_path: Path, servers: Servers
) -> None:
    files = {name: FileSink(str(tmp_path / name), format="json") for name in ("orders", "weekly")}
    world = World(tmp_path, sink=Sinks({"daily": servers.sink("old"), **files}))
    for number in range(4):
        if number == 2:
            world.run(0, coded(), clear_number=1)
            world.options["sink"] = files["orders"]
        world.land(number)
        world.run(number, coded())
    servers.known.remove("old")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "connection 'old' does not exist" in finding.message
    assert "postgres:old/public.orders" in finding.where
    assert "under this id too" in finding.repair
    report = world.janitor(grace_seconds=0)
    assert (report.of("table left alone"), report.problems) == (["postgres:old/public.orders"], [])
    assert any("/weekly/" in path for path in report.of("replaced output removed"))
    with pytest.raises(SinkError, match=r"batch live/0 was made for postgres:old/\S+ before, .*connection 'old'"):
        world.run(0, coded(), clear_number=2)
    shutil.rmtree(tmp_path / "orders/lane=live/batch_id=3")
    assert any("live/3" in told.message for told in check_table(world.checkpoint, everything=True).findings)
    servers.make("other")
    world.options["sink"] = servers.sink("other")
    world.land(4)
    world.run(4, coded())
    applied(world, rewind(3))
    world.run(5, coded())
    assert servers.rows("other") == [4]
    with pytest.raises(MaintenanceError, match=r"connection 'old' does not exist\. Nothing was done\. .* --allow-skip"):
        applied(world, rewind(0))


def test_a_connection_that_is_gone_is_a_failure_where_the_pipeline_writes_by_it(
    tmp_path: Path, servers: Servers
) -> None:
    servers.make("other")
    world = World(tmp_path, sink=Sinks({"copies": servers.sink("other", "copies"), "orders": servers.sink("old")}))
    world.land(0)
    world.run(0, coded())
    servers.known.remove("old")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "connection 'old' does not exist" in finding.message
    assert "connection 'old' does not exist" in str(world.janitor().problems)
