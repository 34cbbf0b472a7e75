"""What a run of the janitor did."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing that was done, or was left alone.

    :param kind: ``stage dropped``, ``Spark stopped``, ``attempt ended``, ``replaced output removed``, ``retention
        applied``; left alone: ``alive``, ``waits for its commit``, ``unknown stage left alone``; ``failed``.
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
        """Note and log one action."""
        self.actions.append(Action(kind=kind, what=what, why=why))
        level = logging.WARNING if kind == "failed" else logging.INFO
        log.log(level, "%s%s: %s (%s)", "would be " if self.dry_run else "", kind, what, why)

    def of(self, kind: str) -> list[str]:
        """What one kind of action was done to."""
        return [action.what for action in self.actions if action.kind == kind]

    @property
    def failed(self) -> bool:
        """Something could not be cleaned up; the next run tries again."""
        return bool(self.of("failed"))

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for XCom and ``--json``."""
        return dataclasses.asdict(self)
