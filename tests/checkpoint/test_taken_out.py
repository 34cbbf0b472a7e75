"""What the records of commands tell of what they have taken out: of tables, and of the logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.checkpoint.maintenance import MaintenanceLog, TakenOut
from airflow_provider_microbatch.stores.posix import PosixStore


def typed(log: MaintenanceLog, steps: Sequence[dict[str, Any]], *, done: bool = True) -> None:
    begun = log.begin(command="rewind", by="me@here", started_ms=1, steps=steps)
    log.allow(begun, steps=done)
    log.end(begun, outcome="applied" if done else "not applied: an attempt is alive", ended_ms=2)


def test_each_command_tells_of_each_lane_what_it_took_out_and_how_far_it_went_back(tmp_path: Path) -> None:
    log = MaintenanceLog(PosixStore(str(tmp_path)))
    assert log.taken_out() == {}
    drop = {"step": "drop output", "sink": {}, "where": "/lake"}
    typed(log, [{**drop, "key": "live/3", "to": 1}, {**drop, "key": "live/2", "to": 1}, {"step": "fence"}])
    typed(log, [{**drop, "key": "live/1", "to": 0}], done=False)
    typed(log, [{**drop, "key": "live/3"}, {**drop, "key": "no batch", "to": 1}])
    put = {"step": "put away", "path": "offsets/2", "target": "repaired/1/offsets/2", "sha256": "aa"}
    typed(log, [put, {**put, "path": "commits/2", "target": "repaired/1/commits/2"}])
    typed(log, [{**drop, "key": "live/4", "identity": {"digest": "bb"}}])
    away = {**put, "path": "lanes/interval-1/offsets/0", "target": "repaired/2/lanes/interval-1/offsets/0"}
    typed(log, [{**drop, "key": "interval-1/0", "to": -1}, away, {**drop, "key": "live/4"}])
    (tmp_path / "7").write_bytes(b"torn")
    assert log.taken_out() == {
        "live": [
            TakenOut(to=1, ids=frozenset({2, 3})),
            TakenOut(
                to=1,
                ids=frozenset(),
                plans={2: "repaired/1/offsets/2"},
                commits={2: "repaired/1/commits/2"},
                digests=frozenset({(2, "aa")}),
            ),
            TakenOut(to=3, ids=frozenset({4}), digests=frozenset({(4, "bb")})),
            TakenOut(to=3, ids=frozenset({4})),
        ],
        "interval-1": [
            TakenOut(
                to=-1,
                ids=frozenset({0}),
                plans={0: "repaired/2/lanes/interval-1/offsets/0"},
                digests=frozenset({(0, "aa")}),
            )
        ],
    }


def test_a_torn_plan_that_a_command_writes_again_in_its_place_is_not_read_again(tmp_path: Path) -> None:
    log = MaintenanceLog(PosixStore(str(tmp_path)))
    away = {"step": "put away", "path": "offsets/2", "target": "repaired/1/offsets/2", "sha256": "aa"}
    typed(log, [away, {"step": "write", "path": "offsets/2", "text": "v1"}])
    assert log.taken_out() == {}
