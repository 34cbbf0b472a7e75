"""The source log read from its beginning, as intervals read it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import CorruptEntryError
from airflow_provider_microbatch.sources.file import seen as file_seen
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.log import SourceLog, encode
from airflow_provider_microbatch.sources.intervals import Interval
from tests.sources.support import World


@settings(max_examples=60, deadline=None)
@given(entries=st.integers(1, 25), compacted=st.sets(st.sampled_from([9, 19])), kept=st.integers(0, 12))
def test_every_file_comes_once_whatever_spark_compacted_and_removed(
    entries: int, compacted: set[int], kept: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        bodies = [encode(number, [FoundFile(f"/in/{number}", 1, 2)]).partition(b"\n")[2] for number in range(entries)]
        done = {number for number in compacted if number < entries}
        for number in done:
            world.log.put_if_absent(f"{number}.compact", b"\n".join([b"v1", *bodies[: number + 1]]))
        for number in range(entries):
            if number not in done and number > max(done, default=-1) - kept:
                world.log.put_if_absent(str(number), b"v1\n" + bodies[number])
        log = SourceLog(world.log)
        for end in range(max(done, default=0), entries):
            assert [file.path for file in log.files(end)] == [f"/in/{number}" for number in range(end + 1)]


def test_an_interval_is_not_planned_beside_a_lost_entry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_seen, "TAIL_ENTRIES", 3)
    for number in range(5):
        world.land(f"{number}.json", age=1000)
        world.drain()
    assert world.state.list("index") == ["0-2"], "which does not tell how far the log goes"
    world.log.delete("3")
    interval = Interval(start_ms=world.now_ms - 2_000_000, end_ms=world.now_ms)
    with pytest.raises(CorruptEntryError, match=r"no entry 3.*backup"):
        world.open(lane="interval").plan_interval(interval, {})
    assert world.log.get("3") is None
