"""A checkpoint that was restored from a backup, and a topic that has what came after it: nothing is taken out of a
topic, and each way on that is named can be gone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BatchSetAsideError, ForeignBatchError, MaintenanceError, SinkError
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.execution.set_aside import all_aside
from airflow_provider_microbatch.sinks.kafka.opened import OpenKafka
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.start_behind import plan_start_behind
from airflow_provider_microbatch.upkeep.commands.steps import DropStage
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.sleepers import Sleep
from tests.execution.test_letters_once import ids, live, restored
from tests.execution.test_set_aside import broken
from tests.execution.world import run_identity
from tests.kafka.pipeline import TopicWorld, beside_a_table
from tests.kafka.test_behind_a_topic import world_of
from tests.support import kafka

pytestmark = pytest.mark.slow

WAYS = r"start-behind .* --allow-reread.*set-offset .*--allow-skip"


class Counted(TopicWorld):
    """Numbers, one a batch; of a source whose positions can be set to whatever it has."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sources = {"orders": CounterSource(str(root / "counter"), max_rows=1)}  # type: ignore[dict-item]

    def count_to(self, number: int) -> None:
        (self.root / "counter").write_text(str(number))


@pytest.fixture
def world(tmp_path: Path) -> Counted:
    """Its first batch is in the log, two later ones in the topic alone."""
    world = Counted(tmp_path)
    world.count_to(1)
    world.run(0)
    restored(world, lambda: two_more(world))
    return world


def two_more(world: Counted) -> None:
    world.count_to(3)
    world.run(1)
    world.run(2)


def goes_on_behind(world: Counted) -> bool:
    """As the errors say."""
    with pytest.raises(
        MaintenanceError, match=r"be taken out of there: they stay.*--allow-reread.*set-offset .*--allow-skip"
    ):
        planned(world, partial(plan_start_behind, allow_reread=False))
    notes = applied(world, partial(plan_start_behind, allow_reread=True)).notes
    assert any("set-offset" in note for note in notes)
    behind = partial(plan_set_offset, lane="live", source="orders", offset='{"n": 3}')
    applied(world, partial(behind, allow_skip=True, allow_reread=False))
    world.count_to(4)
    world.run(10)
    return world.ids() == [1, 2, 3, 4]


def test_a_run_names_the_ways_that_take_nothing_out(world: Counted) -> None:
    with pytest.raises(ForeignBatchError, match=WAYS) as refused:
        world.run(3)
    assert "--drop-output" not in str(refused.value)
    assert goes_on_behind(world)


@pytest.mark.parametrize("first", ["files", "topic"])
def test_what_stays_in_the_topic_stays_in_the_table_beside_it(tmp_path: Path, first: str) -> None:
    world = Counted(tmp_path)
    world.options["sink"] = beside_a_table(world, first=first)
    world.count_to(1)
    world.run(0)
    restored(world, lambda: two_more(world))
    with pytest.raises(ForeignBatchError, match=WAYS) as refused:
        world.run(3)
    assert "--drop-output" not in str(refused.value)
    with pytest.raises(MaintenanceError, match=f"they stay, and so does .*{WAYS}"):
        planned(world, rewind(0))
    assert goes_on_behind(world)
    assert ids(world) == [1, 2, 3, 4]


@pytest.mark.parametrize("on_replay", ["fail", "append"])
@pytest.mark.parametrize("first", [None, "files", "topic"])
def test_what_the_backup_has_as_set_aside_and_the_topic_has_counts_as_run(
    tmp_path: Path, first: str | None, on_replay: str
) -> None:
    """It was cleared after the backup. A clear is what `check` names, and publishes nothing."""
    world = TopicWorld(tmp_path, on_replay=on_replay)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    if first is not None:
        world.options["sink"] = beside_a_table(world, first=first)
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken())
    restored(world, lambda: world.run(0, clear_number=1))
    world.land(1)
    world.run(1)
    found, rows = world.run(0, broken(), clear_number=2), 1 if first is None else 2
    assert found is not None
    assert found.rows_out == rows
    assert world.ids() == [0, 1]
    assert all_aside(world.checkpoint, "live") == []
    assert verify_all(world.checkpoint) == []


