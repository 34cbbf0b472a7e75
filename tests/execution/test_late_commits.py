"""A commit entry that came after its batch was rewound, and was planned anew, and whose process died before it could
take the entry back: to whoever finds it the batch is planned and not committed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.codec import OURS
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BatchSetAsideError,
    BrokenLogError,
    CheckpointError,
)
from airflow_provider_microbatch.execution import commit_entry
from airflow_provider_microbatch.execution.execution import Execution
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.left import find_left
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.execution.summary import summarize
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, backed_up, filled, put_back, rows
from tests.execution.sleepers import Sleep, cleaning, killed, of_log, rewound
from tests.execution.world import CODE, Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def dies_before_its_look(run: Callable[[], object]) -> None:
    """It has written the commit entry then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_entry, "check_still_planned", killed)
        with pytest.raises(Killed):
            run()


def test_nothing_of_the_batch_is_cleaned_before_it_is_read(tmp_path: Path, sleep: Sleep) -> None:
    world = IntervalWorld(tmp_path)
    world.sources = {"orders": cleaning(world)}
    filled(world, 2)
    unread = world.land(2)

    def rewound_and_planned_anew() -> None:
        rewound(world, 1)()
        world.execution.plan(run_identity(7))

    sleep.before(OpenedSources, "release", rewound_and_planned_anew)
    dies_before_its_look(lambda: world.run(2))
    world.expire_leases()
    world.land_at(1.5, 9)
    assert world.backfill(hour(1), 50)
    assert unread.exists()
    world.run(8)
    assert world.ids() == [0, 1, 2, 9]
    assert verify_all(world.checkpoint) == []


@pytest.fixture
def planned_anew(tmp_path: Path, sleep: Sleep) -> IntervalWorld:
    """The batch of hour 1 is planned by the first of two tasks of a run, after its rewind, when the entry comes."""
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(1.5, 1)

    def rewound_and_planned_anew() -> None:
        rewound(world, -1, lane=batch_of(hour(1)).lane)()
        world.work(hour(1)).plan(backfill_run(1, clear_number=1))

    sleep.before(MetadataLog, "add", rewound_and_planned_anew, of_log("commits", 0))
    dies_before_its_look(lambda: world.backfill(hour(1), 1))
    world.expire_leases()
    return world


def test_the_run_of_an_interval_makes_its_batch_all_the_same(planned_anew: IntervalWorld) -> None:
    """Nobody else would: a green run leaves the interval to no other."""
    world, key, run = planned_anew, batch_of(hour(1)), backfill_run(1, clear_number=1)
    execution, engine = world.work(hour(1)).execution(key), InlineEngine()
    found = execution.look(key, run, engine_of=lambda name: engine, code=CODE)
    assert not found.is_done
    planned = execution.load(key)
    assert not planned.committed
    assert execution.run_planned(planned, run=run, engine=engine, code=CODE, transform=None)
    assert world.ids() == [1]
    assert verify_all(world.checkpoint) == []


def test_check_and_show_name_it_as_planned(planned_anew: IntervalWorld, capsys: pytest.CaptureFixture[str]) -> None:
    key = batch_of(hour(1))
    assert main(["show", planned_anew.pipeline.checkpoint, str(key)]) == 0
    assert "none: the batch is not committed" in capsys.readouterr().out
    assert main(["withdraw-clear", planned_anew.pipeline.checkpoint, str(key)]) == 2
    assert "is not committed: no clear of it waits" in capsys.readouterr().err
    assert [finding.kind for finding in find_left(planned_anew.checkpoint)] == ["left"]
    assert summarize(planned_anew.checkpoint, key).state == "planned"


def test_a_commit_entry_beside_a_torn_plan_is_the_batchs(tmp_path: Path) -> None:
    """The janitor has to end what is left of it, whatever the plan looks like."""
    world = filled(IntervalWorld(tmp_path), 2)
    (world.root / "checkpoint/offsets/1").write_bytes(b"v2\n{")
    assert world.checkpoint.lane(LIVE).commit_of(1) is not None


