"""Reads a job's report in its stage: ``_manifest`` and ``_error``, folders of JSON lines (``runtime.report``)."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.identity import BatchIdentity
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError, SinkError
from airflow_provider_microbatch.runtime.layout import ERROR, MANIFEST, SCHEMA
from airflow_provider_microbatch.sinks import Manifest
from airflow_provider_microbatch.sinks.file.reading import LARGEST, NO_FILE, read_regular

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that text not written by this package can raise: endless brackets, numbers of any size."""

_JOB = re.compile(r"part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""Spark names a file after its task and the job that wrote it (``FileFormatWriter``)."""

_YEAR_10000_MS = 253_402_300_800_000


def read_manifest(folder: Path, key: BatchKey) -> Manifest | None:
    """The manifest in ``folder``; None if there is none.

    :raises SinkError: if there is one that this package cannot have written for ``key``.
    """
    return manifest_from(_lines(folder / MANIFEST), key, where=str(folder / MANIFEST))


def manifest_from(lines: Iterable[Any], key: BatchKey, *, where: str) -> Manifest | None:
    """The manifest in the lines of a file; None if there are no lines.

    :param lines: JSON values; errors of parsing them may be raised while they are iterated.
    :param where: place of the file, for messages.
    :raises SinkError: if this package cannot have written the lines for ``key``.
    """
    result: Mapping[str, Any] | None = None
    files: dict[str, int] = {}
    outputs = 0
    folder = where.removesuffix(f"/{MANIFEST}")
    try:
        for line in lines:
            if "result" in line:
                outputs += 1
                result = line["result"]
            else:
                files[line["file"]] = int(line["bytes"])
        if result is None:
            return None
        epoch, batch_id = int(result["epoch"]), int(result["batchId"])
        told = result.get("identity")
        identity = BatchIdentity.from_dict(told) if told else None
        if identity is not None and not 0 <= identity.planned_ms < _YEAR_10000_MS:
            raise ValueError(f"planned at {identity.planned_ms} ms")
    except _UNREADABLE as error:
        raise SinkError(
            f"{where} is no manifest of a batch ({type(error).__name__}: {error}). Somebody changed it; "
            f"look at {folder} and move it away if it is not needed."
        ) from error
    if outputs > 1:
        raise SinkError(
            f"{folder} has two outputs of batch {key}, such as one of before a replay or a compaction and one of after "
            "it: a copy or a restore has added files and removed none, so that readers may find rows twice. Move the "
            "folder away, and clear the batch's task."
        )
    if batch_id != key.id or (identity is not None and identity.key != key):
        raise SinkError(f"{folder} should hold batch {key}, but its manifest says batch {batch_id}. Move it away.")
    return Manifest(key=key, epoch=epoch, identity=identity, files=files, result=result)


def read_error(folder: Path) -> Mapping[str, Any] | None:
    """The failure in ``folder``; see :func:`error_of`."""
    return error_of(_lines(folder / ERROR))


def error_of(lines: Iterator[Any]) -> Mapping[str, Any] | None:
    """The recorded failure; None if there is none that can be read: a failure is only shown, never acted upon."""
    try:
        found = next(lines, None)
    except _UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def read_schema(folder: Path) -> Mapping[str, Any] | None:
    """The columns of a stage table: ``schema`` in Spark's JSON form, ``columns`` as names and types; None if the
    runtime recorded none."""
    try:
        return next(_lines(folder / SCHEMA), None)
    except _UNREADABLE as error:
        raise SinkError(f"{folder / SCHEMA} cannot be read: {error}. Run the batch again.") from error


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check that the data files in the stage ``folder`` are those of the manifest, with the same sizes, and of one job.

    :raises SinkError: if a file is missing, has changed or is not listed, or another job has written there too: rows
        would be lost or doubled; or if an entry is no regular file: a link may lead to what only this process can read.
    """
    told = differences(folder, manifest)
    if told is not None:
        raise SinkError(
            f"the stage {folder} of batch {manifest.key} attempt {manifest.epoch} is not what its job wrote ({told}). "
            "It was not published; run the batch again, as a new attempt."
        )
    check_of_one_job(manifest, where=str(folder))


def check_of_one_job(manifest: Manifest, *, where: str) -> None:
    """:raises SinkError: if several jobs of Spark have written to the stage: rows would be doubled."""
    jobs = {found[1] for name in manifest.files if (found := _JOB.match(name.rpartition("/")[2]))}
    if len(jobs) > _writes(manifest):
        # A job lists the files in its stage after writing; files that another job wrote before are listed too.
        raise SinkError(
            f"the stage {where} of batch {manifest.key} attempt {manifest.epoch} has files of {len(jobs)} jobs of "
            "Spark: somebody else ran an attempt of this number there at the same time, as a copy of the checkpoint "
            "does that goes on beside it. It was not published: rows would be doubled. Stop the pipeline of one of the "
            "two, and run the batch again, as a new attempt."
        )


def differences(folder: Path, manifest: Manifest) -> str | None:
    """How the data files in ``folder`` differ from those of the manifest, in words; None if they do not."""
    entries = {path.relative_to(folder).as_posix(): path.lstat() for path in data_files(folder)}
    odd = next((name for name, entry in entries.items() if not stat.S_ISREG(entry.st_mode)), None)
    if odd is not None:
        return f"{odd}: {NO_FILE}"
    return differing({name: entry.st_size for name, entry in entries.items()}, manifest)


def differing(found: Mapping[str, int], manifest: Manifest) -> str | None:
    """Like :func:`differences`, for files given as path → bytes."""
    if found == dict(manifest.files):
        return None
    missing = sorted(manifest.files.keys() - found.keys())
    extra = sorted(found.keys() - manifest.files.keys())
    changed = sorted(name for name in found.keys() & manifest.files.keys() if found[name] != manifest.files[name])
    return "; ".join(
        f"{what}: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not in the manifest", extra), ("of another size", changed))
        if names
    )


def _writes(manifest: Manifest) -> int:
    """How many jobs of Spark may have written the stage: one, or one for each subtask that it was assembled from."""
    told = manifest.result.get("subtasks")
    counts = [told.get(word) for word in ("run", "taken")] if isinstance(told, Mapping) else []
    return max(sum(count for count in counts if type(count) is int), 1)


def data_files(folder: Path) -> Iterator[Path]:
    """The files below a folder that Spark's readers see."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if is_data(name)]
        yield from (Path(parent, name) for name in names if is_data(name))


def is_data(name: str) -> bool:
    """Whether a file or folder of that name is data to Spark's readers."""
    # Spark's own rule, to see exactly the files that its readers see: partition folders may begin with an underscore.
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _lines(folder: Path) -> Iterator[Any]:
    """Values of the JSON lines in the finished files of a folder that Spark wrote."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        left = LARGEST
        with os.scandir(descriptor) as entries:
            names = sorted(entry.name for entry in entries if entry.name.startswith("part-"))
        for name in names:
            data = read_regular(name, dir_fd=descriptor, largest=left)
            left -= len(data)
            # A JSON text may contain characters that `str.splitlines` takes for the end of a line.
            yield from (json.loads(line) for line in data.decode("utf-8").split("\n") if line)
    finally:
        os.close(descriptor)


@contextmanager
def reporting(doing: str, key: BatchKey | Path) -> Iterator[None]:
    """Raise errors of the file system as errors of the sink."""
    try:
        yield
    except MicroBatchError:
        raise
    except OSError as error:
        what = f"batch {key}" if isinstance(key, BatchKey) else key
        raise SinkError(f"cannot {doing} {what}: {error}.") from error
