"""Tells whether a published batch's files are still there, for a reader that needs all of them."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Manifest


def all_there(folder: Path, manifest: Manifest) -> list[Path]:
    """The data files of the manifest, which are in ``folder``. Their content may be another: people take rows out.

    :raises SinkError: if one is gone.
    """
    paths = [folder / name for name in sorted(manifest.files)]
    gone = next((path for path in paths if not path.exists()), None)
    if gone is not None:
        raise SinkError(f"{gone} is gone. Bring it back.")
    return paths
