"""Whatever command a person types, its process may die at any change that it makes: nothing is lost or doubled then,
and there is a way on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.execution.maintaining import at_each, different_moments, expire_all, killed_at
from tests.execution.typed_commands import COMMANDS, Typed, checked, goes_on, is_sound, rests, said, same
from tests.execution.world import World

Afterwards = Callable[[Typed, World], World]


def _again(given: Typed, world: World) -> World:
    """The same is typed once more; where it was done, it says so, or finds nothing to do."""
    is_done = given.is_done(world) and world.checkpoint.maintenance.unfinished() is None
    status, text = said(given.words(world))
    assert status == 0 or is_done, text
    return goes_on(given, world)


def _as_checked(given: Typed, world: World) -> World:
    """Somebody does what ``check`` prints, before the pipeline goes on and after it."""
    checked(given, world)
    return rests(given, world)


def _given_up(given: Typed, world: World) -> World:
    """Somebody gives it up, and sees by ``check`` what is left of it."""
    said(["repair", world.pipeline.checkpoint, "--give-up"])
    return _as_checked(given, world)


AFTERWARDS: dict[str, Afterwards] = {
    "again": _again,
    "not again": rests,  # the pipeline goes on, or says what is to be typed
    "as checked": _as_checked,
    "given up": _given_up,
}

TOLD_BY_OTHERS = {
    "rewind": "rewind of two tables",
    "set-offset on": "set-offset back",
}
"""Commands whose changes another one makes too, by the same code."""
NAMES = [name for name in COMMANDS if name not in TOLD_BY_OTHERS]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "afterwards"), list(enumerate(AFTERWARDS.values(), start=1)), ids=AFTERWARDS)
@pytest.mark.parametrize("given", map(COMMANDS.__getitem__, NAMES), ids=NAMES)
def test_killed_at_any_change_nothing_is_lost_or_doubled_and_there_is_a_way_on(
    tmp_path: Path, given: Typed, first: int, afterwards: Afterwards
) -> None:
    """Each way on is tried in every fourth world that a kill leaves behind; between them they leave none out."""
    original = given.prepared(tmp_path / "world")
    different = different_moments(tmp_path / "world", lambda: said(given.words(same(original))))
    assert len(different) > len(AFTERWARDS), "it changes nothing"
    for moment in at_each(tmp_path / "world", different[first - 1 :: len(AFTERWARDS)]):
        world = same(original)
        killed = killed_at(moment, lambda world=world: said(given.words(world)), signs=False)  # type: ignore[misc]
        expire_all(tmp_path)
        # Whoever begins to import a checkpoint sees to it that it is there before the pipeline goes on.
        is_nothing_there = given.words(world)[0] == "import" and not (world.root / "checkpoint" / "metadata").exists()
        try:
            is_sound(given, world, (_again if is_nothing_there else afterwards)(given, world))
        except BaseException as error:
            error.add_note(f"killed at {moment}")
            raise
        assert killed == (moment < different[-1])
