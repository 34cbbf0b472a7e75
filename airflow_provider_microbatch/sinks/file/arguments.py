"""Checks of the arguments that describe a table in a folder; other sinks of folders use them too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from airflow_provider_microbatch.definition import is_read_back
from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.runtime.masking import refusal
from airflow_provider_microbatch.stores.object_store.address import Address

RESERVED_COLUMNS = ("lane", "batch_id")
_GLOB = "*?[]{}\\"
_OBJECTS = ("s3://", "s3a://")
_PLAIN = re.compile(r"[A-Za-z0-9_.=/-]+")


def check_options(options: Mapping[str, str], *, where: str) -> None:
    """:raises DefinitionError: for an option of Spark's writer that is no text, or that a user must not set."""
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise DefinitionError(f"{where}: options {key!r} must be text on both sides.")
        refused = None if is_read_back() else refusal(key, value)
        if refused is not None:
            raise DefinitionError(f"{where}: options: {refused}")


def is_object(path: object) -> bool:
    """Whether ``path`` is an address in an object store."""
    return isinstance(path, str) and path.startswith(_OBJECTS)


def address_of(path: str, *, sink: str = "FileSink") -> Address:
    """The place of a table in an object store.

    :param sink: name of the sink, for messages.
    :raises DefinitionError: if ``path`` names no such place. A possible password in it is not repeated.
    """
    try:
        address = Address.parse(path, of="table")
    except CheckpointError as error:
        raise DefinitionError(f"{sink}: path: {error}") from error
    if not _PLAIN.fullmatch(address.prefix):
        raise DefinitionError(
            f"{sink}({str(address)!r}): the folder's name has other signs than letters, digits, and _ . = - and /. "
            "Readers of the table spell others in more than one way."
        )
    return address


def lies_in(location: str, address: Address) -> bool:
    """Whether a location is the given folder of a bucket, or below it, whichever connection it names."""
    try:
        return is_object(location) and f"{Address.parse(location).place}/".startswith(f"{address.place}/")
    except CheckpointError:
        return False


def check_path(path: object, *, where: str) -> None:
    """:raises DefinitionError: if the path cannot be that of a table in a local folder."""
    root = str(local_path(path, where=where))
    if not root.startswith("/"):
        raise DefinitionError(f"{where}: path must be absolute: a task runs in a working directory of its own.")
    if any(sign in _GLOB or not sign.isprintable() for sign in root):
        raise DefinitionError(f"{where}: path must not have {_GLOB} (globs to Spark) or control characters.")


def coordinates(given: object, *, where: str) -> list[str] | None:
    """Check the argument ``packages``. :raises DefinitionError: if it is no list of Maven coordinates."""
    if given is None:
        return None
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) and one for one in given):
        raise DefinitionError(f"{where}: packages must be a list of Maven coordinates, or None; not {given!r}.")
    return list(given)  # definitions travel as JSON, which only has lists


def partition_columns(given: object, *, where: str) -> tuple[str, ...]:
    """Check the argument ``partition_by``. :raises DefinitionError: if its columns cannot be partitioned by."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DefinitionError(f"{where}: partition_by must be a list of columns, not one text.")
    columns = tuple(given)
    for column in columns:
        if not isinstance(column, str) or not column:
            raise DefinitionError(f"{where}: partition_by: {column!r} is no column name.")
        if column.startswith("."):
            raise DefinitionError(f"{where}: partition_by: {column!r}: Spark reads no folder with such a name.")
        if column.casefold() in RESERVED_COLUMNS:
            raise DefinitionError(f"{where}: partition_by: {column!r} is a column of ours; rename it.")
    return columns


def local_path(path: object, *, where: str = "") -> Path:
    """The local path that ``path`` names.

    :raises DefinitionError: if ``path`` is on another file system.
    """
    where = where or f"FileSink({path!r})"
    if not isinstance(path, str) or not path:
        raise DefinitionError(f"{where}: path must be a path or 'file:' URL, not {path!r}.")
    return _local_path(path, where)


@lru_cache(maxsize=256)
def _local_path(path: str, where: str) -> Path:
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(os.path.normpath("/" + path.lstrip("/") if path.startswith("/") else path))
    if scheme != "file" or (rest.startswith("//") and not rest.startswith("///")):
        raise DefinitionError(
            f"{where}: only local paths and 'file:///…' URLs are supported here: publishing is a rename. A FileSink or "
            "a DeltaSink also takes 's3://conn_id@bucket/folder'."
        )
    return Path(os.path.normpath("/" + rest.lstrip("/")))
