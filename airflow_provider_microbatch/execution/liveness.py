"""Alive or dead: what an attempt's lease and its engine say, and the thread that renews the lease."""

from __future__ import annotations

import enum
import logging
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import HandleError, MicroBatchError
from airflow_provider_microbatch.execution.engine import Engine, EngineState

log = logging.getLogger(__name__)

EngineOf = Callable[[str], Engine | None]
"""The engine of that name, to poll and cancel with; None if this process has none of that name."""


class Held(enum.StrEnum):
    """How an attempt is held."""

    RUNNING = "running"
    """The attempt's process renews its lease."""
    STAGED = "staged"
    """The attempt's stage is whole and waits for its audits, or for the commit step."""


ORPHAN_SECONDS = 3600.0
"""Seconds that a driver may run on after its holder's last sign of life. The holder may come back: from a suspended
host, or a store that was away. No other process would publish the driver's output, and one that hangs never ends."""


def no_engine(_: str) -> Engine | None:
    """The engine where none can be asked: the lease alone tells which attempt is alive."""
    return None


def held_as(checkpoint: Checkpoint, key: BatchKey, epoch: int) -> Held | None:
    """How an attempt without an end on record is held, by its lease alone: no engine is asked. None if no process has
    shown that it holds the attempt."""
    if checkpoint.leases.remaining_seconds(key, epoch) > 0:
        return Held.RUNNING
    return Held.STAGED if checkpoint.leases.remaining_seconds(key, epoch, parked=True) > 0 else None


def sign_of_life(
    checkpoint: Checkpoint,
    attempt: Attempt,
    engine_of: EngineOf = no_engine,
    *,
    parked: bool = False,
    orphan_seconds: float = ORPHAN_SECONDS,
) -> str | None:
    """Why the attempt counts as alive; None if it is dead. Writes nothing.

    :param engine_of: asked for the engine in the attempt's handle.
    :param parked: count an attempt whose stage waits for audits too.
    :param orphan_seconds: an attempt that runs on without a lease counts as alive for so long after its last sign of
        life. A run that takes the batch up after that has fenced the attempt, and stops it.
    :raises EngineError: if the engine cannot be asked: the attempt may be alive then, and must not be taken for dead.
    """
    key, epoch = attempt.key, attempt.epoch
    if checkpoint.attempts.ended(key, epoch) is not None:
        return None
    seconds = checkpoint.leases.remaining_seconds(key, epoch, parked=parked)
    if parked and seconds > 0 and checkpoint.leases.remaining_seconds(key, epoch) == 0:
        run = f"run {attempt.run.run_id!r}" if attempt.run else "its run"
        return (
            f"its stage waits for its audits, for another {seconds:.0f} s. Clear the submit task of {run} to have it "
            "made again, or have its commit task publish it"
        )
    if seconds > 0:
        return f"its lease runs for another {seconds:.0f} s unless it is renewed"
    name = str(attempt.handle.get("engine"))
    engine = engine_of(name)
    try:
        runs = engine is not None and engine.poll(attempt.handle) is EngineState.RUNNING
    except HandleError as error:
        # No engine wrote the handle, so nothing runs by it; the lease alone tells.
        log.warning("Batch %s attempt %s: %s", key, epoch, error)
        return None
    if not runs:
        return None
    idle = min(checkpoint.leases.age_seconds(key, epoch), checkpoint.attempts.epochs.age_seconds(key))
    if idle >= orphan_seconds:
        log.warning(
            "Batch %s attempt %s is an orphan: %s says that it runs, and nobody has renewed its lease for %.0f "
            "minutes. It counts as dead, and is stopped by whoever takes the batch up",
            key,
            epoch,
            name,
            idle / 60,
        )
        return None
    left = "" if math.isinf(orphan_seconds) else f", and counts as dead in {(orphan_seconds - idle) / 60:.0f} min"
    return f"{name} says that it runs; nobody has renewed its lease for {idle / 60:.0f} min{left}"


class Holder:
    """Renews an attempt's lease from a thread of its own while the ``with`` block runs.

    If the process is killed, the block leaves only a lease behind that runs out.

    :param checkpoint: where the lease lies.
    :param attempt: the attempt.
    :param engine: told to stop Spark when a later attempt has fenced this one: its rows would never be published.
    :param seconds: the lease's time to live; it is renewed at a third of it.
    """

    def __init__(self, *, checkpoint: Checkpoint, attempt: Attempt, engine: Engine, seconds: float) -> None:
        self._checkpoint = checkpoint
        self._attempt = attempt
        self._engine = engine
        self._seconds = seconds
        self._released = threading.Event()
        name = f"lease {attempt.key} attempt {attempt.epoch}"
        self._thread = threading.Thread(target=self._renew_until_released, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._released.set()
        self._thread.join()

    def _renew_until_released(self) -> None:
        key, epoch = self._attempt.key, self._attempt.epoch
        attempts, leases = self._checkpoint.attempts, self._checkpoint.leases
        while not self._released.wait(self._seconds / 3):
            try:
                newest = attempts.latest_epoch(key)
                if newest > epoch:
                    log.warning("Batch %s attempt %s is fenced by attempt %s: stopping it", key, epoch, newest)
                    self._engine.cancel(self._attempt.handle)
                    return
                leases.renew(key, epoch, seconds=self._seconds)
            except (MicroBatchError, OSError) as failed:
                # Dying of the error would make a healthy attempt look dead; the next renewal may succeed.
                log.warning("the lease of batch %s attempt %s could not be renewed: %s", key, epoch, failed)
