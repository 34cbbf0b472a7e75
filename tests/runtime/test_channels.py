"""What a reader of channels tells, and what it refuses to."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_microbatch.runtime.channels import ChannelError, told


def arguments(*channels: str, **others: Any) -> dict[str, Any]:
    groups = [[{"channel": channel, "at": {"rows": 0}}] for channel in channels]
    return {"name": "orders", "groups": groups, "settled": {}, "expired": [], "forgotten": [], **others}


def test_without_the_ends_of_all_channels_nothing_is_told() -> None:
    with pytest.raises(ChannelError, match=r"orders.*1 of 2 channels.*\(b\).*limit"):
        told(arguments("a", "b"), ends={"a": {"rows": 1}})


def test_what_was_gone_and_what_nobody_had_to_read_is_told() -> None:
    known = arguments("a", settled={"b": {"rows": 0, "finished": True}}, expired=["c"], forgotten=["d"])
    assert told(known, ends={"a": {"rows": 1, "gap": True, "first": "0"}}) == {
        "firsts": {"a": "0"},
        "ends": {"a": {"rows": 1}, "b": {"rows": 0, "finished": True}},
        "gaps": ["a", "c"],
        "expired": ["c"],
        "forgotten": ["d"],
    }
