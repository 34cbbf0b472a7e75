"""The step of a rewind to before the first batch that puts all state away."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.exceptions import MaintenanceError
from airflow_provider_microbatch.execution.told_state import local_folder
from airflow_provider_microbatch.runtime.streaming_folder import STATE
from airflow_provider_microbatch.stores import Store

_TARGET = re.compile(rf"repaired/[0-9T.]+/{STATE}")


@dataclass(frozen=True, kw_only=True)
class PutStateAway:
    """Move the folder of state away, as a whole and in one rename. The first batch begins with none, and could not be
    made beside what operators that the transform has no more have left of themselves.

    :param target: where the folder goes.
    :param why: the reason, for people.
    """

    kind: ClassVar[str] = "put state away"

    target: str
    why: str

    @property
    def what(self) -> str:
        """The object of the step, for people."""
        return STATE

    def check(self) -> None:
        """Check what becomes a path. :raises MaintenanceError: if it is none that a command plans."""
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target):
            raise MaintenanceError(f"{self.target!r:.200} is no place where a command puts state.")

    def apply(self, store: Store, *, is_over: Callable[[], bool]) -> None:
        """Move it, unless that was done: what is there then is of the next life.

        :raises MaintenanceError: if a link is in the way.
        """
        folder = local_folder(Checkpoint(store))
        target = folder / self.target
        for place in (target.parent.parent, target.parent):
            if place.is_symlink():
                raise MaintenanceError(f"{place} is a link, and none of a command's: look who put it there, remove it.")
            place.mkdir(exist_ok=True)
        if not target.exists() and (folder / STATE).exists() and not is_over():
            (folder / STATE).rename(target)
