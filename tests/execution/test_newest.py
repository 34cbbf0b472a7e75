"""Which batch of a lane is the newest in the table: what was set aside and run since is, and looking costs little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchSetAsideError, SinkError
from airflow_provider_microbatch.execution.newest import newest_published
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.execution.kept_tables import start_behind
from tests.execution.maintaining import applied, filled, rewind
from tests.execution.test_start_behind import counted_as
from tests.execution.test_table_place import away, back, forget
from tests.execution.world import KEY, World, run_identity
from tests.support.inline_engine import InlineEngine


def one_that_is_set_aside(tmp_path: Path) -> World:
    """A pipeline that sets a batch aside when it has failed once; its first one was, and data has come for the next."""
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1, set_aside_after_dead=1)
    world.land(0)
    set_aside(world, 0)
    world.land(1)
    return world


def set_aside(world: World, number: int) -> None:
    with pytest.raises(BatchSetAsideError):
        world.run(number, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]


@contextmanager
def counted() -> Iterator[list[str]]:
    """Entries and folders that are read meanwhile."""
    read: list[str] = []
    get, list_ = PosixStore.get, PosixStore.list

    def counting_get(store: PosixStore, path: str) -> bytes | None:
        read.append(f"{store.location}/{path}")
        return get(store, path)

    def counting_list(store: PosixStore, folder: str) -> list[str]:
        read.append(f"{store.location}/{folder}/")
        return list_(store, folder)

    with (
        mock.patch.object(PosixStore, "get", counting_get),
        mock.patch.object(PosixStore, "list", counting_list),
    ):
        yield read


def test_what_was_set_aside_and_run_since_tells_the_form_of_the_table(tmp_path: Path) -> None:
    world = one_that_is_set_aside(tmp_path)
    assert newest_published(world.checkpoint, "live") is None
    answer = world.run(0, clear_number=1)
    assert answer is not None
    assert newest_published(world.checkpoint, "live") == KEY
    world.options["sink"] = FileSink(str(world.lake), format="parquet")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(1)
    world.options["sink"] = FileSink(str(world.lake), format="json")
    world.run(1)
    assert world.table() == {0: [0], 1: [1]}


def test_and_tells_whether_the_table_is_there(tmp_path: Path) -> None:
    """Of a table of before ids nobody knows more than that a batch of it is there."""
    world = one_that_is_set_aside(tmp_path)
    world.run(0, clear_number=1)
    forget(world)
    kept = away(world)
    with pytest.raises(SinkError, match=r"batch live/0 is committed, and the table .* may not be mounted"):
        world.run(1)
    back(world, kept)
    world.run(2)
    assert world.table() == {0: [0], 1: [1]}


@pytest.mark.parametrize("replayed", [0, 3, 5])
def test_nor_do_later_ones_that_were_set_aside_hide_it(tmp_path: Path, replayed: int) -> None:
    world = one_that_is_set_aside(tmp_path)
    for number in range(1, 6):
        set_aside(world, number)
        world.land(number + 1)
    answer = world.run(replayed, clear_number=1)
    assert answer is not None
    assert newest_published(world.checkpoint, "live") == answer.key
    world.expire_leases()
    applied(world, rewind(-1))
    assert newest_published(world.checkpoint, "live") is None, "it was taken out"


def test_a_row_of_batches_that_were_set_aside_is_passed_over_at_once(tmp_path: Path) -> None:
    """A plan with nothing new reads as much, however many there are."""
    world = filled(World(tmp_path, on_failure="set_aside", set_aside_after=1, set_aside_after_dead=1), 2)
    found = []
    for number in range(2, 12):
        world.land(number)
        set_aside(world, number)
        with counted() as read:
            assert newest_published(world.checkpoint, "live") == BatchKey("live", 1)
        found.append(len(read))
    assert max(found) <= found[2]


@pytest.mark.parametrize("count", [2, 60])
def test_so_is_what_start_behind_has_counted_on(tmp_path: Path, count: int) -> None:
    world = filled(World(tmp_path), 2)
    counted_as(world, 1, 1 + count)
    applied(world, start_behind(allow_reread=True))
    assert world.checkpoint.offset_log.ids()[-1] == 1 + count
    with counted() as read:
        assert newest_published(world.checkpoint, "live") == BatchKey("live", 1)
    assert len(read) < 8
    with counted() as read:
        assert world.execution.plan(run_identity(7)) is None
    assert len(read) < 90


@pytest.mark.parametrize("since", [-1, 3, 10**400, True, None, "0"])
def test_what_somebody_wrote_into_an_entry_leads_nowhere_else(tmp_path: Path, since: object) -> None:
    world = filled(World(tmp_path), 2)
    failure = {"error": "x", "attempts": 1, "since": since}
    world.checkpoint.offset_log.add(2, world.checkpoint.offset_log.get(1))  # type: ignore[arg-type]
    world.checkpoint.commit_log.add(2, CommitEntry(set_aside=True, failure=failure))
    assert newest_published(world.checkpoint, "live") == BatchKey("live", 1)
