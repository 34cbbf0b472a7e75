"""The settings that kept state was made with, as a checkpoint has them on record.

Spark makes classes of some of them, by name, and keeps all of them for the state's life. Another query, or whoever can
write the checkpoint, has written them: so they are checked whenever state is taken over, before anything is made of
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_microbatch.exceptions import CheckpointError
from airflow_provider_microbatch.runtime.streaming import FORMAT, PROVIDER, ROCKSDB

_NAME = re.compile(r"spark\.(databricks\.)?sql\.[A-Za-z0-9_.]+")
"""Spark 4.0 pins one setting under a name of Databricks."""

_WORD = re.compile(r"[A-Za-z0-9_-]*"), "settings of spark.sql that are numbers or words"
_RULES: Mapping[str, tuple[re.Pattern[str], str]] = {
    PROVIDER: (re.compile(re.escape(ROCKSDB)), ROCKSDB),
    FORMAT: (re.compile("2"), "2"),
    # Spark takes any other text for the name of a class, and loads it.
    "spark.sql.streaming.stateStore.compression.codec": (
        re.compile(r"(?i:lz4|lzf|snappy|zstd)|org\.apache\.spark\.io\.(LZ4|LZF|Snappy|ZStd)CompressionCodec"),
        "lz4, lzf, snappy or zstd",
    ),
}
"""The values that a setting may have, and these in words. All else that Spark pins is a word, and no class or path."""


def check_state_conf(conf: Mapping[str, Any], *, where: str) -> None:
    """Check that a batch can go on from state that was made with these settings.

    :param conf: by name.
    :param where: whose state it is, for the message.
    :raises CheckpointError: naming the setting, and the way on.
    """
    # Without a provider on record Spark takes the one of before there was a choice, which keeps no state by ids.
    for name, value in {PROVIDER: None, **conf}.items():
        values, wanted = _RULES.get(name, _WORD)
        good = _NAME.fullmatch(str(name)) and isinstance(value, str) and values.fullmatch(value)
        if not good:
            raise CheckpointError(
                f"{where}: its state was made with {name}={value!r:.100}, and a pipeline goes on only from {wanted}. "
                "Where a streaming query has kept it so, begin a checkpoint and a table of their own, which read from "
                "the beginning. Where a pipeline has, somebody has changed what is on record: replay the batch."
            )
