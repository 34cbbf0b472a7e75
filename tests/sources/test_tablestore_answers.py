"""Answers of Tablestore that are not whole, words that it does not take, and what it tells no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import CorruptEntryError, SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime.channels import ChannelError
from tests.sources.tablestore_world import World

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
A, B, C = (f"shard-{number:03}" for number in range(3))


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


@pytest.mark.parametrize("how", ["with its digest", "bare"])
def test_an_answer_that_was_cut_off_ends_no_channel(tmp_path: Path, how: str) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    world.table.put(["2"])
    start = world.committed
    source = world.open()
    assert source.has_new(start)
    world.table.cut("/tunnel/readrecords", 2, how)
    assert world.read(start) == ["2"]
    assert "finished" not in next(iter(world.told["ends"].values()))


def test_a_listing_that_was_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    world = World(tmp_path, on_data_loss="record_gap")
    world.table.put(["1"])
    assert world.batch() == ["1"]
    world.table.cut("/tunnel/describe", 2, "with its digest")
    assert not world.open().has_new(world.committed), "no channel has expired"


def test_a_service_whose_answers_are_never_whole_is_an_error_that_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, timeout=0.3)
    world.table.put(["1"])
    source = world.open()
    assert source.has_new(None)
    world.table.cut("/tunnel/getcheckpoint", 1000, "bare")
    with pytest.raises(SourceError, match=r"orders.*/tunnel/getcheckpoint was not answered.*lacks its field 2"):
        source.latest_offset(None)
    world.table.cut("/tunnel/getcheckpoint", 0, "bare")
    assert world.batch() == ["1"]


def test_a_tunnel_that_does_not_take_in_that_a_channel_has_ended_stops_the_plan(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    world.table.put(["2"])
    assert world.batch(says_so=False) == ["1"]
    world.table.set_tunnel("takes_words", False)
    assert world.open().has_new(world.committed), "a run comes, and fails"
    with pytest.raises(SourceError, match=rf"orders.*after {A}.*read to their end.*OTSNoPermissionAccess"):
        world.batch()
    world.table.set_tunnel("takes_words", True)
    assert world.batch() == ["2"]
    assert world.batch() is None


def test_a_plan_that_tells_of_an_end_and_finds_nothing_plans_no_batch(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    assert world.batch(says_so=False) == ["1"]
    assert world.batch() is None
    assert world.table.statuses()[A] == "TERMINATED"


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", '{"place":7,"behind":[]}', '{"place":"CAIS","behind":"shard"}', '{"place":"","behind":[]}'],
)
def test_a_record_of_a_beginning_that_is_none_is_named_and_nothing_of_it_is_sent(tmp_path: Path, record: str) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    (entry,) = (tmp_path / "checkpoint" / "state" / "origins").iterdir()
    entry.write_text(record)
    world.committed = None
    asked = world.table.requests()["/tunnel/readrecords"]
    for ask in (lambda: world.open().has_new(None), world.batch, lambda: world.open().lag_by_split(None)):
        with pytest.raises((CorruptEntryError, SourceError), match=A):
            ask()
    assert world.table.requests()["/tunnel/readrecords"] == asked


def test_a_row_that_comes_behind_an_answer_without_rows_is_not_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    begins, told = world.open().initial_offset(), world.told
    world.table.set_tunnel("empty_first", True)
    assert world.open().not_replayable(begins, world.committed) is None
    assert world.open(on_data_loss="record_gap").left_out(begins, world.committed, told=told) is None
    world.table.arrange("trim", A, 1)
    assert "gone" in (world.open().not_replayable(begins, world.committed) or "")


def test_a_commit_costs_no_request_for_a_channel_that_has_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    assert world.batch() == ["1"]
    world.table.put(["2"])
    assert world.batch() == ["2"]
    before = world.table.requests()["/tunnel/getcheckpoint"]
    world.commit()
    assert world.table.requests()["/tunnel/getcheckpoint"] - before == 2, "what the other channel's word is, and was"


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_what_came_after_a_position_and_went_or_was_read_is_told(tmp_path: Path, on_data_loss: str) -> None:
    """The tunnel tells where a channel's first row is only until it hears that its reader went on."""
    world = World(tmp_path, on_data_loss=on_data_loss)
    world.table.put(["1"])
    world.batch()
    backup, state = world.committed, world.store.scoped("state")
    world.table.arrange("split", A)
    world.table.put(["2"])
    assert world.open().gone_since(backup) is None
    assert [world.batch(), world.batch()] == [[], ["2"]]
    assert world.open().gone_since(backup) is None, "where they began is on record"
    for entry in state.list("origins"):
        if B in (state.get(f"origins/{entry}") or b"").decode():
            state.delete(f"origins/{entry}")  # the record is of the backup
    assert B in str(world.open().gone_since(backup))
    world.table.arrange("trim", C, 1)
    world.backdate(72 * HOUR_MS)
    assert C in str(world.open().gone_since(world.committed))


def test_that_the_last_row_is_gone_before_its_time_stops_the_read_or_is_told(tmp_path: Path) -> None:
    """The log's hours were fewer for a while."""
    world = World(tmp_path)
    world.table.put(["1"])
    world.batch()
    world.table.put(["2", "3"])
    world.table.arrange("trim", A, 2)
    with pytest.raises(ChannelError, match=rf"orders.*{A}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [A]


def test_a_log_that_is_kept_for_another_time_is_looked_at_by_it_with_the_next_listing(tmp_path: Path) -> None:
    """By one client, as a trigger has it for as long as it waits."""
    world = World(tmp_path, discover_seconds=60)
    world.table.put(["1"])
    world.batch()
    world.backdate(9 * HOUR_MS)
    world.table.set("hours", 12)
    asked = world.table.requests().get("/DescribeTable", 0)
    assert not world.open().has_new(world.committed)
    assert world.table.requests().get("/DescribeTable", 0) == asked, "one request for each listing"
    assert world.open(discover_seconds=0).has_new(world.committed), "a quiet channel is looked at in half that time"
    assert world.batch() == []
    assert world.told["ends"][A]["keeps"] == 12 * HOUR_MS