SPACED = f'v1\n{{"nextBatchWatermarkMs": 0, "{OURS}": {{"plan": "of before", "epoch": 1}}}}'.encode()
"""Its plan is none of the batch's, and this version writes it without spaces."""


def put_late(world: World) -> None:
    (world.root / "checkpoint/commits/2").write_bytes(SPACED)


def published_beside_it(world: World) -> Callable[[], object]:
    """What commits batch 2, which is published by now, and has that entry in its place."""
    filled(world, 2)
    world.land(2)
    attempt = world.staged(2)
    published = world.execution.publish(attempt)
    put_late(world)
    return partial(world.execution.commit, key=attempt.key, manifest=published, run=run_identity(2))


def test_one_that_this_version_would_write_otherwise_is_taken_back_by_a_commit(world: World) -> None:
    commit = published_beside_it(world)
    with adds_at_most(5):
        commit()
    assert verify_all(world.checkpoint) == []
    assert world.run(3) is None
    assert rows(world) == [0, 1, 2]


def test_one_that_this_version_would_write_otherwise_is_taken_back_by_a_plan(world: World) -> None:
    filled(world, 2)
    world.land(2)
    world.execution.plan(run_identity(2))
    put_late(world)
    assert world.execution.should_fire(run_identity(3)).fire
    world.run(3)
    assert rows(world) == [0, 1, 2]
    assert verify_all(world.checkpoint) == []


def test_one_that_cannot_be_taken_back_stops_the_commit_with_a_word(world: World) -> None:
    commit = published_beside_it(world)
    refused = pytest.raises(BrokenLogError, match="commits/2 was written for another plan of batch 2")
    with adds_at_most(5), mock.patch.object(PosixStore, "delete_if", return_value=False), refused:
        commit()


@contextmanager
def adds_at_most(most: int) -> Iterator[None]:
    """What goes on for ever ends here."""
    real, added = MetadataLog.add, list[int]()

    def add(entries: MetadataLog[object], batch_id: int, entry: object) -> bool:
        added.append(batch_id)
        assert len(added) <= most
        return real(entries, batch_id, entry)

    with mock.patch.object(MetadataLog, "add", add):
        yield


@pytest.mark.parametrize("epoch", ["x", [1], 1.5, {"a": 1}])
@pytest.mark.parametrize("kind", ["epoch", "failure"])
def test_one_of_no_epoch_is_damage_that_repair_mends(world: World, kind: str, epoch: object) -> None:
    """Somebody else wrote it: nobody can tell whether it is late, so the way on is named."""
    filled(world, 2)
    ours = {"epoch": epoch} if kind == "epoch" else {"failure": {"epoch": epoch}}
    (world.root / "checkpoint/commits/2").write_text(f"v1\n{json.dumps({'nextBatchWatermarkMs': 0, OURS: ours})}")
    world.land(2)
    for ask in (world.execution.should_fire, lambda: world.run(2)):
        with pytest.raises(CheckpointError, match="microbatch repair"):
            ask()
    world.expire_leases()
    assert applied(world).problems == ()
    world.run(2)
    assert rows(world) == [0, 1, 2]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_that_slept_while_another_run_made_its_batch_commits_nothing_of_its_own(
    world: World, sleep: Sleep, is_committed: bool
) -> None:
    """It would have told the figures of its own output, which is in no table."""
    filled(world, 2)
    world.land(2, 3)
    made = list[Attempt]()

    def made_anew() -> None:
        rewound(world, 1)()
        made.append(world.staged(3))
        finish(world, made[0], commits=is_committed)

    sleep.before(Execution, "commit", made_anew)
    with pytest.raises(AttemptFencedError, match="planned anew"):
        world.run(2, of_fewer())
    finish(world, made[0])
    entry = world.checkpoint.commit_log.get(2)
    assert entry is not None
    assert (entry.epoch, entry.progress["numOutputRows"]) == (made[0].epoch, 2)
    ended = world.checkpoint.attempts.ended(made[0].key, 1)
    assert ended is None or ended.state != "succeeded"
    assert world.table() == {0: [0], 1: [1], 2: [2, 3]}
    assert verify_all(world.checkpoint) == []


