"""The tables of files into which changes are merged, by the systems that keep their logs."""

from __future__ import annotations

from tests.sinks.merged_delta import MergedInDelta
from tests.sinks.merged_iceberg import MergedInIceberg
from tests.sinks.merged_table import MergedInFiles

LAKES: dict[str, type[MergedInFiles]] = {"delta": MergedInDelta, "iceberg": MergedInIceberg}
