"""What every sink must do. A new sink joins by an entry in SINKS: how to make it, and how the runtime would leave a
stage in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import MicroBatchError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.staging.path_catalog import PathCatalog
from airflow_provider_microbatch.staging.table_sink import TableSink
from tests.sinks.stages import write_stage
from tests.staging.stages import write_stage_table

KEY = BatchKey("live", 7)


@dataclass(frozen=True)
class Kind:
    make: Callable[[Path], Sink]
    write_stage: Callable[..., object]


SINKS = {
    "file": Kind(make=lambda folder: FileSink(str(folder / "table"), format="json"), write_stage=write_stage),
    "path table": Kind(
        make=lambda folder: TableSink(PathCatalog(str(folder / "lake")), "sales.orders", format="json"),
        write_stage=write_stage_table,
    ),
}


@pytest.fixture(params=SINKS.values(), ids=SINKS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def sink(kind: Kind, tmp_path: Path) -> Sink:
    return kind.make(tmp_path)


def test_the_definition_survives_a_round_trip(sink: Sink) -> None:
    assert Sink.from_dict(sink.to_dict()) == sink


def test_making_and_asking_touch_nothing(sink: Sink, tmp_path: Path) -> None:
    sink.check()
    assert sink.stage(KEY, 1) == sink.stage(KEY, 1)
    assert sink.location()
    assert sink.contains(KEY) is None
    assert sink.manifest(KEY, 1) is None
    assert sink.failure(KEY, 1) is None
    assert sink.stages() == []
    assert sink.drop_stage(KEY, 1) is False
    assert list(tmp_path.iterdir()) == []


def test_attempts_and_lanes_never_share_a_stage(sink: Sink) -> None:
    keys = [(KEY, 1), (KEY, 2), (BatchKey("live", 8), 1), (BatchKey("backfill", 7), 1)]
    assert len({str(sink.stage(key, epoch)) for key, epoch in keys}) == len(keys)


def test_a_stage_is_published_once_and_saying_it_again_changes_nothing(kind: Kind, sink: Sink) -> None:
    kind.write_stage(sink, 1)
    assert sink.stages() == [(KEY, 1)]
    assert sink.contains(KEY) is None
    staged = sink.manifest(KEY, 1)
    assert staged is not None
    assert sink.publish(KEY, 1) == staged
    assert sink.contains(KEY) == staged
    assert sink.publish(KEY, 1) == staged
    assert sink.stages() == []


def test_of_two_attempts_the_first_wins_and_the_other_learns_it(kind: Kind, sink: Sink) -> None:
    kind.write_stage(sink, 1)
    kind.write_stage(sink, 2)
    assert sink.publish(KEY, 2).epoch == 2
    assert sink.publish(KEY, 1).epoch == 2
    assert sink.stages() == [(KEY, 1)]
    assert sink.drop_stage(KEY, 1) is True
    assert sink.stages() == []
    found = sink.contains(KEY)
    assert found is not None
    assert found.epoch == 2


def test_an_unfinished_or_missing_stage_is_never_published(kind: Kind, sink: Sink) -> None:
    kind.write_stage(sink, 1, complete=False)
    for epoch in (1, 2):
        with pytest.raises(SinkError):
            sink.publish(KEY, epoch)
    assert sink.contains(KEY) is None


def test_batches_and_lanes_do_not_meet(kind: Kind, sink: Sink) -> None:
    other = BatchKey("backfill", 7)
    kind.write_stage(sink, 1)
    kind.write_stage(sink, 1, key=other)
    sink.publish(KEY, 1)
    assert sink.contains(other) is None
    sink.publish(other, 1)
    assert sink.drop_stage(KEY, 1) is False
    assert sink.contains(KEY) is not None


def test_a_replay_replaces_and_an_older_one_cannot_come_back(kind: Kind, sink: Sink) -> None:
    for epoch in (1, 2, 3):
        kind.write_stage(sink, epoch, rows=epoch)
    sink.publish(KEY, 1)
    assert sink.replace(KEY, 3).result["numOutputRows"] == 3
    assert sink.replace(KEY, 3).epoch == 3
    with pytest.raises(PublishConflictError, match="attempt 3"):
        sink.replace(KEY, 2)
    found = sink.contains(KEY)
    assert found is not None
    assert found.epoch == 3
    assert sink.stages() == [(KEY, 2)]


def test_a_replay_needs_a_complete_stage(kind: Kind, sink: Sink) -> None:
    kind.write_stage(sink, 1)
    sink.publish(KEY, 1)
    kind.write_stage(sink, 2, complete=False)
    with pytest.raises(MicroBatchError):
        sink.replace(KEY, 2)
    found = sink.contains(KEY)
    assert found is not None
    assert found.epoch == 1


def test_a_batch_that_is_withdrawn_is_out_and_can_come_back(kind: Kind, sink: Sink) -> None:
    assert sink.withdraw(KEY, 1) is False
    for epoch in (1, 2):
        kind.write_stage(sink, epoch)
    sink.publish(KEY, 1)
    sink.replace(KEY, 2)
    with pytest.raises(SinkError, match="attempt 2"):
        sink.withdraw(KEY, 1)
    assert sink.contains(KEY) is not None
    assert sink.withdraw(KEY, 2) is True
    assert sink.contains(KEY) is None
    assert sink.withdraw(KEY, 2) is False
    for epoch in (3, 4):
        kind.write_stage(sink, epoch)
        assert sink.publish(KEY, epoch).epoch == epoch
        assert sink.withdraw(KEY, epoch) is True


def test_what_was_withdrawn_is_kept_and_goes_as_replaced_output_does(kind: Kind, sink: Sink) -> None:
    kind.write_stage(sink, 1)
    sink.publish(KEY, 1)
    sink.withdraw(KEY, 1)
    assert sink.stages() == []
    assert sink.drop_replaced(older_seconds=3600) == []
    assert len(sink.drop_replaced(older_seconds=0)) == 1
    assert sink.drop_replaced(older_seconds=0) == []
