"""A pipeline whose hook writes a diary, and processes that sleep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.execution.sleepers import Sleep
from tests.execution.world import World
from tests.support.hooks import Diary


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


@pytest.fixture
def world(tmp_path: Path, diary: Path) -> World:
    world = World(tmp_path, hooks=(Diary(str(diary)),))
    world.land(1)
    return world


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    """Has a process sleep."""
    return Sleep(monkeypatch)
