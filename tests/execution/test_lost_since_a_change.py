"""What a table has lost is missed also where it got that by a clear, or lies at another place by now; what it never had
is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import BatchSetAsideError, SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.checkpoint.test_golden import GOLDEN
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.kept_tables import start_behind
from tests.execution.maintaining import applied, filled
from tests.execution.test_lost_in_table import restore, table
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own

LOST = r"batch live/1 is committed, and .* does not know it"


def two_batches(world: World, *, backup: bool = False) -> World:
    """Batches 0 and 1, and data for the next; a backup of the Delta table may be made after the first."""
    for number in (0, 1):
        world.land(number)
        world.run(number)
        if number == 0 and backup:
            shutil.copytree(world.lake, world.root / "backup")
    world.land(2)
    return world


@pytest.mark.parametrize("named", ["beside another", "in the place of another"])
def test_what_a_table_got_by_clears_is_missed_there(tmp_path: Path, named: str) -> None:
    """The batch was first published to a table that the pipeline named when this one was not there yet."""
    orders, lake = FileSink(str(tmp_path / "orders"), format="json"), DeltaSink(str(tmp_path / "lake"))
    world = two_batches(World(tmp_path, sink=orders))
    world.options["sink"] = Sinks({"orders": orders, "lake": lake}) if named == "beside another" else lake
    if named == "in the place of another":
        shutil.rmtree(tmp_path / "orders" / "lane=live")
    for number in (0, 1):
        world.run(number, clear_number=1)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    assert table(world) == {0: [0], 1: [1]}
    restore(world)
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    world.run(1, clear_number=2)
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


@pytest.mark.parametrize("others", [1, 2])
def test_what_a_table_lost_while_it_was_left_out_is_missed_when_it_is_named_again(tmp_path: Path, others: int) -> None:
    """It was brought back from a backup meanwhile, and the newest batch is in another table alone."""
    orders, lake = FileSink(str(tmp_path / "orders"), format="json"), DeltaSink(str(tmp_path / "lake"))
    both = Sinks({"orders": orders, "lake": lake})
    world = two_batches(World(tmp_path, sink=both), backup=True)
    restore(world)
    world.options["sink"] = orders
    for number in range(2, 2 + others):
        world.run(number)
        world.land(number + 1)
    world.options["sink"] = both
    with pytest.raises(SinkError, match=LOST):
        world.run(8)
    world.run(1, clear_number=1)
    world.run(8, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2 + others: [2 + others]}


def test_nor_is_the_oldest_that_is_kept_put_back_there_behind_what_no_log_tells_any_more(tmp_path: Path) -> None:
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    both, world = Sinks({"orders": orders, "lake": lake}), World(tmp_path, min_batches_to_retain=2)
    for number in range(6):
        world.options["sink"] = orders if number == 5 else both
        world.land(number)
        world.run(number)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    restore(world)
    world.options["sink"] = both
    with pytest.raises(SinkError, match=r"batch live/4 is committed, .* Of batches 1 to 3 no log tells any more"):
        world.run(4, clear_number=1)
    assert table(world) == {0: [0]}


@pytest.mark.parametrize("left_out", [1, 21])
def test_what_it_lost_while_it_was_left_out_for_intervals_is_missed_by_the_next_one(
    tmp_path: Path, left_out: int
) -> None:
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    both = Sinks({"orders": orders, "lake": lake})
    world = IntervalWorld(tmp_path, sink=both, plan="interval")
    last = 2 + left_out
    for number in range(last + 1):
        world.land_at(number + 0.5, number)
    world.backfill(hour(0), 0)
    shutil.copytree(world.lake, tmp_path / "backup")
    world.backfill(hour(1), 1)
    restore(world)
    world.options["sink"] = orders
    for number in range(2, last):
        world.backfill(hour(number), number)
    world.options["sink"] = both
    with pytest.raises(SinkError, match="does not know it"):
        world.backfill(hour(last), last)


def test_what_a_backup_lacks_is_missed_at_the_path_that_it_was_put_to(tmp_path: Path) -> None:
    """By its id it is the table that the batch was published to, at the path of before."""
    world = two_batches(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), backup=True)
    shutil.rmtree(world.lake)
    world.lake = tmp_path / "backup"
    world.options["sink"] = DeltaSink(str(world.lake))
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    world.run(1, clear_number=1)
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_nor_is_a_backup_gone_on_with_while_the_table_itself_has_more(tmp_path: Path) -> None:
    world = two_batches(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), backup=True)
    world.options["sink"] = DeltaSink(str(tmp_path / "backup"))
    with pytest.raises(SinkError, match=LOST):
        world.run(2)
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*lake, and is there"):
        world.run(1, clear_number=1)
    world.options["sink"] = DeltaSink(str(world.lake))
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_what_is_lost_behind_numbers_that_were_counted_over_is_no_other_lifes(tmp_path: Path) -> None:
    world = filled(World(tmp_path, sink=DeltaSink(str(tmp_path / "lake"))), 2)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older checkpoint")
    path = world.land(2)
    world.run(2)
    path.unlink()
    shutil.copytree(world.lake, tmp_path / "backup")
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "older checkpoint").rename(tmp_path / "checkpoint")
    world.expire_leases()
    applied(world, start_behind(allow_reread=True))
    world.land(3)
    world.run(3)
    restore(world)
    world.land(4)
    with pytest.raises(SinkError, match=r"batch live/3 is committed, and .* does not know it"):
        world.run(4)
    world.run(3, clear_number=1)
    world.run(4, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2], 3: [3], 4: [4]}


def make_anew(world: World) -> None:
    """Nothing is left of the Delta table but its id."""
    for name in ("_delta_log", "_microbatch", "microbatch"):
        shutil.rmtree(world.lake / name)


def comes_back(world: World, lost: dict[int, int], *, clear_number: int = 1) -> None:
    """Nothing is said to be lost for good, and clears bring all of it back.

    :param lost: batches by the number of their run.
    """
    following = max(lost) + 1
    world.land(following)
    with pytest.raises(SinkError, match=rf"batch live/{lost[following - 1]} is committed") as error:
        world.run(following)
    told = f"{error.value}{said(['check', world.pipeline.checkpoint, '--table'])[1]}"
    assert "no log tells any more" not in told
    for number in lost:
        world.run(number, clear_number=clear_number)
    world.run(following, try_number=2)
    assert {*lost.values(), lost[following - 1] + 1} <= table(world).keys()
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0


def test_what_the_log_keeps_of_another_table_is_no_gap_of_this_one(tmp_path: Path) -> None:
    """Of batches 0 and 1 nothing but the batches behind them tells to which table they went."""
    world = World(tmp_path, sink=FileSink(str(tmp_path / "orders"), format="json"), min_batches_to_retain=3)
    for number in range(5):
        if number == 3:
            world.options["sink"] = DeltaSink(str(world.lake))
        world.land(number)
        world.run(number)
    assert world.checkpoint.offset_log.ids() == [2, 3, 4]
    make_anew(world)
    comes_back(world, {3: 3, 4: 4})


def test_of_what_was_before_another_tables_batches_it_is_said_that_nobody_can_tell(tmp_path: Path) -> None:
    """Batch 2 was in this table, and 3 and 4 in the other one: the log, which begins with these, does not tell."""
    lake, other = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "other"), format="json")
    world = World(tmp_path, sink=lake, min_batches_to_retain=4)
    for number in range(7):
        world.options["sink"] = other if number in (3, 4) else lake
        world.land(number)
        world.run(number)
        if number == 1:
            shutil.copytree(world.lake, tmp_path / "backup")
    assert world.checkpoint.offset_log.ids() == [3, 4, 5, 6]
    restore(world)
    world.land(7)
    with pytest.raises(SinkError, match=r"Whether it had batch 2 too, nobody can tell. If .* backup of it"):
        world.run(7)
    text = said(["check", world.pipeline.checkpoint, "--table"])[1]
    assert text.count("lake had batch 2, nobody can tell") == 1
    for number in (5, 6):
        world.run(number, clear_number=1)
    world.run(7, try_number=2)
    assert table(world) == {number: [number] for number in (0, 1, 5, 6, 7)}
    assert said(["check", world.pipeline.checkpoint, "--table"])[0] == 0


def test_a_table_that_has_the_oldest_that_the_log_keeps_has_lost_none_before(tmp_path: Path) -> None:
    """Batches 0 to 2 went to another one."""
    world = World(tmp_path, sink=FileSink(str(tmp_path / "orders"), format="json"), min_batches_to_retain=2)
    for number in range(5):
        if number == 3:
            world.options["sink"] = DeltaSink(str(world.lake))
        world.land(number)
        world.run(number)
        if number == 3:
            shutil.copytree(world.lake, tmp_path / "backup")
    assert world.checkpoint.offset_log.ids() == [3, 4]
    restore(world)
    comes_back(world, {4: 4})


@pytest.mark.parametrize("oldest", ["committed", "set aside"])
def test_what_a_table_got_by_clears_is_no_sign_that_it_had_those_before(tmp_path: Path, oldest: str) -> None:
    """It was named beside another one, and filled with what the log keeps, when nothing of 0 and 1 was left there."""
    orders, lake = FileSink(str(tmp_path / "orders"), format="json"), DeltaSink(str(tmp_path / "lake"))
    world = World(tmp_path, sink=orders, min_batches_to_retain=3, on_failure="set_aside", set_aside_after=1)
    for number in range(5):
        world.land(number)
        if number == 2 and oldest == "set aside":
            with pytest.raises(BatchSetAsideError):
                world.run(number, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
            continue
        world.run(number)
    world.options["sink"] = Sinks({"orders": orders, "lake": lake})
    for number in (2, 3, 4):
        world.run(number, clear_number=1)
    assert world.checkpoint.offset_log.ids() == [2, 3, 4]
    assert table(world) == {2: [2], 3: [3], 4: [4]}
    make_anew(world)
    comes_back(world, {2: 2, 3: 3, 4: 4}, clear_number=2)


def test_what_a_streaming_query_had_published_is_no_gap(tmp_path: Path) -> None:
    """It keeps batches 5 to 10 in its log, from which the pipeline goes on."""
    world = World(tmp_path, sources=("orders", "refunds"), sink=DeltaSink(str(tmp_path / "lake")))
    folder = Path(shutil.copytree(GOLDEN / "spark-4.2.0-v2", tmp_path / "checkpoint"))
    for path in (folder / "offsets" / "11", *(folder / "sources").glob("*/11")):
        path.unlink()
    for number in range(5):
        for log in ("offsets", "commits"):
            (folder / log / str(number)).unlink()
    for number in (0, 1):
        world.land(number + 100)
        world.run(number)
    assert table(world) == {11: [100], 12: [101]}
    make_anew(world)
    comes_back(world, {0: 11, 1: 12})


def test_of_files_any_may_have_been_removed(tmp_path: Path) -> None:
    """What comes after them tells nothing."""
    world = filled(World(tmp_path, min_batches_to_retain=2), 6)
    assert world.checkpoint.offset_log.ids() == [4, 5]
    for number in (3, 4):
        shutil.rmtree(world.lake / "lane=live" / f"batch_id={number}")
    text = said(["check", world.pipeline.checkpoint, "--table"])[1]
    assert "batch 3 is not in" in text
    assert "tidied it up" in text