def test_what_is_in_a_part_of_its_tables_does_not_count_as_run(tmp_path: Path) -> None:
    world = TopicWorld(tmp_path)
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, broken())
    restored(world, lambda: world.run(0, clear_number=1))
    world.options["sink"] = beside_a_table(world, first="files")
    with pytest.raises(SinkError, match="is in, and cannot be replayed"):
        world.run(0, clear_number=2)
    assert all_aside(world.checkpoint, "live") == [0]


def test_dead_letters_of_what_is_counted_over_are_told_since_nobody_runs_them_again(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    live(world, 0)

    def one_more() -> None:
        world.land(3, 4)
        live(world, 1, 4)

    restored(world, one_more)
    with pytest.raises(ForeignBatchError, match=r"start-behind .* --allow-reread"):
        live(world, 2)
    world.expire_leases()
    notes = "\n".join(applied(world, partial(plan_start_behind, allow_reread=True)).notes)
    assert "batches 1 have dead letters, which stay in their table" in notes


def test_and_nothing_is_taken_out_while_the_topic_does_not_tell_what_it_keeps(tmp_path: Path) -> None:
    world = Counted(tmp_path)
    world.name_sink(timeout=2.0)
    world.options["sink"] = beside_a_table(world, first="files")
    world.count_to(1)
    world.run(0)
    restored(world, lambda: two_more(world))
    world.expire_leases()
    connections.find_by(lambda conn_id: replace(kafka.connection(conn_id), extra={"bootstrap.servers": "127.0.0.1:1"}))
    with pytest.raises(MaintenanceError, match=r"would be taken out of the tables that tell.*Bring it back"):
        applied(world, rewind(0))
    connections.find_by(kafka.connection)
    assert ids(world) == [1, 2, 3]


def test_nor_while_nobody_can_load_the_topics_class(tmp_path: Path) -> None:
    """Its table is not asked. What a command takes out is what a pipeline on record has that can be loaded: as it was
    before the topic."""
    world = Counted(tmp_path)
    both = beside_a_table(world, first="files")
    world.options["sink"] = both.sinks["files"]
    world.count_to(1)
    world.run(0)
    world.options["sink"] = both
    world.count_to(2)
    world.run(1)

    def two_more() -> None:
        world.count_to(4)
        world.run(2)
        world.run(3)

    restored(world, two_more)
    for entry in (
        path for of in ("pipelines", "in-force") for path in (tmp_path / "checkpoint/microbatch" / of).iterdir()
    ):
        entry.write_bytes(entry.read_bytes().replace(b"KafkaSink", b"OlderSink"))
    with pytest.raises(MaintenanceError, match=r"OlderSink.* remove the file.* gone for good, with --allow-skip"):
        applied(world, rewind(1))
    assert ids(world) == [1, 2, 3, 4]
    applied(world, rewind(1, allow_skip=True))
    assert ids(world) == [1, 2]


def test_so_does_what_came_before_the_topic_had_any(tmp_path: Path) -> None:
    """Counted over is what the table alone has, too: set behind what the topic has, no source reads it again."""
    world = Counted(tmp_path)
    both = beside_a_table(world, first="files")
    world.options["sink"] = both.sinks["files"]
    world.count_to(1)
    world.run(0)

    def two_more() -> None:
        world.count_to(2)
        world.run(1)
        world.options["sink"] = both
        world.count_to(3)
        world.run(2)

    restored(world, two_more)
    with pytest.raises(ForeignBatchError, match=r"rewind \S+ --to 0 --drop-output"):
        world.run(3)
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=f"batches 2 in kafka://.*{WAYS}"):
        planned(world, rewind(0))
    goes_on_behind(world)
    assert (ids(world), world.ids()) == ([1, 2, 3, 4], [3, 4])


