"""Spark micro-batches orchestrated by Airflow: one micro-batch is one task run.

The names below are loaded on first use: Airflow discovers providers early and the DAG processor parses files again
and again, so importing this package must cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_provider_microbatch.job_status import JobStatusHook
    from airflow_provider_microbatch.pipeline import Pipeline
    from airflow_provider_microbatch.runtime.object_table import read_table
    from airflow_provider_microbatch.sinks import Sink
    from airflow_provider_microbatch.sinks.delta import DeltaSink
    from airflow_provider_microbatch.sinks.file import FileSink
    from airflow_provider_microbatch.sinks.file.published import open_dataset, published_files
    from airflow_provider_microbatch.sinks.foreach import ForeachSink
    from airflow_provider_microbatch.sinks.iceberg import IcebergSink
    from airflow_provider_microbatch.sinks.kafka import KafkaSink
    from airflow_provider_microbatch.sinks.merge import Merge
    from airflow_provider_microbatch.sinks.postgres import PostgresSink
    from airflow_provider_microbatch.sinks.table import TableSink
    from airflow_provider_microbatch.sinks.table.catalog import Catalog
    from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
    from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
    from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
    from airflow_provider_microbatch.sources import Source
    from airflow_provider_microbatch.sources.delta import DeltaSource
    from airflow_provider_microbatch.sources.file import FileSource
    from airflow_provider_microbatch.sources.iceberg import IcebergSource
    from airflow_provider_microbatch.sources.jdbc import JdbcSource
    from airflow_provider_microbatch.sources.kafka import KafkaSource
    from airflow_provider_microbatch.sources.kinesis import KinesisSource
    from airflow_provider_microbatch.sources.polling import PollingSource
    from airflow_provider_microbatch.sources.python import PythonSource
    from airflow_provider_microbatch.sources.slot import SlotSource
    from airflow_provider_microbatch.sources.tablestore import TablestoreSource

__all__ = [
    "Catalog",
    "ConnectStatements",
    "DeltaSink",
    "DeltaSource",
    "FileSink",
    "FileSource",
    "ForeachSink",
    "IcebergSink",
    "IcebergSource",
    "JdbcSource",
    "JobStatusHook",
    "KafkaSink",
    "KafkaSource",
    "KinesisSource",
    "Merge",
    "PathCatalog",
    "Pipeline",
    "PollingSource",
    "PostgresSink",
    "PythonSource",
    "Sink",
    "SlotSource",
    "Source",
    "SparkCatalog",
    "TableSink",
    "TablestoreSource",
    "__version__",
    "open_dataset",
    "published_files",
    "read_table",
]

_LAZY = {
    "Catalog": "airflow_provider_microbatch.sinks.table.catalog",
    "DeltaSink": "airflow_provider_microbatch.sinks.delta",
    "DeltaSource": "airflow_provider_microbatch.sources.delta",
    "FileSink": "airflow_provider_microbatch.sinks.file",
    "FileSource": "airflow_provider_microbatch.sources.file",
    "ForeachSink": "airflow_provider_microbatch.sinks.foreach",
    "IcebergSink": "airflow_provider_microbatch.sinks.iceberg",
    "IcebergSource": "airflow_provider_microbatch.sources.iceberg",
    "JdbcSource": "airflow_provider_microbatch.sources.jdbc",
    "JobStatusHook": "airflow_provider_microbatch.job_status",
    "Merge": "airflow_provider_microbatch.sinks.merge",
    "KafkaSink": "airflow_provider_microbatch.sinks.kafka",
    "KafkaSource": "airflow_provider_microbatch.sources.kafka",
    "KinesisSource": "airflow_provider_microbatch.sources.kinesis",
    "PathCatalog": "airflow_provider_microbatch.sinks.table.path_catalog",
    "Pipeline": "airflow_provider_microbatch.pipeline",
    "PollingSource": "airflow_provider_microbatch.sources.polling",
    "PythonSource": "airflow_provider_microbatch.sources.python",
    "PostgresSink": "airflow_provider_microbatch.sinks.postgres",
    "Sink": "airflow_provider_microbatch.sinks",
    "SlotSource": "airflow_provider_microbatch.sources.slot",
    "Source": "airflow_provider_microbatch.sources",
    "SparkCatalog": "airflow_provider_microbatch.sinks.table.spark_catalog",
    "ConnectStatements": "airflow_provider_microbatch.sinks.table.statements",
    "TableSink": "airflow_provider_microbatch.sinks.table",
    "TablestoreSource": "airflow_provider_microbatch.sources.tablestore",
    "open_dataset": "airflow_provider_microbatch.sinks.file.published",
    "published_files": "airflow_provider_microbatch.sinks.file.published",
    "read_table": "airflow_provider_microbatch.runtime.object_table",
}

_ON_SPARK = {"PollingSource": "airflow_provider_microbatch.runtime.polling"}
"""Modules that the names are loaded from where Spark runs: only the runtime package is installed there."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            module = importlib.import_module(_LAZY[name])
        except ModuleNotFoundError as error:
            if name not in _ON_SPARK or error.name != f"{__name__}.sources":
                raise
            module = importlib.import_module(_ON_SPARK[name])
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
