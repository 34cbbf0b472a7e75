"""``clean_source`` beside the logs: what batches of this checkpoint have read, and nobody reads any more."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.execution.ending import Ending
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.plan import Planner
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.clean import Cleaner
from airflow_provider_microbatch.sources.file.log import PlannedFile
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from tests.execution.maintaining import applied, rewind
from tests.execution.world import Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def switch(world: World, how: str | None, **options: Any) -> None:
    """The definition of the DAG from now on."""
    archive = str(world.root / "archive") if how == "archive" else None
    landing = str(world.landing())
    options = {"format": "json", "schema": "id long", "clean_source": how, "archive_dir": archive, **options}
    world.sources = {"orders": FileSource(landing, **options)}


def left(world: World) -> list[str]:
    return sorted(path.stem.lstrip("0") or "0" for path in world.landing().glob("[!.]*"))


def batches(world: World, *numbers: int) -> None:
    for number in numbers:
        world.land(number)
        assert world.run(number) is not None


def is_of_landing(world: World, folder: int | None) -> bool:
    """Whether a call's ``dir_fd`` is the landing folder."""
    return folder is not None and os.path.samestat(os.fstat(folder), world.landing().stat())


def kill(*_: object, **__: object) -> None:
    raise Killed


def skip_to(number: int) -> Any:
    def plan(drafting: Drafting) -> Plan:
        offset = f'{{"logOffset":{number}}}'
        return plan_set_offset(
            drafting, lane="live", source="orders", offset=offset, allow_skip=True, allow_reread=False
        )

    return plan


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_switched_on_late_the_next_plan_takes_nothing_away(world: World, how: str) -> None:
    batches(world, 0, 1, 2)
    switch(world, how)
    assert world.run(3) is None
    assert left(world) == ["0", "1", "2"]
    batches(world, 4)
    assert world.run(5) is None
    assert left(world) == ["0", "1", "2"]


def test_switched_off_and_on_again(world: World) -> None:
    switch(world, "delete")
    batches(world, 0)
    switch(world, None)
    batches(world, 1)
    switch(world, "archive")
    assert world.run(2) is None
    batches(world, 3)
    assert left(world) == ["1"]
    switch(world, "delete")
    batches(world, 4)
    assert left(world) == ["1"]
    assert [path.name for path in (world.root / "archive").iterdir()] == ["000003.json"]


def test_a_replay_of_a_batch_of_before_is_no_reason_to_clean_it(world: World) -> None:
    batches(world, 0, 1)
    switch(world, "delete")
    assert world.run(0, clear_number=1) is not None
    batches(world, 2)
    assert left(world) == ["0", "1"]


def test_what_set_offset_skips_stays(world: World) -> None:
    switch(world, "delete", max_files=1)
    batches(world, 0)
    world.land(1)
    world.land(2)
    world.execution.plan(run_identity(1))
    applied(world, rewind(0))
    applied(world, skip_to(1))
    for number in (2, 3):
        world.run(number)
    assert left(world) == ["1"]
    assert world.table() == {0: [0], 2: [2]}


