"""Points at which a task of a real scheduler is held, so that who watches it can kill whom they like meanwhile."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from tests.chaos.points import Points

EXECUTE = "execute"
"""The step that is the whole task: before it nothing has happened, after it Airflow does not know yet."""
SECONDS = 20.0
"""How long a task waits to be killed or released."""


class HeldPoints(Points):
    """:param root: folder of the pipeline; the file ``armed`` in it names the point."""

    def __init__(self, root: Path) -> None:
        super().__init__(None, action="hold", root=root)

    def install(self, engine: type, sink: type, steps: Sequence[tuple[Any, str, str]]) -> None:
        super().install(engine, sink, steps)
        self._wrap(MicroBatchOperator, "execute", EXECUTE)

    def reach(self, point: str) -> None:
        """The first process to get there takes the file, so a point is reached once."""
        armed, held = self._root / "armed", self._root / f"held-{os.getpid()}"
        try:
            if armed.read_text() != point:
                return
            armed.rename(held)
        except FileNotFoundError:
            return
        deadline = time.monotonic() + SECONDS
        while held.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def arm(root: Path, point: str) -> None:
    """Have the next task that gets to ``point`` wait there."""
    hidden = root / ".armed"
    hidden.write_text(point)
    hidden.rename(root / "armed")


def disarm(root: Path) -> None:
    """Hold nobody, and let go who is held."""
    (root / "armed").unlink(missing_ok=True)
    for held in root.glob("held-*"):
        held.unlink(missing_ok=True)


def held_pid(root: Path) -> int | None:
    """Process id of the task that is held."""
    for held in root.glob("held-*"):
        with contextlib.suppress(ValueError):
            return int(held.name.partition("-")[2])
    return None
