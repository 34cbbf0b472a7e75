"""What a reader of channels tells, and what it refuses to."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_microbatch.runtime import channel_ends
from airflow_provider_microbatch.runtime.channels import FAIL, RECORD_GAP, ChannelError, read, told


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


def test_where_a_planned_range_ends_is_known_though_the_transform_leaves_rows_unread(tmp_path: Path) -> None:
    """What is missing is not: with ``record_gap`` each channel has to be read."""
    end, folder = {"rows": 2, "after": "1"}, str(tmp_path / "ends")
    groups = [[{"channel": channel, "at": {"rows": 0}, "end": end}] for channel in ("a", "b")]
    given = arguments(groups=groups, client="", schema="id long", secrets=[], ends=folder)
    channel_ends.choose(folder, "a", {**end, "first": "0"})
    with pytest.raises(ChannelError, match=r"1 of 2 channels.*\(b\)"):
        read(Mock(), {**given, "on_data_loss": RECORD_GAP}).ended()
    found = read(Mock(), {**given, "on_data_loss": FAIL}).ended()
    assert (found["ends"], found["firsts"], found["gaps"]) == ({"a": end, "b": end}, {"a": "0"}, [])
    assert not Path(folder).exists()
