"""The end that an attempt has reached in each channel: a file for each channel, written once, in a folder that the
driver and the executors see. Uses the standard library alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def get(folder: str, channel: str) -> dict[str, Any] | None:
    """The end that the attempt has reached in the channel; None if no task has read the channel to its end."""
    try:
        text = _path(folder, channel).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found: dict[str, Any] = json.loads(text)["end"]
    return found


def choose(folder: str, channel: str, end: Mapping[str, Any]) -> dict[str, Any]:
    """Record the end of the channel unless an end is recorded already. Return the end that is recorded then; durable on
    return."""
    path = _path(folder, channel)
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{uuid.uuid4()}")
    with hidden.open("w", encoding="utf-8") as file:
        json.dump({"channel": channel, "end": dict(end)}, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(hidden, path)  # whole at once, and never over another
    except FileExistsError:
        pass
    finally:
        hidden.unlink()
    chosen = get(folder, channel)
    assert chosen is not None, "it was put there, and is removed when the attempt is over"
    return chosen


def all_of(folder: str) -> dict[str, dict[str, Any]]:
    """The recorded ends, by channel."""
    try:
        paths = [path for path in Path(folder).iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return {}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {one["channel"]: one["end"] for one in found}


def remove(folder: str) -> None:
    """Remove the folder, once no task reads for the attempt any more."""
    shutil.rmtree(folder, ignore_errors=True)


def _path(folder: str, channel: str) -> Path:
    # The server chooses the channel's name, which need not be a valid file name.
    return Path(folder, hashlib.sha256(channel.encode()).hexdigest())
