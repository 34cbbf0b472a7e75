"""The same with a process of its own for each kill, which is gone by SIGKILL: nothing that Python does on its way out
takes part in it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from airflow_provider_microbatch.cli.main import main
from tests.execution.maintaining import at_change, expire_all
from tests.execution.typed_commands import COMMANDS, goes_on, is_sound, said, same
from tests.support.forks import FORKS

STEPS = {"rewind": 4, "adopt": 2, "copy": 10}
"""At every change, or, where there are many, at some."""


def _type(words: list[str], moment: int) -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    at_change(moment, lambda: main(words), lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_killed_by_sigkill_it_goes_on_when_it_is_typed_again(tmp_path: Path, name: str) -> None:
    given = COMMANDS[name]
    original = given.prepared(tmp_path / "world")
    shutil.copytree(tmp_path / "world", tmp_path / "kept", symlinks=True)
    for moment in range(1, 400, STEPS[name]):
        shutil.rmtree(tmp_path / "world")
        shutil.copytree(tmp_path / "kept", tmp_path / "world", symlinks=True)
        world = same(original)
        process = FORKS.Process(target=_type, args=(given.words(world), moment))
        process.start()
        process.join(timeout=60)
        assert process.exitcode in (0, -signal.SIGKILL)
        expire_all(tmp_path)
        status, text = said(given.words(world))
        assert status == 0, f"killed at {moment}: {text}"
        is_sound(given, world, goes_on(given, world))
        if process.exitcode == 0:
            assert moment > 3, "it changes nothing"
            return
    raise AssertionError("it was killed each time")
