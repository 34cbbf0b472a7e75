"""A command, and at any change that it makes somebody else: the same command, typed by another who takes the first one
for dead, or a run that had begun before. Nothing is lost or doubled, and there is a way on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import MicroBatchError
from tests.execution.maintaining import at_change, at_each, expire_all, moments_of
from tests.execution.typed_commands import COMMANDS, Typed, checked, is_sound, rests, said, same
from tests.execution.world import World


def _the_same(given: Typed, world: World) -> None:
    """The first one sleeps for so long that it counts as dead."""
    expire_all(world.root)
    said(given.words(world))


def _the_same_while_it_is_alive(given: Typed, world: World) -> None:
    said(given.words(world))


def _a_run(given: Typed, world: World) -> None:
    with suppress(MicroBatchError):
        given.carried_on(world).run(50)


def _two_runs_by_the_same(given: Typed, world: World) -> None:
    """The command sleeps, another finishes it, and the pipeline goes on."""
    _the_same(given, world)
    expire_all(world.root)
    for number in (50, 51):
        with suppress(MicroBatchError):
            given.carried_on(world).run(number)


BESIDE: dict[str, Callable[[Typed, World], None]] = {
    "the same": _the_same,
    "the same while it is alive": _the_same_while_it_is_alive,
    "a run": _a_run,
    "the same, and runs": _two_runs_by_the_same,
}
STEP = 7
"""Odd: moments before a change and behind it take turns."""
NAMES = ("rewind", "set-offset back", "rename-source", "start-behind", "adopt", "repair", "copy")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "beside"), list(zip((1, 3, 5, 6), BESIDE.values(), strict=True)), ids=BESIDE)
@pytest.mark.parametrize("given", map(COMMANDS.__getitem__, NAMES), ids=NAMES)
def test_whoever_comes_at_any_change_of_it_nothing_is_lost_or_doubled_and_there_is_a_way_on(
    tmp_path: Path, given: Typed, first: int, beside: Callable[[Typed, World], None]
) -> None:
    """Each comes at every seventh moment, before a change and behind one in turn, and at the last one: between them
    they leave no world out that the command makes."""
    original = given.prepared(tmp_path / "world")
    last = len(moments_of(tmp_path / "world", lambda: said(given.words(same(original)))))
    assert last >= len(BESIDE), "it changes nothing"
    for moment in at_each(tmp_path / "world", sorted({*range(first, last + 1, STEP), last})):
        world = same(original)
        came = at_change(
            moment,
            lambda world=world: said(given.words(world)),  # type: ignore[misc]
            lambda world=world: beside(given, world),  # type: ignore[misc]
        )
        assert came
        try:
            checked(given, world)
            is_sound(given, world, rests(given, world))
        except BaseException as error:
            error.add_note(f"met at {moment}")
            raise
