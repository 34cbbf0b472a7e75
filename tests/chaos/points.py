"""The named points of the protocol at which a task process may die or fall asleep.

They are wrapped around the package's own methods by the tests' processes alone; the package knows nothing of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.deliveries import Deliveries
from airflow_provider_microbatch.checkpoint.leases import Leases
from airflow_provider_microbatch.checkpoint.log import MetadataLog
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.checkpoint.subtasks import Subtasks
from airflow_provider_microbatch.execution.opened_sources import OpenedSources
from airflow_provider_microbatch.sinks.file.subtasks import FileSubtasks
from airflow_provider_microbatch.sources.file.log import SourceLog
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.chaos.signals import kill

PLAN = ("claim", "source log", "offset log")
ATTEMPT = ("attempt", "launch", "engine's end")
PUBLISH = ("publish", "rename")
COMMIT = ("commit log", "attempt's end", "tell the sources", "source.commit")
REPLAY = ("replay request", "replace", "exchange", "replay's answer")
CLEANUP = ("drop stage", "hook's record", "forget the lease")
SUBTASKS = ("subtask's record", "keep subtasks", "close subtasks", "take over subtasks", "assemble subtasks",
            "drop subtasks")  # fmt: skip


def both(steps: tuple[str, ...]) -> list[str]:
    """Just before and just after each step."""
    return [f"{when} {step}" for step in steps for when in ("before", "after")]


FIRST_RUN = both(PLAN + ATTEMPT + PUBLISH + COMMIT + CLEANUP)
REPLAY_RUN = both((*REPLAY, *ATTEMPT, "attempt's end", "tell the sources", *CLEANUP))
JANITOR = both(("attempt", "cancel", "attempt's end", *CLEANUP))
SPLIT_WISE_RUN = both(SUBTASKS)
"""Besides, of a pipeline that is run split by split."""
SLEEPS = both((*ATTEMPT, "commit log", "attempt's end", "replay request"))
"""Where a task may fall asleep to wake up as a zombie: past the plan, and not with a lock in its hands."""


class Points:
    """:param armed: the point to act at, None for none.
    :param action: ``kill`` or ``stop``.
    :param root: where kills are recorded.
    :param who: the process, for the record.
    """

    def __init__(self, armed: str | None, *, action: str, root: Path, who: str = "task") -> None:
        self._armed = armed
        self._action = action
        self._root = root
        self._who = who

    def install(self, engine: type, sink: type, steps: Sequence[tuple[Any, str, str]]) -> None:
        """Wrap every step, and those of the engine's and the opened sink's class. For the life of this process.

        :param steps: of the sink's publish: owner and name of a function, and the step's.
        """
        self._wrap(Checkpoint, "claim", "claim")
        self._wrap(SourceLog, "add", "source log")
        self._wrap(MetadataLog, "add", _log_name)
        # A run takes its epoch by it, the janitor the one that fences.
        self._wrap(Attempts, "take_exactly", "attempt")
        self._wrap(Attempts, "end", "attempt's end")
        self._wrap(Deliveries, "record", "hook's record")
        self._wrap(Leases, "forget", "forget the lease")
        self._wrap(engine, "start", "launch")
        self._wrap(engine, "result", "engine's end")
        self._wrap(engine, "cancel", "cancel")
        self._wrap(sink, "publish", "publish")
        self._wrap(sink, "replace", "replace")
        self._wrap(sink, "drop_stage", "drop stage")
        for owner, name, step in steps:
            self._wrap(owner, name, step)
        self._wrap(Subtasks, "add", "subtask's record")
        self._wrap(Subtasks, "close", "close subtasks")
        self._wrap(FileSubtasks, "keep", "keep subtasks")
        self._wrap(FileSubtasks, "adopt", "take over subtasks")
        self._wrap(FileSubtasks, "assemble", "assemble subtasks")
        self._wrap(FileSubtasks, "drop", "drop subtasks")
        self._wrap(Replays, "request", "replay request")
        self._wrap(Replays, "complete", "replay's answer")
        self._wrap(OpenedSources, "commit", "tell the sources")
        self._wrap(OpenFileSource, "commit", "source.commit")

    def _wrap(self, owner: Any, name: str, step: str | Callable[[Any], str]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            told = step if isinstance(step, str) else step(args[0])
            self.reach(f"before {told}")
            value = real(*args, **kwargs)
            self.reach(f"after {told}")
            return value

        setattr(owner, name, wrapped)

    def reach(self, point: str) -> None:
        """Called at every point."""
        if point != self._armed:
            return
        self._armed = None
        if self._action == "kill":
            kill(self._root, f"{self._who} {point}", os.getpid())
        else:
            os.kill(os.getpid(), signal.SIGSTOP)


def _log_name(log: MetadataLog[Any]) -> str:
    return "commit log" if log.location.endswith("commits") else "offset log"
