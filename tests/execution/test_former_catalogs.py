"""A pipeline's Iceberg table is in another catalog by now, or is named no more and was dropped: what commands ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.two_tables import coded
from tests.execution.world import World
from tests.support.iceberg_table import CONN_ID, connection_of, opened_in, sink_in

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own


def find_among(known: dict[str, Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    def find(conn_id: str) -> Connection:
        if conn_id not in known:
            raise DefinitionError(f"connection {conn_id!r} cannot be used")
        return known[conn_id]

    monkeypatch.setattr(connections, "_found_by", [find])


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_table_that_was_moved_to_another_catalog_is_asked_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """Whether the connection of before is there still."""
    known = {CONN_ID: connection_of(tmp_path / "lake"), "elsewhere": connection_of(tmp_path / "elsewhere")}
    find_among(known, monkeypatch)
    world = filled(World(tmp_path, sink=sink_in(tmp_path / "lake")), 2)
    moved = replace(sink_in(world.lake), conn_id="elsewhere")
    here, there = (sink.open(SinkContext())._log.catalog.get() for sink in (sink_in(world.lake), moved))
    there.create_namespace("shop")
    there.register_table("shop.orders", here.load_table("shop.orders").metadata_location)
    here.drop_table("shop.orders")
    if is_removed:
        del known[CONN_ID]
    world.options["sink"] = moved
    world.land(2)
    world.run(2)
    world.run(0, clear_number=1)
    assert not check_table(world.checkpoint, everything=True).findings
    applied(world, rewind(1))
    world.run(3)
    assert sorted(there.load_table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert not check_table(world.checkpoint, everything=True).findings


def test_a_table_that_was_taken_away_and_dropped_is_told_and_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check would be red until retention has removed the last batch of before, over rows that nobody misses."""
    known = {CONN_ID: connection_of(tmp_path / "lake")}
    find_among(known, monkeypatch)
    sinks = {"orders": sink_in(tmp_path / "lake"), "files": FileSink(str(tmp_path / "files"), format="json")}
    world = World(tmp_path, sink=Sinks(sinks))
    for number in range(2):
        world.land(number)
        world.run(number, coded())
    opened_in(world.lake)._log.catalog.get().drop_table("shop.orders")
    assert check_table(world.checkpoint, everything=True).findings, "the pipeline names it"
    world.options["sink"] = sinks["files"]
    world.land(2)
    world.run(2, coded())
    told = check_table(world.checkpoint, everything=True)
    assert told.findings == []
    assert [note.partition(" is away")[0] for note in told.notes] == [sinks["orders"].location()]
    applied(world, rewind(1))
    world.run(3, coded())
    del known[CONN_ID]
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "cannot be used" in finding.message, "its catalog has not answered"


def test_a_table_that_is_named_as_it_was_and_cannot_be_asked_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches would be missed in a table of before."""
    known = {CONN_ID: connection_of(tmp_path / "lake")}
    find_among(known, monkeypatch)
    world = World(tmp_path, sink=FileSink(str(tmp_path / "files"), format="json"))
    for number, changed in enumerate(({}, {"sink": sink_in(tmp_path / "lake")}, {"min_batches_to_retain": 50})):
        world.options |= changed
        world.land(number)
        world.run(number, coded())
    del known[CONN_ID]
    told = [finding.message for finding in check_table(world.checkpoint, everything=True).findings]
    assert told == [f"connection {CONN_ID!r} cannot be used"]
