"""The catalog as the sink has it: what it is about to name must not be less durable than its word."""

from __future__ import annotations

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.iceberg_catalog import OpenCatalog
from airflow_provider_microbatch.sinks import SinkContext
from airflow_provider_microbatch.sinks.iceberg import IcebergSink

_DURABLE = {"py-io-impl": "airflow_provider_microbatch.sinks.iceberg.durable.DurableFileIO"}


class CatalogBusyError(SinkError):
    """The catalog could not be asked, or its answer was lost: what was told to it may have been done."""


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
    )
