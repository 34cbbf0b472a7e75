"""Commits to a Hive metastore, each on the condition that the table still has the metadata that the commit follows.

Pyiceberg's commit takes the metastore's lock of a table, looks at the table, and tells the metastore where its new
metadata is. That last call asks for nothing: the metastore lets go of a lock whose holder sleeps, and carries out a
call whose caller has died, so a late call would put the table back behind what others have published since. So each has
the condition that Iceberg's Java writers set too. The lock stays: writers that set no condition go by it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.hive_calls import condition, heeds_conditions, is_refusal, limit

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_LOCATION, _PREVIOUS = "metadata_location", "previous_metadata_location"


def on_condition(catalog: Catalog) -> None:
    """If the catalog is a Hive metastore, carry out no commit from now on where the table has got other metadata, and
    wait for none of its answers without end."""
    module = sys.modules.get("pyiceberg.catalog.hive")
    if module is not None and isinstance(catalog, module.HiveCatalog):
        told: Any = catalog
        told._client = _Conditional(told._client)


class _Conditional:
    """In place of pyiceberg's own: opens a client for each of its blocks, whose answers are not waited for without
    end."""

    def __init__(self, clients: Any) -> None:
        made = clients._init_thrift_transport

        def limited() -> Any:
            transport = made()
            limit(transport)
            return transport

        clients._init_thrift_transport = limited
        clients._transport = limited()  # the one that it has made is not open yet
        self._clients = clients
        self._is_heeded = False

    def __enter__(self) -> _Calls:
        return _Calls(self._clients.__enter__(), self)

    def __exit__(self, *raised: Any) -> None:
        self._clients.__exit__(*raised)

    def check_heeded(self, client: Any, place: str, name: str) -> None:
        """Called under the table's lock.

        :raises SinkError: if the metastore would carry out a call whose condition does not hold.
        """
        self._is_heeded = self._is_heeded or heeds_conditions(client, place, name, parameter=_LOCATION)
        if not self._is_heeded:
            raise SinkError(
                f"the metastore of {place}.{name} heeds no condition, so a task that slept could put the table back "
                "behind what was published since. Nothing was published. Take a metastore of Hive 2.3.10, or of 4.0.1 "
                "or newer (none of 3), or a REST catalog."
            )


class _Calls:
    """A client of the metastore whose commits are on a condition."""

    def __init__(self, client: Any, by: _Conditional) -> None:
        self._client = client
        self._by = by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        from hive_metastore.ttypes import MetaException
        from pyiceberg.exceptions import CommitStateUnknownException

        self._by.check_heeded(self._client, dbname, tbl_name)
        follows = condition(_LOCATION, new_tbl.parameters[_PREVIOUS], environment_context.properties)
        try:
            self._client.alter_table_with_environment_context(dbname, tbl_name, new_tbl, follows)
        except MetaException as error:
            if not is_refusal(error):
                raise
            # A metastore that loses the answer of its own database says the same of a commit that it has carried out.
            # If that was told to have failed, pyiceberg would remove manifests that the table names.
            raise CommitStateUnknownException(f"{dbname}.{tbl_name} has got other metadata meanwhile") from None
