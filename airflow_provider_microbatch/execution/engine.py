"""The seam between the state machine and an engine: spark-submit, a Spark Connect server, a test's double."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.runtime.job import Job

Handle = Mapping[str, Any]
"""The data by which any process finds a started step again: plain JSON with ``engine``, ``host``, ``tag`` and more.
Chosen before the launch and recorded in the attempt, so that a crash leaves no step that cannot be canceled."""


class EngineState(StrEnum):
    """The state of a handle's step, as the engine reports it."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Not found here: never started, long gone, or on another host."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code that an attempt runs beside this package.

    :param transform: as the user wrote it, for messages.
    :param files: absolute paths of Python files and zips that must travel (the transform's module and its helpers).
    :param code_hash: SHA-256 over the contents of ``files``.
    :param bundle_name: Airflow's DAG bundle.
    :param bundle_version: the bundle's version; None if the bundle has none.
    :param secrets: by name, secrets that readers need and that must be in no job, argument list or log. An engine hands
        them to the attempt's process alone: :mod:`airflow_provider_microbatch.runtime.secrets`.
    """

    transform: str | None = None
    files: tuple[str, ...] = ()
    code_hash: str | None = None
    bundle_name: str | None = None
    bundle_version: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def on_record(self) -> dict[str, str | None]:
        """The values about this code that an attempt's entry records."""
        return {
            "transform": self.transform,
            "code_hash": self.code_hash,
            "bundle_name": self.bundle_name,
            "bundle_version": self.bundle_version,
        }


class Engine(Protocol):
    """Runs the job of an attempt. Methods other than ``start`` and ``result`` work from any process."""

    @property
    def name(self) -> str:
        """Name of the engine, as in a handle's ``engine``."""

    def handle(self, *, pipeline: str, key: BatchKey, epoch: int) -> Handle:
        """Choose the handle of an attempt. Starts nothing; unique for each call, also across checkpoints."""

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        """Launch the step and return. :raises EngineError: if it cannot be launched."""

    def result(self, handle: Handle) -> None:
        """Wait until the step that this process started has ended. :raises EngineError: if it failed."""

    def poll(self, handle: Handle) -> EngineState:
        """The state of the handle's step."""

    def cancel(self, handle: Handle) -> bool:
        """Stop the step if it runs; True if something was stopped. Idempotent."""


@runtime_checkable
class CheckedEngine(Protocol):
    """An engine that tells before anything is planned that it could not be used. An :class:`Engine` need not."""

    def check(self) -> None:
        """Look at what each launch needs, such as the connection. Starts nothing, records nothing.

        :raises EngineError: if no step could be launched now.
        """
