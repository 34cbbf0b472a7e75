"""Secrets that readers need. They travel beside the job, which is stored and shown, and are kept in memory alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = "secrets.json"
"""Name of the file beside the job file, of mode 0600, with the secrets by name."""

_given: dict[str, str] = {}


def give(secrets: Mapping[str, str]) -> None:
    """Replace the secrets of this process."""
    _given.clear()
    _given.update(secrets)


def take_file(job: Path) -> None:
    """Take the secrets that lie beside a job file, if any, and remove their file from the disk."""
    path = job.with_name(FILE)
    if path.is_file():
        give(json.loads(path.read_text(encoding="utf-8")))
        path.unlink()


def secret(name: str) -> str:
    """The secret of this name.

    :raises ValueError: if the launcher has not handed the secret over.
    """
    if name not in _given:
        raise ValueError(
            f"the secret {name!r} was not handed to Spark: the engine that launched this cannot hand over secrets"
        )
    return _given[name]
