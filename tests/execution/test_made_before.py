"""Behind a rewind, batches of a pipeline that keeps state read what they had read, as far as that can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from acme_microbatch.polled_queue import PolledQueue
from deltalake import write_deltalake

from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import BatchSetAsideError, SourceError
from airflow_provider_microbatch.execution.made_before import made_before
from airflow_provider_microbatch.execution.opened_sources import Ranges
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.delta import open as delta_source
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.open import OpenFileSource
from tests.execution.maintaining import applied, expire_all, rewind
from tests.execution.world import World
from tests.support.inline_engine import InlineEngine


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two sources in three batches; the second one has only payments."""
    world = World(tmp_path, sources=("orders", "payments"))
    world.land(1)
    world.land(11, source="payments")
    world.run(1)
    world.land(12, source="payments")
    world.run(2)
    world.land(2)
    world.land(13, source="payments")
    world.run(3)
    return world


def rewound(world: World, to: int) -> None:
    expire_all(world.root)
    applied(world, rewind(to))


def found(world: World, **position: Any) -> Ranges | None:
    planner = world.execution.planner
    planner.claim()
    at = replace(planner.position(), **position)
    return made_before(world.checkpoint, planner.sources, at, lane=LIVE, no_data_batches=True)


def had(world: World, number: int) -> Ranges:
    entry = world.checkpoint.offset_log.get(number)
    assert entry is not None
    return Ranges(entry.starts, entry.ends)


@pytest.mark.parametrize("to", [-1, 0, 1])
def test_the_next_batch_has_the_ranges_that_it_had(world: World, to: int) -> None:
    before = had(world, to + 1)
    rewound(world, to)
    ranges = found(world)
    assert ranges is not None
    assert (ranges.starts, ranges.ends) == (before.starts, before.ends)
    assert not ranges.are_empty


def test_a_batch_without_data_is_made_where_the_one_before_asks_for_it(world: World) -> None:
    entry = had(world, 2)
    no_data = OffsetEntry(ends=entry.ends, starts=entry.ends, batch_timestamp_ms=world._tick())
    world.checkpoint.offset_log.add(3, no_data)
    world.checkpoint.commit_log.add(3, CommitEntry())
    rewound(world, 2)
    assert found(world) is None, "nobody asks for one: what is new comes next"
    ranges = found(world, last_commit=CommitEntry(requires_another_batch=True))
    assert ranges is not None
    assert ranges.are_empty


def test_a_batch_that_no_rewind_has_taken_back_has_none(world: World) -> None:
    assert found(world) is None


def test_of_two_rewinds_the_newest_that_had_the_batch_counts(world: World) -> None:
    rewound(world, 0)
    world.run(4)  # planned anew: both sources
    before = had(world, 1)
    rewound(world, 0)
    ranges = found(world)
    assert ranges is not None
    assert ranges.ends == before.ends


def test_what_goes_on_from_elsewhere_is_planned_anew(world: World) -> None:
    rewound(world, 0)
    world.run(4)  # of both sources: batch 2 of before goes on from payments alone
    assert found(world) is None


def test_other_sources_are_planned_anew(world: World) -> None:
    rewound(world, 0)
    world.sources["more"] = FileSource(str(world.landing("more")), format="json", schema="id long")
    assert found(world) is None


def test_without_a_source_that_it_had_rows_of_it_is_planned_anew(world: World) -> None:
    rewound(world, 0)
    del world.sources["payments"]
    assert found(world) is None


def test_a_source_that_chooses_where_it_begins_begins_where_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first range is on record, and by now it would begin behind that."""
    world, queue = World(tmp_path), tmp_path / "queue"
    queue.write_text("[]\n" * 2)
    world.sources = {"orders": PolledQueue(str(queue))}  # type: ignore[dict-item]
    world.run(1)
    before = had(world, 0)
    rewound(world, -1)
    monkeypatch.setattr(PolledQueue, "initial_offset", lambda _: {"n": 2})
    ranges = found(world)
    assert ranges is not None
    assert (ranges.starts, ranges.ends) == (before.starts, before.ends)


def test_a_table_that_does_not_answer_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it cannot be read again, as of one whose versions are gone."""
    table, world = str(tmp_path / "table"), World(tmp_path)
    world.sources = {"orders": DeltaSource(table)}  # type: ignore[dict-item]
    sources = world.execution.planner.sources
    ranges = Ranges({}, {})
    for number in range(2):
        write_deltalake(table, pa.table({"id": [number]}), mode="append")
        ranges = sources.next_ranges(ranges.ends, {})
    real, looks = delta_source.snapshot_of, [f"{table}, not mounted"]
    monkeypatch.setattr(delta_source, "snapshot_of", lambda root, *more: real(looks.pop() if looks else root, *more))
    assert sources.why_not_as_before(ranges) is None
    assert looks == []


def test_while_a_source_is_away_nothing_is_planned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned anew, other rows might be late for good."""
    rewound(world, 0)

    def away(*_: object) -> None:
        raise SourceError("no answer")

    with monkeypatch.context() as outage:
        outage.setattr(OpenFileSource, "read", away)
        with pytest.raises(SourceError, match="no answer"):
            found(world)
    assert found(world) is not None


def test_where_the_log_of_a_source_was_cut_it_is_planned_anew(world: World) -> None:
    rewound(world, 0)
    (world.root / "checkpoint" / "sources" / "payments" / "1").unlink()
    assert found(world) is None


def test_what_cannot_be_read_again_is_planned_anew(world: World) -> None:
    rewound(world, 0)
    (world.landing("payments") / "000012.json").unlink()
    assert found(world) is None


def test_a_batch_that_was_never_made_is_planned_anew(world: World) -> None:
    """It may be too large, and the source has another limit by now."""
    world.land(3)
    with pytest.raises(ZeroDivisionError):
        world.run(4, InlineEngine(before_stage=lambda job: 1 / 0))  # type: ignore[arg-type, return-value]
    assert world.checkpoint.offset_log.latest_id() == 3
    rewound(world, 2)
    assert found(world) is None


def test_nor_does_an_older_rewind_tell_of_it(world: World) -> None:
    rewound(world, 0)
    assert found(world) is not None
    with pytest.raises(ZeroDivisionError):
        world.run(4, InlineEngine(before_stage=lambda job: 1 / 0))  # type: ignore[arg-type, return-value]
    rewound(world, 0)
    assert found(world) is None


def test_nor_is_one_that_was_set_aside_made_again_of_the_same(world: World) -> None:
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    world.land(3)
    with pytest.raises(BatchSetAsideError):
        world.run(4, InlineEngine(transform=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    rewound(world, 2)
    assert found(world) is None


def test_a_plan_that_is_torn_or_gone_is_made_anew(world: World) -> None:
    rewound(world, 0)
    (path,) = (world.root / "checkpoint" / "repaired").rglob("offsets/1")
    path.write_text("torn")
    assert found(world) is None
    path.unlink()
    assert found(world) is None
