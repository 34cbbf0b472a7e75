"""What a rewind takes out of tables comes back, or the rewind is refused: by the sinks that runs have told last,
whichever lane they ran in, and whatever became of them. Who is refused names the tables, and lets the pipeline run
once: then it is not refused any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import (
    MaintenanceError,
    MicroBatchError,
    OutrunError,
    SinkError,
    SourceError,
)
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.plan import Plan
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, expire_all, planned, rewind
from tests.execution.world import CODE, run_identity
from tests.support.inline_engine import InlineEngine

RECORD = "checkpoint/microbatch/in-force/sinks"


class Told(IntervalWorld):
    """A pipeline whose tables change from run to run."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.number = -1

    def name(self, names: str, *, format: str = "json") -> None:
        sinks: dict[str, Sink] = {one: FileSink(str(self.root / one), format=format) for one in names.split()}
        self.options["sink"] = Sinks(sinks) if len(sinks) > 1 else sinks[names]

    def lands(self) -> int:
        self.number += 1
        self.land_at(self.number + 0.5, self.number)
        return self.number

    def live(self, names: str) -> None:
        self.name(names)
        self.run(self.lands())

    def interval(self, names: str) -> None:
        self.name(names)
        number = self.lands()
        self.backfill(hour(number), number)

    def nothing_new(self, names: str) -> None:
        self.name(names)
        assert self.run(90) is None

    def nothing_in_interval(self, names: str) -> None:
        self.name(names)
        with pytest.raises(MicroBatchError, match="no unread data"):
            self.backfill(hour(30), 90)

    def refused(self, names: str) -> None:
        """Its source is away, for a moment."""
        self._refused(names, lambda: self.run(91))

    def refused_interval(self, names: str) -> None:
        self._refused(names, lambda: self.backfill(hour(31), 91))

    def _refused(self, names: str, run: Callable[[], object]) -> None:
        self.name(names)
        self.land_at(31.5, 31)
        sources = self.sources
        self.sources = {"orders": FileSource(str(self.root / "moved"), format="json", schema="id long")}
        with pytest.raises(SourceError):
            run()
        self.sources = sources
        (self.landing() / "000031.json").unlink()

    def cleared(self, names: str) -> None:
        """The first batch, by the code that names these."""
        self.name(names)
        self.run(0, clear_number=1)

    def cleared_without_a_batch(self, names: str) -> None:
        """A run that was refused: its task is cleared, and plans."""
        self.name(names)
        self.execution.plan(run_identity(91, clear_number=1))

    def cleared_interval_without_a_batch(self, names: str) -> None:
        self.name(names)
        with pytest.raises(MicroBatchError, match="no unread data"):
            self.work(hour(31)).plan(backfill_run(91, clear_number=1))

    def away(self, names: str) -> None:
        """One of its tables does not answer, for a moment."""
        self.name(names)
        place = self.root / names.split()[-1]
        place.rename(self.root / "aside")
        place.touch()
        with pytest.raises(SinkError):
            self.run(92)
        place.unlink()
        (self.root / "aside").rename(place)

    def letters(self, names: str) -> None:
        """``dead-letters --replay`` has the pipeline on record, and finds none."""
        self.name(names)
        self.options["dead_letters"] = FileSink(str(self.root / "letters"), format="json")
        again = execution_of(replaying(self.pipeline, "mend.py:mend"), self.checkpoint, clock_ms=self._tick)
        del self.options["dead_letters"]
        assert again.plan(run_identity(93)) is None

    def moved(self, names: str) -> None:
        """One table, to another path."""
        before, after = names.split()
        (self.root / before).rename(self.root / after)

    def rewound(self, lane: str) -> Plan:
        expire_all(self.root)
        return planned(self, rewind(-1, lane=lane))


