"""The context in which the suites open a source: in a checkpoint of its own, as a process of a lane does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.sources import SourceContext
from airflow_provider_microbatch.stores.posix import PosixStore


def context_in(
    checkpoint: Path, *, name: str = "orders", lane: str = LIVE, clock_ms: Callable[[], int] = now_ms
) -> SourceContext:
    """The context of a source of this name."""
    store = PosixStore(checkpoint)
    return SourceContext(
        name=name,
        log=store.scoped(f"sources/{name}"),
        state=store.scoped(f"source_state/{name}"),
        clock_ms=clock_ms,
        lane=lane,
    )
