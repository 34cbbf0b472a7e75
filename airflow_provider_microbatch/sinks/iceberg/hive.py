"""Commits to a Hive metastore, each on the condition that the table still has the metadata that the commit follows.

Pyiceberg's commit takes the metastore's lock of a table, looks at the table, and tells the metastore where its new
metadata is. That last call asks for nothing: the metastore lets go of a lock whose holder sleeps, and carries out a
call whose caller has died, so a late call would put the table back behind what others have published since. Iceberg's
own Java writers have a condition for it, ``expected_parameter_key`` of the metastore (HIVE-26882, since 2.3.10 and
4.0), and with it need no lock, which a task that is killed would leave behind. That is what tables with
``engine.hive.lock-enabled=false`` are for, and such are those that this package makes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

UNLOCKED: Mapping[str, str] = {"engine.hive.lock-enabled": "false"}
"""Property of a table by which all its writers, Iceberg's Java ones too, commit on a condition and take no lock."""

_LOCATION, _PREVIOUS = "metadata_location", "previous_metadata_location"
_NEVER = "no table has this metadata"
_NO_LOCK = -1


def is_hive(catalog: Catalog) -> bool:
    """Whether the catalog is a Hive metastore."""
    module = sys.modules.get("pyiceberg.catalog.hive")
    return module is not None and isinstance(catalog, module.HiveCatalog)


def on_condition(catalog: Catalog) -> None:
    """From now on each commit of a catalog that is a Hive metastore is refused if the table has got other metadata."""
    if is_hive(catalog):
        told: Any = catalog
        told._client = _Conditional(told._client)


class _Conditional:
    """In place of pyiceberg's own: opens a client for each of its blocks."""

    def __init__(self, clients: Any) -> None:
        self._clients = clients
        self._is_heeded = False

    def __enter__(self) -> _Calls:
        return _Calls(self._clients.__enter__(), self)

    def __exit__(self, *raised: Any) -> None:
        self._clients.__exit__(*raised)

    def check_heeded(self, client: Any, place: str, name: str) -> None:
        """:raises SinkError: if the metastore carries out a call whose condition does not hold. That call changed
        nothing."""
        from hive_metastore.ttypes import MetaException

        if self._is_heeded:
            return
        try:
            table = client.get_table(place, name)
            client.alter_table_with_environment_context(place, name, table, _if_metadata(_NEVER, {}))
        except MetaException as error:
            self._is_heeded = _is_refusal(error)
            if not self._is_heeded:
                raise
        else:
            raise SinkError(
                f"the metastore of {place}.{name} heeds no condition, so a task that slept could put the table back "
                "behind what was published since. Nothing was published. Take a metastore of Hive 2.3.10, 4.0 or "
                "newer, or a REST catalog."
            )


class _Calls:
    """A client of the metastore whose commits are on a condition."""

    def __init__(self, client: Any, by: _Conditional) -> None:
        self._client = client
        self._by = by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lock(self, request: Any) -> Any:
        from hive_metastore.ttypes import LockResponse, LockState, NoSuchObjectException

        (asked,) = request.component
        try:
            properties = self._client.get_table(asked.dbname, asked.tablename).parameters
        except NoSuchObjectException:
            properties = {}
        if all(properties.get(key) == value for key, value in UNLOCKED.items()):
            return LockResponse(lockid=_NO_LOCK, state=LockState.ACQUIRED)
        return self._client.lock(request)

    def unlock(self, request: Any) -> None:
        if request.lockid != _NO_LOCK:
            self._client.unlock(request)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        from hive_metastore.ttypes import MetaException
        from pyiceberg.exceptions import CommitFailedException

        self._by.check_heeded(self._client, dbname, tbl_name)
        condition = _if_metadata(new_tbl.parameters[_PREVIOUS], environment_context.properties)
        try:
            self._client.alter_table_with_environment_context(dbname, tbl_name, new_tbl, condition)
        except MetaException as error:
            if _is_refusal(error):
                raise CommitFailedException(f"{dbname}.{tbl_name} has got other metadata meanwhile") from None
            raise


def _if_metadata(location: str, more: Mapping[str, str]) -> Any:
    from hive_metastore.ttypes import EnvironmentContext

    condition = {"expected_parameter_key": _LOCATION, "expected_parameter_value": location}
    return EnvironmentContext(properties={**more, **condition})


def _is_refusal(error: Any) -> bool:
    return "The table has been modified" in str(error.message)