def finish(world: World, attempt: Attempt, *, commits: bool = True) -> None:
    """Publish and commit an attempt."""
    execution = world.execution
    manifest = execution.publish(attempt)
    if commits:
        execution.commit(key=attempt.key, manifest=manifest, run=attempt.run)


def test_nor_where_the_same_plan_was_made_once_more(world: World, sleep: Sleep) -> None:
    """Somebody has moved the batch out of the table, and the next attempt has put its own there."""
    world.land(0)

    def made_again() -> None:
        world.expire_leases()
        shutil.rmtree(world.lake / "lane=live")
        world.execution.publish(world.staged(1))

    sleep.before(Execution, "commit", made_again)
    with pytest.raises(AttemptFencedError, match="by attempt 2"):
        world.run(0)
    world.expire_leases()
    world.run(2)
    entry = world.checkpoint.commit_log.get(0)
    assert entry is not None
    assert entry.epoch == 2
    assert world.table() == {0: [0]}


def of_fewer() -> InlineEngine:
    """By older code, which leaves row 3 out."""
    return InlineEngine(transform=lambda sources: [{"id": row["id"]} for row in sources["orders"] if row["id"] < 3])


def test_what_a_restored_backup_has_made_by_the_same_plan_and_number_is_committed_as_it_is(
    world: World, sleep: Sleep
) -> None:
    """The attempt that slept has made other rows by older code, which the restore took away."""
    filled(world, 2)
    world.land(2, 3)

    def restored() -> None:
        put_back(world)
        finish(world, world.staged(2), commits=False)

    sleep.before(Execution, "open_attempt", lambda: backed_up(world))
    sleep.before(Execution, "commit", restored)
    world.run(2, of_fewer())
    entry = world.checkpoint.commit_log.get(2)
    assert entry is not None
    assert (entry.epoch, entry.progress["numOutputRows"]) == (1, 2)
    assert world.table() == {0: [0], 1: [1], 2: [2, 3]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("folders", [(), ("lake",)], ids=["whole", "the table alone"])
def test_a_clear_whose_output_a_backup_took_away_is_not_answered(
    world: World, sleep: Sleep, folders: tuple[str, ...]
) -> None:
    """The rows of before are there again, and nobody would run the batch by the mended code."""
    filled(world, 2)
    world.land(2, 3)
    world.run(2)
    sleep.before(Execution, "open_attempt", lambda: backed_up(world))
    sleep.before(Execution, "commit", lambda: put_back(world, *folders))
    with pytest.raises(AttemptFencedError, match=r"put back to a backup|by attempt 1"):
        world.run(2, of_fewer(), clear_number=1)
    world.expire_leases()
    assert world.checkpoint.replays.pending(BatchKey(LIVE, 2))
    world.run(2, of_fewer(), clear_number=1, try_number=2)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []


@pytest.mark.parametrize("since", ["the clear", "before the clear", "of the table alone"])
def test_nothing_that_was_set_aside_is_cleaned_whose_output_a_backup_took_away(
    tmp_path: Path, sleep: Sleep, since: str
) -> None:
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.sources = {"orders": cleaning(world)}
    unread = world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, InlineEngine(transform=lambda sources: [{"id": 1 / 0}]))
    world.land(1)
    world.run(1)
    if since == "before the clear":
        backed_up(world)
    else:
        sleep.before(Execution, "open_attempt", lambda: backed_up(world))
    folders = ("lake",) if since == "of the table alone" else ()
    sleep.before(Execution, "commit", lambda: put_back(world, *folders))
    with pytest.raises(AttemptFencedError, match="put back to a backup"):
        world.run(0, clear_number=1, try_number=2)
    world.expire_leases()
    world.land(2)
    world.run(2)
    assert unread.exists()
    world.run(0, clear_number=1, try_number=3)
    assert world.table() == {0: [0], 1: [1], 2: [2]}
    assert verify_all(world.checkpoint) == []
