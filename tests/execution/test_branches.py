"""Batches of one pipeline in several branches of an Iceberg table: none stays behind in one that is named no more."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import ForeignBatchError, SinkError
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.kept_tables import start_behind
from tests.execution.maintaining import applied, expire_all, planned, rewind
from tests.execution.world import Killed, World
from tests.support.iceberg_table import connection_of, opened_in, sink_in

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two batches in the main branch."""
    folder = tmp_path / "lake"
    monkeypatch.setattr(connections, "_found_by", [lambda _: connection_of(folder)])
    world = World(tmp_path, sink=sink_in(folder))
    for number in range(2):
        world.land(number)
        world.run(number)
    return world


def table(world: World) -> Table:
    look = opened_in(world.lake)._log.look()
    assert look is not None
    return look.table


def rows(world: World, branch: str = "main") -> list[int]:
    head = table(world).metadata.snapshot_by_name(branch)
    assert head is not None
    found: list[int] = table(world).scan(snapshot_id=head.snapshot_id).to_arrow()["id"].to_pylist()
    return sorted(found)


def point(world: World, branch: str, to: str) -> None:
    """Make a branch, or fast-forward it: ``CALL system.fast_forward`` sets the branch to the other one's snapshot."""
    head = table(world).metadata.snapshot_by_name(to)
    assert head is not None
    table(world).manage_snapshots().create_branch(head.snapshot_id, branch).commit()


def name(world: World, branch: str) -> None:
    world.options["sink"] = sink_in(world.lake, branch=branch)


def expire(world: World) -> None:
    """All snapshots but the heads of branches."""
    table(world).maintenance.expire_snapshots().older_than(datetime.now(tz=UTC) + timedelta(days=1)).commit()


@pytest.fixture
def audited(world: World) -> World:
    """Batch 2 is in the branch ``audit`` alone, which was made of the main one; row 3 has landed since."""
    point(world, "audit", "main")
    name(world, "audit")
    world.land(2)
    world.run(2)
    world.land(3)
    assert rows(world) == [0, 1]
    return world


def test_a_branch_that_is_named_no_more_is_not_left_behind_with_its_batches(audited: World) -> None:
    name(audited, "main")
    with pytest.raises(SinkError, match=r"batch live/2 is committed, and was published to branch 'audit' ") as error:
        audited.run(3)
    assert "CALL system.fast_forward('shop.orders', 'main', 'audit')" in str(error.value)
    assert "branch='audit' again" in str(error.value)
    assert rows(audited) == [0, 1]
    assert audited.checkpoint.offset_log.latest_id() == 2


def test_once_it_was_merged_the_other_one_goes_on(audited: World) -> None:
    point(audited, "main", "audit")
    name(audited, "main")
    for number in (4, 5):
        audited.run(number)
        audited.land(number)
    assert rows(audited) == [0, 1, 2, 3, 4]


def test_it_does_so_too_where_it_is_named_again(audited: World) -> None:
    name(audited, "main")
    with pytest.raises(SinkError, match="was published to branch 'audit'"):
        audited.run(3)
    name(audited, "audit")
    audited.run(3)
    assert rows(audited, "audit") == [0, 1, 2, 3]


def test_one_that_was_made_or_merged_is_known_when_snapshots_have_expired(audited: World) -> None:
    point(audited, "main", "audit")
    table(audited).append(pa.table({"id": pa.array([9], pa.int64())}))
    table(audited).manage_snapshots().remove_branch("audit").commit()
    expire(audited)
    assert len(table(audited).metadata.snapshots) == 1
    name(audited, "main")
    audited.run(3)
    assert rows(audited) == [0, 1, 2, 3, 9]


def dropped(world: World, branch: str = "audit") -> None:
    table(world).manage_snapshots().remove_branch(branch).commit()


def foreign(world: World) -> None:
    """A commit of somebody else's to the main branch, and what nobody names any more expires."""
    table(world).append(pa.table({"id": pa.array([9], pa.int64())}))
    expire(world)


def refused(world: World, number: int) -> str:
    with pytest.raises(SinkError, match=r"committed, and was published to branch '\w+' ") as error:
        world.run(number)
    return str(error.value)


