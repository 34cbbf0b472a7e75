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
    from airflow_provider_microbatch.sinks import Sink
    from airflow_provider_microbatch.sinks.file import FileSink
    from airflow_provider_microbatch.sinks.table import TableSink
    from airflow_provider_microbatch.sinks.table.catalog import Catalog
    from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
    from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
    from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
    from airflow_provider_microbatch.sources import Source
    from airflow_provider_microbatch.sources.file import FileSource
    from airflow_provider_microbatch.sources.kafka import KafkaSource

__all__ = [
    "Catalog",
    "ConnectStatements",
    "FileSink",
    "FileSource",
    "JobStatusHook",
    "KafkaSource",
    "PathCatalog",
    "Pipeline",
    "Sink",
    "Source",
    "SparkCatalog",
    "TableSink",
    "__version__",
]

_LAZY = {
    "Catalog": "airflow_provider_microbatch.sinks.table.catalog",
    "FileSink": "airflow_provider_microbatch.sinks.file",
    "FileSource": "airflow_provider_microbatch.sources.file",
    "JobStatusHook": "airflow_provider_microbatch.job_status",
    "KafkaSource": "airflow_provider_microbatch.sources.kafka",
    "PathCatalog": "airflow_provider_microbatch.sinks.table.path_catalog",
    "Pipeline": "airflow_provider_microbatch.pipeline",
    "Sink": "airflow_provider_microbatch.sinks",
    "Source": "airflow_provider_microbatch.sources",
    "SparkCatalog": "airflow_provider_microbatch.sinks.table.spark_catalog",
    "ConnectStatements": "airflow_provider_microbatch.sinks.table.statements",
    "TableSink": "airflow_provider_microbatch.sinks.table",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
