"""The catalog as the sink opens it: a file that a commit is about to name must be on disk before the commit, and a
commit is for the table as it was looked at."""

from __future__ import annotations

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.iceberg import IcebergSink
from airflow_provider_microbatch.sinks.iceberg.hive import on_condition

_DURABLE = {"py-io-impl": "airflow_provider_microbatch.sinks.iceberg.durable.DurableFileIO"}


class CatalogBusyError(SinkError):
    """The catalog could not be asked, or its answer was lost: the request may have been carried out."""


def catalog_of(sink: IcebergSink, context: SinkContext) -> OpenCatalog:
    """The catalog that the sink's table is in."""
    return OpenCatalog(
        sink.conn_id,
        sink.table,
        connect=context.connect,
        at_end=context.at_end,
        failed=SinkError,
        busy=CatalogBusyError,
        defaults=_DURABLE,
        prepare=on_condition,
    )
