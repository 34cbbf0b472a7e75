"""The folder of the ends that attempts reach: Spark's driver and executors write there, a folder for each attempt."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.held_folder import opened
from airflow_provider_microbatch.sources import SourceContext

_ENDS = "ends"
_ATTEMPT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LITTER_SECONDS = 30 * 86_400.0


class EndsFolder:
    """Others may write below the checkpoint, so no link below it is followed: behind one, folders of somebody else
    would be taken for those of attempts, and removed.

    :param base: a folder that the user names; it may be a link.
    :param below: the names that lead from there to the folder.
    :param is_draft: whether a command looks through a draft of the checkpoint, and leaves nothing behind.
    """

    def __init__(self, base: str, below: Sequence[str], *, is_draft: bool = False) -> None:
        self._base = base
        self._below = below
        self._is_draft = is_draft

    @classmethod
    def of(cls, context: SourceContext, *, ends_dir: str | None) -> EndsFolder | None:
        """The folder of a source; None where executors could not write into the checkpoint: a command that looks
        through a draft of the checkpoint gets None too.

        :param ends_dir: a folder that the user names for it.
        """
        if ends_dir is not None:
            return cls(ends_dir, (_ENDS,), is_draft=context.state.is_draft)
        if context.state.for_spark is None:
            return None
        state = Path(context.state.for_spark.removeprefix("file://"))
        top = Path(context.checkpoint)
        base = top if state.is_relative_to(top) else state
        return cls(str(base), (*state.relative_to(base).parts, _ENDS))

    def of_attempt(self) -> str | None:
        """A folder of the attempt's own, which does not exist yet. Each job of an attempt gets another folder. None for
        who only looks, as ``microbatch peek`` does.

        :raises SourceError: if there is a link on the way.
        """
        if self._is_draft:
            return None
        with suppress(FileNotFoundError), self._held():
            pass
        return str(Path(self._base, *self._below, str(uuid.uuid4())))

    def sweep(self) -> None:
        """Remove files of attempts that died long ago.

        :raises SourceError: if there is a link on the way.
        """
        before = time.time() - _LITTER_SECONDS
        with suppress(FileNotFoundError), self._held() as held:
            for name in _names_in(held):
                # A checkpoint may name the folder: only entries with the name of an attempt's own folder are removed.
                if _ATTEMPT.fullmatch(name) and os.stat(name, dir_fd=held, follow_symlinks=False).st_mtime < before:
                    shutil.rmtree(name, ignore_errors=True, dir_fd=held)

    @contextmanager
    def _held(self) -> Iterator[int]:
        try:
            with opened(self._base, self._below) as held:
                yield held
        except NotADirectoryError as error:
            raise SourceError(
                f"the folder of where attempts come to is not used: {error.strerror}. Look who put it there, and "
                "remove it."
            ) from error


def _names_in(held: int) -> list[str]:
    # The right to search a folder, which is what it is held by, is not the right to list it.
    listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=held)
    try:
        with os.scandir(listed) as entries:
            return [entry.name for entry in entries]
    finally:
        os.close(listed)
