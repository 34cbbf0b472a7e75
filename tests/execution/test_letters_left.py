"""Dead letters that cannot be had now keep nobody else's from being run again: they are named, with what to do, and are
run again later."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import SinkError, SourceChangedError, SourceError
from airflow_provider_microbatch.execution.dead_letters import letters_left
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.dead_letters import with_letters
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from tests.execution.test_dead_letters import Checked, OfLetters, typed
from tests.execution.test_letters_once import again, ids, live, planned, replay
from tests.execution.test_not_replaceable import AppendedOnly
from tests.execution.two_tables import is_clean
from tests.execution.world import KEY, run_identity


@pytest.fixture
def world(tmp_path: Path) -> Checked:
    """Two batches, each with one dead letter: 2 and 7."""
    world = Checked(tmp_path)
    for number, rows in enumerate([(1, 2, 3), (6, 7)]):
        world.land(*rows)
        live(world, number, 2, 7)
    return world


def lose(world: Checked, number: int = 0) -> Path:
    """Somebody has removed the letters of one batch."""
    kept = world.root / "kept"
    (world.root / "letters" / "lane=live" / f"batch_id={number}").rename(kept)
    return kept


def delta(world: Checked) -> DeltaTable:
    """The letters of a world that has them in a Delta table, as its users open it."""
    return DeltaTable((world.root / "letters").as_uri())


def commanded(world: Checked, *more: str) -> int:
    """The command, as it is typed."""
    world.expire_leases()
    (world.root / "mend.py").write_text("def mend(batch):\n    return batch\n")
    found = "airflow_provider_microbatch.engines.lookup.engine_for"
    with mock.patch(found, return_value=OfLetters()):
        words = ["dead-letters", world.pipeline.checkpoint, "--replay", "mend.py:mend", "--base", str(world.root)]
        return main([*words, *more])


def test_the_others_are_run_again_and_they_are_named_with_what_to_do(
    world: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = lose(world)
    assert commanded(world) == 1
    told = capsys.readouterr()
    assert "dead-letters/0" in told.out
    assert "Left: the dead letters of batch live/0 cannot be read: batch live/0 is not in " in told.err
    assert "Or clear task 'micro_batch' of run 'run-0' of DAG 'orders'" in told.err
    assert ids(world) == [1, 3, 6, 7]
    assert commanded(world) == 2
    assert "the dead letters of batch live/0 cannot be read" in capsys.readouterr().err
    assert main(["check", world.pipeline.checkpoint]) == 1
    assert ": 1 finding (" in capsys.readouterr().out  # that the letters are gone
    kept.rename(world.root / "letters" / "lane=live" / "batch_id=0")
    assert commanded(world, "--json") == 0
    assert ids(world) == [1, 2, 3, 6, 7]
    assert is_clean(world)


def test_so_are_those_of_which_files_are_gone_from_their_folder(
    world: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.root / "letters" / "lane=live" / "batch_id=0"
    (gone,) = folder.glob("*.json")
    gone.rename(world.root / gone.name)
    assert commanded(world) == 1
    assert f"live/0 cannot be read: {gone} is gone" in capsys.readouterr().err
    assert ids(world) == [1, 3, 6, 7]
    (world.root / gone.name).rename(gone)
    assert commanded(world) == 0
    assert ids(world) == [1, 2, 3, 6, 7]
    assert is_clean(world)


def test_a_letter_that_somebody_has_taken_out_keeps_the_rest_of_its_batch_from_nothing(world: Checked) -> None:
    world.land(10, 11, 12)
    live(world, 2, 10, 11)
    (file,) = (world.root / "letters" / "lane=live" / "batch_id=2").glob("*.json")
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"id": 11' not in line))
    assert commanded(world) == 0
    assert ids(world) == [1, 2, 3, 6, 7, 10, 12]


def test_so_are_those_that_a_restore_has_taken_out_of_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = Checked(tmp_path, dead_letters=DeltaSink(str(tmp_path / "letters")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    before = delta(world).version()
    world.land(6, 7)
    live(world, 1, 7)
    whole = delta(world).version()
    delta(world).restore(before)
    assert commanded(world) == 1
    told = capsys.readouterr()
    assert "live/1 cannot be read: none of its 1 rows is in version" in told.err
    assert "RESTORE" in told.err
    assert "Or clear task 'micro_batch' of run 'run-1' of DAG 'orders'" in told.err
    assert ids(world) == [1, 2, 3, 6]
    assert list(letters_left(again(world))) == [BatchKey("live", 1)]
    delta(world).restore(whole)
    assert commanded(world) == 0
    assert ids(world) == [1, 2, 3, 6, 7]


def test_or_their_batch_is_made_anew(world: Checked) -> None:
    lose(world)
    replay(world, 10)
    live(world, 0, 2, clear_number=1)
    replay(world, 11)
    assert ids(world) == [1, 2, 3, 6, 7]
    assert is_clean(world)


def test_those_of_a_batch_that_waits_for_its_replay_are_left_to_later(world: Checked) -> None:
    world.checkpoint.replays.request(KEY, run=run_identity(0, clear_number=1), requested_ms=1)
    replay(world, 10)
    assert ids(world) == [1, 3, 6, 7]
    (left,) = letters_left(again(world)).values()
    typed(world, left)
    replay(world, 11)
    assert ids(world) == [1, 2, 3, 6, 7]


def test_of_letters_that_were_refused_again_the_way_out_is_their_lane(world: Checked) -> None:
    replay(world, 10, 7)
    shutil.rmtree(world.root / "letters" / "lane=dead-letters" / "batch_id=0")
    with pytest.raises(SourceError, match="of batch dead-letters/0 cannot be read") as told:
        replay(world, 11)
    assert "task" not in str(told.value)
    typed(world, str(told.value))
    replay(world, 12)
    assert ids(world) == [1, 2, 3, 6, 7]
    assert is_clean(world)


def test_where_they_are_planned_already_the_plan_is_given_up_first(world: Checked) -> None:
    assert again(world).plan(run_identity(10)) is not None
    lose(world)
    with pytest.raises(SourceChangedError, match="dead-letters/0 is planned, and cannot be read") as told:
        replay(world, 11)
    typed(world, str(told.value))
    replay(world, 12)
    assert ids(world) == [1, 3, 6, 7]
    assert planned(world) == [0]


def test_no_clear_is_named_for_letters_that_cannot_be_replaced_where_they_are(world: Checked) -> None:
    topic = KafkaSink("letters", stages=str(world.root / "staging"), bootstrap_servers="b:9092")

    def tells_not(*_: Any) -> None:
        raise SourceChangedError("not told")

    letters = again(world).planner.sources.open("dead_letters")
    with (
        mock.patch.object(type(letters), "_part", tells_not),
        mock.patch.object(type(letters), "_recorded", return_value=with_letters(world.pipeline.sink.tables[0], topic)),
    ):
        told = letters_left(again(world))
    assert list(told) == [BatchKey("live", 0), BatchKey("live", 1)]
    assert "No clear makes them anew" in told[KEY]
    assert topic.location() in told[KEY]


def test_nor_where_their_batch_is_in_a_table_that_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=(AppendedOnly.__module__,)))
    world = Checked(tmp_path, sink=AppendedOnly(str(tmp_path / "lake"), format="json"))
    world.land(1, 2, 3)
    live(world, 0, 2)
    lose(world)
    with pytest.raises(SourceError, match="No clear makes them anew: what was read cannot be taken back") as told:
        replay(world, 10)
    assert "task" not in str(told.value)
    assert "stay in" not in str(told.value)
    with pytest.raises(SinkError, match="cannot be replayed: what was read cannot be taken back"):
        live(world, 0, 2, clear_number=1)


def test_nor_does_a_definition_that_cannot_be_loaded_keep_the_others(world: Checked) -> None:
    attempt = world.checkpoint.attempts.get(KEY, 1)
    assert attempt is not None
    world.options["max_dead_letters"] = 5
    world.land(8, 9)
    live(world, 2, 8)
    path = world.root / "checkpoint" / "microbatch" / "definitions" / str(attempt.definition)
    path = path if path.exists() else next((world.root / "checkpoint").rglob(f"*{attempt.definition}*"))
    path.write_text(path.read_text().replace("file:FileSink", "file:Gone"))
    replay(world, 10)
    assert ids(world) == [1, 3, 6, 8, 9]
    assert list(letters_left(again(world))) == [KEY, BatchKey("live", 1)]


def test_a_look_for_new_ones_agrees_with_the_plan(world: Checked) -> None:
    letters = again(world).planner.sources.open("dead_letters")
    assert letters.has_new(None)
    lose(world, 0)
    assert letters.has_new(None)
    replay(world, 10)
    assert not letters.has_new(None)
    assert isinstance(world.options["dead_letters"], FileSink)
