"""Records that went unread though they are younger than the stream keeps them by now, and records that went after they
were read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.exceptions import MaintenanceError, SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime.channels import ChannelError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sources.kinesis import KinesisSource, stream
from airflow_provider_microbatch.sources.ways_on import TellsLost
from airflow_provider_microbatch.upkeep.commands.letters_out import _can_be_read
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from tests.execution import world as execution
from tests.execution.maintaining import applied, planned, rewind
from tests.execution.test_restore_over_a_rewind import lake
from tests.sources.test_kinesis import DAY_MS, World
from tests.support import kinesis

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
A, B, C = (f"shardId-{number:012}" for number in range(3))


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


def pass_hours(world: World, hours: int) -> None:
    """Retention takes what is too old by then."""
    world.backdate(hours * HOUR_MS)
    world.stream.arrange("age", hours * HOUR_MS)
    world.stream.arrange("retain")


def first_record_then_quiet(world: World) -> None:
    """Until the last look nothing had come for longer than any retention that there will be."""
    world.stream.send(["1"])
    world.batch()
    world.backdate(30 * DAY_MS, only=["came"])


def parent_that_was_read(world: World) -> None:
    """The children have no record yet."""
    world.stream.send(["1"])
    world.batch()
    world.stream.split(A)
    assert world.batch() == []


def first_record(world: World) -> None:
    world.stream.send(["1"])
    world.batch()


@pytest.mark.parametrize(
    ("begin", "shards"), [(first_record, [A]), (first_record_then_quiet, [A]), (parent_that_was_read, [B, C])]
)
def test_records_that_had_expired_when_retention_was_raised_stop_the_read_or_are_told(
    tmp_path: Path, begin: Callable[[World], None], shards: list[str]
) -> None:
    """Kinesis keeps longer what is there then; what is gone does not come back."""
    world = World(tmp_path)
    begin(world)
    world.stream.send(["2", "3"])
    pass_hours(world, 30)
    world.stream.set("retention_hours", 168)
    world.stream.send(["4"])
    with pytest.raises(ChannelError, match=r"orders.*shardId-.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["4"]
    assert world.told["gaps"] == shards


def test_that_the_last_record_is_gone_before_its_time_stops_the_read_or_is_told(tmp_path: Path) -> None:
    """Retention was lowered, and raised again, between two batches."""
    world = World(tmp_path)
    first_record(world)
    world.stream.send(["2", "3"])
    pass_hours(world, 12)
    world.stream.arrange("trim", A, 2)
    with pytest.raises(ChannelError, match=rf"orders.*{A}.*record_gap"):
        world.batch()
    assert A in str(world.open().gone_since(world.committed)), "a restored checkpoint would go on from there"
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [A]


class Clock:
    """In place of ``time``, for who waits here."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_answer_without_records_does_not_say_that_the_last_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are far apart in the shard: Kinesis answers with none, and that it is behind the tip."""
    monkeypatch.setattr(stream, "time", Clock())
    world = World(tmp_path)
    first_record(world)
    world.stream.set("sparse", 20)
    assert not world.open().gone_since(world.committed)
    world.stream.set("sparse", 10**6)
    assert "may be gone: Kinesis does not tell" in str(world.open().why_not_anew(None, world.committed))
    world.stream.arrange("trim", A, 1)
    assert A in str(world.open().gone_since(world.committed))


@pytest.mark.parametrize(("question", "answer"), [("gone_since", None), ("has_new", True)])
def test_records_that_are_far_apart_are_found_at_the_rate_at_which_a_shard_can_be_read(
    tmp_path: Path, question: str, answer: bool | None
) -> None:
    world = World(tmp_path)
    first_record(world)
    world.stream.send(["2"])
    world.stream.set("sparse", 7)
    world.stream.set("reads_a_second", 5)
    before = world.stream.requests()["GetRecords"]
    assert getattr(world.open(), question)(world.committed) is answer
    assert world.stream.requests()["GetRecords"] == before + 8, "none is refused, and none is made twice"


@pytest.mark.parametrize("raised_at", [6, 30])
def test_a_quiet_stream_loses_nothing_by_another_retention(tmp_path: Path, raised_at: int) -> None:
    """Its last record goes, and whether others have gone with it is judged by what was kept then."""
    world = World(tmp_path)
    first_record(world)
    for hour in range(6, 240, 6):
        pass_hours(world, 6)
        if hour == raised_at:
            world.stream.set("retention_hours", 168)
        assert world.batch() in (None, [])
        assert world.told["gaps"] == []
    world.stream.send(["2"])
    assert world.batch() == ["2"]
    assert world.told["gaps"] == []


