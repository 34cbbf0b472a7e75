from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.support import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Rights are not checked for root: go on as another user, in a folder that is this user's."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    opened = [folder for folder in tmp_path.parents if folder.stat().st_mode & 0o005 != 0o005]
    modes = [(folder, folder.stat().st_mode) for folder in opened]
    for folder in opened:
        folder.chmod(0o755)
    os.chown(tmp_path, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)
        for folder, mode in modes:
            folder.chmod(mode & 0o7777)