FIRST = lane_of(hour(0))
BOTH = ("live", "a b")
COMES_BACK: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "named again by a plan that is refused": ("live", [BOTH, ("live", "a"), ("refused", "a b")]),
    "left out by a clear alone, and then planned": ("live", [("live", "a"), ("live", "a"), ("cleared", "a"), BOTH]),
    "intervals, beside a live lane of long ago": (lane_of(hour(1)), [("live", "a"), *[("interval", "a b")] * 2]),
    "intervals, beside a typo of the live lane": (
        FIRST,
        [("interval", "a b"), ("refused", "a"), ("nothing_in_interval", "a b")],
    ),
    "a live lane, beside an interval that left it out": ("live", [BOTH, ("interval", "a"), BOTH]),
    "intervals, and the table was moved since": (
        FIRST,
        [("interval", "a b"), ("moved", "a a2"), ("interval", "a2 b"), ("live", "a2 b")],
    ),
    "named again, and letters are run again by the pipeline on record": (
        "live",
        [BOTH, ("live", "a"), ("nothing_new", "a b"), ("letters", "a")],
    ),
    "one table, which was moved since": (FIRST, [("interval", "a"), ("moved", "a a2"), ("interval", "a2")]),
}
REFUSED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "left out": ("live", [BOTH, ("live", "a")]),
    "left out by a run that finds nothing new": ("live", [BOTH, ("nothing_new", "a")]),
    "left out by a plan that is refused": ("live", [BOTH, ("refused", "a")]),
    "left out by a run that its table refuses": ("live", [BOTH, ("away", "a")]),
    "left out, and letters are run again by the pipeline on record": (
        "live",
        [BOTH, ("refused", "a"), ("letters", "a b")],
    ),
    "left out by an interval": ("live", [BOTH, ("interval", "a")]),
    "left out, and a clear by the code of then": ("live", [BOTH, ("nothing_new", "a"), ("cleared", "a b")]),
    "left out by a clear": ("live", [("live", "a"), BOTH, ("cleared", "a")]),
    # The code of a cleared run may be that of then, as where Airflow keeps a bundle's versions.
    "left out, and a clear that has no batch": (
        "live",
        [BOTH, ("nothing_new", "a"), ("cleared_without_a_batch", "a b")],
    ),
    "intervals, left out, and a clear that finds nothing": (
        FIRST,
        [("interval", "a b"), ("refused_interval", "a"), ("cleared_interval_without_a_batch", "a b")],
    ),
    "intervals, left out by the live lane": (FIRST, [("interval", "a b"), ("live", "a")]),
    "intervals, left out by one that is refused": (FIRST, [("interval", "a b"), ("refused_interval", "a")]),
    "intervals, left out by one that finds nothing": (FIRST, [("interval", "a b"), ("nothing_in_interval", "a")]),
    "intervals, beside another table": (FIRST, [("interval", "a b"), ("interval", "a c")]),
}


def told(root: Path, runs: list[tuple[str, str]]) -> Told:
    world = Told(root)
    for how, names in runs:
        getattr(world, how)(names)
    return world


@pytest.mark.parametrize(("lane", "runs"), COMES_BACK.values(), ids=COMES_BACK)
def test_what_comes_back_is_taken_out(tmp_path: Path, lane: str, runs: list[tuple[str, str]]) -> None:
    plan = told(tmp_path, runs).rewound(lane)
    drops = [step.why for step in plan.steps if isinstance(step, DropOutput)]
    assert set(drops) == {"it is read and published again"}
    assert not any("does not come back" in note for note in plan.notes)