@pytest.mark.parametrize("is_merged_first", [True, False])
def test_a_child_that_waits_loses_nothing_by_a_retention_that_was_raised_in_time(
    tmp_path: Path, is_merged_first: bool
) -> None:
    """It was looked at under the shorter one, and is read once its parents are, which takes longer than that."""
    world = World(tmp_path, shards=2, max_records=1)
    world.stream.send(["1"])
    world.stream.send(["2", "3", "4", "5"], at=0.9)
    found = [] if is_merged_first else [*(world.batch() or ())]
    world.stream.merge(A, B)
    world.stream.send(["6"])
    found += world.batch() or ()
    pass_hours(world, 1)
    world.stream.set("retention_hours", 168)
    for _ in range(5):
        pass_hours(world, 8)
        found += world.batch() or ()
        assert world.told["gaps"] == []
    assert sorted(found) == ["1", "2", "3", "4", "5", "6"]


def test_a_pause_behind_a_retention_that_was_raised_for_it_loses_nothing(tmp_path: Path) -> None:
    """One batch without rows puts on record that it is longer; then there is none until the half of it is over."""
    world = World(tmp_path)
    first_record(world)
    for _ in range(4):
        pass_hours(world, 12)
        world.batch()
    world.stream.set("retention_hours", 168)
    assert world.batch() == []
    assert world.batch() is None
    pass_hours(world, 48)
    world.stream.send(["2"])
    assert world.batch() == ["2"]
    assert world.told["gaps"] == []


def test_a_checkpoint_whose_positions_tell_no_retention_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    first_record(world)
    older = {
        shard: {key: value for key, value in at.items() if key not in ("keeps", "came")}
        for shard, at in world.position.items()
    }
    world.committed = json.dumps(older)
    world.stream.send(["2"])
    assert world.batch() == ["2"]
    assert world.position[A]["keeps"] == DAY_MS
    assert abs(world.position[A]["came"] - now_ms()) < HOUR_MS


class Pipeline(execution.World):
    """A pipeline of a stream's one shard, into a table."""

    def __init__(self, root: Path, **arguments: str) -> None:
        super().__init__(root)
        connections.find_by(kinesis.connection)
        self.stream = kinesis.Stream()
        source = KinesisSource(
            self.stream.name, conn_id="kinesis", idle_seconds=0, discover_seconds=0, **arguments
        )  # fmt: skip
        self.sources = {"orders": source}  # type: ignore[dict-item]
        self.clock = now_ms()


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_a_rewind_over_records_of_which_some_are_gone_is_refused_unless_it_may_skip_them(
    tmp_path: Path, on_data_loss: str
) -> None:
    world = Pipeline(tmp_path, on_data_loss=on_data_loss)
    for number, ids in enumerate([[1, 2], [3, 4, 5]]):
        world.stream.send([f"[{id}]" for id in ids])
        world.run(number)
    applied(world, rewind(0))
    world.run(2)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}, "all are there"
    world.stream.arrange("trim", A, 4)
    with pytest.raises(
        MaintenanceError, match=rf"batch live/1 read .*gone since they were read: rows of {A}.*--allow-skip"
    ):
        applied(world, rewind(0))
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}
    applied(world, rewind(0, allow_skip=True))
    assert world.table() == {0: [1, 2]}


