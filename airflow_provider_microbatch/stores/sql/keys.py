"""Encodes paths as the keys of a table: bytes, whose order no collation changes.

A key is the path in UTF-8 with a zero byte for each slash. No path has a zero byte, and bytes of UTF-8 sort as code
points do, so keys sort as lists of names do: the entries of a folder stand together, in the order of their names, and
everything below a name comes before the next name. As texts, ``10/1`` would come after ``10-2``, and by the collation
that most databases are created with, ``a`` before ``B``.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_microbatch.stores import check_path

SEPARATOR = b"\0"
_AFTER_SEPARATOR = b"\1"
_LAST = b"\xff"
"""Not a byte of UTF-8."""


def key_of(path: str) -> bytes:
    """The key of an entry. :raises CheckpointError: if ``path`` is not a path of a store."""
    return _encoded(check_path(path))


def folder_of(path: str) -> bytes:
    """The common beginning of the keys of all entries in a folder; empty for the top."""
    return _encoded(check_path(path)) + SEPARATOR if path else b""


def past(folder: bytes, name: str) -> bytes:
    """The least key in a folder that comes after a name and everything below it."""
    return folder + name.encode("utf-8", "surrogatepass") + _AFTER_SEPARATOR if name else folder


def end_of(folder: bytes) -> bytes:
    """A key that is greater than all keys in a folder, and not greater than any key after them."""
    return folder[:-1] + _AFTER_SEPARATOR if folder else _LAST


def names_of(names: Iterable[object]) -> list[str]:
    """Decode names that the database returns."""
    return [bytes(name).decode("utf-8", "surrogatepass") for name in names]  # type: ignore[call-overload]


def _encoded(path: str) -> bytes:
    # File names that are not valid UTF-8 have surrogates.
    return path.encode("utf-8", "surrogatepass").replace(b"/", SEPARATOR)
