"""A source's own log is damaged: nothing is read twice, ``check`` and ``repair`` say so, and a command leads out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, MaintenanceError, SourceError
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from airflow_provider_microbatch.upkeep.source_check import check_sources
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, filled, planned, rewind, rows
from tests.execution.world import World


def log(world: World) -> Path:
    return world.root / "checkpoint/sources/orders"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "the oldest entry is gone": lambda folder: (folder / "0").unlink(),
    "an entry is gone": lambda folder: (folder / "1").unlink(),
    "the newest entry is gone": lambda folder: (folder / "3").unlink(),
    "an entry is torn": lambda folder: (folder / "2").write_bytes(b"v1\n{"),
    "the newest entry is empty": lambda folder: (folder / "3").write_bytes(b""),
    "all is gone": shutil.rmtree,
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four batches of one row each, all committed, and a file for the next one."""
    world = filled(World(tmp_path), 4)
    world.land(4)
    return world


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_nothing_is_read_twice_and_the_way_that_check_names_leads_out(
    world: World, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(log(world))
    with pytest.raises(CheckpointError, match=r"sources/orders"):
        world.run(4)
    assert rows(world) == [0, 1, 2, 3]
    location = world.pipeline.checkpoint
    assert main(["repair", location]) == 1
    assert "--allow-skip" in capsys.readouterr().out
    assert main(["check", location]) == 1
    [told] = [part for part in capsys.readouterr().out.split("`") if part.startswith("microbatch rewind")]
    arguments = told.split()[1:]
    assert main([one for one in arguments if one != "--allow-skip"]) == 2
    assert "Allow that with --allow-skip" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main(["check", location]) == 0
    for number in range(5, 12):
        world.run(number)
    assert rows(world) == [0, 1, 2, 3, 4]
    assert verify_all(world.checkpoint) == check_sources(world.checkpoint) == []


def test_an_entry_that_no_batch_has_read_is_planned_anew(world: World) -> None:
    (log(world) / "4").write_bytes(b"")
    with pytest.raises(CheckpointError):
        world.run(4)
    applied(world, rewind(3, allow_skip=True))
    world.run(5)
    assert rows(world) == [0, 1, 2, 3, 4]


def test_what_the_files_were_that_clean_source_took_nobody_knows(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")}
    filled(world, 3)
    (log(world) / "2").unlink()
    with pytest.raises(SourceError, match="clean_source has taken files"):
        planned(world, rewind(1, allow_skip=True))


def test_a_rewind_names_each_entry_that_it_goes_on_without(world: World) -> None:
    for number in (1, 3):
        (log(world) / str(number)).unlink()
    (note,) = (note for note in planned(world, rewind(0, allow_skip=True)).notes if "is damaged" in note)
    assert '2 of its entries: {"logOffset":1}, {"logOffset":3}' in note


def test_a_rewind_that_stops_behind_the_damage_is_refused(world: World) -> None:
    (log(world) / "1").unlink()
    with pytest.raises(MaintenanceError, match="rewind further"):
        planned(world, rewind(2, allow_skip=True))


def test_other_lanes_have_read_of_the_same_log(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path)
    world.land_at(0.5, 1)
    world.backfill(hour(0), 1)
    world.land_at(1.5, 2)
    world.run(2)
    (log(world) / "1").unlink()
    [finding] = check_sources(world.checkpoint)
    assert "start a new checkpoint and a new table" in finding.repair
    with pytest.raises(MaintenanceError, match="other lanes"):
        planned(world, rewind(-1, allow_skip=True))


def test_of_what_a_batch_says_to_have_read_after_the_end_of_the_log_one_entry_is_named(world: World) -> None:
    """Its offset may be any number: `check` would go through all of them."""
    source = world.sources["orders"].open(
        SourceContext(
            name="orders",
            log=world.checkpoint.source_log("orders"),
            state=world.checkpoint.source_state("orders"),
            clock_ms=lambda: 0,
        )
    )
    assert len(list(source.damaged('{"logOffset":50}'))) == 1


TORN = [b"", b"{}", b"no json", b"[]", b"[" * 100_000, b'{"fields":1}']


def pinned(world: World, name: str = "schema") -> Path:
    folder = world.root / "checkpoint/microbatch/sources/orders"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


@pytest.fixture
def inferring(tmp_path: Path) -> World:
    """A source whose schema is inferred, and an attempt that died."""
    world = World(tmp_path)
    world.sources = {"orders": FileSource(str(world.landing()), format="json")}
    world.land(0)
    world.staged()
    world.expire_leases()
    return world


@pytest.mark.parametrize("data", TORN)
@pytest.mark.parametrize("name", ["schema", "partitions"])
def test_a_torn_schema_is_named_and_learned_again_where_nothing_is_committed(
    inferring: World, name: str, data: bytes
) -> None:
    pinned(inferring, name).write_bytes(data)
    with pytest.raises(CorruptEntryError, match=f"microbatch/sources/orders/{name}"):
        inferring.run(0)
    [finding] = check_sources(inferring.checkpoint)
    assert (finding.kind, finding.where) == ("source", str(pinned(inferring, name)))
    assert f"`microbatch repair {inferring.pipeline.checkpoint}`" in finding.repair
    applied(inferring)
    assert check_sources(inferring.checkpoint) == []
    inferring.run(0)
    assert rows(inferring) == [0]


def test_a_torn_schema_of_rows_that_are_in_the_table_is_left_and_the_source_can_be_given_one(inferring: World) -> None:
    inferring.run(0)
    pinned(inferring).write_bytes(b"")
    inferring.land(1)
    with pytest.raises(CorruptEntryError):
        inferring.run(1)
    [problem] = planned(inferring).problems
    assert problem.where == str(pinned(inferring))
    assert "give source 'orders' a schema" in problem.remedy
    assert pinned(inferring).read_bytes() == b""
    inferring.sources = {"orders": FileSource(str(inferring.landing()), format="json", schema="id long")}
    inferring.run(1)
    assert rows(inferring) == [0, 1]
    pinned(inferring).unlink()
    assert main(["check", inferring.pipeline.checkpoint]) == 0


def test_a_source_that_cannot_be_asked_keeps_no_other_finding_back(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table whose database is away, which compares two positions by their times."""

    def is_after(self: object, offset: object, other: object) -> bool:
        raise SourceError("the database does not answer")

    monkeypatch.setattr(OpenFileSource, "is_after", is_after)
    (world.root / "checkpoint/commits/1").unlink()
    assert main(["check", world.pipeline.checkpoint]) == 1
    told = capsys.readouterr().out
    assert "the database does not answer" in told
    assert "commits/1" in told or "entry 1" in told
