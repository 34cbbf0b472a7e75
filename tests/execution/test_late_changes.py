"""Late ends in a world that changes: records that are lost or torn, repairs, renames, restores, sources and sinks that
come and go between plan and publish, and sources that are careless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from acme_microbatch.counter import CounterSource, OpenCounter

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import (
    AttemptFencedError,
    BrokenLogError,
    CheckpointError,
    CorruptEntryError,
    MicroBatchError,
    SourceChangedError,
    SourceError,
)
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources import SourceContext
from tests.execution.test_late_ends import Counted, die_before_publish, numbers
from tests.execution.world import Killed, World, run_identity
from tests.support.inline_engine import InlineEngine


@pytest.fixture(params=["v1", "v2"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Counted:
    return Counted(tmp_path, checkpoint_format=request.param)


def made(world: Counted, lates: Sequence[bool]) -> None:
    """Batches of two numbers, planned with a late end or not."""
    for number, late in enumerate(lates):
        world.sources = {"numbers": replace(world.sources["numbers"], late=late)}  # type: ignore[type-var]
        world.count_to(2 * number + 2)
        world.run(number)
    world.expire_leases()


def resolution(world: World, number: int) -> Path:
    (path,) = (world.root / "checkpoint" / "resolved" / LIVE / str(number)).iterdir()
    return path


def command(world: World, name: str, *arguments: str) -> int:
    return main([name, world.pipeline.checkpoint, *arguments])


def renamed(world: Counted, *arguments: str) -> None:
    world.expire_leases()
    assert command(world, "rename-source", "numbers", "counted", *arguments) == 0
    world.sources = {"counted": world.sources.pop("numbers")}


def test_a_committed_batch_whose_end_is_lost_is_not_read_to_where_the_source_is_now(world: Counted) -> None:
    made(world, [True, True, True, True])
    resolution(world, 0).unlink()
    world.count_to(11)
    with pytest.raises(SourceError, match="is not on record any more"):
        world.run(0, clear_number=1)
    assert world.table()[0] == [1, 2]
    world.expire_leases()
    assert command(world, "withdraw-clear", "live/0") in (0, 1)
    assert command(world, "repair") == 0
    world.run(0, clear_number=2)
    world.run(9)
    assert world.table() == {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8], 4: [9, 10, 11]}


@pytest.mark.parametrize("number", [0, 1])
def test_a_torn_end_is_found_again_where_the_next_batch_begins(world: Counted, number: int) -> None:
    made(world, [True, True, True])
    before = world.entry(number)
    resolution(world, number).write_bytes(b"")
    assert command(world, "repair") == 0
    assert world.entry(number) == before
    assert command(world, "check") == 0
    world.count_to(9)
    world.run(3)
    world.run(number, clear_number=1)
    assert world.table() == {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8, 9]}


def lose(world: World, number: int, how: str) -> None:
    """The record of where the batch ends is gone, or torn."""
    if how == "gone":
        resolution(world, number).unlink()
    else:
        resolution(world, number).write_bytes(b"")


def silence(world: World, number: int) -> None:
    """As if the readers had told the commit entry nothing."""
    path = world.root / "checkpoint" / "commits" / str(number)
    path.write_text(path.read_text().replace('"read"', '"unread"'))


@pytest.mark.parametrize("how", ["gone", "torn"])
def test_the_end_of_the_newest_is_found_again_in_its_commit_entry(world: Counted, how: str) -> None:
    made(world, [True, True])
    lose(world, 1, how)
    with pytest.raises(CheckpointError):
        world.run(5)
    assert command(world, "repair") == 0
    assert command(world, "check") == 0
    world.count_to(7)
    world.run(6)
    assert world.table() == {0: [1, 2], 1: [3, 4], 2: [5, 6, 7]}


@pytest.mark.parametrize("how", ["gone", "torn"])
def test_where_nothing_tells_the_end_of_the_newest_the_way_on_is_said(
    world: Counted, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(world, [True, True])
    lose(world, 1, how)
    silence(world, 1)
    with pytest.raises(CheckpointError):
        world.run(5)
    assert command(world, "repair") == 1
    assert "--to 0 --drop-output" in capsys.readouterr().out
    assert command(world, "rewind", "--to", "0", "--drop-output") == 0
    world.run(6)
    assert world.table() == {0: [1, 2], 1: [3, 4]}


def test_what_nobody_can_read_again_is_not_rewound_because_its_end_is_lost(
    world: Counted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(world, [True, True])
    lose(world, 1, "gone")
    silence(world, 1)

    def given_up(_: OpenCounter, start: str | None) -> Any:
        raise SourceChangedError(f"what comes after {start} was given up.")

    monkeypatch.setattr(OpenCounter, "read_late", given_up)
    assert command(world, "rewind", "--to", "0", "--drop-output") == 2
    assert "its rows would be lost" in capsys.readouterr().err
    assert world.table() == {0: [1, 2], 1: [3, 4]}
    assert command(world, "rewind", "--to", "0", "--drop-output", "--allow-skip") == 0
    assert re.search(r"lost .* batch live/1 read in source 'numbers': .* was given up", capsys.readouterr().out)


def test_a_batch_whose_end_is_torn_is_repaired_before_it_is_rewound(
    world: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    made(world, [True, True])
    lose(world, 1, "torn")
    assert command(world, "rewind", "--to", "0", "--drop-output") == 2
    assert "microbatch repair" in capsys.readouterr().err
    assert world.table() == {0: [1, 2], 1: [3, 4]}
    assert command(world, "repair") == 0
    assert command(world, "rewind", "--to", "0", "--drop-output") == 0
    world.run(6)
    assert world.table() == {0: [1, 2], 1: [3, 4]}


def test_the_oldest_that_retention_kept_gets_its_end_back_without_a_commit_entry(world: Counted) -> None:
    made(world, [True, True, True])
    for entry in ("offsets/0", "commits/0", "commits/1"):
        (world.root / "checkpoint" / entry).unlink()
    resolution(world, 1).unlink()
    with pytest.raises(BrokenLogError, match="not on record"):
        world.run(5)
    assert command(world, "repair") == 0
    world.count_to(8)
    world.run(6)
    assert world.table() == {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]}


def test_the_commit_of_another_plan_tells_nothing_of_where_this_one_ends(world: Counted) -> None:
    made(world, [True, True])
    path = world.root / "checkpoint" / "commits" / "1"
    late = path.read_text()
    assert command(world, "rewind", "--to", "0", "--drop-output") == 0
    world.count_to(6)
    world.execution.plan(run_identity(5))
    path.write_text(re.sub(r'"plan":\s*"[0-9a-f]{64}"', f'"plan":"{"0" * 64}"', late))
    assert command(world, "repair") == 0
    world.expire_leases()
    world.run(5)
    assert world.table() == {0: [1, 2], 1: [3, 4, 5, 6]}


def test_a_lost_end_is_not_taken_for_a_broken_plan(world: Counted) -> None:
    made(world, [True, True])
    world.count_to(6)
    world.execution.plan(run_identity(2))
    resolution(world, 1).unlink()
    with pytest.raises(BrokenLogError, match="where it ends in source numbers is not on record"):
        world.run(3)


@pytest.mark.parametrize("lates", [[False, False, True], [False, False, True, True, True], [True, True, True]])
def test_an_entry_that_is_rebuilt_ends_where_the_next_one_begins(world: Counted, lates: list[bool]) -> None:
    made(world, lates)
    path = world.root / "checkpoint" / "offsets" / "1"
    path.write_bytes(path.read_bytes()[:20])
    assert command(world, "repair") == 0
    world.count_to(2 * len(lates) + 3)
    world.run(len(lates))
    world.run(1, clear_number=1)
    assert world.table()[1] == [3, 4]
    assert numbers(world) == list(range(1, 2 * len(lates) + 4))


def test_a_stage_that_waits_is_published_after_a_rename(world: Counted) -> None:
    world.count_to(3)
    attempt = world.staged(0)
    renamed(world, "--despite-audits")
    world.execution.publish(attempt)
    world.run(1)
    assert world.table() == {0: [1, 2, 3]}


def test_what_was_published_tells_its_end_after_a_restore_and_a_rename(world: Counted) -> None:
    world.count_to(3)
    world.execution.publish(world.staged(0))
    resolution(world, 0).unlink()
    renamed(world)
    world.count_to(5)
    world.run(1)
    world.run(2)
    assert world.table() == {0: [1, 2, 3], 1: [4, 5]}


def test_what_was_published_is_not_committed_up_to_where_another_attempt_came(world: Counted) -> None:
    """A backup put the checkpoint back, and another attempt resolved it; the table has what the first one read."""
    world.count_to(2)
    world.execution.publish(world.staged(0))
    path = resolution(world, 0)
    path.write_text(path.read_text().replace('{\\"n\\": 2}', '{\\"n\\": 6}'))
    assert world.ends() == ['{"n": 6}']
    world.expire_leases()
    with pytest.raises(AttemptFencedError, match="was first to say where it ends"):
        world.run(1)
    assert world.checkpoint.lane(LIVE).commit_of(0) is None
    world.expire_leases()
    assert command(world, "repair") == 0
    world.count_to(3)
    world.run(1)
    world.run(2)
    assert world.table() == {0: [1, 2], 1: [3]}


def test_a_sink_that_comes_between_plan_and_run_does_not_read_it_twice(world: Counted, tmp_path: Path) -> None:
    world.count_to(1)
    assert world.execution.plan(run_identity(0)) is not None
    lake, second = (FileSink(str(tmp_path / name), format="json") for name in ("lake", "second"))
    one, world.options["sink"] = world.options.get("sink"), Sinks({"lake": lake, "second": second})
    with pytest.raises(SourceError, match="has several sinks"):
        world.run(0)
    world.options.pop("sink")
    if one is not None:
        world.options["sink"] = one
    world.expire_leases()
    world.run(0)
    assert world.table() == {0: [1]}


class Both(World):
    """A source with a late end beside one without."""

    def __init__(self, root: Path, *, counter: type[CounterSource] = CounterSource, **pipeline: Any) -> None:
        super().__init__(root, **pipeline)
        self.sources["numbers"] = counter(str(root / "head"), late=True)  # type: ignore[assignment]
        self.land(100)
        self.count_to(3)

    def count_to(self, number: int) -> None:
        (self.root / "head").write_text(str(number))

    def reading_nothing(self) -> InlineEngine:
        """The counter is set back before it is read."""
        return InlineEngine(before_stage=lambda job: self.count_to(0))

    def die_resolved_to_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:

            def gone(*_: object, **__: object) -> None:
                raise Killed

            patch.setattr(FileSink, "publish", gone)
            with pytest.raises(Killed):
                self.run(0, self.reading_nothing())
        self.expire_leases()


def test_a_source_that_is_gone_when_its_stage_is_published_is_to_be_put_back(tmp_path: Path) -> None:
    world = Both(tmp_path)
    attempt = world.staged(0)
    world.sources = {"orders": world.sources["orders"]}
    with pytest.raises(SourceError, match="Put it back"):
        world.execution.publish(attempt)


def test_a_source_of_which_a_batch_has_nothing_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Both(tmp_path)
    world.die_resolved_to_nothing(monkeypatch)
    world.sources = {"orders": world.sources["orders"]}
    world.run(1)
    assert world.table() == {0: [100]}
    world.run(1, clear_number=1)
    assert world.table() == {0: [100]}


class Shy(CounterSource):
    """Has no frame of an empty range."""

    def open(self, context: SourceContext) -> OpenCounter:
        return OpenShy(self, context)


class OpenShy(OpenCounter):
    def absent(self, start: str | None, end: str | None) -> str | None:
        return "it has no data, and no schema is known" if start == end else None


def test_what_was_resolved_to_nothing_and_cannot_be_read_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Both(tmp_path, counter=Shy)
    world.die_resolved_to_nothing(monkeypatch)
    world.run(1)
    assert world.table() == {0: [100]}


@dataclass(frozen=True)
class Odd(CounterSource):
    """Tells its ends as it likes."""

    def open(self, context: SourceContext) -> OpenCounter:
        return OpenOdd(self, context)


class OpenOdd(OpenCounter):
    told: Callable[[str], Any] = staticmethod(lambda end: end)

    def resolve(self, start: str | None, told: Any) -> Any:
        end = super().resolve(start, told)
        return None if end is None else OpenOdd.told(end)


@pytest.fixture
def odd(world: Counted) -> Counted:
    world.sources = {"numbers": Odd(str(world.root / "head"), late=True)}  # type: ignore[dict-item]
    world.count_to(3)
    return world


def test_the_same_end_in_other_words_is_the_same_end(odd: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    die_before_publish(odd, monkeypatch)
    monkeypatch.setattr(OpenOdd, "told", lambda end: end.replace(" ", ""))
    odd.run(1)
    assert odd.table() == {0: [1, 2, 3]}
    assert odd.ends() == ['{"n": 3}']


def test_of_two_ends_of_which_neither_lies_after_the_other_one_is_published(
    odd: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As positions in several queues are."""
    die_before_publish(odd, monkeypatch)
    monkeypatch.setattr(OpenOdd, "is_after", lambda *_: False)
    monkeypatch.setattr(OpenOdd, "told", lambda _: '{"n": 2}')
    with pytest.raises(AttemptFencedError, match="was first to say where it ends"):
        odd.run(1)
    assert odd.table() == {}


