"""The tables of files into which changes are merged, by the systems that keep their logs, and by where they lie."""

from __future__ import annotations

import pytest

from tests.sinks.merged_delta import MergedInBucket, MergedInDelta
from tests.sinks.merged_iceberg import MergedInIceberg
from tests.sinks.merged_table import MergedInFiles

LAKES: dict[str, type[MergedInFiles]] = {"delta": MergedInDelta, "iceberg": MergedInIceberg}

IN_BUCKET = pytest.param(MergedInBucket, id="bucket", marks=pytest.mark.slow)

anywhere = pytest.mark.parametrize("lake", [*(pytest.param(lake, id=id) for id, lake in LAKES.items()), IN_BUCKET])
"""For tests of what the place of the table may decide."""

in_bucket = pytest.mark.parametrize("lake", [IN_BUCKET])
