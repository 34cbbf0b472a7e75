"""Finds files in a table's folder that its readers see and that belong to no batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import is_lane
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.runtime.layout import MANIFEST

_LANE, _BATCH = "lane=", "batch_id="


def check_of_files(root: Path) -> None:
    """Check that the folder is no table whose readers go by a log of its own: batches beside that log would be seen by
    none of them, and the log's own folders be taken for strays.

    :raises SinkError: if the folder has a log of Delta or of Iceberg.
    """
    for kind, log in (("Delta", "_delta_log"), ("Iceberg", "metadata/*.metadata.json")):
        if next(root.glob(log), None) is not None:
            raise SinkError(
                f"{root} is a table of {kind} ({log}): its readers would not see a batch of files. Write to it by "
                f"{kind}Sink, or give the pipeline's files a folder of their own."
            )


def strays(root: Path) -> Iterator[str]:
    """Each stray by its path, with what it lacks. Only the names of entries in batch folders are checked.

    :raises OSError: if the folder cannot be listed.
    """
    for path in _shown(root):
        name = path.name.removeprefix(_LANE)
        if path.name.startswith(_LANE) and is_lane(name) and path.is_dir():
            yield from _of_lane(path)
        else:
            yield f"{path} is no lane's folder"


def _of_lane(lane: Path) -> Iterator[str]:
    for path in _shown(lane):
        text = path.name.removeprefix(_BATCH)
        is_batch = path.name.startswith(_BATCH) and text.isascii() and text.isdecimal() and str(int(text)) == text
        if not is_batch or not path.is_dir():
            yield f"{path} is no batch's folder"
        elif not (path / MANIFEST).exists():
            yield f"{path} has no manifest, so nobody here has published it"


def _shown(folder: Path) -> Iterator[Path]:
    """The entries that readers see: names that begin with an underscore or a dot are hidden from them."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(("_", ".")):
            yield path
