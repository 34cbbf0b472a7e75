"""Secrets that readers need. They come beside the job, which is stored and shown, and are kept in memory alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = "secrets.json"
"""Beside the job file, of mode 0600: a name for each."""

_given: dict[str, str] = {}


def give(secrets: Mapping[str, str]) -> None:
    """Say which there are in this process."""
    _given.clear()
    _given.update(secrets)


def take_file(job: Path) -> None:
    """Take those that lie beside a job file, if any do, and remove them from the disk."""
    path = job.with_name(FILE)
    if path.is_file():
        give(json.loads(path.read_text(encoding="utf-8")))
        path.unlink()


def secret(name: str) -> str:
    """:raises ValueError: if whoever launched this has not handed it over."""
    if name not in _given:
        raise ValueError(
            f"the secret {name!r} was not handed to Spark: the engine that launched this cannot hand over secrets"
        )
    return _given[name]