@pytest.mark.parametrize(("lane", "runs"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_come_back_is_left_until_a_run_names_it(
    tmp_path: Path, lane: str, runs: list[tuple[str, str]]
) -> None:
    world = told(tmp_path, runs)
    with pytest.raises(MaintenanceError, match=r"is in \S+/b, .*let the pipeline run once .*sensor"):
        world.rewound(lane)
    world.nothing_new("a b c" if "a c" in dict(runs[1:]).values() else "a b")
    world.rewound(lane)


def test_a_batch_is_not_taken_back_that_a_table_has_lost_which_is_not_named_for_now(tmp_path: Path) -> None:
    """It was put back from a backup: what was taken back would have told that the batch is due there."""
    world = told(tmp_path, [BOTH, ("live", "a")])
    shutil.rmtree(tmp_path / "b" / "lane=live")
    with pytest.raises(MaintenanceError, match=r"is to be in \S+/b, .*let the pipeline run once"):
        world.rewound("live")
    expire_all(tmp_path)
    planned(world, rewind(-1, allow_skip=True))


@pytest.mark.parametrize("lost", ["b", "a b"])
def test_nor_one_that_all_tables_have_lost(tmp_path: Path, lost: str) -> None:
    """As where one backup of them all was put back."""
    world = told(tmp_path, [BOTH, ("nothing_new", "a")])
    for one in lost.split():
        shutil.rmtree(tmp_path / one / "lane=live")
    with pytest.raises(MaintenanceError, match=r"is to be in \S+/b, "):
        world.rewound("live")


def test_an_attempt_that_slept_since_its_plan_does_not_speak_for_the_pipeline_of_now(tmp_path: Path) -> None:
    world, engine = told(tmp_path, [BOTH]), InlineEngine()
    sleeper, run = world.execution, run_identity(world.lands())
    batch = sleeper.plan(run)
    assert batch is not None
    look = sleeper.look(batch.key, run, engine_of=lambda _: engine)
    world.name("a")
    world.run(90)
    with pytest.raises(OutrunError):
        sleeper.open_attempt(key=batch.key, run=run, code=CODE, engine=engine, look=look)
    with pytest.raises(MaintenanceError, match=r"is in \S+/b, "):
        world.rewound("live")


def test_a_torn_plan_that_both_tables_have_is_taken_back(tmp_path: Path) -> None:
    """`repair` names that rewind as the way on."""
    world = told(tmp_path, [BOTH])
    (tmp_path / "checkpoint/offsets/0").write_text("v1\n{")
    assert [step for step in world.rewound("live").steps if isinstance(step, DropOutput)]


def test_a_file_that_is_no_definition_stops_no_rewind(tmp_path: Path) -> None:
    world = told(tmp_path, [("live", "a")])
    (tmp_path / "checkpoint/microbatch/pipelines/0").write_text("x")
    world.rewound("live")


def test_a_record_that_cannot_be_read_is_no_leave(tmp_path: Path) -> None:
    world = told(tmp_path, [BOTH, ("nothing_new", "a")])
    (tmp_path / RECORD).write_text("v1\n{")
    with pytest.raises(MaintenanceError, match=r"in-force/sinks is torn.*let the pipeline run once"):
        world.rewound("live")
    world.nothing_new("a b")
    world.rewound("live")


def test_a_clear_does_not_mend_it(tmp_path: Path) -> None:
    world = told(tmp_path, [BOTH, ("nothing_new", "a")])
    (tmp_path / RECORD).write_text("v1\n{")
    world.cleared("a b")
    with pytest.raises(MaintenanceError, match=r"in-force/sinks is torn.*a new run, no clear"):
        world.rewound("live")


def test_nor_one_that_is_nested_deeper_than_anybody_writes(tmp_path: Path) -> None:
    world = told(tmp_path, [BOTH, ("nothing_new", "a b")])
    deep = '{"a":' * 700 + "1" + "}" * 700
    (tmp_path / RECORD).write_text(f'v1\n{{"sinks":[{{"class":"x","arguments":{deep}}}]}}')
    with pytest.raises(MaintenanceError, match=r"in-force/sinks .*too deep.*let the pipeline run once"):
        world.rewound("live")
    assert any("too deep" in finding.message for finding in verify_all(world.checkpoint))


def test_a_clear_alone_tells_nothing(tmp_path: Path) -> None:
    """The first thing that happens behind an upgrade: what the runs before it wrote to still counts."""
    world = told(tmp_path, [BOTH, ("live", "a")])
    (tmp_path / RECORD).unlink()
    world.cleared("a b")
    with pytest.raises(MaintenanceError, match=r"is in \S+/b, and was published together"):
        world.rewound("live")


@pytest.mark.parametrize("last", [("live", "a"), ("refused", "a")])
def test_of_runs_of_an_older_version_each_has_to_name_it(tmp_path: Path, last: tuple[str, str]) -> None:
    world = told(tmp_path, [("interval", "a b"), last, ("interval", "a b")])
    (tmp_path / RECORD).unlink()
    with pytest.raises(MaintenanceError, match=r"is in \S+/b, and was published together"):
        world.rewound(FIRST)
    world.nothing_in_interval("a b")
    world.rewound(FIRST)


def test_where_those_wrote_before_the_table_was_moved_it_is_that_table(tmp_path: Path) -> None:
    world = told(tmp_path, [("interval", "a b"), ("moved", "a a2"), ("interval", "a2 b"), ("live", "a2 b")])
    (tmp_path / RECORD).unlink()
    world.rewound(FIRST)


def test_a_plan_whose_form_is_refused_tells_it_too(tmp_path: Path) -> None:
    """So that the rewind which is named then is accepted: it has all run again in the new form."""
    world = told(tmp_path, [BOTH, ("live", "b")])
    world.name("a b", format="csv")
    with pytest.raises(SinkError, match=r"Readers of .* could not read both.* --to -1"):
        world.run(world.lands())
    expire_all(tmp_path)
    applied(world, rewind(-1))


def test_a_run_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    world = told(tmp_path, [BOTH, BOTH])
    before = (tmp_path / RECORD).stat()
    world.nothing_new("a b")
    assert (tmp_path / RECORD).stat().st_mtime_ns == before.st_mtime_ns
