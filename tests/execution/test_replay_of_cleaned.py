"""A replay of what ``clean_source`` has touched: archived files are read from the archive, deleted ones are refused."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import MicroBatchError, SourceError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.maintaining import applied
from tests.execution.sleepers import Sleep
from tests.execution.test_source_names import rename
from tests.execution.world import Killed, World, run_identity
from tests.support.inline_engine import InlineEngine

KEY = BatchKey("live", 0)


def cleaned(tmp_path: Path, how: str) -> World:
    """Batches 0 and 1 are committed and their files cleaned."""
    world = World(tmp_path)
    archive = str(tmp_path / "archive") if how == "archive" else None
    landing = str(world.landing())
    world.sources = {
        "orders": FileSource(landing, format="json", schema="id long", clean_source=how, archive_dir=archive)
    }
    for number in range(2):
        world.land(number + 1)
        world.run(number)
    assert list(world.landing().glob("[!.]*")) == []
    return world


def test_archived_files_are_read_from_the_archive(tmp_path: Path) -> None:
    world = cleaned(tmp_path, "archive")
    engine = InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])
    summary = world.run(0, engine, clear_number=1)
    assert summary is not None
    assert (summary.epoch, summary.rows_out, summary.read["orders"]["files"]) == (2, 1, 1)
    (job,) = engine.jobs
    assert [path for group in job.sources["orders"].arguments["groups"] for path in group["paths"]] == [
        str(tmp_path / "archive" / "000001.json")
    ]
    assert world.table() == {0: [101], 1: [2]}
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == ["000001.json", "000002.json"]


def test_deleted_files_are_refused_with_the_reason_and_nothing_is_written(tmp_path: Path) -> None:
    world = cleaned(tmp_path, "delete")
    before = world.files()
    with pytest.raises(SourceError, match=r"batch live/0 cannot be replayed, source 'orders'[\s\S]*clean_source"):
        world.run(0, clear_number=1)
    assert world.files() == before
    assert world.table() == {0: [1], 1: [2]}
    world.land(3)
    assert world.run(2) is not None, "the pipeline goes on"


def test_a_clear_that_died_while_the_cleaner_took_its_files_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.sources = {"orders": FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")}
    world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(OpenedSources, "commit", lambda *_: None)
        world.run(0)
    request = Replays.request

    def cleaned_meanwhile(replays: Replays, *given: Any, **named: Any) -> Any:
        world.run(1)  # it finds nothing new, and says the last commit again
        request(replays, *given, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Replays, "request", cleaned_meanwhile)
        with pytest.raises(Killed):
            world.run(0, clear_number=1)
    assert world.checkpoint.replays.pending(KEY) != []
    for attempt in (2, 3):
        with pytest.raises(SourceError, match="cannot be replayed"):
            world.run(0, clear_number=1, try_number=attempt)
    assert world.checkpoint.replays.pending(KEY) == []


def test_a_replay_records_the_code_it_ran_and_the_request_it_was_made_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.land(1)
    for clear_number, version in enumerate(["v1", "v2"]):
        code = Code(transform="jobs/orders.py:transform", code_hash=version * 32, bundle_version=version)
        run = run_identity(0, clear_number=clear_number)
        world.execution.run(run=run, engine=InlineEngine(), code=code, transform=None)
    found = world.checkpoint.attempts.all(KEY)
    ran = [(one.code["bundle_version"], one.code["code_hash"][:2], one.request) for one in found]
    assert ran == [("v1", "v1", None), ("v2", "v2", 1)]


@pytest.mark.parametrize("checkpoint_format", ["v1", "v2"])
@pytest.mark.parametrize("step", ["release", "commit"])
def test_what_a_process_archives_that_slept_through_a_rename_is_found_under_the_new_name(
    tmp_path: Path, sleep: Sleep, checkpoint_format: str, step: str
) -> None:
    world = World(tmp_path, checkpoint_format=checkpoint_format)
    world.land(1)

    def called(name: str, archive: str) -> None:
        folder = str(tmp_path / archive)
        source = FileSource(
            str(world.landing()), format="json", schema="id long", clean_source="archive", archive_dir=folder
        )
        world.sources = {name: source}

    def renamed() -> None:
        world.expire_leases()
        for old, new in pairwise(["orders", "sales", "bookings"]):
            applied(world, rename(old, new))

    called("orders", "archive")
    sleep.before(OpenedSources, step, renamed)
    with suppress(MicroBatchError):
        world.run(0)
    called("bookings", "archive-2")
    world.run(1)
    shutil.rmtree(world.landing() / ".microbatch_cleaned", ignore_errors=True)  # an earlier version left no note
    world.run(0, InlineEngine(transform=lambda sources: [{"id": 7} for _ in sources["bookings"]]), clear_number=1)
    assert world.table() == {0: [7]}
