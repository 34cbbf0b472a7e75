"""The rows' table was put back to before a clear that has made dead letters of some of its rows: run again, these would
be in it twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_microbatch.exceptions import RolledBackError, SourceError
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from tests.execution.test_dead_letters import Checked
from tests.execution.test_letters_once import ids, live, replay
from tests.execution.test_restore_over_a_rewind import ids as ids_of_delta
from tests.execution.two_tables import is_clean


def copied(world: Checked, source: str, target: str) -> None:
    shutil.rmtree(world.root / target, ignore_errors=True)
    shutil.copytree(world.root / source, world.root / target)


def cleared(world: Checked) -> None:
    """Of the rows 1, 2 and 3, the first attempt has refused 2, and stricter code 3 too."""
    world.land(1, 2, 3)
    live(world, 0, 2)
    if isinstance(world.pipeline.sink.tables[0], FileSink):
        copied(world, "lake", "kept")
    live(world, 0, 2, 3, clear_number=1)


def refused_and_made_anew(world: Checked, match: str) -> None:
    with pytest.raises(SourceError, match=match) as refused:
        replay(world, 10)
    assert "Or clear task 'micro_batch' of run 'run-0' of DAG 'orders': that makes the batch's rows" in str(
        refused.value
    )
    live(world, 0, 2, 3, clear_number=2)
    replay(world, 11)


def test_they_are_not_run_again_beside_a_backup_of_before(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    cleared(world)
    copied(world, "kept", "lake")
    assert (ids(world), world.rows("letters")) == ([1, 3], [2, 3])
    refused_and_made_anew(world, r"attempt 2's, and \S+lake was put back to before that \(it has .* attempt 1\)")
    assert ids(world) == [1, 2, 3]
    assert is_clean(world)


def test_nor_where_the_table_has_moved_since(tmp_path: Path) -> None:
    """Nothing is where the clear has written to, and a newer run has named its place of now."""
    world = Checked(tmp_path)
    cleared(world)
    shutil.rmtree(tmp_path / "lake")
    copied(world, "kept", "moved")
    world.options["sink"] = FileSink(str(tmp_path / "moved"), format="json")
    world.land(9)
    live(world, 1)
    with pytest.raises(SourceError, match=r"attempt 2's, and \S+moved was put back to before that"):
        replay(world, 10)
    assert ids(world, "moved") == [1, 3, 9]


def test_nor_beside_a_delta_table_that_a_restore_has_put_back(tmp_path: Path) -> None:
    world = Checked(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    world.land(1, 2, 3)
    live(world, 0, 2)
    before = DeltaTable(str(world.lake)).version()
    live(world, 0, 1, 2, 3, clear_number=1)
    DeltaTable(str(world.lake)).restore(before)
    assert (ids_of_delta(world), world.rows("letters")) == ([1, 3], [1, 2, 3])
    refused_and_made_anew(
        world, r"was put back to before that \(its rows in version 2 are those of before attempt 2: put"
    )
    assert ids_of_delta(world) == [1, 2, 3]
    assert is_clean(world)


def test_nor_beside_one_that_says_that_it_was_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Checked(tmp_path)
    cleared(world)
    real = FileSink.seen

    def seen(sink: FileSink, *given: Any) -> object:
        if sink.path.endswith("lake"):
            raise RolledBackError("its last snapshot is in no history")
        return real(sink, *given)

    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "seen", seen)
        with pytest.raises(SourceError, match="its last snapshot is in no history"):
            replay(world, 10)
    replay(world, 11)
    assert ids(world) == [1, 2, 3]


def test_rows_that_somebody_has_deleted_since_keep_no_letters_back(tmp_path: Path) -> None:
    world = Checked(tmp_path, sink=DeltaSink(str(tmp_path / "lake")))
    cleared(world)
    DeltaTable(str(world.lake)).delete("id = 1")
    replay(world, 10)
    assert ids_of_delta(world) == [2, 3]
