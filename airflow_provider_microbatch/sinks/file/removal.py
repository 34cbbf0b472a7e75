"""Removes files below a table. Others may write there: between a look at a folder and a removal by its path, a link may
take the folder's place. So the parent folder is opened without following links, and files are removed in it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.held_folder import opened

_TRIES = 5


@contextmanager
def folder_of(root: Path, path: Path, *, make: bool = False) -> Iterator[int]:
    """The parent folder of ``path``, held open.

    :param root: the table's own folder, which the user names, and which may be a link.
    :param make: make missing folders below ``root``.
    :raises OSError: if there is a link on the way from ``root``.
    """
    with ExitStack() as stack:
        try:
            held = stack.enter_context(opened(str(root), path.parent.relative_to(root).parts, make=make))
        except NotADirectoryError as error:
            raise OSError(
                errno.ELOOP,
                "a link in place of a folder of the table; look who put it there, and remove it",
                str(path.parent),
            ) from error
        yield held


def remove_aside(root: Path, stage: Path) -> None:
    """Remove a stage that its attempt may be publishing at this moment. Removal and publish both rename the stage, so
    one of them finds it gone: a removal in place could take files away from a publish that has already counted them."""
    with folder_of(root, stage) as held:
        for _ in range(_TRIES):
            aside = stage.with_name(f"{stage.name}.dropped-{uuid.uuid4().hex}")
            try:
                os.rename(stage.name, aside.name, src_dir_fd=held, dst_dir_fd=held)
            except FileNotFoundError:
                return
            remove_in(held, aside)
        if _mode(held, stage.name) is not None:
            raise SinkError(f"the stage {stage} cannot be removed: it is being written to.")


def remove(root: Path, stage: Path) -> None:
    """Remove a stage; see :func:`remove_in`."""
    with folder_of(root, stage) as held:
        remove_in(held, stage)


def remove_in(held: int, stage: Path) -> None:
    """Remove a stage. Its manifest goes first, so that the rest of an interrupted removal can never be published. A
    driver that could not be stopped may still be writing into the stage, so a few tries are made. Of a link only the
    link is removed: its author may have pointed it at a published batch.

    :param held: the stage's parent folder, open.
    """
    name, mode = stage.name, _mode(held, stage.name)
    if mode is None or not stat.S_ISDIR(mode):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=held)
        return
    with contextlib.suppress(OSError), opened_in(held, name) as inner:
        shutil.rmtree("_manifest", ignore_errors=True, dir_fd=inner)
    for _ in range(_TRIES):
        shutil.rmtree(name, ignore_errors=True, dir_fd=held)
        if _mode(held, name) is None:
            return
    raise SinkError(f"the stage {stage} cannot be removed: it is being written to, or permission is missing.")


@contextmanager
def opened_in(held: int, name: str) -> Iterator[int]:
    """Open the folder ``name`` in an open folder. :raises OSError: if it is a link, or no folder."""
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
    try:
        yield inner
    finally:
        os.close(inner)


def _mode(held: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=held, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