def does(world: World, told: str) -> None:
    """Somebody types the one rewind that the error names."""
    (to,) = re.findall(r"`microbatch rewind \S+ --to (\d+) --drop-output`", told)
    expire_all(world.root)
    assert applied(world, rewind(int(to))).steps


@pytest.mark.parametrize("times", [1, 2])
def test_one_that_was_dropped_is_not_merged_because_its_snapshots_have_expired(audited: World, times: int) -> None:
    """Its rows are in no branch: what goes on without them would lose them for good."""
    dropped(audited)
    name(audited, "main")
    for _ in range(times):
        foreign(audited)
    told = refused(audited, 3)
    assert opened_in(audited.lake).batches("live", audited.checkpoint.tables) == [0, 1]
    assert "CALL" not in told
    assert "branch 'audit' is gone" in told
    does(audited, told)
    for number in (4, 5):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3, *[9] * times]


def test_what_another_pipeline_had_in_one_that_was_dropped_is_in_nobodys_way(world: World) -> None:
    point(world, "test", "main")
    two = World(world.root / "two", name="two", sink=sink_in(world.lake, branch="test"))
    two.land(7)
    with pytest.raises(ForeignBatchError):
        two.run(0)
    applied(two, start_behind(allow_reread=True))
    two.run(1)
    assert rows(world, "test") == [0, 1, 7]
    dropped(world, "test")
    foreign(world)
    world.land(2)
    world.run(2)
    assert rows(world) == [0, 1, 2, 9]


def test_one_that_was_merged_halfway_and_dropped_is_known_as_far_as_its_rows_are_there(audited: World) -> None:
    point(audited, "main", "audit")
    audited.run(3)
    audited.land(4)
    dropped(audited)
    foreign(audited)
    name(audited, "main")
    told = refused(audited, 4)
    assert "batch live/3 " in told
    assert opened_in(audited.lake).batches("live", audited.checkpoint.tables) == [0, 1, 2]
    does(audited, told)
    for number in (5, 6):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3, 4, 9]


def test_one_that_was_merged_is_known_by_its_rows_also_in_a_file_that_has_been_compacted(audited: World) -> None:
    point(audited, "main", "audit")
    table(audited).overwrite(table(audited).scan().to_arrow())
    dropped(audited)
    foreign(audited)
    name(audited, "main")
    audited.run(3)
    assert rows(audited) == [0, 1, 2, 3, 9]


def test_a_branch_behind_which_somebody_has_written_is_not_told_to_be_fast_forwarded(audited: World) -> None:
    """Iceberg refuses that; the rewind goes."""
    table(audited).append(pa.table({"id": pa.array([9], pa.int64())}))
    name(audited, "main")
    told = refused(audited, 3)
    assert "CALL" not in told
    assert "Name branch='audit' again." in told
    does(audited, told)
    assert rows(audited, "audit") == [0, 1]
    for number in (4, 5):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3, 9]


def test_what_was_in_one_that_was_dropped_is_run_again_by_a_rewind(audited: World) -> None:
    dropped(audited)
    name(audited, "main")
    with pytest.raises(SinkError, match="was published to branch 'audit'"):
        audited.run(3)
    expire_all(audited.root)
    assert "iceberg:iceberg_of_tests/shop.orders@audit is gone" in " ".join(applied(audited, rewind(1)).notes)
    for number in (4, 5):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3]


def test_a_batch_of_a_branch_that_was_merged_and_dropped_is_replayed(audited: World) -> None:
    point(audited, "main", "audit")
    dropped(audited)
    name(audited, "main")
    audited.run(3)
    audited.run(2, clear_number=1)
    assert rows(audited) == [0, 1, 2, 3]


def test_one_that_was_merged_and_dropped_hides_nothing_from_a_rewind_of_what_is_later_than_a_backup(
    audited: World,
) -> None:
    point(audited, "main", "audit")
    name(audited, "main")
    audited.run(3)
    dropped(audited)
    audited.expire_leases()
    checkpoint, backup = audited.root / "checkpoint", audited.root / "backup"
    shutil.copytree(checkpoint, backup)
    audited.land(4)
    audited.run(4)
    audited.land(5)
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    with pytest.raises(ForeignBatchError) as error:
        audited.run(5)
    does(audited, str(error.value))
    for number in (6, 7):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3, 4, 5]


