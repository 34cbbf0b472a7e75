"""Describes the listed files that a plan leaves out, and the planned files that a read leaves out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

_NAMED = 5
"""Number of files that a warning names."""


@dataclass
class _Some:
    """A number of paths, and the first few of them."""

    count: int = 0
    paths: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        self.count += 1
        if len(self.paths) < _NAMED:
            self.paths.append(path)

    def __str__(self) -> str:
        return ", ".join(map(repr, self.paths))


class LeftOut:
    """Counts the files of one listing that are left out although no batch has read them.

    :param source: name of the source, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._early = _Some()
        self._old = _Some()

    def early(self, path: str) -> None:
        """Count a file whose mtime lies in the future."""
        self._early.add(path)

    def old(self, path: str) -> None:
        """Count a file that is older than ``max_file_age`` allows."""
        self._old.add(path)

    def warn(self) -> None:
        """Log the counted files."""
        if self._early.count:
            log.warning(
                "source %r: %s file(s) were changed in the future, by their mtime, and are held back until then "
                "(min_file_age): %s", self._source, self._early.count, self._early,
            )  # fmt: skip
        if self._old.count:
            log.warning(
                "source %r: %s file(s) are older than max_file_age allows and are never read: %s",
                self._source, self._old.count, self._old,
            )  # fmt: skip


def gone(paths: Sequence[str], *, before: Collection[str]) -> str | None:
    """Describe the planned files that ``on_missing="skip"`` leaves out; None if there are none.

    :param before: paths that an earlier read had left out already.
    """
    new = [path for path in paths if path not in before]
    named = ", ".join(map(repr, new[:_NAMED])) + (" …" if len(new) > _NAMED else "")
    return f"{len(new)} planned file(s) are gone and left out, as on_missing='skip' says: {named}" if new else None
