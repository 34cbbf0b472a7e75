"""What a table has lost that got each batch together with another one, which the pipeline names no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.sleepers import killed
from tests.execution.test_dead_letters import refusing
from tests.execution.test_lost_in_table import restore, table
from tests.execution.test_lost_since_a_change import LOST, two_batches
from tests.execution.two_tables import read
from tests.execution.typed_commands import advised, said
from tests.execution.world import Killed, World

pytestmark = pytest.mark.slow  # the tables are made by libraries of their own


def test_it_comes_back_beside_a_table_that_is_named_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch was to be in both. A rewind would take it out of the other table for good, so none is named."""
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    world = two_batches(World(tmp_path, sink=Sinks({"lake": lake, "orders": orders})), backup=True)
    world.options["sink"] = lake
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*orders, and is there"):
        world.run(1, clear_number=1)
    restore(world)
    with pytest.raises(SinkError, match=LOST) as told:
        world.run(2)
    assert "rewind" not in str(told.value)
    with monkeypatch.context() as patch:
        patch.setattr(Replays, "complete", killed)
        with pytest.raises(Killed):
            world.run(1, clear_number=1)
    world.expire_leases()
    world.run(1, clear_number=1, try_number=2)
    assert not world.checkpoint.replays.pending(BatchKey("live", 1))
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}
    assert sorted(read(tmp_path / "orders")) == [0, 1]


def test_also_where_dead_letters_are_named_since(tmp_path: Path) -> None:
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    world = two_batches(World(tmp_path, sink=Sinks({"lake": lake, "orders": orders})), backup=True)
    world.options |= {"sink": lake, "dead_letters": FileSink(str(tmp_path / "letters"), format="json")}
    world.options["expect"] = {"version = 1": "dead_letter"}
    restore(world)
    world.run(1, refusing({1: None}), clear_number=1)
    assert table(world) == {0: [0], 1: [1]}


def test_but_not_beside_dead_letters_that_are_sent_nowhere_any_more(tmp_path: Path) -> None:
    """What was refused then would be among the letters, and in the table too."""
    world = World(tmp_path, sink=DeltaSink(str(tmp_path / "lake")), expect={"version = 1": "dead_letter"})
    world.options["dead_letters"] = FileSink(str(tmp_path / "letters"), format="json")
    for number in (0, 1):
        world.land(number, number + 2)
        world.run(number, refusing({0: None, 1: None, 2: None, 3: "dead_letter"}))
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    world.options |= {"dead_letters": None, "expect": {}}
    restore(world)
    with pytest.raises(SinkError, match="batch live/1 has its dead letters in "):
        world.run(1, clear_number=1)
    assert table(world) == {0: [0, 2]}


@pytest.mark.parametrize("came_back", ["not yet", "alone"])
def test_nor_into_a_table_that_is_named_in_the_place_of_the_other_one(tmp_path: Path, came_back: str) -> None:
    """The batch would be in the table of the old path and in that of the new one."""
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    moved = FileSink(str(tmp_path / "moved"), format="json")
    world = two_batches(World(tmp_path, sink=Sinks({"lake": lake, "orders": orders})), backup=True)
    restore(world)
    if came_back == "alone":
        world.options["sink"] = lake
        world.run(1, clear_number=1)
    world.options["sink"] = Sinks({"lake": lake, "moved": moved})
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*orders, and is there"):
        world.run(1, clear_number=2)
    assert read(tmp_path / "moved") == {}


def test_of_what_is_not_lost_no_way_is_named_that_takes_it_out_of_the_other_one(tmp_path: Path) -> None:
    """The pipeline writes there no more, so nothing would put it back."""
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    both = Sinks({"lake": lake, "orders": orders})
    world = two_batches(World(tmp_path, sink=both))
    world.options["sink"] = lake
    told = (
        r"batch live/1 was published to .*orders, and is there.* Name .*orders and .*lake for this batch, and no other"
    )
    with pytest.raises(SinkError, match=told) as refused:
        world.run(1, clear_number=1)
    assert advised(str(refused.value), world) == []
    assert "move" not in str(refused.value)
    world.options["sink"] = both
    world.run(1, clear_number=1, try_number=2)
    assert (table(world), sorted(read(tmp_path / "orders"))) == ({0: [0], 1: [1]}, [0, 1])


