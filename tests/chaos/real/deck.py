"""The kills that a real scheduler and a real spark-submit have to live through, dealt like cards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.points import ATTEMPT, COMMIT, JANITOR, PLAN, PUBLISH, REPLAY, both
from tests.chaos.real.held import EXECUTE
from tests.chaos.real.watched import BEGUN, SPARK, WRITTEN

TASK = "task"
SUPERVISOR = "supervisor"
BOTH = "task and supervisor"
DRIVER = "Spark driver"
ALL = "task, supervisor and Spark driver"
SCHEDULER = "scheduler"
TRIGGERER = "triggerer"
CLEANER = "janitor"


@dataclass(frozen=True, kw_only=True)
class Card:
    """One kill.

    :param victim: who is killed.
    :param point: a point at which the task is held meanwhile; for a janitor, where it dies.
    :param moment: what is waited for, seen from outside.
    :param replay: a run is cleared for it.
    :param delay: kill at a random moment, after so many seconds.
    """

    victim: str
    point: str | None = None
    moment: str | None = None
    replay: bool = False
    delay: float | None = None


def deal(chance: random.Random) -> Iterator[Card]:
    """Cards without end. Each deck has every point and every victim; decks differ in who dies where and in order."""
    while True:
        deck = [
            Card(victim=chance.choice([TASK, TASK, SUPERVISOR, BOTH, SCHEDULER]), point=point)
            for point in both((EXECUTE, *PLAN[1:], *ATTEMPT, *PUBLISH, *COMMIT))
        ]
        deck += [Card(victim=TASK, point=point, replay=True) for point in chance.sample(both(REPLAY), 3)]
        for moment in (SPARK, BEGUN, WRITTEN):
            deck += [Card(victim=victim, moment=moment) for victim in (TASK, DRIVER, chance.choice([SUPERVISOR, ALL]))]
        for victim in (TASK, DRIVER, SUPERVISOR, SCHEDULER, SCHEDULER, TRIGGERER, TRIGGERER, CLEANER):
            deck.append(Card(victim=victim, delay=chance.uniform(0, 8)))
        deck.append(Card(victim=CLEANER, point=chance.choice(JANITOR)))
        chance.shuffle(deck)
        yield from deck
