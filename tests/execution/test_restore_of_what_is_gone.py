"""A Delta table that somebody has put back over a ``rewind``, whose rows are the only copy by now."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.delta.table import OpenDeltaTable
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.maintaining import expire_all
from tests.execution.test_dead_letters import Checked
from tests.execution.test_letters_once import live, replay
from tests.execution.test_restore_over_a_rewind import ids, is_refused, lake, rewound
from tests.execution.typed_commands import advised, said
from tests.execution.world import World

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

NOBODYS = {"lane": "cast(null as string)", "batch_id": "cast(null as bigint)"}


class Landed(World):
    """A source of files, each of which is a batch."""

    def __init__(self, root: Path, **source: Any) -> None:
        super().__init__(root, sink=DeltaSink(str(root / "lake")))
        self.sources = {"orders": replace(self.sources["orders"], max_files=1, **source)}
        for number in (1, 2, 3):
            self.land(number)
            self.run(number)

    def is_gone(self, *numbers: int) -> None:
        for number in numbers:
            (self.landing() / f"{number:06d}.json").unlink()

    def typed(self, words: list[str]) -> tuple[int, str]:
        expire_all(self.root)
        return said(words)


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
@pytest.mark.parametrize("planned", ["nothing", "the next one alone"])
def test_the_only_copy_is_not_taken_out_but_at_somebodys_word(tmp_path: Path, planned: str, on_missing: str) -> None:
    world = Landed(tmp_path, on_missing=on_missing)
    before = lake(world).version()
    rewound(world, 0)
    if planned == "the next one alone":
        world.run(10)
    lake(world).restore(before)
    world.is_gone(3)
    (words,) = advised(is_refused(world, lambda: world.run(11)), world)
    version = lake(world).version()
    status, text = world.typed(words)
    assert (status, lake(world).version(), ids(world)) == (2, version, [1, 2, 3])
    assert "of batch live/2" in text
    assert "000003.json" in text
    assert "UPDATE … SET lane = NULL, batch_id = NULL WHERE lane = 'live' AND batch_id IN (2)" in text
    lake(world).update(predicate="lane = 'live' AND batch_id = 2", updates=NOBODYS)
    status, text = world.typed(words)
    assert status == 0, text
    world.sources = {"orders": replace(world.sources["orders"], on_missing="skip")}
    assert [world.run(number) is not None for number in (12, 13, 14)].count(False) > 0
    assert ids(world) == [1, 2, 3]


def test_at_somebodys_word_it_is_taken_out_and_told_of(tmp_path: Path) -> None:
    world = Landed(tmp_path)
    before = lake(world).version()
    rewound(world, 0)
    lake(world).restore(before)
    world.is_gone(2, 3)
    (words,) = advised(is_refused(world, lambda: world.run(11)), world)
    assert "of batch live/1, live/2" in world.typed(words)[1]
    status, text = world.typed([*words, "--allow-skip"])
    assert (status, ids(world)) == (0, [1])
    assert "lost to the table" in text


def test_where_no_rewind_goes_the_rows_are_kept_as_nobodys(tmp_path: Path) -> None:
    """By the log other batches of these files are in, and they have gone with the RESTORE."""
    world = Landed(tmp_path)
    before = lake(world).version()
    rewound(world, 0)
    world.run(10)
    world.run(11)
    lake(world).restore(before)
    world.is_gone(2, 3)
    (words,) = advised(is_refused(world, lambda: world.run(12)), world)
    version = lake(world).version()
    status, text = world.typed([*words, "--allow-skip"])
    assert (status, lake(world).version()) == (2, version)
    assert "cannot be planned again, its rows would be lost" in text
    assert "UPDATE … SET lane = NULL, batch_id = NULL WHERE lane = 'live' AND batch_id IN (1, 2)" in text
    lake(world).update(predicate="lane = 'live' AND batch_id IN (1, 2)", updates=NOBODYS)
    world.land(4)
    assert world.run(13) is not None
    assert ids(world) == [1, 2, 3, 4]


def test_a_rewind_of_before_does_not_tell_what_a_batch_of_after_a_backup_had_read(tmp_path: Path) -> None:
    """It has put a plan of that number away, and in a file of others nobody can tell whose the rows are."""
    world = Landed(tmp_path)
    rewound(world, 1)
    backup = shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    world.sources["refunds"] = FileSource(str(world.landing("refunds")), format="json", schema="id long")
    world.land(40, source="refunds")
    world.run(10)
    lake(world).optimize.compact()
    before = lake(world).version()
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(backup, tmp_path / "checkpoint")
    rewound(world, 1)
    lake(world).restore(before)
    (world.landing("refunds") / "000040.json").unlink()
    (words,) = advised(is_refused(world, lambda: world.run(11)), world)
    version = lake(world).version()
    status, text = world.typed(words)
    assert (status, lake(world).version(), ids(world)) == (2, version, [1, 2, 3, 40])
    assert "what they had read is on no record" in text


def test_letters_of_a_batch_that_was_made_anew_and_that_retention_has_removed_stay(tmp_path: Path) -> None:
    """An old rewind has put a batch of that number away, and the one that was made since is no longer in the log."""
    world = Checked(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    rewound(world, -1)
    for number in range(1, 5):
        world.land(number + 3)
        live(world, number, 2)
    replay(world, 10)
    before = lake(world).version()
    rewound(world, -1, lane="dead-letters")
    world.options["min_batches_to_retain"] = 2
    world.land(9)
    live(world, 9)
    lake(world).restore(before)
    expire_all(world.root)
    world.janitor()
    assert 0 not in world.checkpoint.offset_log.ids()
    world.land(10)
    (words,) = advised(is_refused(world, lambda: live(world, 20)), world)
    expire_all(world.root)
    status, text = said(words)
    assert (status, "may be the only copy" in text) == (2, True), text
    assert 2 in ids(world)


def test_a_table_that_cannot_tell_what_came_back_is_no_table_where_nothing_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans are refused for it, and a rewind that finds nothing to do leads nowhere."""

    def refused(*_: object) -> None:
        raise SinkError("the Delta table has a file which lies in another folder: it is a clone.")

    world = Landed(tmp_path)
    before = lake(world).version()
    rewound(world, 0)
    lake(world).restore(before)
    (words,) = advised(is_refused(world, lambda: world.run(10)), world)
    monkeypatch.setattr(OpenDeltaTable, "came_back", refused)
    status, text = world.typed(words)
    assert status == 2
    assert "it is a clone" in text