def test_nor_is_one_merged_because_somebody_else_has_written_since(audited: World) -> None:
    table(audited).append(pa.table({"id": pa.array([9], pa.int64())}))
    expire(audited)
    name(audited, "main")
    with pytest.raises(SinkError, match="was published to branch 'audit'"):
        audited.run(3)


def test_of_one_that_is_gone_it_is_said_how_it_comes_back(audited: World) -> None:
    head = table(audited).metadata.snapshot_by_name("audit")
    assert head is not None
    table(audited).manage_snapshots().remove_branch("audit").commit()
    name(audited, "main")
    told = rf"CREATE BRANCH `audit` AS OF VERSION {head.snapshot_id}.*fast_forward"
    with pytest.raises(SinkError, match=told):
        audited.run(3)
    table(audited).manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    point(audited, "main", "audit")
    audited.run(3)
    assert rows(audited) == [0, 1, 2, 3]


def test_a_branch_that_the_main_one_has_overtaken_gets_nothing_on_top(audited: World) -> None:
    point(audited, "main", "audit")
    name(audited, "main")
    audited.run(3)
    audited.land(4)
    name(audited, "audit")
    with pytest.raises(SinkError, match=r"batch live/3 is committed, and was published to branch 'main'"):
        audited.run(4)
    point(audited, "audit", "main")
    audited.run(4)
    assert rows(audited, "audit") == [0, 1, 2, 3, 4]


def test_a_rewind_over_a_merge_takes_out_what_was_merged(audited: World) -> None:
    """Its rows would be there twice once it has run again."""
    point(audited, "main", "audit")
    name(audited, "main")
    audited.run(3)
    audited.land(4)
    expire_all(audited.root)
    applied(audited, rewind(1))
    assert rows(audited) == [0, 1]
    for number in range(4, 7):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3, 4]


def test_so_does_one_over_the_point_that_a_branch_was_made_at(audited: World) -> None:
    expire_all(audited.root)
    applied(audited, rewind(0))
    assert rows(audited, "audit") == [0]
    for number in range(3, 6):
        audited.run(number)
    assert rows(audited, "audit") == [0, 1, 2, 3]
    point(audited, "main", "audit")
    name(audited, "main")
    audited.land(4)
    audited.run(6)
    assert rows(audited) == [0, 1, 2, 3, 4]


def test_what_a_branch_got_by_a_merge_is_on_its_record_for_good(audited: World) -> None:
    point(audited, "main", "audit")
    name(audited, "main")
    audited.run(3)
    table(audited).manage_snapshots().remove_branch("audit").commit()
    expire(audited)
    assert opened_in(audited.lake).batches("live", audited.checkpoint.tables) == [0, 1, 2, 3]
    assert check_table(audited.checkpoint, everything=True).findings == []


def test_a_branch_knows_what_it_was_made_with_also_where_the_other_one_has_gone_on(world: World) -> None:
    point(world, "audit", "main")
    world.land(2)
    world.run(2)
    expire_all(world.root)
    applied(world, rewind(1))
    name(world, "audit")
    for number in range(3, 5):
        world.run(number)
    assert rows(world, "audit") == [0, 1, 2]
    assert rows(world) == [0, 1]


def test_a_check_finds_the_batches_that_a_rollback_took_away_and_no_others(world: World) -> None:
    before = table(world).current_snapshot()
    assert before is not None
    world.land(2)
    world.run(2)
    table(world).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert "by which batches live/2 were published" in finding.message
    assert "a clear of its task is refused until then" in finding.repair


