"""Channels of a tunnel of Tablestore, by its protocol: what ends, splits, goes, is busy, and what it is told."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.runtime.channels import ChannelError, read_here
from airflow_provider_microbatch.runtime.tablestore import Place, TunnelChannels
from tests.sources.tablestore_world import World
from tests.support import tablestore
from tests.support.tablestore_tunnels import BASE_AND_STREAM

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
A, B, C, D, E = (f"shard-{number:03}" for number in range(5))


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


def test_children_are_read_when_their_parent_has_ended_and_the_tunnel_was_told(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=2)
    world.table.put(["1", "2", "3"])
    world.table.arrange("split", A)
    world.table.put(["4"])
    world.table.put(["5"], at=0.9)
    assert world.batch() == ["1", "2"]
    assert world.batch() == ["3"]
    assert world.position[A]["finished"]
    assert world.table.statuses() == {A: "TERMINATED", B: "OPEN", C: "OPEN"}
    assert world.batch() == ["4", "5"]
    assert world.batch() is None


def test_a_child_of_two_waits_for_both(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, max_records=1)
    world.table.put(["1"])
    world.table.put(["2", "3", "4"], at=0.9)
    world.table.arrange("merge", A, B)
    world.table.put(["5"])
    assert [world.batch() for _ in range(4)] == [["1", "2"], ["3"], ["4"], ["5"]]


@pytest.mark.parametrize("seed", range(4))
def test_each_change_is_read_once_and_in_its_order_whatever_splits_and_whoever_dies(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    world = World(tmp_path, shards=2, max_records=choice.choice([1, 3, 100]))
    written: list[tuple[float, str]] = []
    read: list[list[str]] = []
    ranges: list[tuple[str | None, str]] = []

    def run() -> bool:
        world.table.set_tunnel("page", choice.choice([1, 2, 5]))  # answers need not be as long as the last time
        before = world.open().initial_offset() if world.committed is None else world.committed
        world.read(before)  # an attempt that dies before it says where it came to
        found = world.batch(says_so=choice.random() < 0.7)
        if found is None:
            return False
        read.append(found)
        ranges.append((before or world.open().initial_offset(), world.committed or ""))
        return True

    for _ in range(25):
        there = world.table.open_shards()
        what = choice.random()
        if what < 0.1:
            world.table.arrange("split", choice.choice(there))
        elif what < 0.2 and len(there) > 1:
            world.table.arrange("merge", *there[:2])
        elif what < 0.7:
            written.append((choice.choice([0.1, 0.4, 0.6, 0.9]), str(len(written))))
            world.table.put([written[-1][1]], at=written[-1][0])
        else:
            run()
    for _ in range(100):
        if not run() and not world.open().has_new(world.committed):
            break
        world.commit()  # as each plan does for the commit before it
    found = [value for batch in read for value in batch]
    assert sorted(found, key=int) == [value for _, value in written]
    for place in (0.1, 0.4, 0.6, 0.9):
        values = [value for at, value in written if at == place]
        assert sorted(values, key=found.index) == values, "changes of one key come in their order"
    assert [world.read(begin, end) for begin, end in ranges] == read


def test_changes_that_went_from_a_child_before_it_was_first_read_stop_the_read_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.batch()
    world.table.arrange("split", A)
    assert world.batch() == []
    world.table.put(["2", "3", "4"])
    world.backdate(72 * HOUR_MS)
    world.table.arrange("trim", B, 2)
    assert world.open().has_new(world.committed)
    with pytest.raises(ChannelError, match=rf"orders.*{B}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["4"]
    assert world.told["gaps"] == [B, C]


def test_changes_that_went_from_a_channel_of_which_none_was_read_yet_stop_the_read_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    world.table.put(["2", "3"], at=0.9)
    world.backdate(72 * HOUR_MS)
    world.table.arrange("trim", B, 1)
    with pytest.raises(ChannelError, match=rf"orders.*{B}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert B in world.told["gaps"]


def test_a_child_that_is_read_late_lacks_nothing_if_its_parent_was_open_until_lately(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.table.put(["1"])
    world.table.arrange("split", B)
    world.batch()
    world.backdate(72 * HOUR_MS)
    world.table.put(["2"])
    world.table.arrange("split", A)
    world.table.put(["3"])
    assert [world.batch(on_data_loss="record_gap"), world.batch(on_data_loss="record_gap")] == [["2"], ["3"]]
    assert not {"shard-004", "shard-005"} & {*world.told["gaps"]}


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_a_tunnel_that_was_made_again_is_not_taken_for_the_one_that_was_read(
    tmp_path: Path, on_data_loss: str
) -> None:  # fmt: skip
    """It begins where it likes: what was read comes twice, or what came between is in no batch."""
    world = World(tmp_path, on_data_loss=on_data_loss)
    world.table.put(["1", "2"])
    assert world.batch() == ["1", "2"]
    world.table.remove_tunnel()
    world.table.create_tunnel(earliest=True)
    world.table.put(["3"])
    with pytest.raises(SourceChangedError, match=r"orders.*changes is not what was read before: it was tunnel"):
        world.batch()
    with pytest.raises(SourceChangedError):
        world.commit()
    assert set(world.table.checkpoints().values()).isdisjoint({at["after"] for at in world.position.values()})


def test_in_a_new_checkpoint_that_goes_on_from_a_position_by_hand_a_channel_that_was_read_elsewhere_is_a_gap(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "old")
    world.table.put(["1"])
    world.batch()
    by_hand = world.committed
    world.table.arrange("split", A)
    world.table.put(["2", "3"])
    assert [world.batch(), world.batch()] == [[], ["2", "3"]]
    world.table.put(["4"])
    new = World(tmp_path / "new", table=world.table)
    new.committed = by_hand
    assert new.batch() == []
    with pytest.raises(SourceChangedError, match=rf"orders.*{B}.*was read up to a place"):
        new.batch()
    assert new.batch(on_data_loss="record_gap") == ["4"]
    assert new.told["gaps"] == [B]


def test_a_commit_that_did_not_reach_the_tunnel_has_a_sensor_wake_the_next_plan_which_says_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    world.table.put(["2"])
    assert world.batch(says_so=False) == ["1"]
    assert world.table.statuses()[B] == "WAIT"
    assert world.open().has_new(world.committed), "else nobody would ever open the children"
    world.commit()
    assert world.batch() == ["2"]
    assert world.batch() is None


def test_an_answer_that_holds_more_than_a_batch_may_take_is_gone_on_with_in_the_next_one(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=3)
    world.table.set_tunnel("page", 4)
    world.table.put([str(number) for number in range(8)])
    assert [world.batch() for _ in range(4)] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], None]


def test_a_range_of_which_the_tunnel_was_told_is_read_again_exactly_or_not_at_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.set_tunnel("page", 2)
    world.table.put(["1", "2", "3"])
    world.batch()
    begins, end, before = world.open().initial_offset(), world.committed, world.told
    world.table.put(["4"])
    world.table.set_tunnel("page", 100)
    assert world.read(begins, end) == ["1", "2", "3"], "though the tunnel's own word is behind it"
    assert world.open().resolve(begins, world.told) == end
    assert world.open().not_replayable(begins, end) is None
    world.table.arrange("trim", A, 1)
    with pytest.raises(ChannelError, match=r"of 3 records up to 0-\d+-0@\S+ there are 2"):
        world.read(begins, end)
    assert world.read(begins, end, on_data_loss="record_gap") == ["2", "3"]
    assert world.told["gaps"] == [A]
    assert A in (world.open(on_data_loss="record_gap").left_out(begins, end, told=before) or "")
    world.table.arrange("trim", A, 2)
    assert "gone" in (world.open().not_replayable(begins, end) or "")


def test_after_a_rewind_channels_begin_where_they_began_and_wait_for_their_parents_again(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=1)
    world.table.put(["1", "2"])
    world.table.arrange("split", A)
    world.table.put(["3", "4"])
    assert [world.batch() for _ in range(4)] == [["1"], ["2"], ["3"], ["4"]]
    world.committed = None
    assert [world.batch() for _ in range(5)] == [["1"], ["2"], ["3"], ["4"], None]


def test_after_a_rewind_a_channel_that_no_plan_has_seen_waits_for_its_parent_too(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=1)
    world.table.put(["1", "2"])
    world.table.arrange("split", A)
    world.table.put(["3"])
    assert [world.batch() for _ in range(2)] == [["1"], ["2"]]
    assert world.table.statuses() == {A: "TERMINATED", B: "OPEN", C: "OPEN"}
    for _ in range(2):
        world.committed = None
        assert [world.batch() for _ in range(4)] == [["1"], ["2"], ["3"], None]


def test_rows_that_went_unread_stop_the_read_or_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    world.table.put(["2", "3"])
    world.backdate(48 * HOUR_MS)
    world.table.arrange("trim", A, 2)
    with pytest.raises(ChannelError, match=rf"orders.*{A}.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [A]


def test_that_the_last_row_is_gone_is_no_loss_if_nothing_had_come_by_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    world.backdate(72 * HOUR_MS, only=["came"])
    world.table.arrange("trim", A, 1)
    world.table.put(["2"])
    assert world.batch() == ["2"]
    assert world.told["gaps"] == []


def test_a_channel_that_somebody_else_has_read_is_not_passed_over_without_a_word(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    world.table.put(["2"])
    world.table.arrange("split", B)
    assert world.batch() == ["1"]
    other = tablestore.calls()
    tunnel = other.tunnel(world.table.name, world.table.tunnel).id
    other.set_checkpoint(tunnel, B, "finished", number=1)
    with pytest.raises(ChannelError, match=rf"orders.*{B}"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == []
    assert world.told["gaps"] == [B]


def test_a_channel_that_somebody_else_has_read_a_part_of_is_not_read_from_there_without_a_word(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.set_tunnel("page", 1)
    world.table.put(["1"])
    world.table.arrange("split", A)
    world.table.put(["2", "3"])
    assert world.batch() == ["1"]
    other = tablestore.calls()
    tunnel = other.tunnel(world.table.name, world.table.tunnel).id
    begin, number = other.checkpoint(tunnel, B)
    behind = other.records(tunnel, B, begin).next
    assert behind is not None
    other.set_checkpoint(tunnel, B, behind, number=number + 1)
    with pytest.raises(SourceError, match=rf"orders.*{B}.*older one.*record_gap"):
        world.batch()
    assert world.batch(on_data_loss="record_gap") == ["3"]
    assert world.told["gaps"] == [B]
    world.table.put(["4"])
    assert world.batch() == ["4"]
    assert world.told["gaps"] == []


def test_a_word_of_somebody_who_has_read_nothing_is_no_loss(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.arrange("split", A)
    assert world.batch() == ["1"]
    other = tablestore.calls()
    tunnel = other.tunnel(world.table.name, world.table.tunnel).id
    begin, number = other.checkpoint(tunnel, B)
    other.set_checkpoint(tunnel, B, begin, number=number + 1)
    world.table.put(["2"])
    assert world.batch() == ["2"]


def test_what_was_read_before_the_first_plan_is_nobodys_loss(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.arrange("split", A)
    other = tablestore.calls()
    tunnel = other.tunnel(world.table.name, world.table.tunnel).id
    other.set_checkpoint(tunnel, A, "finished", number=1)
    world.table.put(["1"])
    assert world.batch() == ["1"]
    assert world.batch() is None


def test_a_batch_begins_where_the_tunnel_says_that_its_reader_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    other = tablestore.calls()
    tunnel = other.tunnel(world.table.name, world.table.tunnel).id
    begin, _ = other.checkpoint(tunnel, A)
    behind = other.records(tunnel, A, begin).next
    assert behind is not None
    other.set_checkpoint(tunnel, A, behind, number=1)
    world.table.put(["2"])
    assert world.batch() == ["2"]


def test_the_tunnel_shows_how_far_batches_are_and_is_told_again_what_it_has_taken_in(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.table.put(["1", "2"])
    world.batch()
    assert world.table.checkpoints()[A] == Place.of(world.position[A]["after"]).next
    asked = world.table.requests()["/tunnel/checkpoint"]
    world.commit()
    assert world.table.requests()["/tunnel/checkpoint"] == asked
    tunnel = tablestore.calls().tunnel(world.table.name, world.table.tunnel).id
    tablestore.calls().set_checkpoint(tunnel, A, "CAE=", number=2)
    world.commit()
    assert world.table.checkpoints()[A] == Place.of(world.position[A]["after"]).next


@pytest.mark.parametrize("what", ["busy", "thin"])
def test_a_tunnel_that_is_busy_or_thin_is_read_to_its_end(tmp_path: Path, what: str) -> None:
    world = World(tmp_path)
    world.table.put(["1", "2"])
    world.table.set_tunnel("empty_first", what == "thin")
    world.table.refuse(2 if what == "busy" else 0)
    assert world.batch() == ["1", "2"]
    assert world.batch() is None


def test_an_answer_without_rows_is_a_page_so_that_the_reader_pauses_before_it_asks_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.table.set_tunnel("empty_first", True)
    source = world.open()
    channels = TunnelChannels(source.read_late(None).arguments, source.secrets())
    (at,) = (piece["at"] for group in source.read_late(None).arguments["groups"] for piece in group)
    pages = channels.pages(A, at, most=lambda: 9)
    first, second = next(pages), next(pages)
    assert (len(first.rows), first.at_tip, len(second.rows)) == (0, False, 1)


def test_a_sensor_costs_one_request_a_channel_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2, discover_seconds=60)
    world.table.put(["1"])
    world.batch()
    assert not world.open().has_new(world.committed)
    before, kept = world.table.requests(), world.table.checkpoints()
    for _ in range(3):
        assert not world.open().has_new(world.committed)
    asked = {path: count - before[path] for path, count in world.table.requests().items()}
    assert {path: count for path, count in asked.items() if count} == {"/tunnel/readrecords": 6}
    assert world.table.checkpoints() == kept
    world.table.put(["2"])
    assert world.open().has_new(world.committed)


def test_lag_is_how_old_what_comes_next_is(tmp_path: Path) -> None:
    world = World(tmp_path, shards=2)
    world.table.put(["1"])
    world.batch()
    world.table.set("ago_ms", HOUR_MS)
    world.table.put(["2"], at=0.9)
    lag = world.open().lag_by_split(world.committed)
    assert lag[A] == 0
    assert 0 <= lag[B] <= HOUR_MS + 60_000


def test_base_data_is_refused_since_it_cannot_be_replayed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.tunnel = "whole"
    world.table.create_tunnel(kind=BASE_AND_STREAM)
    for ask in (lambda: world.open().check(), lambda: world.open().has_new(None)):
        with pytest.raises(SourceError, match=r"orders.*BaseAndStream.*type Stream"):
            ask()


def test_a_tunnel_that_has_expired_is_an_error_with_the_way_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.batch()
    world.table.put(["2"])
    world.table.set_tunnel("expired", True)
    with pytest.raises(
        SourceError,
        match=r"orders.*expired.*Create another tunnel, and read it as a source of a name",
    ):
        world.batch()
    read = world.open(on_data_loss="record_gap").read_late(world.committed)
    with pytest.raises(ChannelError, match=r"expired.*Create another tunnel"):
        read_here(read.arguments, tablestore.SECRETS)


@pytest.mark.parametrize("at", [{}, {"rows": 1, "after": "1' OR"}, {"rows": 0, "origin": "a b"}])
def test_what_is_no_position_of_the_tunnel_is_refused(tmp_path: Path, at: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="orders"):
        World(tmp_path).open().check_offset(json.dumps({A: at}))


def test_a_tunnel_that_is_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.remove_tunnel()
    for ask in (lambda: world.open().check(), lambda: world.open().has_new(None)):
        with pytest.raises(SourceError, match=rf"orders.*{world.table.name}.*OTSParameterInvalid.*request"):
            ask()


def test_a_service_that_is_away_is_an_error_that_says_so_in_time(tmp_path: Path) -> None:
    world = World(tmp_path, timeout=0.2)
    source = world.open()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        away = replace(tablestore.connection(), host=f"http://127.0.0.1:{nobody.getsockname()[1]}")
        source._server._connect = lambda _: away  # type: ignore[attr-defined]
        with pytest.raises(SourceError, match=rf"orders.*{world.table.name}.*/tunnel/describe was not answered"):
            source.check()


def test_a_key_that_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    source = world.open()
    wrong = replace(tablestore.connection(), password="not-it")
    source._server._connect = lambda _: wrong  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match=r"orders.*OTSAuthFailed.*Signature mismatch.*request") as error:
        source.check()
    assert "not-it" not in str(error.value)


def test_a_table_without_a_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.set("hours", None)
    world.table.put(["1"])
    with pytest.raises(SourceError, match=rf"orders.*{world.table.name}.*Stream"):
        world.open().read_late(None)


def test_no_secret_is_in_what_is_stored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.put(["1"])
    world.batch()
    source = world.open()
    for stored in (repr(source.read(None, world.committed)), repr(source.read_late(None)), world.committed or ""):
        assert tablestore.SECRET not in stored
    assert tablestore.SECRET in source.secrets().values()
    assert tablestore.SECRET not in repr(source._server._access)  # type: ignore[attr-defined]


def test_what_a_record_has_is_in_the_columns_of_the_frame(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.table.write(1, {"id": "1", "day": 7}, {"price": 1.5, "count": -3, "paid": True})
    world.table.update({"id": "1", "day": 7}, {"price": {"delete": True}, "count": {"delete_version": True}})
    world.table.delete({"id": "1", "day": 7})
    source = world.open()
    rows, _ = read_here(source.read_late(None).arguments, source.secrets())
    assert [row[4] for row in rows] == sorted(row[4] for row in rows)
    assert [row[:2] for row in rows] == [(kind, [("id", "1"), ("day", "7")]) for kind in ("put", "update", "delete")]
    assert [(one["name"], one["operation"], one["type"], one["value"]) for row in rows for one in row[2]] == [
        ("price", "put", "double", "1.5"),
        ("count", "put", "integer", "-3"),
        ("paid", "put", "boolean", "true"),
        ("price", "delete", None, None),
        ("count", "delete_version", None, None),
    ]
