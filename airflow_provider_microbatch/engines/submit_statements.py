"""The names of this module were removed: importing one raises an error that says what to use instead."""

from __future__ import annotations

from typing import Any

from airflow_provider_microbatch.registry import REMOVED


def __getattr__(name: str) -> Any:
    if reason := REMOVED.get(f"{__name__}:{name}"):
        raise ImportError(f"{name} was removed: {reason}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
