"""A first entry that is torn of a source that begins where it is now: only that entry told where it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from acme_microbatch.polled_queue import PolledQueue

from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError, MaintenanceError, SourceError
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources import Source
from tests.execution.kept_tables import adopt, refused
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.test_first_positions import Queued
from tests.execution.world import KEY, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queued:
    """One row came before the first plan, which begins behind it."""
    world = Queued(tmp_path, monkeypatch)
    world.append(1)
    world.first = 1
    return world


def tear(world: World, number: int = 0) -> None:
    (world.root / "checkpoint" / "offsets" / str(number)).write_text("v1\n{")


def test_a_plan_that_is_made_again_begins_elsewhere_and_the_repair_says_so(world: Queued) -> None:
    world.staged(1)
    tear(world)
    world.append(2)
    world.first = 2
    with pytest.raises(CheckpointError, match="repair"):
        world.run(1)
    (told,) = [note for note in planned(world).notes if "'orders'" in note]
    assert '{"n": 2}' in told
    assert "initial_offset" in told
    world.first = 1  # as the note asks for
    world.expire_leases()
    applied(world)
    world.run(1)
    assert world.table() == {0: [2]}


def test_a_plan_that_no_attempt_was_made_of_may_have_had_a_source_that_nobody_knows(
    world: Queued, tmp_path: Path
) -> None:
    """A source was added, and the process died behind the plan: no definition on record has it."""
    world.run(1)
    world.append(2)
    world.sources["other"] = PolledQueue(str(tmp_path / "other"))  # type: ignore[assignment]
    (tmp_path / "other").write_text('[{"id": 9}]\n')
    assert world.execution.plan(run_identity(2)) is not None
    tear(world, 1)
    (told,) = planned(world).notes
    assert "no attempt at batch live/1 is on record" in told
    assert "initial_offset" in told
    world.expire_leases()
    applied(world)
    world.staged(2)
    tear(world, 1)
    world.expire_leases()
    (told,) = planned(world).notes
    assert "where source 'other' began" in told


def test_nothing_is_said_of_a_source_that_has_a_position(world: Queued) -> None:
    world.run(1)
    world.append(2)
    assert world.execution.plan(run_identity(2)) is not None
    tear(world, 1)
    world.first = 2
    assert not [note for note in planned(world).notes if "'orders'" in note]
    applied(world)
    world.run(2)
    assert world.table()[1] == [2]


@pytest.mark.parametrize("began", [0, 1])
@pytest.mark.parametrize("begins", [0, 1, 3])
def test_an_entry_that_is_written_again_begins_where_the_batch_did_or_the_repair_says_that_nobody_knows(
    world: Queued, began: int, begins: int
) -> None:
    world.first = began
    world.run(1)
    world.append(2, 3)
    world.run(2)
    tear(world)
    world.first = begins
    notes = [note for note in applied(world).notes if "'orders'" in note]
    entry = world.checkpoint.offset_log.get(KEY.id)
    assert entry is not None
    if begins == began or began == 1:  # a first batch that read nothing began where it ended
        assert entry.starts == {"orders": f'{{"n": {began}}}'}
        assert not notes
    else:
        assert entry.starts == {"orders": None}
        assert "is not known" in notes[0]


@pytest.mark.parametrize("batches", [1, 2])
def test_a_rewind_to_before_a_torn_first_entry_is_refused_where_the_source_is_asked_again(
    world: Queued, batches: int
) -> None:
    world.first = 0
    world.run(1)
    for number in range(1, batches):
        world.append(number + 1)
        world.run(number + 1)
    table = world.table()
    tear(world)
    world.first = 1
    with pytest.raises(MaintenanceError, match=r"source 'orders' began is not known.*Nothing was done.*allow-skip"):
        applied(world, rewind(-1))
    assert world.table() == table
    world.first = 0
    notes = " ".join(applied(world, rewind(-1, allow_skip=True)).notes)
    assert "where source 'orders' began is not known" in notes
    world.run(5)
    assert sorted(id for ids in world.table().values() for id in ids) == list(range(1, batches + 1))


@pytest.mark.parametrize("polled", [False, True])
def test_an_entry_is_written_again_though_a_table_of_its_batch_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, polled: bool
) -> None:
    before = FileSink(str(tmp_path / "before"), format="json")
    world = Queued(tmp_path, monkeypatch, sink=before) if polled else World(tmp_path, sink=before)
    add = world.append if isinstance(world, Queued) else world.land
    add(1)
    world.run(1)
    world.options["sink"] = FileSink(str(tmp_path / "lake"), format="json")
    add(2)
    world.run(2)
    tear(world)
    (tmp_path / "before").rename(tmp_path / "away")
    plan = applied(world)
    assert not plan.problems
    assert any("'orders' is not known" in note for note in plan.notes) is polled
    assert world.checkpoint.offset_log.get(KEY.id) is not None
    add(3)
    world.run(3)
    assert world.table() == {1: [2], 2: [3]}


@pytest.mark.parametrize("batches", [0, 2])
def test_a_source_that_cannot_be_loaded_keeps_no_entry_from_being_repaired(
    world: Queued, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    for number in range(batches):
        world.run(number)
        world.append(number + 2)
    if not batches:
        world.staged(1)
    tear(world)
    world.expire_leases()

    def refuse(_: object) -> Source:
        raise DefinitionError("the class cannot be loaded")

    with monkeypatch.context() as patch:
        patch.setattr(Source, "from_dict", staticmethod(refuse))
        plan = applied(world)
    assert not plan.problems
    (told,) = [note for note in plan.notes if "'orders'" in note]
    assert ("is not known" if batches else "cannot be told: the class cannot be loaded") in told
    assert world.checkpoint.offset_log.has(0) is bool(batches)
    world.append(9)
    world.run(9)
    assert world.table()[batches][-1] == 9


def test_adopted_output_without_the_source_does_not_say_that_there_was_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline made it, which may have had the same rows from a source of another name."""
    lake = FileSink(str(tmp_path / "lake"), format="json")
    world, other = Queued(tmp_path / "new", monkeypatch, sink=lake), World(tmp_path / "old", sink=lake)
    world.append(1, 2)
    assert world.execution.plan(run_identity(1)) is not None
    other.sources = {"files": other.sources["orders"]}
    other.land(1, 2)
    other.run(1)
    refused(world, 1)
    world.expire_leases()
    applied(world, adopt(KEY.id, allow_skip=True))
    world.run(1, try_number=2)
    world.append(3)
    world.run(2)
    tear(world)
    (told,) = [note for note in applied(world).notes if "'orders'" in note]
    assert "is not known" in told
    entry = world.checkpoint.offset_log.get(KEY.id)
    assert entry is not None
    assert entry.starts == {"orders": None}


