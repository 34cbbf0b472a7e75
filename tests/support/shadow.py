"""Objects that engines of the tests write: files of this machine first, at the path that their keys are, and then sent
to the tests' own object store, each whole. The standard library is enough: the chaos engine starts without packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_OBJECTS = "s3a://"
_ENDPOINT = "MICROBATCH_TESTS_S3"
_BYTES = {"Content-Type": "application/octet-stream"}
"""Else the library says that it is a form, and the server takes it apart."""


def local(path: str) -> Path:
    """The local path of a plain path or a ``file:`` URL as Spark takes it, not percent-decoded; of an object, where its
    file lies."""
    if path.startswith(_OBJECTS):
        return Path("/" + path.removeprefix(_OBJECTS).partition("/")[2])
    return Path("/" + path.removeprefix("file:").lstrip("/"))


def send(folder: str, *paths: Path) -> None:
    """Send files that were written, in this order, if the folder that they lie below is one of objects."""
    if folder.startswith(_OBJECTS):
        import urllib.parse
        import urllib.request

        bucket = folder.removeprefix(_OBJECTS).partition("/")[0]
        for path in paths:
            address = f"{os.environ[_ENDPOINT]}/{bucket}{urllib.parse.quote(str(path))}"
            asked = urllib.request.Request(address, data=path.read_bytes(), headers=_BYTES, method="PUT")
            with urllib.request.urlopen(asked, timeout=60):
                pass


def files_below(folder: Path) -> Iterator[Path]:
    """What lies there, what makes a stage whole last."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    yield from sorted(found, key=lambda path: (path.parent.name == "_manifest", path))
