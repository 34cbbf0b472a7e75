"""What happens in the world, one move a step. A move that has nothing to do does nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.world import World

Happening = Callable[["World"], str | None]
"""Does it and says so; None: there was nothing to do it to."""


@dataclass(frozen=True)
class Move:
    """:param name: for people.
    :param weight: how often it comes, beside the others.
    :param always: in every world; else each world has about half of them.
    :param kit: of moves that need each other: a world has all that are named so, or none. Drawn one by one, a chain of
        four would be in one world of sixteen.
    :param topics: only where there is a topic.
    :param state: only where batches keep state.
    :param only_in: the systems in which there may be something to do for it; empty: all.
    :param happen: does it.
    """

    name: str
    weight: int
    always: bool
    kit: str
    topics: bool
    state: bool
    only_in: Collection[str]
    happen: Happening


MOVES: dict[str, Move] = {}


def move(
    name: str,
    *,
    weight: int,
    always: bool = False,
    kit: str | None = None,
    topics: bool = False,
    state: bool = False,
    only_in: Collection[str] = (),
) -> Callable[[Happening], Happening]:
    """Register a move."""

    def register(happen: Happening) -> Happening:
        assert name not in MOVES, name
        MOVES[name] = Move(
            name=name,
            weight=weight,
            always=always,
            kit=kit or name,
            topics=topics,
            state=state,
            only_in=only_in,
            happen=happen,
        )
        return happen

    return register