def killed(world: World, monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> Attempt:
    """A run whose process dies where the method of the opened table would be called, as it publishes."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    attempt = world.staged(number)
    with monkeypatch.context() as patched:
        patched.setattr(OpenIceberg, method, die)
        with pytest.raises(Killed):
            world.execution.publish(attempt)
    world.expire_leases()
    return attempt


def test_what_died_behind_its_commit_to_another_branch_keeps_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(world, "audit", "main")
    name(world, "audit")
    world.land(2)
    killed(world, monkeypatch, "_settle", 2)
    name(world, "main")
    for number in (3, 4):
        with pytest.raises(SinkError, match=r"live/2 was published to .*@audit, and is there\..*Name the old table"):
            world.run(number)
    assert rows(world, "audit") == [0, 1, 2]
    assert rows(world) == [0, 1]
    assert world.stages() == []
    name(world, "audit")
    world.run(4)
    world.land(3)
    world.run(5)
    assert rows(world, "audit") == [0, 1, 2, 3]


def test_nor_does_a_rewind_lack_them(audited: World, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(audited, monkeypatch, "_settle", 3)
    name(audited, "main")
    assert "--to 1 --drop-output` has batch 2 run again" in refused(audited, 3)
    expire_all(audited.root)
    applied(audited, rewind(1))
    for number in (4, 5):
        audited.run(number)
    assert rows(audited) == [0, 1, 2, 3]
    assert rows(audited, "audit") == [0, 1]


def test_what_died_before_its_commit_to_another_branch_leaves_the_one_of_now_as_it_was(
    audited: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of ours on it would keep it from being fast-forwarded to the other one."""
    killed(audited, monkeypatch, "_commit", 3)
    before = table(audited).metadata.snapshot_by_name("main")
    name(audited, "main")
    assert "CALL system.fast_forward('shop.orders', 'main', 'audit')" in refused(audited, 3)
    assert table(audited).metadata.snapshot_by_name("main") == before
    point(audited, "main", "audit")
    audited.run(4)
    assert rows(audited) == [0, 1, 2, 3]


def test_a_stage_that_is_dropped_by_one_branch_is_what_no_branch_has(
    audited: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a checkpoint that has no definition of the attempt's any more."""
    attempt = killed(audited, monkeypatch, "_settle", 3)
    name(audited, "main")
    sink = audited.pipeline.sink.open(SinkContext())
    assert sink.stages(audited.checkpoint_id) == [(BatchKey("live", 3), 1)]
    assert not sink.drop_stage(attempt.batch, 1)
    assert rows(audited, "audit") == [0, 1, 2, 3]
    name(audited, "audit")
    audited.run(4)
    assert audited.checkpoint.commit_log.latest_id() == 3


def test_what_an_attempt_has_published_to_one_branch_it_publishes_to_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a step that commits does whose DAG was changed behind its first try: no other attempt is opened then."""
    point(world, "audit", "main")
    name(world, "audit")
    world.land(2)
    attempt = killed(world, monkeypatch, "_settle", 2)
    name(world, "main")
    for _ in range(2):
        with pytest.raises(SinkError, match=r"live/2 attempt 1 is in branch 'audit' of .*Name branch='audit' again"):
            world.execution.publish(attempt)
    assert rows(world) == [0, 1]
    table(world).manage_snapshots().remove_branch("audit").commit()
    world.execution.publish(attempt)
    assert rows(world) == [0, 1, 2]


def test_a_table_that_was_renamed_in_its_catalog_is_asked_by_its_new_name_alone(world: World) -> None:
    """The old name has no table, or somebody else's: a check told that for good, with a way on that took the table's
    own records away, and no command ran any more."""
    catalog = opened_in(world.lake)._log.catalog.get()
    catalog.rename_table("shop.orders", "shop.sales")
    world.options["sink"] = replace(sink_in(world.lake), table="shop.sales")
    told = [finding.message for finding in check_table(world.checkpoint, everything=True).findings]
    assert any("has no table shop.orders" in one for one in told), "until a run has named the new one"
    assert world.run(2) is None, "nothing is new, and the run has named it"
    assert not check_table(world.checkpoint, everything=True).findings
    assert not world.janitor().problems
    assert planned(world, rewind(0)).steps
    world.land(2)
    world.run(2)
    assert not check_table(world.checkpoint, everything=True).findings
    catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]), location=f"file://{world.root / 'theirs'}")
    assert not check_table(world.checkpoint, everything=True).findings
    applied(world, rewind(1))
    world.run(3)
    found = catalog.load_table("shop.sales").scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == [0, 1, 2]
    assert not check_table(world.checkpoint, everything=True).findings
    world.options["sink"] = FileSink(str(world.root / "files"), format="json")
    world.land(3)
    world.run(4)
    assert not check_table(world.checkpoint, everything=True).findings, "nor once it is retired"
    catalog.rename_table("shop.sales", "shop.elsewhere")
    told = [finding.message for finding in check_table(world.checkpoint, everything=True).findings]
    assert any("has no table shop.sales" in one for one in told), "of two names that nobody can ask, none is gone"