@pytest.mark.parametrize("end", ['{\n"n": 3}', "nonsense", 3, {"n": 3}])
def test_an_end_that_is_no_line_of_a_log_is_refused_before_it_is_written(
    odd: Counted, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OpenOdd, "told", lambda _: end)
        with pytest.raises(CheckpointError, match="Nothing was written"):
            odd.run(0)
    assert not (odd.root / "checkpoint" / "resolved").exists()
    odd.expire_leases()
    odd.run(1)
    assert odd.table() == {0: [1, 2, 3]}


@pytest.mark.parametrize("ends", [{}, {"numbers": "nonsense"}, {"numbers": 3}, {"others": "1"}])
def test_a_hostile_resolution_is_named(world: Counted, monkeypatch: pytest.MonkeyPatch, ends: dict[str, Any]) -> None:
    world.count_to(3)
    die_before_publish(world, monkeypatch)
    path = resolution(world, 0)
    path.write_text("v1\n" + json.dumps({"epoch": 1, "ends": ends}))
    with pytest.raises(CorruptEntryError, match=path.name):
        world.run(1)
    assert world.table() == {}
    assert command(world, "repair") == 0
    world.run(2)
    assert world.table() == {0: [1, 2, 3]}


@pytest.mark.parametrize(
    "hostile",
    [{"late": ["numbers", "ghost"], "starts": {"numbers": None, "ghost": None}}, {"stands_for": "../../../../x"}],
)
def test_a_hostile_entry_is_named(world: Counted, hostile: dict[str, Any]) -> None:
    world.count_to(3)
    world.execution.plan(run_identity(0))
    path = world.root / "checkpoint" / "offsets" / "0"
    version, head, *lines = path.read_text().split("\n")
    metadata = json.loads(head)
    metadata["microbatch"] |= hostile
    path.write_text("\n".join([version, json.dumps(metadata), *lines]))
    assert command(world, "check") == 1
    with pytest.raises(MicroBatchError, match="checkpoint/offsets/0"):
        world.run(1)


class Precise(CounterSource):
    """Counts in a unit of which there are many."""

    def open(self, context: SourceContext) -> OpenCounter:
        return OpenPrecise(self, context)


class OpenPrecise(OpenCounter):
    def in_words(self, start: str | None, end: str | None) -> dict[str, int]:
        return {"microseconds": 1_700_000_000_000_000}


def test_a_figure_that_was_written_can_be_read(world: Counted) -> None:
    world.sources = {"numbers": Precise(str(world.root / "head"))}  # type: ignore[dict-item]
    for number in range(2):
        world.count_to(number + 1)
        world.run(number)
    assert world.table() == {0: [1], 1: [2]}
