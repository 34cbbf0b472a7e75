"""Which failures of Spark tell of damaged files of state, and which do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.execution.lost_state import lost_state
from airflow_provider_microbatch.sinks import SinkContext
from tests.execution.world import World


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred", "(CANNOT_LOAD_STATE_STORE.UNCATEGORIZED)"),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_KEY_SIZE] Error", "CANNOT_READ_DELTA_FILE_KEY_SIZE)"),
        ("CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED.", "(CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED)"),
        ("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] Could not", None),
        ("[CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY] Could not", None),
        ("[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] could not be acquired", None),
        ("[CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_READER_VERSION] a future Spark", None),
        ("[CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE] another schema", None),
        ("[DIVIDE_BY_ZERO] Division by zero", None),
    ],
)
def test_only_files_that_cannot_be_read_are_taken_for_damaged(tmp_path: Path, told: str, named: str | None) -> None:
    world = World(tmp_path)
    error = lost_state(world.checkpoint, world.pipeline.sink.open(SinkContext()), BatchKey(LIVE, 1), told=told)
    if named is None:
        assert error is None
    else:
        assert named in str(error)
