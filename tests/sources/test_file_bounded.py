"""A bounded source ends with what was there at the first plan that found a file."""

from __future__ import annotations

from tests.sources.support import World

OFFSET_0 = '{"logOffset":0}'
OFFSET_1 = '{"logOffset":1}'
OFFSET_2 = '{"logOffset":2}'


def test_later_files_are_not_read_however_many_batches_it_takes(world: World) -> None:
    for number in range(5):
        world.land(f"{number}.json", age=100 - number)
    source = world.open(bounded=True, max_files=2)
    assert source.has_new(None)
    assert source.latest_offset(None) == OFFSET_0
    world.land("later.json")
    assert not source.finished(OFFSET_0)
    assert world.drain(bounded=True, max_files=2) == [["0.json", "1.json"], ["2.json", "3.json"], ["4.json"]]
    again = world.open(bounded=True, max_files=2)
    assert not again.has_new(OFFSET_2)
    assert again.finished(OFFSET_2)
    assert again.lag(OFFSET_2).splits == 0
    assert again.lag(OFFSET_0).splits == 3


def test_it_is_not_finished_before_there_was_anything(world: World) -> None:
    source = world.open(bounded=True)
    assert source.latest_offset(None) is None
    assert not source.finished(None)
    world.land("a.json")
    assert source.has_new(None)
    assert source.latest_offset(None) == OFFSET_0
    assert source.finished(OFFSET_0)


def test_a_plan_that_died_before_the_pin_goes_on(world: World) -> None:
    for number in range(3):
        world.land(f"{number}.json", age=100 - number)
    unbounded = world.open(max_files=1)
    unbounded.latest_offset(None)
    assert world.drain(bounded=True, max_files=1) == [["0.json"], ["1.json"], ["2.json"]]


def test_two_first_plans_share_the_entries(world: World) -> None:
    for number in range(3):
        world.land(f"{number}.json", age=100 - number)
    one, other = world.open(bounded=True, max_files=1), world.open(bounded=True, max_files=2)
    other.has_new(None)
    assert one.latest_offset(None) == OFFSET_0
    assert other.latest_offset(None) == OFFSET_0
    assert world.drain(bounded=True) == [["0.json"], ["1.json"], ["2.json"]]


def test_an_unbounded_source_is_never_finished(world: World) -> None:
    world.land("a.json")
    source = world.open()
    assert not source.finished(source.latest_offset(None))
