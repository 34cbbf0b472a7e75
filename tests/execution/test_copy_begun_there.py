"""``microbatch copy`` where somebody is at the new place before it: a run, or a person who removes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from airflow_provider_microbatch.checkpoint.places import MOVED, Move
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import ForeignBatchError, MaintenanceError, MovedError
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands import moving
from airflow_provider_microbatch.upkeep.commands.moving import CopyTo, Leave, Open, arrive
from tests.execution.maintaining import applier, filled, rows
from tests.execution.test_copy import a_folder, at, copied, entries, expire
from tests.execution.world import World
from tests.support import object_store, sql


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches of one row each, all committed."""
    return filled(World(tmp_path), 3)


class BegunThere:
    """A copy that was killed right before its first entry at the new place, where a run has begun since: nothing there
    kept it from that. The table refused it, and it has left a checkpoint of its own."""

    def __init__(self, world: World) -> None:
        self.target = a_folder(world.root)
        self.old, self.new = open_store(world.pipeline.checkpoint), open_store(self.target)
        with mock.patch.object(CopyTo, "apply", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            copied(world, self.target)
        with pytest.raises(ForeignBatchError):
            at(world, self.target).run(3)
        expire(world.pipeline.checkpoint)


def test_nothing_is_copied_to_a_place_where_a_run_has_begun_since_and_the_old_one_is_not_closed(world: World) -> None:
    begun = BegunThere(world)
    theirs = entries(begun.new)
    with pytest.raises(MaintenanceError, match=r"metadata is another checkpoint's.*--give-up"):
        copied(world, begun.target)
    assert entries(begun.new) == theirs
    assert MOVED not in begun.old.list("maintenance")
    assert not begun.new.list("maintenance")
    expire(world.pipeline.checkpoint)
    applier(world).give_up(by="me@here")
    world.land(3)
    world.run(4)
    assert rows(world) == [0, 1, 2, 3]


def test_a_checkpoint_that_has_begun_there_is_not_closed_for_a_moment_either(world: World) -> None:
    """For a moment: a copy that is killed in it leaves that checkpoint closed, and its runs fail."""
    begun = BegunThere(world)

    def killed(target: Store, move: Move) -> bool:
        arrive(target, move)
        raise SystemExit

    with mock.patch.object(moving, "arrive", killed), pytest.raises(MaintenanceError, match="another checkpoint's"):
        copied(world, begun.target)
    assert not begun.new.list("maintenance")


def test_a_checkpoint_that_was_begun_there_at_the_same_moment_is_not_closed(world: World) -> None:
    """Between the look at the new place and the record that something is on its way there."""
    begun = BegunThere(world)
    theirs = begun.new.get("metadata") or b""
    shutil.rmtree(begun.target)

    def late(target: Store, move: Move) -> bool:
        assert target.put_if_absent("metadata", theirs)
        return arrive(target, move)

    with mock.patch.object(moving, "arrive", late), pytest.raises(MaintenanceError, match="another checkpoint's"):
        copied(world, begun.target)
    assert begun.new.get("metadata") == theirs
    assert not begun.new.list("maintenance")


@pytest.mark.parametrize("has_left", [False, True], ids=["here", "left"])
def test_what_the_error_names_leads_out_whether_or_not_the_old_place_was_closed(
    world: World, has_left: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has looked at the new place before anything was there may begin a checkpoint at any later moment."""
    begun = BegunThere(world)
    here, metadata = world.pipeline.checkpoint, begun.new.get("metadata")
    if has_left:
        shutil.rmtree(begun.target)
        real = Open.apply

        def late(self: Open, store: Store, *, is_over: Callable[[], bool]) -> None:
            assert begun.new.put_if_absent("metadata", metadata or b"")
            real(self, store, is_over=is_over)

        with mock.patch.object(Open, "apply", late), pytest.raises(MaintenanceError):
            copied(world, begun.target)
        expire(here)
    assert main(["copy", here, begun.target]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"move all that is at {begun.target} away, then type `microbatch copy {here} {begun.target}` again" in told
    assert ("repair" in told) is not has_left, "that would be refused"
    shutil.move(begun.target, f"{begun.target}.away")
    expire(here)
    assert main(["copy", here, begun.target]) == 0
    new = at(world, begun.target)
    new.land(3)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3]


def test_the_old_place_is_not_closed_where_a_slow_run_has_begun_at_the_new_one_meanwhile(world: World) -> None:
    """It had looked before the copy's first entry."""
    begun = BegunThere(world)
    theirs = begun.new.get("metadata") or b""
    shutil.rmtree(begun.target)
    same = CopyTo._is_same

    def slow(self: CopyTo, store: Store, there: Store, is_over: Callable[[], bool]) -> bool:
        begun.new.put_if_absent("metadata", theirs)
        return same(self, store, there, is_over)

    with mock.patch.object(CopyTo, "_is_same", slow), pytest.raises(MaintenanceError, match="another checkpoint's"):
        copied(world, begun.target)
    assert MOVED not in begun.old.list("maintenance")


def test_nor_where_the_new_one_was_removed_meanwhile(world: World) -> None:
    target, leave = a_folder(world.root), Leave.apply

    def removed(self: Leave, store: Store, *, is_over: Callable[[], bool]) -> None:
        shutil.rmtree(target)
        leave(self, store, is_over=is_over)

    with mock.patch.object(Leave, "apply", removed), pytest.raises(MaintenanceError, match=r"was removed\. Type"):
        copied(world, target)
    assert MOVED not in open_store(world.pipeline.checkpoint).list("maintenance")
    expire(world.pipeline.checkpoint)
    copied(world, target)
    new = at(world, target)
    new.land(3)
    new.run(3)
    assert rows(new) == [0, 1, 2, 3]


def test_where_a_copy_was_given_up_both_places_say_to_remove_what_it_has_copied(world: World) -> None:
    target = a_folder(world.root)
    with mock.patch.object(Leave, "apply", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        copied(world, target)
    expire(world.pipeline.checkpoint)
    applier(world).give_up(by="me@here")
    with pytest.raises(MovedError, match="if it was given up, remove all that is here"):
        at(world, target).run(3)
    with pytest.raises(MaintenanceError, match="Remove all that is there, and type this again"):
        copied(world, target)
    shutil.rmtree(target)
    copied(world, target)
    new = at(world, target)
    new.land(3)
    new.run(4)
    assert rows(new) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["sql", "s3"])
def test_a_folder_of_the_checkpoint_itself_is_no_new_place_by_another_connection_either(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    here = sql.in_sqlite(world.root) if kind == "sql" else object_store.address(world.root / "moved")
    copied(world, here)
    if kind == "sql":
        conn_id, _, folder = here.removeprefix("sql://").partition("/")
        monkeypatch.setenv("AIRFLOW_CONN_AGAIN", os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"])
        inside = f"sql://again/{folder}/inside"
    else:
        login = {"login": object_store.KEY, "password": object_store.SECRET}
        extra = {"endpoint_url": object_store.endpoint(), "region_name": "us-east-1"}
        monkeypatch.setenv("AIRFLOW_CONN_AGAIN", json.dumps({"conn_type": "aws", **login, "extra": extra}))
        inside = here.replace("s3://", "s3://again@") + "/inside"
    with pytest.raises(MaintenanceError, match="not apart: where both connections lead to one place"):
        copied(at(world, here), inside)
    assert open_store(inside).list("") == []
