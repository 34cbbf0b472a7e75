"""Order and durability, which the outcome of a healthy run does not show: what is on disk before what happens next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import TransformError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks import file as file_sink
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

KEY = BatchKey("live", 0)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What reaches the disk, in order: ``fsync <path>``, ``link <path>``, ``publish <path>``."""
    found: list[str] = []
    fsync, link, rename = os.fsync, os.link, file_sink.rename_new

    def name(path: object) -> str:
        return str(path).removeprefix(f"{tmp_path}/")

    def recording_fsync(descriptor: int) -> None:
        found.append(f"fsync {name(Path(f'/proc/self/fd/{descriptor}').readlink())}")
        fsync(descriptor)

    def recording_link(source: str, target: str, *, dst_dir_fd: int, **named: Any) -> None:
        found.append(f"link {name(Path(f'/proc/self/fd/{dst_dir_fd}').readlink() / target)}")
        link(source, target, dst_dir_fd=dst_dir_fd, **named)

    def recording_rename(source: Path, target: Path) -> bool:
        found.append(f"publish {name(target)}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "link", recording_link)
    monkeypatch.setattr(file_sink, "rename_new", recording_rename)
    return found


def test_data_then_publish_then_commit_each_on_disk_before_the_next(world: World, steps: list[str]) -> None:
    world.land(1)
    world.run(0)
    stage = world.stage_folder().relative_to(world.root).as_posix()
    order = [
        "link checkpoint/offsets/0",
        "fsync checkpoint/offsets",
        "link checkpoint/attempts/live/0/1",
        "fsync checkpoint/attempts/live/0",
        f"fsync {stage}/part-0.json",
        f"fsync {stage}/_manifest/part-0.txt",
        f"fsync {stage}",
        "publish lake/lane=live/batch_id=0",
        "fsync lake/lane=live",
        "link checkpoint/commits/0",
        "fsync checkpoint/commits",
    ]
    # Files of one folder may be synced in any order, everything else may not.
    places = [steps.index(step) for step in order[:4]] + [steps.index(f"fsync {stage}")]
    published = steps.index("publish lake/lane=live/batch_id=0")
    durable = steps.index("fsync lake/lane=live", published)
    committed = steps.index("link checkpoint/commits/0")
    places += [published, durable, committed, steps.index("fsync checkpoint/commits", committed)]
    assert places == sorted(places)
    assert set(order) <= set(steps[:published]) | set(steps[published:])
    for data in order[4:6]:
        assert steps.index(data) < published


def test_a_commit_made_up_by_the_next_try_rests_on_a_rename_that_is_on_disk(
    world: World, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land(1)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "add", _killing(MetadataLog.add, when=lambda log, *_: "commits" in log.location))
        with pytest.raises(Killed):
            world.run(0)
    steps.clear()
    world.run(0, try_number=2)
    assert "fsync lake/lane=live" in steps[: steps.index("link checkpoint/commits/0")]


def test_the_commit_entry_is_there_before_any_source_hears_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []
    real = OpenedSources.commit

    def commit(self: OpenedSources, ends: Any) -> None:
        heard.append(world.checkpoint.commit_log.get(0) is not None)
        real(self, ends)

    monkeypatch.setattr(OpenedSources, "commit", commit)
    world.land(1)
    world.run(0)
    assert heard
    assert all(heard)


def test_nothing_is_committed_that_is_not_in_the_sink(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MetadataLog.add

    def add(self: MetadataLog[Any], batch_id: int, entry: Any) -> bool:
        if self.location.endswith("commits"):
            assert world.published(BatchKey("live", batch_id)) is not None
        return real(self, batch_id, entry)

    monkeypatch.setattr(MetadataLog, "add", add)
    world.land(1)
    assert world.run(0) is not None


def test_the_engine_is_started_with_the_handle_that_is_on_record(world: World) -> None:
    launched: list[tuple[Handle, Handle | None]] = []

    class Recording(InlineEngine):
        def start(self, handle: Handle, job: Job, code: Code) -> None:
            attempt = world.checkpoint.attempts.get(BatchKey(job.lane, job.batch_id), job.epoch)
            launched.append((handle, attempt.handle if attempt else None))
            super().start(handle, job, code)

    world.land(1)
    world.run(0, Recording())
    [(used, recorded)] = launched
    assert used == recorded


def test_the_retry_of_a_replay_that_failed_replays(world: World) -> None:
    world.land(1)
    world.run(0)
    with pytest.raises(TransformError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0), clear_number=1)  # type: ignore[arg-type, return-value]
    newer = InlineEngine(transform=lambda sources: [{"id": row["id"] + 100} for row in sources["orders"]])
    world.run(0, newer, clear_number=1, try_number=2)
    assert world.table() == {0: [101]}


def test_a_replay_is_answered_once(world: World) -> None:
    world.land(1)
    world.run(0)
    world.run(0, clear_number=1)
    assert world.checkpoint.replays.pending(KEY) == []
    again = InlineEngine()
    world.run(0, again, clear_number=1, try_number=2)
    assert again.jobs == []


def test_a_replay_that_died_before_its_answer_is_continued(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.land(1)
    world.run(0)
    with monkeypatch.context() as patch:
        patch.setattr(Replays, "complete", _killing(Replays.complete, when=lambda *_: True))
        with pytest.raises(Killed):
            world.run(0, clear_number=1)
    world.run(0, clear_number=1, try_number=2)
    assert world.checkpoint.replays.pending(KEY) == []
    assert world.stages() == []


def _killing(real: Any, *, when: Any) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise Killed
        return real(*args, **kwargs)

    return step