def test_nor_of_one_that_a_later_batch_was_published_to_together_with_a_table_of_now(tmp_path: Path) -> None:
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    world = World(tmp_path, sink=orders)
    for number, sink in enumerate((orders, Sinks({"lake": lake, "orders": orders}))):
        world.options["sink"] = sink
        world.land(number)
        world.run(number)
    world.options["sink"] = lake
    with pytest.raises(SinkError, match=r"batch live/0 was published to .*orders, and is there") as refused:
        world.run(0, clear_number=1)
    assert advised(str(refused.value), world) == []
    assert "move" not in str(refused.value)


@pytest.mark.parametrize("some", [False, True], ids=["that has none of it", "that has some of it"])
def test_it_comes_back_beside_a_table_of_dead_letters(tmp_path: Path, some: bool) -> None:
    """Letters of both tables lie together: where there are any, a replay of the one table would take along those of the
    other one, too. Then both are named for the batch."""
    lake, orders = DeltaSink(str(tmp_path / "lake")), FileSink(str(tmp_path / "orders"), format="json")
    both, letters = Sinks({"lake": lake, "orders": orders}), FileSink(str(tmp_path / "letters"), format="json")
    world = World(tmp_path, sink=both, dead_letters=letters)
    engine = refusing({**dict.fromkeys(range(5)), 3: "dead_letter" if some else None})
    for number in (0, 1):
        world.land(number, number + 2)
        world.run(number, engine)
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    world.options["sink"] = lake
    world.land(4)
    restore(world)
    with pytest.raises(SinkError, match=f"{LOST}.* clear their tasks"):
        world.run(2, engine)
    if some:
        told = r"published to .*orders, and is there.* Name .*orders and .*lake for this .* beside the dead letters'"
        with pytest.raises(SinkError, match=told):
            world.run(1, engine, clear_number=1)
        world.options["sink"] = both
    world.run(1, engine, clear_number=2)
    world.options["sink"] = lake
    world.run(2, engine, try_number=2)
    assert table(world) == {0: [0, 2], 1: [1] if some else [1, 3], 2: [4]}
    assert sorted(read(tmp_path / "orders")) == [0, 1]


def test_what_came_back_alone_hides_not_that_another_one_has_it_together_with_a_third(tmp_path: Path) -> None:
    """The third one's output would stay as it was, beside what the replay makes of the others'."""
    lake, orders, third = (
        DeltaSink(str(tmp_path / "lake")),
        *(FileSink(str(tmp_path / one), format="json") for one in ("orders", "third")),
    )
    world = two_batches(World(tmp_path, sink=Sinks({"lake": lake, "orders": orders, "third": third})), backup=True)
    restore(world)
    world.options["sink"] = lake
    world.run(1, clear_number=1)
    world.options["sink"] = Sinks({"lake": lake, "orders": orders})
    with pytest.raises(SinkError, match=r"batch live/1 was published to .*third, and is there"):
        world.run(1, clear_number=2)


@pytest.mark.parametrize("first", ["lake", "orders"])
def test_of_what_came_back_alone_check_says_nothing(tmp_path: Path, first: str) -> None:
    """It named a clear, which changes nothing, and then a rewind, which takes it out of the other table for good."""
    named = {"lake": DeltaSink(str(tmp_path / "lake")), "orders": FileSink(str(tmp_path / "orders"), format="json")}
    both = Sinks({name: named[name] for name in sorted(named, key=lambda name: name != first)})
    world = two_batches(World(tmp_path, sink=both), backup=True)
    world.options["sink"] = named["lake"]
    restore(world)
    world.run(1, clear_number=1)
    world.run(2)
    check = ["check", world.pipeline.checkpoint, "--table"]
    assert said(check)[0] == 0
    world.options["sink"] = both
    world.land(3)
    world.run(3)
    status, told = said(check)
    assert (status, "batch live/1 is to be of one attempt in all tables" in told) == (1, True)
    world.run(1, clear_number=2)
    assert said(check)[0] == 0
    assert sorted(read(tmp_path / "orders")) == [0, 1, 3]
