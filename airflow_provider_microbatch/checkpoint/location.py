"""From the address a user writes to the store behind it."""

from __future__ import annotations

import re

from airflow_provider_microbatch.checkpoint.posix import PosixStore
from airflow_provider_microbatch.checkpoint.store import Store
from airflow_provider_microbatch.exceptions import CheckpointError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_store(location: str) -> Store:
    """The store at ``location``. Touches nothing.

    :param location: an absolute path, or a ``file:`` URL (percent signs are taken as they are, as Spark does).
    :raises CheckpointError: for a relative path, or a scheme that no store exists for.
    """
    scheme = _SCHEME.match(location)
    if scheme is None:
        path = location
    elif scheme[1] == "file":
        path = location.removeprefix("file:")
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            if host not in ("", "localhost"):
                raise CheckpointError(
                    f"checkpoint {location!r} names host {host!r}; write file:///path with 3 slashes."
                )
            path = f"/{rest}"
    else:
        raise CheckpointError(
            f"no checkpoint store for {scheme[1]}:// ({location!r}). Supported: an absolute path or file:///path, on a "
            "disk that all workers share."
        )
    if not path.startswith("/"):
        raise CheckpointError(
            f"checkpoint {location!r} is not absolute, and workers run in other folders than you. Write it from '/' on."
        )
    return PosixStore(path)
