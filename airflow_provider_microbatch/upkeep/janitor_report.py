"""What a run of the janitor did."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.runtime.masking import mask

log = logging.getLogger(__name__)

_PROBLEMS = ("failed", "refused")


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing that was done, or was left alone.

    :param kind: ``stage dropped``, ``Spark stopped``, ``attempt ended``, ``clear answered``, ``replaced output
        removed``, ``finished splits removed``, ``retention applied``; left alone: ``alive``, ``waits for its commit``,
        ``waits for its hook``, ``unknown stage left alone``; ``failed``; ``refused``: something in the checkpoint that
        must not be acted on, and what to do about it.
    :param what: the attempt or file.
    :param why: the reason, for people.
    """

    kind: str
    what: str
    why: str


@dataclass(kw_only=True)
class JanitorReport:
    """All of it, in the order it was done.

    :param location: the checkpoint.
    :param pipeline: its pipeline.
    :param dry_run: nothing was done, only found.
    """

    location: str
    pipeline: str
    dry_run: bool
    actions: list[Action] = field(default_factory=list)

    def add(self, kind: str, what: str, why: str) -> None:
        """Note and log one action. Secrets are hidden: the report is kept in XCom."""
        what, why = mask(what), mask(why)
        self.actions.append(Action(kind=kind, what=what, why=why))
        level = logging.WARNING if kind in _PROBLEMS else logging.INFO
        log.log(level, "%s%s: %s (%s)", "would be " if self.dry_run else "", kind, what, why)

    def of(self, kind: str) -> list[str]:
        """What one kind of action was done to."""
        return [action.what for action in self.actions if action.kind == kind]

    @property
    def problems(self) -> list[str]:
        """What was left undone, and why."""
        return [f"{action.what}: {action.why}" for action in self.actions if action.kind in _PROBLEMS]

    @property
    def failed(self) -> bool:
        """Something could not be cleaned up, and the next run tries again; or it was refused, and people must look."""
        return bool(self.problems)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for XCom and ``--json``."""
        return dataclasses.asdict(self)
