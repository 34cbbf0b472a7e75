"""How many requests a pipeline makes of its checkpoint's store: as many however long its history is, on each store.

Counted as an object store would, which tells names by the page. Pages are small here, so that what grows with history
is seen after a hundred batches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.leases import LEASE_SECONDS
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores import object_store as store_of_objects
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.janitor import Janitor
from tests.contract.registered import FIXTURE, registered
from tests.contract.test_store import ADDRESSES
from tests.execution import world as worlds
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.world import CODE, World, run_identity
from tests.support.counted import Count, CountedStore
from tests.support.faulty_proxy import FaultyProxy
from tests.support.inline_engine import InlineEngine
from tests.support.object_services import SERVICES

NAMES_A_PAGE = 40
HISTORIES = (63, 127)
"""Batches there were. Both are where it is the dearest: right before the source's entries are indexed."""

MOST = {"poll": 60, "plan": 112, "look": 8, "open": 10, "renewal": 3, "run": 26, "publish": 7, "commit": 24}
"""Requests of each step, as it was measured: lower them when you can, and do not raise them for what grows."""

AT_THE_SERVER = {"s3": 191, "azure": HISTORIES[0]}
"""Their requests are counted where they arrive, after so many batches: below. Both are asked alike."""
# A database's history of so many batches takes minutes to make: what it is asked is counted in statements, in
# `tests/checkpoint/test_sql.py`.
system_name = registered([name for name in ADDRESSES if name not in AT_THE_SERVER and not name.startswith("sql-")])
MOST_AT_THE_SERVER = {
    "poll": 60,
    "plan": 115,
    "look": 8,
    "open": 12,
    "renewal": 4,
    "run": 26,
    "publish": 7,
    "commit": 25,
}
"""As above. Beside it, each process that puts tries the service once, which is two requests of a new checkpoint."""


class Watched:
    """A pipeline whose checkpoint's store counts."""

    def __init__(self, root: Path, address: str) -> None:
        self.world = World(root, checkpoint=address)
        self.count = Count(page=NAMES_A_PAGE)
        self.batches = 0

    def fill(self, batches: int) -> None:
        """Run until there are so many."""
        while self.batches < batches:
            self.world.land(self.batches)
            self.world.run(self.batches)
            self.batches += 1

    def one_batch(self) -> dict[str, Count]:
        """Requests of each step of one more."""
        found: dict[str, Count] = {}

        @contextmanager
        def step(name: str) -> Iterator[None]:
            with self.count.of() as found[name]:
                yield

        def counted(location: str) -> Store:
            return CountedStore(open_store(location), self.count)

        with mock.patch.object(worlds, "open_store", counted):
            self.steps(step)
        return found

    def steps(self, step: Callable[[str], AbstractContextManager[object]]) -> None:
        """Live through one more batch, each step of it in a context of its own."""
        run, engine = run_identity(self.batches), InlineEngine()
        with step("poll"):
            assert not self.world.execution.should_fire(run).fire
        self.world.land(self.batches)
        execution = self.world.execution
        with step("plan"):
            planned = execution.plan(run)
        assert planned is not None
        with step("look"):
            look = execution.look(planned.key, run, engine_of=lambda name: engine)
        with step("open"):
            attempt = execution.open_attempt(key=planned.key, run=run, code=CODE, engine=engine, look=look)
        with step("renewal"):
            execution.checkpoint.leases.renew(attempt.key, attempt.epoch, seconds=LEASE_SECONDS)
        with step("run"):
            job = execution.job(attempt, None)
            execution.run_attempt(attempt=attempt, job=job, engine=engine, code=CODE)
        with step("publish"):
            manifest = execution.publish(attempt)
        with step("commit"):
            execution.commit(key=attempt.key, manifest=manifest, run=run)
        self.batches += 1


@pytest.mark.slow
def test_no_step_of_a_batch_makes_more_requests_the_longer_the_history(system_name: str, tmp_path: Path) -> None:
    watched = Watched(tmp_path, ADDRESSES[system_name](tmp_path))
    for history in HISTORIES:
        watched.fill(history)
        for name, count in watched.one_batch().items():
            assert count.total <= MOST[name], f"{name} after {history} batches: {sorted(count.asked.items())}"


def test_a_pipeline_that_is_on_record_is_not_put_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path, str(tmp_path / "checkpoint"))
    watched.fill(1)
    asked = watched.one_batch()["open"].asked
    assert not [what for what in asked if what.startswith("put microbatch/pipelines/")]
    assert "get attempts/live/1/0" not in asked


def test_a_task_asks_once_for_what_never_changes(tmp_path: Path) -> None:
    watched = Watched(tmp_path, str(tmp_path / "checkpoint"))
    watched.fill(3)
    steps = watched.one_batch()
    del steps["poll"]  # by another process
    asked = sum((count.asked for count in steps.values()), Counter[str]())
    assert asked["list microbatch/sources/orders/cleaned"] == 1, "records of older versions no longer change"
    there = {what: times for what, times in asked.items() if re.match(r"get sources/orders/[0-3]$", what)}
    assert there
    assert set(there.values()) == {1}, there


@pytest.mark.parametrize("options", [{}, {"min_batches_to_retain": 2}], ids=str)
def test_a_janitor_asks_for_no_more_the_more_data_intervals_there_were(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each has a lane of its own, with one batch, for good."""
    world = IntervalWorld(tmp_path, **options)
    for number in (1, 2):  # of two definitions
        world.options["set_aside_after"] = number
        world.land_at(30, number)
        world.run(number)
    found = []
    for number in range(3, 13):
        world.land_at(number, number)
        world.backfill(hour(number), number)
        count = Count()
        counted = CountedStore(open_store(world.pipeline.checkpoint), count)
        Janitor(checkpoint=Checkpoint(counted, sources=["orders"])).run()
        # A lane's empty folder of leases, which is looked into, is there on a file system alone.
        asked = {what: times for what, times in count.asked.items() if not what.startswith("list leases/interval-")}
        found.append(sum(asked.values()))
    assert found == found[:1] * len(found)


@pytest.mark.slow
@pytest.mark.parametrize(FIXTURE, AT_THE_SERVER)
def test_nor_as_they_arrive_at_a_service(system_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_of_objects, "_AT_ONCE", NAMES_A_PAGE)
    service = SERVICES[system_name]
    proxy = FaultyProxy(service.endpoint(), page=NAMES_A_PAGE, above=service.above)
    proxy.start()
    history, checkpoint = AT_THE_SERVER[system_name], tmp_path / "checkpoint"
    watched = Watched(tmp_path, str(checkpoint))
    watched.fill(history)
    # The same history, in an object store.
    service.load(checkpoint)
    watched.world.options["checkpoint"] = service.address(checkpoint)
    found: dict[str, Counter[str]] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        with proxy.counted() as found[name]:
            yield

    for variable, value in service.environment(proxy.url).items():
        monkeypatch.setenv(variable, value)
    watched.steps(step)
    for name, count in found.items():
        assert count.total() <= MOST_AT_THE_SERVER[name], f"{name} after {history} batches: {count}"
    proxy.stop()
