"""Tells whether a published batch's files are still there, for a reader that needs all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest


def all_there(folder: Path, look: Callable[[], Manifest]) -> list[Path]:
    """The data files of a batch, which are in ``folder``. Their content may be another: people take rows out.

    :param look: tells the batch's manifest of now. A compaction or a replay may exchange it, with its files, between
        two looks: what is gone then is not missing.
    :raises SinkError: if one is gone.
    """
    found = look()
    while True:
        paths = [folder / name for name in sorted(found.files)]
        gone = next((path for path in paths if not path.exists()), None)
        if gone is None:
            return paths
        before, found = found, look()
        if found == before:
            raise SinkError(f"{gone} is gone. Bring it back.")
