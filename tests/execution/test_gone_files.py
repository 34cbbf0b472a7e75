"""What a source goes on without, since it is set to, takes nothing out of a table that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import MaintenanceError, SourceChangedError, SourceError
from airflow_provider_microbatch.upkeep.source_check import check_sources
from tests.execution.maintaining import applied, rewind
from tests.execution.world import World, run_identity


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def skipping(world: World) -> None:
    source = world.sources["orders"]
    world.sources["orders"] = replace(source, on_missing="skip")


def test_a_replay_that_would_read_less_than_is_published_replaces_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    skipping(world)
    gone = world.land(1)
    world.land(2)
    world.run(0)
    aside = gone.rename(world.root / "gone.json")
    with pytest.raises(SourceError, match=r"nothing was replaced.*1 planned file\(s\) are gone.*000001.json.*withdraw"):
        world.run(0, clear_number=1)
    assert world.table() == {0: [1, 2]}
    assert "1 planned file(s) are gone and left out, as on_missing='skip' says" in caplog.text
    aside.rename(gone)
    world.run(0, clear_number=1, try_number=2)
    assert world.table() == {0: [1, 2]}


def test_what_was_left_out_then_too_is_in_no_replays_way(world: World) -> None:
    skipping(world)
    gone = world.land(1)
    world.land(2)
    planned = world.execution.plan(run_identity(0))
    assert planned is not None
    gone.unlink()
    world.run(0)
    assert world.table() == {0: [2]}
    world.run(0, clear_number=1)
    assert world.table() == {0: [2]}
    assert world.checkpoint.replays.is_answered(planned.key)


def test_a_rewind_over_files_that_are_gone_is_refused_unless_it_may_skip_them(world: World) -> None:
    skipping(world)
    gone = world.land(1)
    world.land(2)
    world.run(0)
    gone.unlink()
    with pytest.raises(MaintenanceError, match=r"1 planned file\(s\) are gone.*--allow-skip"):
        applied(world, rewind(-1))
    assert world.table() == {0: [1, 2]}
    shown = applied(world, rewind(-1, allow_skip=True))
    assert any("1 planned file(s) are gone" in note for note in shown.notes)
    assert world.table() == {}


def test_a_source_that_is_at_another_place_is_told_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.land(1)
    world.run(0)
    assert "is new to it" not in caplog.text
    world.landing().rename(world.root / "landing" / "moved")
    world.sources["orders"] = replace(world.sources["orders"], path=str(world.root / "landing" / "moved"))
    world.run(1)
    assert "landing/moved now: all that is there is new to it" in caplog.text
    caplog.clear()
    (world.root / "landing" / "moved" / "000009.json").write_text('{"id": 9}\n')
    world.run(2)
    assert "is new to it" not in caplog.text


def test_a_folder_that_is_moved_behind_a_link_is_the_one_that_was_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.land(1)
    world.run(0)
    moved = world.landing().rename(world.root / "moved")
    (world.root / "landing" / "orders").symlink_to(moved)
    assert world.run(1) is None
    assert "is new to it" not in caplog.text
    world.land(2)
    world.run(1)
    assert world.table() == {0: [1], 1: [2]}


def test_a_changed_file_is_named_until_its_batch_has_read_it_as_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    file = world.land(1)
    world.run(0)
    file.write_text('{"id": 1}\n{"id": 2}\n')
    (found,) = check_sources(world.checkpoint)
    assert "clear that batch's task, with on_changed='read'" in found.repair
    with pytest.raises(SourceChangedError, match=r"changed: .*000001\.json"):
        world.run(0, clear_number=1)
    assert len(check_sources(world.checkpoint)) == 1
    as_it_was, world.sources["orders"] = world.sources["orders"], replace(world.sources["orders"], on_changed="read")
    world.run(0, clear_number=1, try_number=2)
    assert world.table() == {0: [1, 2]}
    world.sources["orders"] = as_it_was
    assert check_sources(world.checkpoint) == []
    caplog.clear()
    assert world.run(1) is None
    assert "have changed since" not in caplog.text
    file.write_text('{"id": 3}\n')
    assert len(check_sources(world.checkpoint)) == 1
    assert world.run(1) is None
    assert "have changed since" in caplog.text
