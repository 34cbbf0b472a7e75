"""The step of a rewind to before the first batch that puts all state away."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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

        :raises MaintenanceError: if a link is in the way, or this user may not move it.
        """
        folder = local_folder(Checkpoint(store))
        target = folder / self.target
        try:
            self._move(folder, target, is_over=is_over)
        except OSError as error:
            raise MaintenanceError(
                f"user {os.geteuid()} could not move {folder / STATE} to {target}: {error}. {_remedy(folder / STATE)}; "
                f"or move it by hand: mv {shlex.quote(str(folder / STATE))} {shlex.quote(str(target))}."
            ) from error

    def _move(self, folder: Path, target: Path, *, is_over: Callable[[], bool]) -> None:
        for place in (target.parent.parent, target.parent):
            if place.is_symlink():
                raise MaintenanceError(f"{place} is a link, and none of a command's: look who put it there, remove it.")
            place.mkdir(exist_ok=True)
        if not target.exists() and (folder / STATE).exists() and not is_over():
            (folder / STATE).rename(target)


def check_can_be_moved(folder: Path) -> None:
    """Check that this user may move the folder of state, before anything is done: the step is the last of its command.
    A folder goes below another one only if it may be written to itself, and Spark's driver, which may be another
    user's, has made it.

    :param folder: the checkpoint's folder.
    :raises MaintenanceError: naming the folder, the user and the way on.
    """
    state = folder / STATE
    if not state.exists():
        return  # gone since it was listed
    found = state.stat()
    if found.st_dev != folder.stat().st_dev:
        raise MaintenanceError(
            f"{state} is mounted from elsewhere, and cannot be moved to {folder}/repaired. Nothing was done. Move what "
            f"is in it to another folder (mv {shlex.quote(str(state))}/* FOLDER), or unmount it; then type the command "
            "again."
        )
    if not os.access(state, os.W_OK | os.X_OK):
        raise MaintenanceError(
            f"{state} is user {found.st_uid}'s, and user {os.geteuid()}, which may not write to it, cannot move it to "
            f"{folder}/repaired. Nothing was done. {_remedy(state)}."
        )


def _remedy(state: Path) -> str:
    return f"Run the command as its owner, or give it to this user: chown -R {os.geteuid()} {shlex.quote(str(state))}"