def test_a_rewind_over_records_of_which_kinesis_does_not_tell_is_refused_unless_it_may_skip_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries again is told no more."""
    monkeypatch.setattr(stream, "time", Clock())
    world = Pipeline(tmp_path, on_data_loss="record_gap")
    for number, ids in enumerate([[1, 2], [3, 4, 5]]):
        world.stream.send([f"[{id}]" for id in ids])
        world.run(number)
    world.stream.set("sparse", 10**6)
    with pytest.raises(MaintenanceError, match=rf"batch live/1 .*rows of {A}.*--allow-skip"):
        applied(world, rewind(0))
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}
    applied(world, rewind(0, allow_skip=True))
    assert world.table() == {0: [1, 2]}


def test_of_a_batch_that_was_read_exactly_it_is_known_that_its_first_records_are_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    first_record(world)
    begins = world.committed
    world.stream.send(["2", "3", "4"])
    world.batch()
    end, told, source = world.committed, world.told, world.open()
    assert isinstance(source, TellsLost)
    assert source.read(begins, end).arguments["ends"] is not None, (
        "where its tasks tell the first record that they read"
    )
    assert source.lost_anew(begins, end, told=[{"firsts": {}}]) is None
    world.stream.arrange("trim", A, 1)
    assert source.lost_anew(begins, end, told=[told]) is None, "all that it read is there"
    world.stream.arrange("trim", A, 2)
    assert A in str(source.lost_anew(begins, end, told=[{"firsts": {}}])), "an older version has told no first records"


@pytest.mark.parametrize("lacks", ["first records", "progress"])
def test_what_a_replay_by_an_older_version_did_not_tell_the_commit_tells(tmp_path: Path, lacks: str) -> None:
    """The batch begins at no record, so there is none before it that could tell."""
    world = Pipeline(tmp_path)
    world.stream.send(["[1]", "[2]", "[3]"])
    world.run(0)
    world.run(0, clear_number=1)
    (path,) = (tmp_path / "checkpoint" / "replays").rglob("*.end")
    head, _, body = path.read_text().partition("\n")
    values = json.loads(body)
    if lacks == "progress":
        del values["progress"]
    else:
        values["progress"]["read"]["orders"]["firsts"] = {}
    path.write_text(f"{head}\n{json.dumps(values)}")
    world.stream.arrange("trim", A, 2)
    with pytest.raises(MaintenanceError, match=rf"gone since they were read: rows of {A}.*--allow-skip"):
        applied(world, rewind(-1))
    assert world.table() == {0: [1, 2, 3]}


def two_batches(world: Pipeline) -> None:
    for number, ids in enumerate([[1, 2], [3, 4, 5]]):
        world.stream.send([f"[{id}]" for id in ids])
        world.run(number)


def test_a_replay_of_a_batch_that_is_whole_does_not_say_that_rows_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Pipeline(tmp_path, on_data_loss="record_gap")
    two_batches(world)
    world.stream.arrange("trim", A, 2)  # those of the batch before
    world.run(1, clear_number=1)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5]}
    assert "gone since they were read" not in caplog.text


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
@pytest.mark.parametrize(("gone", "is_whole"), [(2, True), (3, False)])
def test_a_clear_that_makes_letters_anew_is_told_where_it_finds_every_record(
    tmp_path: Path, gone: int, is_whole: bool, on_data_loss: str
) -> None:
    world = Pipeline(tmp_path, on_data_loss=on_data_loss)
    two_batches(world)
    world.stream.arrange("trim", A, gone)
    assert _can_be_read(world.checkpoint, Recorded(world.checkpoint), BatchKey(LIVE, 1)) is is_whole
    with nullcontext() if is_whole else pytest.raises((ChannelError, SourceError)):
        world.run(1, clear_number=1)


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_rows_that_came_back_are_the_only_copy_where_a_first_record_is_gone(tmp_path: Path, on_data_loss: str) -> None:
    world = Pipeline(tmp_path, on_data_loss=on_data_loss)
    world.options["sink"] = DeltaSink(str(world.lake))
    two_batches(world)
    before = lake(world).version()
    applied(world, rewind(0))
    lake(world).restore(before)
    world.stream.arrange("trim", A, 2)
    assert planned(world, rewind(0)).steps, "all that batch 1 had read is there"
    world.stream.arrange("trim", A, 1)
    with pytest.raises(MaintenanceError, match=rf"batch live/1, may be the only copy .*gone since .* rows of {A}"):
        planned(world, rewind(0))


def test_a_position_that_was_set_by_hand_has_no_records_to_lose(tmp_path: Path) -> None:
    world = Pipeline(tmp_path)
    for number in range(2):
        world.stream.send([f"[{number}]"])
        world.run(number)
    by_hand = json.dumps({A: {"rows": 50, "begin": 1}})
    applied(
        world,
        lambda drafting: plan_set_offset(
            drafting, lane="live", source="orders", offset=by_hand, allow_skip=True, allow_reread=True
        ),
    )
    applied(world, rewind(0))
    world.run(2)
    assert sorted(id for ids in world.table().values() for id in ids) == [0, 1]
