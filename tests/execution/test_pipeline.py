"""What is wrong with a pipeline is said where it is written: when its DAG is parsed."""

from __future__ import annotations

import pytest

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.execution.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.file import FileSource


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("checkpoints/orders", r"pipeline 'orders': checkpoint 'checkpoints/orders' is not absolute"),
        ("file:checkpoints/orders", "is not absolute"),
        ("s3://bucket/orders", "no checkpoint store for s3"),
        ("", "must be a path or URL"),
    ],
)
def test_a_checkpoint_that_no_worker_could_open_is_refused(checkpoint: str, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Pipeline("orders", checkpoint=checkpoint, sources={"orders": FileSource("/landing")}, sink=FileSink("/lake"))
