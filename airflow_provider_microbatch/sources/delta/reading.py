"""Describes to the runtime how to read a range: plain Parquet where the table allows that, else Delta's reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.sources.delta.commits import File
from airflow_provider_microbatch.sources.delta.offset import Place
from airflow_provider_microbatch.sources.delta.table import Snapshot
from airflow_provider_microbatch.sources.file.path import to_url
from airflow_provider_microbatch.sources.stretch import Stretch
from airflow_provider_microbatch.sources.ways_on import SetOffset


def path_of(root: str, file: File) -> str:
    """The path of a file of the log; files of a clone may lie elsewhere.

    :raises SourceChangedError: if the file is on no local file system.
    """
    path = unquote(file.path)
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    elif ":/" in path:
        raise SourceChangedError(f"file {path!r} is not on a local file system, which this source reads")
    return path if path.startswith("/") else f"{root}/{path}"


def check_there(root: str, stretches: Sequence[Stretch[File]], *, set_offset: SetOffset) -> None:
    """Check that the files are those of the table's log.

    :param set_offset: the command that sets the position.
    :raises SourceChangedError: naming a file that is gone, or was replaced.
    """
    for stretch in stretches:
        for file in stretch.files:
            path = path_of(root, file)
            try:
                size = Path(path).stat().st_size
            except FileNotFoundError:
                behind = set_offset(Place(version=stretch.version + 1).text(), skip=True)
                raise SourceChangedError(
                    f"{path} of version {stretch.version} of {root} is gone: a VACUUM, or a pipeline that has replaced "
                    "its batch, has removed it before it was read. What it had is lost to this reader. Keep files for "
                    "longer than it may stand still (delta.deletedFileRetentionDuration), or set the position behind "
                    f"it: `{behind}`"
                ) from None
            except OSError as error:
                raise SourceChangedError(f"cannot look at {path}: {error}") from error
            if file.size and size != file.size:
                raise SourceChangedError(
                    f"{path} has {size} bytes, and its table's log says {file.size}: it was written anew"
                )


def files_to_read(root: str, stretches: Sequence[Stretch[File]], schema: Snapshot) -> dict[str, Any]:
    """Arguments of the reader for stretches that are read file by file; ``versions`` has the files that need Delta's
    reader.

    :param schema: the table at the version whose schema the rows get.
    """
    files = [file for stretch in stretches for file in stretch.files]
    if schema.is_plain and all(_is_plain(file) for file in files):
        names = schema.partition_columns
        paths = [path_of(root, file) for file in files]
        return {
            "partition_by": list(names),
            "plain": [
                {"path": path, "url": to_url(path), "partition": [file.partition[name] for name in names]}
                for path, file in zip(paths, files, strict=True)
            ],
        }
    return {
        "versions": [
            {"version": stretch.version, "urls": [to_url(path_of(root, file)) for file in stretch.files]}
            for stretch in stretches
            if stretch.files
        ]
    }


def schema_of(snapshot: Snapshot) -> Mapping[str, Any]:
    """The columns as Spark has them; Delta's additional metadata concerns writers only."""
    bare: Mapping[str, Any] = _bare(snapshot.schema)
    return bare


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: {} if key == "metadata" else _bare(one) for key, one in value.items()}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def _is_plain(file: File) -> bool:
    """Spark silently ignores files with such names."""
    return file.is_whole and not file.path.rpartition("/")[2].startswith(("_", "."))
