"""Opens the store at an address that a user writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_microbatch.exceptions import CheckpointError, DefinitionError
from airflow_provider_microbatch.registry import STORES
from airflow_provider_microbatch.runtime.masking import mask
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.stores.object_store.s3a import check_one_endpoint

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE = "file"


def scheme_of(location: str) -> str | None:
    """The scheme of an address; None for a path."""
    found = _SCHEME.match(location)
    return None if found is None else found[1]


def open_store(location: str) -> Store:
    """Return the store at ``location``. Touches nothing.

    :param location: an absolute path, or a URL whose scheme is the name of a store.
    :raises CheckpointError: for a scheme that no store has, and as :meth:`Store.at`.
    """
    scheme = scheme_of(location) or _FILE
    try:
        store: type[Store] = STORES.load(scheme)
    except DefinitionError as error:
        # An address of a database, or of a bucket in the form of another program, may contain a password.
        raise CheckpointError(f"no checkpoint store for {scheme}:// ({mask(location)!r}): {error}") from error
    return store.at(location)


def check_places(secrets: Mapping[str, str]) -> None:
    """Check that one Spark can reach all places of a job, each as what it is.

    :param secrets: what sources and sinks hand to Spark beside the job, by name.
    :raises DefinitionError: if it would take one place for another.
    """
    check_one_endpoint(secrets)
