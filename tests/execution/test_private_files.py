"""Who may look: checkpoint and stage are their owner's, a published table is as readable as it was made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from tests.execution.world import Killed, World
from tests.support.inline_engine import InlineEngine


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, checkpoint=str(tmp_path / "state" / "deep" / "orders"))
    made.land(1)
    return made


def modes(root: Path) -> tuple[set[str], set[str]]:
    """Modes of the folders and of the files below ``root``, and of itself."""
    paths = [root, *root.rglob("*")]
    folders = {oct(stat.S_IMODE(path.stat().st_mode)) for path in paths if path.is_dir()}
    return folders, {oct(stat.S_IMODE(path.stat().st_mode)) for path in paths if path.is_file()}


@pytest.mark.parametrize(
    ("access", "folder", "file"),
    [("none", "0o700", "0o600"), ("read", "0o750", "0o640"), ("write", "0o770", "0o660")],
)
def test_checkpoint_and_stages_are_closed_and_the_table_is_open(
    world: World, access: str, folder: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(group_access=access))
    seen: list[str] = []

    def look(job: Job) -> None:
        seen.append(oct(stat.S_IMODE((world.lake / "_staging").stat().st_mode)))

    world.run(0, InlineEngine(before_stage=look, after_stage=look))
    assert seen == [folder, folder]
    assert modes(Path(world.pipeline.checkpoint)) == ({folder}, {file})
    above = world.root / "state"
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in (above, above / "deep")} == {"0o755"}, "shared by others"
    assert oct(stat.S_IMODE(world.lake.stat().st_mode)) == "0o755"
    assert modes(world.lake / "lane=live") == ({"0o755"}, {"0o644"}), "as Spark's umask made it"


def test_a_table_of_folders_is_closed_before_its_first_stage_table(world: World) -> None:
    sink = TableSink(PathCatalog(str(world.root / "shop")), "orders", format="json", schema="id long")
    world.options["sink"] = sink
    world.run(0)
    assert oct(stat.S_IMODE((world.root / "shop/orders/_staging").stat().st_mode)) == "0o700"
    assert oct(stat.S_IMODE((world.root / "shop/orders").stat().st_mode)) == "0o755"


def test_what_is_there_stays_as_its_owner_made_it(world: World) -> None:
    for folder in (Path(world.pipeline.checkpoint), world.lake / "_staging"):
        folder.mkdir(parents=True)
        folder.chmod(0o2775)
    world.run(0)
    for folder in (Path(world.pipeline.checkpoint), world.lake / "_staging"):
        assert oct(stat.S_IMODE(folder.stat().st_mode)) == "0o2775"
    assert modes(Path(world.pipeline.checkpoint))[1] == {"0o600"}


def test_an_access_that_does_not_exist_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"\[microbatch\] group_access is 'everybody'.*none, read, write"):
        Settings(group_access="everybody")


def test_a_folder_whose_maker_is_killed_is_made_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(group_access="read"))
    folder = tmp_path / "folder"

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(os, "fchmod", die)
        killing.setattr(os, "rmdir", die)
        with pytest.raises(Killed):
            settings.make_private_folder(folder)
    settings.make_private_folder(folder)
    assert modes(folder)[0] == {"0o750"}


def test_a_folder_that_somebody_made_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(group_access="read"))
    folder, real = tmp_path / "folder", os.mkdir

    def somebody_is_faster(path: Any, *arguments: Any, **named: Any) -> None:
        real(path, *arguments, **named)
        if not folder.exists():
            real(folder, 0o711)
            (folder / "entry").touch()

    monkeypatch.setattr(os, "mkdir", somebody_is_faster)
    settings.make_private_folder(folder)
    assert modes(folder)[0] == {"0o711"}
    settings.make_private_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
