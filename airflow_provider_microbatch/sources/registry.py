"""The sources that come with this package, by name."""

from __future__ import annotations

from airflow_provider_microbatch.registry import Entry, Registry
from airflow_provider_microbatch.sources import Source

SOURCES: Registry[Source] = Registry(
    "source",
    Source,  # type: ignore[type-abstract]
    {"file": Entry("airflow_provider_microbatch.sources.file:FileSource")},
)
