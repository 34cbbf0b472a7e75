"""The common part of both ways to read a MariaDB table, by numbers and by timestamps."""

from __future__ import annotations

from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.sources.jdbc.access import Access
from airflow_provider_microbatch.sources.jdbc.mariadb.session import access
from airflow_provider_microbatch.sources.jdbc.opened import OpenTable


class OpenMariaDbTable(OpenTable):
    """A table that Spark reads by MariaDB's own driver."""

    inexact_types = "DECIMAL of more than 38 digits, of TIME, or of BIT"
    exact_types = "or give them another type"

    def _access(self, connection: Connection) -> Access:
        return access(connection, table=self._source.table)
