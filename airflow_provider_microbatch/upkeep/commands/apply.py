"""Applies a plan: only while no attempt is alive, and in such a way that the next command can finish it after a kill at
any moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from shlex import quote
from time import monotonic

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.maintenance import APPLIED, HOLD_SECONDS, Maintenance
from airflow_provider_microbatch.exceptions import CorruptEntryError, MaintenanceError, MicroBatchError
from airflow_provider_microbatch.execution.liveness import EngineOf
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.alive import alive
from airflow_provider_microbatch.upkeep.commands.convert_state import ConvertState
from airflow_provider_microbatch.upkeep.commands.copying import Copy
from airflow_provider_microbatch.upkeep.commands.draft import Draft
from airflow_provider_microbatch.upkeep.commands.moving import MovingStep
from airflow_provider_microbatch.upkeep.commands.not_in import NotIn
from airflow_provider_microbatch.upkeep.commands.plan import Plan
from airflow_provider_microbatch.upkeep.commands.rename_source import say_begun
from airflow_provider_microbatch.upkeep.commands.steps import (
    AskingStep,
    End,
    Fence,
    Keep,
    Move,
    PutAway,
    Step,
    Write,
    step_to_dict,
)
from airflow_provider_microbatch.upkeep.commands.stored_steps import check_typed, read_steps

log = logging.getLogger(__name__)


class Applier:
    """Changes one checkpoint. From the first step to the last no run plans a batch, and no other command begins.

    :param store: the checkpoint's store.
    :param engine_of: asked whether an attempt whose lease has run out still runs.
    :param clock_ms: the time, milliseconds since the epoch.
    :param told: locations that the user has named besides the checkpoint's own: the other side of a copy.
    :param typed: the command as the user has typed it, without the location.
    :param despite_audits: go on while a stage waits for its audits. No process works on such a stage: a later commit
        finds its attempt fenced, or publishes the stage, as if the lease had run out.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine_of: EngineOf,
        clock_ms: Callable[[], int],
        told: Collection[str] = (),
        typed: str = "",
        despite_audits: bool = False,
    ) -> None:
        self._store = store
        self._checkpoint = Checkpoint(store)
        self._engine_of = engine_of
        self._clock_ms = clock_ms
        self._told = told
        self._typed = typed
        self._despite_audits = despite_audits
        self.given_up: Maintenance | None = None
        """The command that :meth:`finish` found killed before its first step: none of its steps was done, and none will
        be."""

    def unfinished(self) -> Maintenance | None:
        """The command that was killed before its end, or None. Reads only."""
        return self._checkpoint.maintenance.unfinished()

    def finish(self) -> Maintenance | None:
        """Finish a killed command; None if there is none. A command that was killed before it had checked that no
        attempt was alive is not finished, but given up: see :attr:`given_up`.

        :raises MaintenanceError: if that command is not dead, an attempt is alive, or the record holds steps that no
            command plans here.
        """
        left = self.unfinished()
        if left is None:
            return None
        seconds = self._checkpoint.maintenance.held_seconds(left.number)
        if seconds > 0:
            raise MaintenanceError(
                f"`microbatch {left.command}` (by {left.by}) is at {self._store.location}. Wait until it has ended; if "
                f"it was killed, run this again in {seconds:.0f} s, and it is finished first."
            )
        if not self._checkpoint.maintenance.allow(left, steps=False):
            # The command was killed before it had checked that no attempt was alive: the checkpoint has changed since
            # its plan.
            self._checkpoint.maintenance.end(left, outcome="not applied: killed", ended_ms=self._clock_ms())
            self.given_up = left
            return None
        self._check_nobody_alive()
        steps = self.steps_of(left)
        check_typed(left, steps, typed=self._typed)
        self._do(left, steps)
        return left

    def finishable(self) -> Maintenance | None:
        """The killed command that :meth:`finish` would finish, as far as a trial of its steps on a draft can tell. None
        if there is no killed command, or it might not reach its end. Reads only."""
        maintenance, draft = self._checkpoint.maintenance, Draft(self._store)
        try:
            left = maintenance.unfinished()
            if left is None or maintenance.held_seconds(left.number) > 0 or not maintenance.allow(left, steps=None):
                return None
            steps = self.steps_of(left)
            check_typed(left, steps, typed=self._typed)
            for step in steps:
                if isinstance(step, (PutAway, Write, End, Fence, Keep, Move)):
                    step.apply(draft)
        except MicroBatchError:
            return None
        return left

    def give_up(self, *, by: str) -> str | None:
        """Give up a killed command at a person's request: none of its steps is done any more, and runs begin again.

        :param by: user and host.
        :return: the command that was given up; None if there was none.
        :raises MaintenanceError: if the command is alive.
        """
        maintenance = self._checkpoint.maintenance
        try:
            left = maintenance.unfinished()
        except CorruptEntryError:
            left = None
        if left is not None and maintenance.held_seconds(left.number) == 0:
            # Before the command's end is recorded: after that, nothing would tell what the files under the other name
            # are.
            say_begun(self._store, left)
        number = maintenance.give_up(by=by, ended_ms=self._clock_ms())
        if number is None:
            return None
        told = f"`microbatch {left.command}` (by {left.by})" if left is not None and left.number == number else None
        return told or f"the command of {maintenance.where(number)}"

    def steps_of(self, left: Maintenance) -> tuple[Step, ...]:
        """The steps of a killed command. :raises MaintenanceError: if its record must not be executed."""
        return read_steps(left, self._store, told=self._told)

    def apply(self, make: Callable[[], Plan], *, by: str, shown: Plan) -> None:
        """Do the steps that were shown.

        :param make: makes the plan again, once nothing else can change the checkpoint any more.
        :param by: user and host.
        :param shown: the plan that the user has seen.
        :raises MaintenanceError: if an attempt is alive, another command changes the checkpoint, or the plan would be
            different by now; nothing was changed then.
        """
        self._check_nobody_alive()
        steps = [step_to_dict(step) for step in shown.steps]
        begun = self._checkpoint.maintenance.begin(
            command=shown.command, by=by, started_ms=self._clock_ms(), steps=steps
        )  # fmt: skip
        try:
            # A run that had looked before the marker existed may have begun at that moment. From here on no run begins.
            self._check_nobody_alive()
            if not make().does_as(shown):
                raise MaintenanceError(
                    f"{self._store.location} was changed since the plan was made; nothing was done. Run it again."
                )
        except MicroBatchError as error:
            self._checkpoint.maintenance.end(begun, outcome=f"not applied: {error}", ended_ms=self._clock_ms())
            raise
        if not self._checkpoint.maintenance.allow(begun, steps=True):
            raise MaintenanceError(
                f"`microbatch {begun.command}` was taken for dead, or the checkpoint was restored meanwhile; nothing "
                "was done. Run it again."
            )
        self._do(begun, shown.steps)

    def _do(self, begun: Maintenance, steps: Sequence[Step]) -> None:
        maintenance = self._checkpoint.maintenance
        # Moving many files takes long enough for a backup in the middle. If that backup is restored before the next
        # sign of life, which does not reveal it, some files are back at their old place: hence each move runs again,
        # after that sign.
        twice = (again for step in steps for again in ((step, step) if isinstance(step, Move) else (step,)))
        for done, step in enumerate(twice):
            self._check_held(begun)
            try:
                # While this process slept, another may have taken the command for dead and finished it, or the
                # checkpoint may have been restored from an earlier backup. Files that were written since are not this
                # command's.
                over = maintenance.is_over(begun)
                held = over or maintenance.hold(begun.number)
                if held and not over:
                    log.info("%s: %s (%s)", step.kind, step.what, step.why)
                    if isinstance(step, AskingStep):
                        step.apply(self._store, is_over=self._asked_by(step, begun))
                    else:
                        step.apply(self._store)
                    # This process may have slept within the step.
                    since_ms = maintenance.over_since_ms(begun)
                    over = since_ms is not None
                    if since_ms is not None and isinstance(step, Write):
                        step.take_back_if_late(
                            self._store,
                            since_ms=since_ms,
                            was_applied=maintenance.was_applied(begun),
                            command=begun.command,
                            by=begun.by,
                        )
            except MicroBatchError as error:
                if self._is_over(begun):
                    raise MaintenanceError(f"{self._finished_by_another(begun)} {error}") from error
                if not done and isinstance(error, MaintenanceError) and isinstance(step, Write):
                    # A run that had looked before the marker existed has planned at that moment. The file belongs to
                    # the run.
                    maintenance.end(begun, outcome=f"not applied: {error}", ended_ms=self._clock_ms())
                    raise MaintenanceError(f"{error} Nothing was done. Run it again.") from error
                if isinstance(error, MaintenanceError) and isinstance(step, NotIn):
                    # What was done before it ends attempts that are over: all others may go on from here.
                    maintenance.end(begun, outcome=f"not applied: {error}", ended_ms=self._clock_ms())
                    raise
                raise MaintenanceError(
                    f"`microbatch {begun.command}` stopped half way: {error} No run begins before it is finished: "
                    f"{self._way_on(begun, steps)}"
                ) from error
            if over:
                raise self._finished_by_another(begun)
            self._check_held(begun)
            # A backup that was taken within the step lacks the signs of life after the step.
            if not held or not maintenance.hold(begun.number):
                raise self._not_held(begun)
        self._check_held(begun)
        if not maintenance.end(begun, outcome=APPLIED, ended_ms=self._clock_ms()):
            raise self._not_held(begun)

    def _way_on(self, begun: Maintenance, steps: Sequence[Step]) -> str:
        """What finishes a command that has stopped half way, and what gives it up."""
        where = self._store.location
        # The record alone is not believed where the other side is.
        again = any(isinstance(step, (Copy, MovingStep)) for step in steps)
        way = f"mend it and {'type it again' if again else 'run any of these commands again'}."
        moved = None
        with suppress(MicroBatchError):
            moved = self._checkpoint.maintenance.places.moved()
        if moved is not None:
            return f"{way} The checkpoint has left {where}, so it can no longer be given up."
        return f"{way} To give the rest of its steps up: `microbatch repair {quote(where)} --give-up`."

    def _asked_by(self, step: Step, begun: Maintenance) -> Callable[[], bool]:
        """The question of a step whether its command is over. A copy, or a conversion of state, takes as long as its
        checkpoint is large: while it asks, it gives signs of life, or others would take the command for dead and do
        the same."""
        maintenance, signed = self._checkpoint.maintenance, monotonic()

        def is_over() -> bool:
            nonlocal signed
            if maintenance.is_over(begun):
                return True
            if isinstance(step, (Copy, ConvertState, MovingStep)) and monotonic() - signed >= HOLD_SECONDS / 3:
                if not maintenance.hold(begun.number):
                    return True  # and again, however often the step asks: another process is at it
                signed = monotonic()
            return False

        return is_over

    def _check_held(self, begun: Maintenance) -> None:
        """Check that no backup from before some of the steps was restored: the command would do only its remaining
        steps, or be recorded as applied, and stay half done for good."""
        if not self._checkpoint.maintenance.is_held(begun):
            raise self._not_held(begun)

    def _not_held(self, begun: Maintenance) -> MaintenanceError:
        if self._is_over(begun):
            return self._finished_by_another(begun)
        return MaintenanceError(
            f"`microbatch {begun.command}` stopped half way: another process goes on with it, or the checkpoint was "
            "restored from a backup that was taken in the middle of it. "
            f"`microbatch repair {quote(self._store.location)}` finishes it."
        )

    def _is_over(self, begun: Maintenance) -> bool:
        """Whether the command is known to be over; False also if the checkpoint is out of reach."""
        with suppress(MicroBatchError):
            return self._checkpoint.maintenance.is_over(begun)
        return False

    def _finished_by_another(self, begun: Maintenance) -> MaintenanceError:
        return MaintenanceError(
            f"`microbatch {begun.command}` was taken for dead, and finished by another, or given up; or the checkpoint "
            f"was restored meanwhile. `microbatch check {quote(self._store.location)}` tells how it is now."
        )

    def _check_nobody_alive(self) -> None:
        found = alive(self._checkpoint, self._engine_of, parked=not self._despite_audits)
        if found:
            way = (
                "Pause the DAG, wait until that has ended (or stop it and wait for its lease to run out), then run "
                "this again."
            )
            if not alive(self._checkpoint, self._engine_of, parked=False):
                way = "Or pause the DAG, and run this again with --despite-audits."
            raise MaintenanceError(f"{self._store.location} is in use: {'; '.join(found)}. {way} Nothing was done.")