def test_a_lane_of_an_interval_over_which_nothing_counts_leaves_the_table(tmp_path: Path) -> None:
    topic = TopicWorld(tmp_path)
    world = IntervalWorld(tmp_path, sink=beside_a_table(topic, first="files"))
    for number in (0, 1):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    restored(world, lambda: world.backfill(hour(1), 1))
    lane = lane_of(hour(1))
    with pytest.raises(ForeignBatchError, match=rf"rewind \S+ --to -1 --drop-output --lane {lane}`"):
        world.run(2)
    world.expire_leases()
    (note, *_) = applied(world, rewind(-1, lane=lane)).notes
    assert "they stay. No run of that interval" in note
    world.run(3)
    assert (ids(world), topic.ids()) == ([0, 1], [0, 1, 1])


@pytest.mark.parametrize("drop_output", [True, False])
def test_a_rewind_that_would_have_to_take_out_names_them_too(world: Counted, drop_output: bool) -> None:
    with pytest.raises(MaintenanceError, match=WAYS):
        planned(world, rewind(0, drop_output=drop_output))
    assert goes_on_behind(world)


def planned_over(world: Counted, monkeypatch: pytest.MonkeyPatch, *, rows: int) -> None:
    """A batch is planned where the topic has one, as by a version that did not look; its run is refused."""
    real = OpenKafka.contains
    world.sources = {"orders": CounterSource(str(world.root / "counter"), max_rows=rows)}  # type: ignore[dict-item]
    with monkeypatch.context() as patch:
        patch.setattr(OpenKafka, "contains", lambda sink, batch: None if batch.key.id else real(sink, batch))
        patch.setattr(OpenKafka, "batches_after", lambda *_: [])
        assert world.execution.plan(run_identity(3)) is not None


def test_a_plan_of_what_is_in_the_topic_is_given_up_by_rewind(world: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_over(world, monkeypatch, rows=1)
    with pytest.raises(ForeignBatchError, match=r"rewind \S+ --to 0`.*" + WAYS) as refused:
        world.run(3)
    assert "--drop-output" not in str(refused.value)
    assert any("start-behind" in note for note in applied(world, rewind(0, drop_output=False)).notes)
    assert goes_on_behind(world)


def test_where_the_topic_has_less_than_is_planned_adopt_names_what_can_be_done(
    world: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned_over(world, monkeypatch, rows=2)
    with pytest.raises(MaintenanceError, match=r"rewind \S+ --to 0` gives the plan up; .*" + WAYS) as refused:
        planned(world, lambda drafting: plan_adopt(drafting, BatchKey("live", 1)))
    assert "--drop-output" not in str(refused.value)


def test_a_batch_that_is_published_while_it_is_rewound_stays_and_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Counted(tmp_path)
    world.count_to(1)
    world.run(0)
    world.count_to(2)
    attempt = world.staged(1)
    world.expire_leases()

    def publish() -> None:
        """It had passed the fence before the command began."""
        execution = world.execution
        batch = expected(world.checkpoint, execution.load(attempt.key).identity, attempt)
        assert execution.sink.publish(batch, attempt.epoch).epoch == attempt.epoch

    Sleep(monkeypatch).before(DropStage, "apply", publish)
    with pytest.raises(MaintenanceError, match=r"batch live/1 is in .*published while .* Nothing was rewound"):
        applied(world, rewind(0))
    assert world.checkpoint.maintenance.unfinished() is None
    assert world.checkpoint.offset_log.ids() == [0, 1]
    world.run(2)
    world.count_to(3)
    world.run(3)
    assert world.ids() == [1, 2, 3]
    assert verify_all(world.checkpoint) == []
    assert world.stages() == []


def test_a_batch_that_nobody_publishes_is_rewound(tmp_path: Path) -> None:
    world = Counted(tmp_path)
    world.count_to(1)
    world.run(0)
    world.count_to(2)
    world.staged(1)
    world.expire_leases()
    applied(world, rewind(0))
    world.run(2)
    assert world.ids() == [1, 2]
