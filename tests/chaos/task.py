"""One try of one task run, or one run of the janitor, in a process of its own.

The process is forked from the driver, which has imported everything: a fresh Python for each would cost ten times as
much as what it is to do. Nothing else is shared; the points are installed after the fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.settings import Settings, hand_down
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.janitor import Janitor
from tests.chaos.engine import ProcessEngine
from tests.chaos.points import Points
from tests.chaos.setting import Setting, identity
from tests.support.hooks import Diary


def run(order: dict[str, Any]) -> dict[str, Any]:
    """:param order: ``root``, ``number``, ``attempt``, ``clear``, ``version``, ``point``, ``action`` and ``engine``;
        of a janitor ``root`` and ``point`` alone.
    :return: ``{"outcome": "committed" | "nothing" | "error", …}``.
    """
    root = Path(order["root"])
    if "number" not in order:
        return clean(root, order["point"])
    setting = Setting.load(root)
    points = Points(order["point"], action=order["action"], root=root)
    points.install(ProcessEngine, setting.sink_class, setting.publish_steps)
    engine = ProcessEngine(root, version=order["version"], fault=order["engine"])
    try:
        summary = setting.execution().run(
            run=identity(number=order["number"], attempt=order["attempt"], clear=order["clear"]),
            engine=engine,
            code=Code(transform="jobs/orders.py:transform", code_hash=str(order["version"])),
            transform=None,
        )
    except MicroBatchError as error:
        return {"outcome": "error", "type": type(error).__name__, "message": str(error)}
    if summary is None:
        return {"outcome": "nothing"}
    return {"outcome": "committed", "batch": summary.key.id, "state": summary.state}


def clean(root: Path, point: str | None) -> dict[str, Any]:
    """One run of the janitor, which has nothing but the checkpoint and an engine to ask.

    :return: ``{"outcome": "cleaned", "failed": …, "dropped": …}``.
    """
    setting = Setting.load(root)
    points = Points(point, action="kill", root=root, who="janitor")
    points.install(ProcessEngine, setting.sink_class, setting.publish_steps)
    hand_down(lambda: Settings(trusted_modules=(Diary.__module__, "tests.support.halves")))
    engine = ProcessEngine(root, version=0, fault={})
    janitor = Janitor(
        checkpoint=Checkpoint(open_store(setting.pipeline().checkpoint)),
        engine_of=lambda name: engine if name == engine.name else None,
        grace_seconds=0.0,
    )
    report = janitor.run()
    return {"outcome": "cleaned", "failed": report.problems, "dropped": len(report.of("stage dropped"))}


class Task:
    """A task process, seen from the driver.

    :param order: what it has to do.
    :param report: file for how it ended.
    :param live: does it, and tells how it ended.
    """

    def __init__(
        self, order: dict[str, Any], *, report: Path, live: Callable[[dict[str, Any]], dict[str, Any]] = run
    ) -> None:
        self.order = order
        self._report = report
        self._status: int | None = None
        self.asleep = False
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(order, report, live)

    @property
    def ended(self) -> bool:
        """Looks, without waiting."""
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self.asleep = os.WIFSTOPPED(status)
            else:
                self._status = status
        return self._status is not None

    @property
    def killed(self) -> bool:
        """Whether it ended by a SIGKILL."""
        return self.ended and self._status is not None and os.waitstatus_to_exitcode(self._status) == -signal.SIGKILL

    def wait(self, seconds: float) -> bool:
        """False if it has not ended by then."""
        deadline = time.monotonic() + seconds
        while not self.ended:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.003)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if not self.ended:
            os.kill(self.pid, number)

    def result(self) -> dict[str, Any] | None:
        """What it told; None if it was killed before."""
        if not self._report.exists():
            return None
        told: dict[str, Any] = json.loads(self._report.read_text())
        return told


def _live(order: dict[str, Any], report: Path, live: Callable[[dict[str, Any]], dict[str, Any]]) -> NoReturn:
    """The child's whole life: it must never return into the driver's code."""
    try:
        told = live(order)
    except BaseException:
        told = {"outcome": "broken", "message": traceback.format_exc()}
    try:
        hidden = report.with_suffix(".part")
        hidden.write_text(json.dumps(told))
        hidden.rename(report)
    finally:
        os._exit(0)