def test_also_what_was_committed_and_not_yet_cleaned_when_it_was_rewound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(world, "delete")
    batches(world, 0)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *_: None)
        batches(world, 1)
    applied(world, rewind(0))
    applied(world, skip_to(1))
    batches(world, 5)
    assert left(world) == ["1"]


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_concurrent_run_takes_nothing_from_a_replay(world: World, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Died between commit entry and `source.commit`; cleared; then a run comes that says the commit again."""
    switch(world, how, on_missing="skip")
    world.land(7)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", kill)
        with pytest.raises(Killed):
            world.run(0)

    def another_run_comes(_: Job) -> None:
        assert world.execution.plan(run_identity(1)) is None
        assert left(world) == ["7"]

    assert world.run(0, InlineEngine(before_stage=another_run_comes), clear_number=1) is not None
    assert world.table() == {0: [7]}
    assert left(world) == [], "it is cleaned once nobody reads it"


def test_nor_between_the_request_and_its_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(world, "delete")
    world.land(7)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", kill)
        with pytest.raises(Killed):
            world.run(0)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "open_attempt", kill)
        with pytest.raises(Killed):
            world.run(0, clear_number=1)
    assert world.run(1) is None
    assert left(world) == ["7"]
    assert world.run(0, clear_number=1, try_number=2) is not None
    assert (world.table(), left(world)) == ({0: [7]}, [])


def test_a_clear_while_its_files_are_taken_is_refused_or_they_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner has looked who reads; then the clear comes, and then the files go."""
    switch(world, "delete", on_missing="skip")
    world.land(7)
    refused: list[str] = []
    unlink = os.unlink

    def clear_comes_first(path: Any, *, dir_fd: int | None = None) -> None:
        if is_of_landing(world, dir_fd) and not refused:
            refused.append("asked")
            with pytest.raises(SourceError, match="deleted by clean_source"):
                world.run(0, clear_number=1)
        unlink(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", clear_comes_first)
        assert world.run(0) is not None
    assert (refused, left(world), world.table()) == (["asked"], [], {0: [7]})
    for _ in range(2):
        with pytest.raises(SourceError, match="deleted by clean_source"):
            world.run(0, clear_number=1, try_number=2)
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == []


def test_a_clear_that_asks_while_the_cleaner_looks_keeps_its_files_or_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clear has asked whether its range is there, then the cleaner comes, then the request is on record."""
    switch(world, "delete", on_missing="skip")
    world.land(7)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", kill)
        with pytest.raises(Killed):
            world.run(0)
    request = Replays.request

    def late(replays: Replays, *key: Any, **values: Any) -> Any:
        assert world.run(1) is None
        return request(replays, *key, **values)

    with monkeypatch.context() as patch:
        patch.setattr(Replays, "request", late)
        with pytest.raises(SourceError, match="deleted by clean_source"):
            world.run(0, clear_number=1)
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 0)) == []
    assert world.table() == {0: [7]}


def test_a_cleaner_that_dies_between_two_files_loses_none_of_them_to_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(world, "delete", on_missing="skip")
    world.land(7)
    unlink = os.unlink

    def dies(path: Any, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        if is_of_landing(world, dir_fd):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dies)
        with pytest.raises(Killed):
            world.run(0)
    monkeypatch.setattr(Planner, "say_commit_again", lambda *_: None)
    with pytest.raises(SourceError, match="deleted by clean_source"):
        world.run(0, clear_number=1)
    assert world.table() == {0: [7]}


def test_what_a_linked_folder_shows_is_not_taken(world: World, tmp_path: Path) -> None:
    switch(world, "delete", recursive=True)
    world.land(0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.json").write_text('{"id": 1}\n')
    (world.landing() / "linked").symlink_to(elsewhere)
    assert world.run(0) is not None
    assert (elsewhere / "1.json").exists()
    assert left(world) == ["linked"]


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_folder_that_becomes_a_link_after_the_look_gives_away_nothing_of_another(
    world: World, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the landing folder exchanges a folder for a link between the cleaner's look and its act."""
    switch(world, how)
    folder, away, elsewhere = world.landing() / "p=1", tmp_path / "away", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n')
    elsewhere.mkdir()
    (elsewhere / "a.json").write_text("precious")
    one, look = Cleaner._one, PlannedFile.is_as_planned

    def exchanged(file: PlannedFile, size: int, mtime_ns: int) -> bool:
        planned = look(file, size, mtime_ns)
        folder.rename(away)
        folder.symlink_to(elsewhere)
        return planned

    def at_that_moment(cleaner: Cleaner, file: PlannedFile) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(PlannedFile, "is_as_planned", exchanged)
            one(cleaner, file)

    monkeypatch.setattr(Cleaner, "_one", at_that_moment)
    assert world.run(0) is not None
    assert (elsewhere / "a.json").read_text() == "precious"
    assert folder.is_symlink()
    assert list(away.iterdir()) == [], "the file that was looked at"
    if how == "archive":
        assert (tmp_path / "archive" / "p=1" / "a.json").read_text() == '{"id": 1}\n'


def test_nor_one_that_becomes_a_link_before_it_to_what_looks_like_the_file(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    switch(world, "delete")
    folder, elsewhere = world.landing() / "p=1", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n')
    caplog.set_level(logging.WARNING)
    one = Cleaner._one

    def exchanged(cleaner: Cleaner, file: PlannedFile) -> None:
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        one(cleaner, file)

    monkeypatch.setattr(Cleaner, "_one", exchanged)
    assert world.run(0) is not None
    assert (elsewhere / "a.json").exists()
    assert "'p=1' below" in caplog.text


def test_a_link_in_the_archive_is_not_moved_through(world: World, tmp_path: Path) -> None:
    switch(world, "archive")
    folder, elsewhere = world.landing() / "p=1", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1}\n')
    elsewhere.mkdir()
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "p=1").symlink_to(elsewhere)
    assert world.run(0) is not None
    assert (list(elsewhere.iterdir()), (folder / "a.json").exists()) == ([], True)


def test_a_landing_folder_that_the_user_names_by_a_link_is_cleaned(world: World, tmp_path: Path) -> None:
    switch(world, "archive")
    real, named = tmp_path / "real", world.landing()
    named.rename(real)
    named.symlink_to(real)
    world.land(0)
    assert world.run(0) is not None
    assert (list(real.glob("[!.]*")), [path.name for path in (tmp_path / "archive").iterdir()]) == ([], ["000000.json"])


def test_a_file_that_comes_back_while_its_batch_is_read_without_it_is_read_by_the_next_try(world: World) -> None:
    switch(world, None, on_missing="skip")
    world.land(1)
    world.execution.plan(run_identity(0))
    away = world.root / "away.json"
    landed = world.landing() / "000001.json"
    landed.rename(away)
    (world.landing() / ".keep").touch()

    def comes_back(_: Job) -> None:
        away.rename(landed)

    with pytest.raises(SourceChangedError, match="were missing when the batch was read"):
        world.run(0, InlineEngine(after_stage=comes_back))
    assert world.run(0, try_number=2) is not None
    assert world.table() == {0: [1]}


@pytest.mark.parametrize("where", ["release", "commit entry", "end", "source.commit"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_around_the_commit_it_is_cleaned_by_the_next_run(
    world: World, where: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, name = {
        "release": (OpenedSources, "release"),
        "commit entry": (MetadataLog, "add"),
        "end": (Ending, "end"),
        "source.commit": (OpenedSources, "commit"),
    }[where]
    real = getattr(target, name)

    def dying(self: Any, *args: Any) -> Any:
        if where == "commit entry" and "commits" not in self.location:
            return real(self, *args)
        if after:
            real(self, *args)
        raise Killed

    switch(world, "delete")
    batches(world, 0)
    world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(target, name, dying)
        patch.setattr(Execution, "abandon", lambda *_, **__: None)
        with pytest.raises(Killed):
            world.run(1)
    world.run(1, try_number=2)
    world.run(2)
    assert (world.table(), left(world)) == ({0: [0], 1: [1]}, [])


def test_files_stay_due_while_their_folder_is_away(world: World) -> None:
    """As where its file system is not mounted: what nobody has looked at is not cleaned."""
    switch(world, "delete")
    batches(world, 0)
    world.land(1)
    execution = world.execution
    manifest = execution.publish(world.staged(1))
    landing, away = world.landing(), world.root / "away"
    landing.rename(away)
    landing.mkdir()
    execution.commit(key=manifest.key, manifest=manifest, run=run_identity(1))
    landing.rmdir()
    away.rename(landing)
    batches(world, 2)
    assert left(world) == []


@pytest.mark.slow
def test_a_file_that_cannot_be_archived_costs_later_commits_little_and_goes_when_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, real = 0, PosixStore.get

    def get(store: PosixStore, path: str) -> bytes | None:
        nonlocal reads
        reads += 1
        return real(store, path)

    switch(world, "archive")
    (world.root / "archive").mkdir()
    (world.root / "archive" / "000000.json").write_text("there already")
    monkeypatch.setattr(PosixStore, "get", get)
    counts = []
    for number in range(48):
        reads = 0
        batches(world, number)
        counts.append(reads)
    assert counts[45] < 2 * counts[2]
    assert left(world) == ["0"]
    (world.root / "archive" / "000000.json").unlink()
    batches(world, *range(48, 66))
    assert left(world) == []
