"""The report of a run of the janitor."""

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
    """One action, or one thing that was left alone.

    :param kind: ``stage dropped``, ``Spark stopped``, ``attempt ended``, ``clear answered``, ``replaced output
        removed``, ``finished splits removed``, ``retention applied``; left alone: ``alive``, ``waits for its commit``,
        ``waits for its hook``, ``stage kept``, ``unknown stage left alone``, ``table left alone``,
        ``attempt left alone``; ``failed``; ``refused``: something in the checkpoint that must not be acted on, and what
        to do about it.
    :param what: the attempt or file.
    :param why: the reason, for people.
    """

    kind: str
    what: str
    why: str


@dataclass(kw_only=True)
class JanitorReport:
    """All actions of a run, in their order.

    :param location: the checkpoint.
    :param pipeline: its pipeline.
    :param dry_run: whether actions were only found, and not done.
    """

    location: str
    pipeline: str
    dry_run: bool
    actions: list[Action] = field(default_factory=list)

    def add(self, kind: str, what: str, why: str) -> None:
        """Record and log one action. Secrets are hidden: the report is kept in XCom."""
        what, why = mask(what), mask(why)
        self.actions.append(Action(kind=kind, what=what, why=why))
        level = logging.WARNING if kind in _PROBLEMS else logging.INFO
        log.log(level, "%s%s: %s (%s)", "would be " if self.dry_run else "", kind, what, why)

    def of(self, kind: str) -> list[str]:
        """The attempts or files that one kind of action was applied to."""
        return [action.what for action in self.actions if action.kind == kind]

    @property
    def problems(self) -> list[str]:
        """The work that was left undone, with the reasons."""
        return [f"{action.what}: {action.why}" for action in self.actions if action.kind in _PROBLEMS]

    @property
    def failed(self) -> bool:
        """Whether something could not be cleaned up, which the next run tries again, or was refused, which a person
        must look at."""
        return bool(self.problems)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for XCom and ``--json``."""
        return dataclasses.asdict(self)
