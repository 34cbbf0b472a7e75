"""Words for tests of processes that sleep and wake up late."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.exceptions import (
    MaintenanceError,
)
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.set_offset import plan_set_offset
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.world import Killed, World


def cleaning(world: World) -> FileSource:
    return FileSource(str(world.landing()), format="json", schema="id long", clean_source="delete")


class Sleep:
    """The first call of a function that ``when`` is true for sleeps before it begins, while ``meanwhile`` happens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def before(
        self, owner: Any, name: str, meanwhile: Callable[[], object], when: Callable[..., bool] = lambda *_: True
    ) -> None:
        real = getattr(owner, name)
        slept: list[bool] = []

        def slow(*args: Any, **kwargs: Any) -> Any:
            if not slept and when(*args):
                slept.append(True)
                meanwhile()
            return real(*args, **kwargs)

        self._patch.setattr(owner, name, slow)


def killed(*_: object, **__: object) -> None:
    raise Killed


def rewound(world: World, to: int, lane: str = "live") -> Callable[[], None]:
    def act() -> None:
        world.expire_leases()
        applied(world, rewind(to, lane=lane))

    return act


def of_log(name: str, number: int) -> Callable[..., bool]:
    return lambda entries, batch_id, *_: entries.location.endswith(name) and batch_id == number


def to_the_first(drafting: Drafting) -> Plan:
    """``set-offset``: all but the first file is read again."""
    return plan_set_offset(
        drafting, lane="live", source="orders", offset='{"logOffset":0}', allow_skip=False, allow_reread=True
    )


def late_attempt(world: World) -> Attempt:
    """Batches 0 and 1 are committed; an attempt of batch 2 sleeps before its publish, and counts as dead."""
    filled(world, 2)
    world.land(2)
    attempt = world.staged(2)
    world.expire_leases()
    return attempt


def applied_or_refused(world: World, make: Callable[[Drafting], Plan]) -> None:
    with suppress(MaintenanceError):
        applied(world, make)
