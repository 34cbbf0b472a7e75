"""The pipeline on record is the one that ran last: behind a rewind, whatever numbers the attempts have that the rewind
has left; and in whatever lane, where each interval has its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.cli.dead_letters import _on_record
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.execution.ran_last import newest_first
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, expire_all, filled, rewind
from tests.execution.test_dead_letters import Checked, OfLetters, refusing
from tests.execution.test_letters_once import ids, live, replay
from tests.execution.two_tables import is_clean
from tests.execution.world import CODE, World, run_identity
from tests.support.counted import Count, CountedStore


def rewound(world: World, to: int, *, lane: str = LIVE, allow_skip: bool = False) -> None:
    expire_all(world.root)
    applied(world, rewind(to, lane=lane, allow_skip=allow_skip))
    expire_all(world.root)


def moved(root: Path, plan: str) -> IntervalWorld:
    """Interval 2 has run into another table than what ran before it, and has left row 3 among the dead letters."""
    old, new, letters = (FileSink(str(root / name), format="json") for name in ("old", "new", "letters"))
    world = IntervalWorld(root, plan=plan, dead_letters=letters, sink=old, expect={"version = 1": "dead_letter"})
    world.land_at(1.5, 1)
    if plan == "interval":
        world.backfill(hour(1), 1)
    else:
        world.run(1)
    world.options.update(plan="interval", sink=new)
    world.land_at(2.5, 2, 3)
    world.backfill(hour(2), 2, refusing({2: None, 3: "dead_letter"}))
    return world


def letters_again(world: World) -> None:
    world.clock += 1
    again = execution_of(
        replaying(_on_record(world.checkpoint), "mend.py:mend"), world.checkpoint, clock_ms=world._tick
    )
    again.run(run=run_identity(50), engine=OfLetters(), code=CODE, transform=None)


def on_record(world: World) -> str:
    """The run of the attempt that ran last."""
    first = next(newest_first(world.checkpoint, LIVE))
    assert first.run is not None
    return first.run.run_id


def test_dead_letters_are_run_again_into_the_table_of_since(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    for number in range(4):
        world.land(3 * number + 1, 3 * number + 2)
        live(world, number)
    world.options["sink"] = FileSink(str(tmp_path / "other"), format="json")
    rewound(world, 1)
    live(world, 21, 8)
    assert (ids(world, "other"), world.rows("letters")) == ([7], [8])
    expire_all(tmp_path)
    execution = execution_of(replaying(_on_record(world.checkpoint), "mend.py:mend"), world.checkpoint)
    execution.run(run=run_identity(50), engine=OfLetters(), code=CODE, transform=None)
    assert (ids(world), ids(world, "other")) == ([1, 2, 4, 5], [7, 8])


def test_a_source_of_since_is_there_to_be_read_again(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 4)
    rewound(world, 0)
    folder = world.landing("sales")
    (folder / "1.json").write_text('{"id": 100}\n')
    world.sources = {**world.sources, "sales": FileSource(str(folder), format="json", schema="id long")}
    world.run(10)
    rewound(world, 0)
    assert world.checkpoint.offset_log.ids() == [0]


def test_the_tables_of_since_are_those_into_which_letters_come_back(tmp_path: Path) -> None:
    def named(*names: str) -> Sinks:
        return Sinks({name: FileSink(str(tmp_path / name), format="json") for name in names})

    world = Checked(tmp_path, sink=named("lake", "orders"), expect={"lake": {"version = 1": "dead_letter"}})
    world.land(1, 2)
    live(world, 0, 2)
    replay(world, 10)
    world.options["sink"] = named("lake", "other")
    for number in range(1, 5):
        world.land(10 + number)
        live(world, number)
    world.options["sink"] = named("lake", "orders")
    rewound(world, 0, allow_skip=True)
    live(world, 50)
    rewound(world, -1, lane="dead-letters")
    replay(world, 11)
    assert ids(world) == ids(world, "orders") == [1, 2, 11]


def test_as_long_as_none_has_run_since_it_is_the_one_that_ran_before_the_rewind(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 4)
    rewound(world, 1)
    assert on_record(world) == "run-3"
    rewound(world, 0)
    assert on_record(world) == "run-3"
    assert world.execution.plan(run_identity(10)) is not None  # its process dies before it opens an attempt
    assert on_record(world) == "run-3"
    expire_all(tmp_path)
    world.run(10)
    assert on_record(world) == "run-10"
    world.run(11)
    assert world.execution.plan(run_identity(12)) is not None  # of the number that the rewind has left last
    assert on_record(world) == "run-11"
    rewound(world, 0)
    assert on_record(world) == "run-11"


def test_a_definition_that_is_gone_is_passed_over_for_that_of_the_attempt_before(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    before = Recorded(world.checkpoint).where()
    world.options["min_batches_to_retain"] = 50
    world.land(7)
    world.run(7)
    newest = Recorded(world.checkpoint).where()
    assert newest != before
    Path(newest).unlink()
    assert Recorded(world.checkpoint).where() == before
    assert is_clean(world)


@pytest.mark.parametrize("before", ["interval", "live"])
def test_letters_of_an_interval_are_run_again_into_the_table_of_the_lane_that_ran_last(
    tmp_path: Path, before: str
) -> None:
    world = moved(tmp_path, before)
    letters_again(world)
    assert (ids(world, "old"), ids(world, "new")) == ([1], [2, 3])
    assert is_clean(world)


def test_a_clear_by_the_code_of_before_does_not_say_where_letters_go(tmp_path: Path) -> None:
    world = moved(tmp_path, "interval")
    sink = world.options["sink"]
    world.options["sink"] = FileSink(str(tmp_path / "old"), format="json")
    world.backfill(hour(1), backfill_run(1, clear_number=1))
    world.options["sink"] = sink
    letters_again(world)
    assert (ids(world, "old"), ids(world, "new")) == ([1], [2, 3])


def test_a_source_that_intervals_have_had_for_a_while_is_there_to_be_read_again(tmp_path: Path) -> None:
    world = IntervalWorld(tmp_path, plan="interval")
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    world.sources["refunds"] = FileSource(str(world.landing("refunds")), format="json", schema="id long")
    for number in (2, 3):
        world.land_at(number + 0.5, 10 * number)
        world.land_at(number + 0.5, 10 * number + 1, source="refunds")
        world.backfill(hour(number), number)
    expire_all(tmp_path)
    applied(world, rewind(-1, lane=lane_of(hour(2))))
    world.backfill(hour(2), 4)
    assert world.ids() == [1, 20, 21, 30, 31]


def test_a_pipeline_that_was_never_defined_otherwise_is_told_without_a_look_at_the_lanes(tmp_path: Path) -> None:
    world, looks = IntervalWorld(tmp_path, plan="interval"), list[int]()
    for number in range(1, 4):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
        count = Count()
        assert Recorded(Checkpoint(CountedStore(open_store(world.pipeline.checkpoint), count))).source_names()
        looks.append(count.total)
    assert looks[0] == looks[-1]