@pytest.fixture
def lost(world: Queued) -> Queued:
    """Where the first batch began is not known: its entry was torn, and the source begins elsewhere by now."""
    world.first = 0
    world.run(1)
    world.append(2, 3)
    world.run(2)
    tear(world)
    world.first = 1
    assert any("is not known" in note for note in applied(world).notes)
    return world


def test_a_batch_of_which_nobody_knows_where_it_began_is_not_replayed(lost: Queued) -> None:
    table, engine = lost.table(), InlineEngine()
    with pytest.raises(
        SourceError, match=r"began in source 'orders' is not known.*Nothing was done.*allow-skip"
    ) as told:
        lost.run(1, engine, clear_number=1)
    assert f"`microbatch rewind {lost.root}/checkpoint --to -1 --drop-output --allow-skip`" in str(told.value)
    assert not engine.jobs
    assert lost.table() == table
    lost.run(2, clear_number=1)
    lost.append(4)
    lost.run(3)
    assert lost.table() == {**table, 2: [4]}


def test_nor_is_one_that_has_no_output_run_from_where_the_source_begins_by_now(world: Queued) -> None:
    world.first = 0
    world.staged(1)
    world.expire_leases()
    entry = world.checkpoint.offset_log.get(KEY.id)
    assert entry is not None
    world.checkpoint.offset_log.add(1, replace(entry, starts=entry.ends))  # a command was at it, and the run slept
    tear(world)
    world.first = 1
    assert any("is not known" in note for note in applied(world).notes)
    engine = InlineEngine()
    with pytest.raises(SourceError, match="began in source 'orders' is not known"):
        world.run(1, engine)
    assert not engine.jobs


def test_a_rewind_to_before_such_a_batch_is_refused_and_its_words_name_no_later_beginning(lost: Queued) -> None:
    table = lost.table()
    with pytest.raises(MaintenanceError, match=r"source 'orders' began is not known.*Nothing was done.*allow-skip"):
        applied(lost, rewind(-1))
    assert lost.table() == table
    applied(lost, rewind(0))  # the second batch's beginning is known
    lost.run(5)
    assert lost.table() == table
    lost.first = 2
    (told,) = [note for note in planned(lost, rewind(-1, allow_skip=True)).notes if "'orders'" in note]
    assert "is not known" in told
    lost.first = 0
    applied(lost, rewind(-1, allow_skip=True))
    lost.run(6)
    assert sorted(id for ids in lost.table().values() for id in ids) == [1, 2, 3]
