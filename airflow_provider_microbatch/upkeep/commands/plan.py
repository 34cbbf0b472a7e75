"""A plan: the changes that a command will make to a checkpoint, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.copying import Copy
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.moving import MovingStep
from airflow_provider_microbatch.upkeep.commands.state_away import PutStateAway
from airflow_provider_microbatch.upkeep.commands.steps import (
    End,
    Fence,
    Keep,
    Move,
    OfState,
    OfTable,
    PutAway,
    PutAwayLate,
    Step,
    Sweep,
    Write,
    digest,
    step_to_dict,
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fault that the plan leaves as it is.

    :param where: the file or folder.
    :param what: what is wrong and what is at stake.
    :param remedy: what to do, with the command where there is one.
    """

    where: str
    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Steps in the order in which they are done.

    :param command: the command as it was typed, without the location.
    :param steps: empty if there is nothing to do.
    :param problems: faults that stay.
    :param notes: what a person should know before agreeing.
    """

    command: str
    steps: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def does_as(self, other: Plan) -> bool:
        """Whether both plans do the same steps and leave the same problems. Texts of problems are not compared: they
        may name a folder to be made, which is a new one each time."""
        left, also_left = ([problem.where for problem in plan.problems] for plan in (self, other))
        return left == also_left and replace(self, problems=()) == replace(other, problems=())

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "command": self.command,
            "steps": [step_to_dict(step) for step in self.steps],
            "problems": [vars(problem) for problem in self.problems],
            "notes": list(self.notes),
        }


class Drafting:
    """Makes a plan by applying each step to a draft, so that the next step is planned on top of it, and the outcome can
    be checked before anything is written.

    :param store: the checkpoint.
    :param sources: names in the order of the pipeline, for a v1 log that Spark wrote.
    :param command: the command as it was typed, without the location.
    :param at_ms: the time, milliseconds since the epoch; names the folder of files that are moved away.
    :param by: user and host.
    """

    def __init__(self, store: Store, *, command: str, at_ms: int, by: str, sources: tuple[str, ...] = ()) -> None:
        self.command = command
        self.at_ms = at_ms
        self.by = by
        self._store = store
        self._draft = Draft(store)
        self.sources = sources
        self._steps: list[Step] = []
        self._problems: list[Problem] = []
        self._notes: list[str] = []
        stamp = datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y%m%dT%H%M%S")
        self._away = f"repaired/{stamp}.{at_ms % 1000:03d}"

    @property
    def store(self) -> Draft:
        """The draft with all steps so far."""
        return self._draft

    @property
    def checkpoint(self) -> Checkpoint:
        """The drafted checkpoint with all steps so far; a new object each time, since a checkpoint caches what it has
        read."""
        return Checkpoint(self._draft, sources=self.sources)

    @property
    def trail(self) -> Mapping[str, Any]:
        """The origin that an entry made by hand records."""
        return {"command": self.command, "by": self.by, "at_ms": self.at_ms}

    def put_away(self, path: str, why: str) -> None:
        """Plan to move a file away, if it exists."""
        data = self._draft.get(path)
        if data is not None:
            self._do(PutAway(path=path, target=f"{self._away}/{path}", sha256=digest(data), why=why))

    def put_away_late(self, path: str, why: str) -> None:
        """Plan to move away a file that does not exist yet, and may appear while the steps are done."""
        self._steps.append(PutAwayLate(path=path, target=f"{self._away}/{path}.late", why=why))

    def write(self, path: str, data: bytes, why: str, *, after: str | None = None) -> None:
        """Plan to write a file that does not exist; see :class:`Write`."""
        self._do(Write(path=path, text=data.decode(), why=why, after=after))

    def through(self, action: Callable[[], object], why: str) -> None:
        """Plan the changes that ``action`` makes to the draft; code outside the commands defines ``action``."""
        before = self._draft.changes()
        action()
        changed = {path: data for path, data in self._draft.changes().items() if before.get(path, b"") != data}
        for path, data in changed.items():
            if data is not None:
                self._steps.append(Write(path=path, text=data.decode(), why=why))
        for path, data in changed.items():
            was = before[path] if path in before else self._store.get(path)
            if data is None and was is not None:
                self._steps.append(PutAway(path=path, target=f"{self._away}/{path}", sha256=digest(was), why=why))

    def keep(self, step: Keep) -> None:
        """Plan that a source keeps a range, if the source would otherwise give up any of it."""
        before = self._draft.changes()
        step.apply(self._draft)
        if self._draft.changes() != before:
            self._steps.append(step)

    def put_state_away(self, why: str) -> None:
        """Plan to move the folder of state away."""
        self.elsewhere(PutStateAway(target=f"{self._away}/{STATE}", why=why))

    def sweep(self) -> None:
        """Plan to move away useless files of the store."""
        for litter in self._store.litter():
            folder, _, name = litter.path.rpartition("/")
            target = f"{self._away}/{folder}{'/' if folder else ''}{name.removeprefix('.')}"
            self._steps.append(Sweep(path=litter.path, target=target, why=litter.why))

    def step(self, step: Move | End | Fence) -> None:
        """Plan a step that is constructed already."""
        self._do(step)

    def elsewhere(self, step: OfTable | Copy | OfState | MovingStep) -> None:
        """Plan a step that changes something outside this checkpoint, or Spark's files, and so cannot be drafted."""
        self._steps.append(step)

    def problem(self, where: str, what: str, remedy: str) -> None:
        """Record a problem that the plan leaves."""
        self._problems.append(Problem(where=where, what=what, remedy=remedy))

    def note(self, text: str) -> None:
        """Add a note for the person who decides."""
        self._notes.append(text)

    def plan(self) -> Plan:
        """The plan with all steps so far."""
        return Plan(
            command=self.command,
            steps=tuple(self._steps),
            problems=tuple(self._problems),
            notes=tuple(self._notes),
        )

    def _do(self, step: PutAway | Write | End | Fence | Move) -> None:
        step.apply(self._draft)
        self._steps.append(step)
