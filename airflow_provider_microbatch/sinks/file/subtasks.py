"""Subtasks of a table of files. Each is a folder that is only ever moved, by renames within the table's file system::

<stage of attempt 1>/_subtasks/<name>/…      written by attempt 1
<the batch's staging folder>/subtasks/<name>-1/…   kept, since attempt 1 has failed
<stage of attempt 2>/_subtasks/<name>/…      taken over by attempt 2
<stage of attempt 2>/…                       its files, once the job has ended well
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.subtasks import SubtaskDone, is_subtask
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.runtime.job import Stage
from airflow_provider_microbatch.sinks.file.posix import check_no_link, make_folders, rename_new, sync, sync_tree
from airflow_provider_microbatch.sinks.file.removal import remove
from airflow_provider_microbatch.sinks.file.report import check_files, data_files, read_manifest, reporting
from airflow_provider_microbatch.sinks.subtasks import SubtaskStages

_IN_STAGE, _KEPT = "_subtasks", "subtasks"
_BATCH = re.compile(r"lane=(?P<lane>[^/]+)/batch_id=(?P<id>\d+)/subtasks")


class FileSubtasks(SubtaskStages):
    """:param root: the table's folder.
    :param staging: returns the folder of a checkpoint's stages.
    :param whole: returns the stage of an attempt.
    """

    def __init__(
        self, root: Path, *, staging: Callable[[str], Path], whole: Callable[[BatchIdentity, int], Stage]
    ) -> None:
        self._root = root
        self._staging = staging
        self._whole = whole

    def stage(self, batch: BatchIdentity, epoch: int, name: str) -> Stage:
        whole = self._whole(batch, epoch)
        path = f"{whole.report}/{_IN_STAGE}/{name}"
        return replace(whole, report=path, arguments={**whole.arguments, "path": path})

    def finished(self, batch: BatchIdentity, epoch: int) -> Sequence[SubtaskDone]:
        folder = self._in_stage(batch, epoch)
        with reporting("look for finished subtasks of", batch.key):
            check_no_link(self._root, folder)
            found = [done for name in _names(folder) if (done := _finished(folder / name, batch)) is not None]
            for done in found:
                sync_tree(folder / done.name)
        return found

    def keep(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> None:
        folder, kept = self._in_stage(batch, epoch), self._kept(batch)
        with reporting("keep finished subtasks of", batch.key):
            check_no_link(self._root, folder)
            check_no_link(self._root, kept)
            for one in done:
                make_folders(kept)
                with suppress(FileNotFoundError):
                    rename_new(folder / one.name, kept / _kept_name(one))
            if done:
                sync(kept)

    def adopt(self, batch: BatchIdentity, epoch: int, done: Sequence[SubtaskDone]) -> Sequence[SubtaskDone]:
        folder, kept = self._in_stage(batch, epoch), self._kept(batch)
        adopted: dict[str, SubtaskDone] = {}
        with reporting("take over finished subtasks of", batch.key):
            check_no_link(self._root, folder)
            check_no_link(self._root, kept)
            for one in done:
                source, target = kept / _kept_name(one), folder / one.name
                if one.name in adopted:
                    continue
                if not os.path.lexists(target) and os.path.lexists(source):
                    make_folders(folder)
                    with suppress(FileNotFoundError):
                        rename_new(source, target)
                # Only now, when no other process has a path to it: another one may have changed it until the rename.
                found = _finished(target, batch)
                if found is not None and _is_on_record(found, one):
                    adopted[one.name] = one
                elif os.path.lexists(target):
                    remove(self._root, target)
        return list(adopted.values())

    def assemble(self, batch: BatchIdentity, epoch: int) -> None:
        folder = self._in_stage(batch, epoch)
        stage = folder.parent
        with reporting("put together the stage of", batch.key):
            if not os.path.lexists(folder):
                return
            own = read_manifest(stage, batch.key)
            if own is None or own.epoch != epoch:
                return
            check_no_link(self._root, folder)
            for name in _names(folder):
                for path in list(data_files(folder / name)):
                    target = stage / path.relative_to(folder / name)
                    check_no_link(self._root, target.parent)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if not rename_new(path, target):
                        raise SinkError(
                            f"two subtasks of batch {batch.key} have written {target}. Nothing was published."
                        )
            remove(self._root, folder)

    def kept(self, checkpoint: str) -> list[BatchKey]:
        root = self._staging(checkpoint)
        with reporting("list what is kept for", root):
            names = [path.relative_to(root).as_posix() for path in root.glob(f"lane=*/batch_id=*/{_KEPT}")]
        found = set()
        for match in filter(None, map(_BATCH.fullmatch, names)):
            with suppress(DefinitionError, ValueError):  # a folder of another program
                found.add(BatchKey(match["lane"], int(match["id"])))
        return sorted(found)

    def drop(self, batch: BatchIdentity) -> bool:
        kept = self._kept(batch)
        if not os.path.lexists(kept):
            return False
        with reporting("remove finished subtasks of", batch.key):
            check_no_link(self._root, kept.parent)
            remove(self._root, kept)
            with suppress(OSError):
                kept.parent.rmdir()
        return True

    def _in_stage(self, batch: BatchIdentity, epoch: int) -> Path:
        return self._batch(batch) / f"attempt={epoch}" / _IN_STAGE

    def _kept(self, batch: BatchIdentity) -> Path:
        return self._batch(batch) / _KEPT

    def _batch(self, batch: BatchIdentity) -> Path:
        return self._staging(batch.checkpoint) / f"lane={batch.key.lane}" / f"batch_id={batch.key.id}"


def _kept_name(done: SubtaskDone) -> str:
    return f"{done.name}-{done.epoch}"


def _is_on_record(found: SubtaskDone, record: SubtaskDone) -> bool:
    return (found.made_of, found.epoch, found.files) == (record.made_of, record.epoch, record.files)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def _finished(folder: Path, batch: BatchIdentity) -> SubtaskDone | None:
    """The subtask in a folder, if it is finished, of this plan of the batch, and whole."""
    if folder.is_symlink():
        return None
    try:
        manifest = read_manifest(folder, batch.key)
        if manifest is None or manifest.identity != batch:
            return None
        check_files(folder, manifest)
    except SinkError:
        return None
    told = manifest.result.get("subtask")
    if not isinstance(told, dict) or told.get("name") != folder.name or not is_subtask(folder.name, told.get("madeOf")):
        return None
    return SubtaskDone(
        name=folder.name,
        made_of=told["madeOf"],
        epoch=manifest.epoch,
        split=str(told.get("split")),
        files=manifest.files,
        result=manifest.result,
    )
