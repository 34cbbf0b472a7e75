"""Small JSON files by which a catalog of folders recognises its own tables."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.known_tables import TABLE_MARK
from airflow_provider_microbatch.exceptions import MicroBatchError, SinkError
from airflow_provider_microbatch.sinks.file.posix import make_folders, sync
from airflow_provider_microbatch.sinks.file.reading import read_regular

TABLE = TABLE_MARK
"""Mark in a table's folder: what the table is, and who made it. Readers skip names that begin with an underscore."""

_LARGEST = 16 * 1024 * 1024


def put_mark(path: Path, mark: Mapping[str, Any]) -> bool:
    """Write a mark unless the path exists. Durable on return, and never seen half written.

    :return: False if the path exists.
    """
    make_folders(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(mark, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return True


def read_mark(path: Path) -> dict[str, Any] | None:
    """The mark; None if there is none, or the file is no mark of this package."""
    try:
        found = json.loads(read_regular(path, largest=_LARGEST).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def remove_mark(path: Path) -> None:
    """Remove a mark, and its folder if nothing else is in it."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or gone
        sync(path.parent)
        path.parent.rmdir()


@contextmanager
def reporting(doing: str) -> Iterator[None]:
    """Raise errors of the file system as errors of the sink."""
    try:
        yield
    except MicroBatchError:
        raise
    except OSError as error:
        raise SinkError(f"cannot {doing}: {error}.") from error
