"""Channels that are split and merged: each row is read once, and parents before their children."""

from __future__ import annotations

import os
import random
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.exceptions import CheckpointError, CorruptEntryError, SourceChangedError, SourceError
from airflow_provider_microbatch.execution.opened_sources import OpenedSources, Ranges
from airflow_provider_microbatch.runtime import channel_ends
from airflow_provider_microbatch.runtime.channels import ChannelError, ChannelRead, Page, read_here
from airflow_provider_microbatch.sources import LATE, OpenSource, SourceContext
from airflow_provider_microbatch.sources.channels import Channel, Look
from airflow_provider_microbatch.sources.channels.graph import compare, eligible, forgettable, merged, parse, render
from airflow_provider_microbatch.sources.resolving import resolved
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.sources.channel_world import DAY_MS, NOW_MS, Tunnel, TunnelChannels, TunnelServer, TunnelSource


class World:
    """A tunnel, a checkpoint, and what batches have read."""

    def __init__(
        self, root: Path, *, max_records: int = 2, checkpoint: str = "CHECKPOINT", tunnel: str = "tunnel"
    ) -> None:
        self.tunnel = Tunnel(tunnel)
        self.name = tunnel
        self.checkpoint = checkpoint
        self.max_records = max_records
        self.store = PosixStore(root)
        self.committed: str | None = None
        self.batches: list[dict[str, list[int]]] = []

    def open(self, *, moves_alone: bool = True, **arguments: object) -> OpenSource:
        """A fresh process's view."""
        arguments = {"tunnel": self.name, "max_records": self.max_records, "idle_seconds": 0, **arguments}
        source = TunnelSource(**arguments)  # type: ignore[arg-type]
        context = SourceContext(
            name="orders",
            log=self.store.scoped("log"),
            state=self.store.scoped("state"),
            clock_ms=lambda: NOW_MS,
            moves_alone=moves_alone,
            checkpoint=self.checkpoint,
        )
        return source.open(context)

    def batch(self, *, crashes: bool = False) -> bool:
        """The next one; False if there is none.

        :param crashes: its first attempt has read, and told nobody.
        """
        if self.open().latest_offset(self.committed) is not LATE:
            return False
        start = self.open().initial_offset() if self.committed is None else self.committed
        if crashes:
            read_here(self.open().read_late(start).arguments, {})
            self.tunnel.put(random.Random(0))
        rows, told = read_here(self.open().read_late(start).arguments, {})
        end = self.open().resolve(start, told)
        if end == start:
            return False
        again, told_again = read_here(self.open().read(start, end).arguments, {})
        assert again == rows
        assert self.open().resolve(start, told_again) == end, "an attempt that reads up to the end comes to it"
        self.open().commit(end or "")
        before = parse(start or "{}", where="start")
        self.batches.append(
            {
                channel: self.tunnel.rows[channel][before.get(channel, {"rows": 0})["rows"] : at["rows"]]
                for channel, at in parse(end or "{}", where="end").items()
            }
        )
        assert sorted(row[0] for row in rows) == sorted(row for some in self.batches[-1].values() for row in some)
        self.committed = end
        return True


def test_each_channel_is_asked_once_what_lies_behind_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(tmp_path), list[str]()
    world.tunnel.put(random.Random(1))
    assert world.batch()

    def look(server: TunnelServer, channel: str, at: object) -> Look:
        asked.append(channel)
        return Look(is_new=True, behind_ms=7 if channel == "c0" else 5)

    monkeypatch.setattr(TunnelServer, "look", look)
    sources = {"orders": TunnelSource(max_records=1, idle_seconds=0)}
    checkpoint = Checkpoint(PosixStore(tmp_path / "checkpoint"), sources=("orders",))
    opened = OpenedSources(sources, checkpoint=checkpoint, lane=LIVE, clock_ms=lambda: NOW_MS)
    lag = opened.lag({"orders": world.committed})
    assert lag.by_source == {"orders": {"milliseconds": 7}}
    assert lag.by_split == {"orders": {"c0": 7, "c1": 5}}
    assert sorted(asked) == ["c0", "c1"]


def listed(**parents: tuple[str, ...]) -> dict[str, Channel]:
    return {name: Channel(id=name, parents=of) for name, of in parents.items()}


def test_a_child_waits_for_all_parents_and_for_those_that_nobody_has_begun() -> None:
    """Two were merged and the result was split since the position: it knows neither what came of them nor of that."""
    there = listed(a=(), b=(), c=("a", "b"), d=("c",), e=("c",))
    assert eligible({"a": {"rows": 1}, "b": {"rows": 0}}, there).keys() == {"a", "b"}
    done = {"rows": 1, "finished": True}
    assert eligible({"a": done, "b": {"rows": 0}}, there).keys() == {"b"}
    assert eligible({"a": done, "b": done}, there).keys() == {"c"}
    assert eligible({"a": done, "b": done, "c": done}, there).keys() == {"d", "e"}
    assert eligible({}, listed(c=("a", "b"), d=("c",))).keys() == {"c"}, (
        "parents that are gone are waited for by nobody"
    )


def test_the_record_wins_and_what_has_ended_does_not_return() -> None:
    start = {"a": {"rows": 3, "after": "2", "finished": True}, "b": {"rows": 1, "after": "0"}}
    end = merged(start, {"a": {"rows": 9, "after": "8"}, "b": {"rows": 2, "after": "1"}})
    assert end == {"a": start["a"], "b": {"rows": 2, "after": "1"}}
    assert eligible(end, listed(a=(), b=())).keys() == {"b"}


def test_a_channel_is_forgotten_only_when_no_listing_can_name_it() -> None:
    old, new = ({"rows": 1, "finished": True, "seen": seen} for seen in (1_000, 9_000))
    position = {"old": old, "new": new, "listed": old, "read": {"rows": 1, "seen": 1_000}}
    assert forgettable(position, listed(listed=()), before_ms=5_000) == ["old"]


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"a": 1}', '{"a":{}}', '{"a":{"rows":-1}}', '{"a":{"rows":true}}', '{"a":{"rows":1,"to":"b"}}'],
)
def test_what_is_no_position_is_named(text: str) -> None:
    with pytest.raises(CorruptEntryError, match="orders"):
        parse(text, where="orders")


def test_a_position_is_behind_another_if_it_is_in_no_channel_before_it() -> None:
    one, two = {"a": {"rows": 2}, "b": {"rows": 1}}, {"a": {"rows": 1}, "b": {"rows": 1}}
    assert compare(one, two) is True
    assert compare(two, one) is False
    assert compare({"a": {"rows": 2}}, {"b": {"rows": 1}}) is None
    assert parse(render(one), where="here") == one


def test_a_channel_that_went_before_it_was_read_stops_the_plan_or_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tunnel.put(random.Random(1))
    assert world.batch()
    world.tunnel.gone.add("c1")
    with pytest.raises(SourceChangedError, match=r"orders.*c1.*record_gap"):
        world.open().latest_offset(world.committed)
    source = world.open(on_data_loss="record_gap")
    assert source.latest_offset(world.committed) is LATE
    _, told = read_here(source.read_late(world.committed).arguments, {})
    assert told["gaps"] == ["c1"]
    end = source.resolve(world.committed, told)
    assert parse(end or "", where="here")["c1"]["finished"]
    assert source.latest_offset(end) == end


def test_a_channel_that_is_missing_in_an_old_listing_is_not_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    old = world.tunnel.listing()
    world.tunnel.split(random.Random(2))
    world.tunnel.put(random.Random(2))
    while world.batch():
        pass
    world.tunnel.stale = old
    assert world.open().latest_offset(world.committed) == world.committed


def test_what_the_server_was_told_is_read_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tunnel.put(random.Random(1))
    assert world.batch()
    assert {after for after in world.tunnel.kept.values() if after is not None} == {"0"}
    world.tunnel.put(random.Random(1))
    world.tunnel.loses_pushes = True
    with pytest.raises(SourceError, match=r"orders.*does not show it"):
        world.batch()


def test_a_range_that_has_fewer_rows_than_it_had_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    world = World(tmp_path, max_records=9)
    for _ in range(4):
        world.tunnel.put(random.Random(1))
    assert world.batch()
    (channel,) = (name for name, rows in world.tunnel.rows.items() if rows)
    whole = world.open().read(world.open().initial_offset(), world.committed)
    world.tunnel.rows[channel].pop()
    with pytest.raises(ChannelError, match=r"of 4 records up to 3 there are 3"):
        read_here(whole.arguments, {})


class Trickle(TunnelChannels):
    """A row comes between any two requests."""

    def __init__(self) -> None:
        self.asked = 0

    def pages(self, channel: str, at: object, *, most: Callable[[], int]) -> object:  # type: ignore[override]
        while True:
            self.asked += 1
            yield Page(rows=[(str(self.asked), (self.asked,))], seen=NOW_MS, came=self.asked, at_tip=True)


def test_reading_ends_at_so_many_rows_though_more_come() -> None:
    channels = Trickle()
    arguments = {
        "name": "orders",
        "max_records": 3,
        "idle_seconds": 60,
        "on_data_loss": "fail",
        "retention_ms": DAY_MS,
    }
    one = ChannelRead(channels, {"channel": "a", "at": {"rows": 5}}, arguments)
    assert sum(len(page) for page in one.pages()) == 3
    assert one.end == {"rows": 8, "first": "1", "after": "3", "came": 3, "seen": NOW_MS, "keeps": DAY_MS}


class Ended(TunnelChannels):
    """A channel that has ended, without a row."""

    def __init__(self) -> None:
        pass

    def pages(self, channel: str, at: object, *, most: Callable[[], int]) -> object:  # type: ignore[override]
        yield Page(rows=[], seen=NOW_MS, at_tip=True, ended=True)


@pytest.mark.parametrize(("at", "opened"), [({"rows": 0}, {}), ({"rows": 0, "seen": 7}, {"open": 7})])
def test_until_when_a_channel_was_open_is_told_as_far_as_it_is_known(
    at: dict[str, int], opened: dict[str, int]
) -> None:  # fmt: skip
    """Else what came of it would count as lost, though nothing says so."""
    arguments = {
        "name": "orders",
        "max_records": 3,
        "idle_seconds": 0,
        "on_data_loss": "fail",
        "retention_ms": DAY_MS,
    }
    one = ChannelRead(Ended(), {"channel": "a", "at": at}, arguments)
    assert [*one.pages()] == []
    assert one.end == {"rows": 0, "seen": NOW_MS, "keeps": DAY_MS, "finished": True, **opened}


def test_the_first_to_say_where_a_channel_ends_decides(tmp_path: Path) -> None:
    folder = str(tmp_path / "ends")
    assert channel_ends.get(folder, "a/../b") is None
    assert channel_ends.choose(folder, "a/../b", {"rows": 1}) == {"rows": 1}
    assert channel_ends.choose(folder, "a/../b", {"rows": 2}) == {"rows": 1}
    assert channel_ends.all_of(folder) == {"a/../b": {"rows": 1}}
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "ends"]
    channel_ends.remove(folder)
    assert channel_ends.all_of(folder) == {}


def left_by_attempts(folder: Path, *, days: int) -> Path:
    """The folder of an attempt that died so long ago."""
    found = folder / str(uuid.uuid4())
    found.mkdir(parents=True)
    (found / "end").write_text("{}")
    os.utime(found, times=(time.time() - days * 86_400,) * 2)
    return found


def test_what_attempts_left_that_died_long_ago_is_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    ends = tmp_path / "state" / "ends"
    old, new = left_by_attempts(ends, days=31), left_by_attempts(ends, days=29)
    (ends / "other").mkdir()
    os.utime(ends / "other", (1, 1))
    world.tunnel.put(random.Random(1))
    assert world.batch()
    assert not old.exists()
    assert new.exists()
    assert (ends / "other").exists()


@pytest.mark.parametrize("link", ["state", "state/ends"])
def test_no_link_below_the_checkpoint_leads_to_what_attempts_left(tmp_path: Path, link: str) -> None:
    """User code can write there, and names of folders of others are of that form too: those of pods, for one."""
    world = World(tmp_path / "checkpoint", checkpoint=str(tmp_path / "checkpoint"))
    world.tunnel.put(random.Random(1))
    assert world.batch()
    others = left_by_attempts(tmp_path / "others" / ("ends" if link == "state" else ""), days=31)
    place = tmp_path / "checkpoint" / link
    if link == "state":
        (place / "begin").rename(tmp_path / "others" / "begin")
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(tmp_path / "others")
    with pytest.raises((SourceError, CheckpointError), match="is a link"):
        world.open().commit(world.committed or "")
    with pytest.raises((SourceError, CheckpointError), match="is a link"):
        world.open().read_late(world.committed)
    assert (others / "end").exists()


def test_a_quiet_channel_gets_a_batch_before_its_last_row_is_gone(tmp_path: Path) -> None:
    """Else nobody could tell later whether rows have come and gone unread."""
    world = World(tmp_path)
    world.tunnel.put(random.Random(1))
    assert world.batch()
    position = parse(world.committed or "", where="here")
    old = render({channel: {**at, "seen": NOW_MS - DAY_MS * 3 // 4} for channel, at in position.items()})
    assert world.open().latest_offset(world.committed) == world.committed
    assert world.open().latest_offset(old) is LATE
    _, told = read_here(world.open().read_late(old).arguments, {})
    assert world.open().resolve(old, told) == world.committed
    # Where each batch replaces the table, its rows would be gone by that.
    source = world.open(moves_alone=False)
    assert not source.has_new(old)
    assert source.latest_offset(old) == source.resolve(old, told) == old


def test_where_each_batch_replaces_the_table_quiet_channels_move_with_the_rows_of_another_source(
    tmp_path: Path,
) -> None:
    committed: dict[str, str | None] = {}
    for name in ("quiet", "busy"):
        world = World(tmp_path / name, tunnel=name)
        world.tunnel.put(random.Random(1))
        assert world.batch()
        position = parse(world.committed or "", where="here")
        quiet_since = NOW_MS - DAY_MS * 3 // 4 if name == "quiet" else NOW_MS
        committed[name] = render({channel: {**at, "seen": quiet_since} for channel, at in position.items()})
    checkpoint = Checkpoint(PosixStore(tmp_path / "checkpoint"), sources=("quiet", "busy"))
    opened = OpenedSources(
        {name: TunnelSource(tunnel=name, max_records=2, idle_seconds=0) for name in committed},
        checkpoint=checkpoint,
        lane=LIVE,
        clock_ms=lambda: NOW_MS,
        moves_alone=False,
    )

    def ended() -> dict[str, str | None]:
        told = {name: read_here(opened.open(name).read_late(at).arguments, {})[1] for name, at in committed.items()}
        late = Ranges(committed, committed, late=frozenset(committed))
        return opened.resolve(["quiet", "busy"], late, read=told, on_record={})

    assert opened.next_ranges(committed, {}).are_empty
    assert ended() == committed, "there is no batch to move with"
    world.tunnel.put(random.Random(1))
    assert opened.with_new(committed) == ["busy"]
    assert opened.next_ranges(committed, {}).late == {"quiet", "busy"}
    moved = ended()
    assert all(at["seen"] == NOW_MS for at in parse(moved["quiet"] or "", where="here").values())
    assert opened.next_ranges(moved, {}).are_empty


@pytest.mark.parametrize(("then_days", "now_days"), [(1, 7), (7, 1)])
def test_a_batch_without_rows_is_made_again_whatever_the_retention_is_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then_days: int, now_days: int
) -> None:
    """For 13 hours nothing came: with a day of retention that is renewed, with a week it is not."""
    monkeypatch.setattr(TunnelServer, "retention_ms", lambda server: 7 * DAY_MS)
    world = World(tmp_path)
    world.tunnel.put(random.Random(1))
    assert world.batch()
    position = parse(world.committed or "", where="here")
    start = render({channel: {**at, "seen": NOW_MS - DAY_MS * 13 // 24} for channel, at in position.items()})
    _, at_first = read_here(world.open().read_late(start).arguments, {})
    monkeypatch.setattr(TunnelServer, "retention_ms", lambda server: then_days * DAY_MS)
    end = world.open().resolve(start, at_first)
    assert (end == start) is (then_days == 7)
    monkeypatch.setattr(TunnelServer, "retention_ms", lambda server: now_days * DAY_MS)
    _, again = read_here(world.open().read(start, end).arguments, {})
    for told in (at_first, again):
        world.open().verify(start, end, told)
        assert resolved(world.open(), start, told, on_record=[end]) == end


def test_an_attempt_that_came_elsewhere_has_not_come_to_the_end_on_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tunnel.rows["c0"] += [1, 2]
    assert world.batch()
    start = world.committed
    world.tunnel.rows["c0"].append(3)
    assert world.batch()
    _, told = read_here(world.open().read(start, world.committed).arguments, {})
    moved_on = render({"c0": {**parse(start or "", where="here")["c0"], "rows": 9, "after": "8"}})
    for other in (start, moved_on):
        assert resolved(world.open(), start, told, on_record=[other]) == world.committed
    with pytest.raises(SourceChangedError, match="not what was planned"):
        world.open().verify(start, moved_on, told)


def test_a_channel_that_never_had_a_row_gets_a_batch_too_before_one_could_have_come_and_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tunnel.put(random.Random(1))
    assert world.batch()
    position = parse(world.committed or "", where="here")
    (idle,) = (channel for channel, at in position.items() if not at["rows"])
    old = render({**position, idle: {"rows": 0, "seen": NOW_MS - DAY_MS * 3 // 4}})
    assert world.open().has_new(old)
    _, told = read_here(world.open().read_late(old).arguments, {})
    assert world.open().resolve(old, told) == world.committed


def test_a_channel_was_not_there_while_a_parent_was_open() -> None:
    def ended(open_ms: int, seen: int) -> dict[str, Any]:
        return {"rows": 1, "finished": True, "open": open_ms, "seen": seen}

    assert eligible({"a": ended(5, 9)}, listed(a=(), b=("a",)))["b"] == {"rows": 0, "seen": 5}
    long_ago = {"x": ended(1, 2), "a": ended(5, 9), "b": ended(7, 9)}
    assert eligible(long_ago, listed(c=("x", "a", "b")))["c"] == {"rows": 0, "seen": 5}
    assert eligible({"a": {"rows": 1, "finished": True}}, listed(b=("a",)))["b"] == {"rows": 0}
    assert eligible({"a": ended(5, 9)}, listed(b=()))["b"] == {"rows": 0}
    assert eligible({"a": ended(5, 9)}, listed(c=("b",)))["c"] == {"rows": 0, "seen": 0}


ACTS: dict[str, Callable[[World, random.Random], object]] = {
    "row": lambda world, choice: world.tunnel.put(choice),
    "rows": lambda world, choice: [world.tunnel.put(choice) for _ in range(5)],
    "split": lambda world, choice: world.tunnel.split(choice),
    "merge": lambda world, choice: world.tunnel.merge(choice),
    "merge, then split": lambda world, choice: (world.tunnel.merge(choice), world.tunnel.split(choice)),
    "batch": lambda world, choice: world.batch(),
    "batch that crashes": lambda world, choice: world.batch(crashes=True),
    "a listing that is kept": lambda world, choice: setattr(world.tunnel, "stale", world.tunnel.listing()),
    "a new listing": lambda world, choice: setattr(world.tunnel, "stale", None),
    "what was read expires": lambda world, choice: world.tunnel.expire(parse(world.committed or "{}", where="here")),
}


@settings(max_examples=150, deadline=None)
@given(acts=st.lists(st.sampled_from(sorted(ACTS)), max_size=25), seed=st.integers(0, 2**16))
def test_each_row_is_read_once_and_parents_before_their_children(acts: list[str], seed: int) -> None:
    choice = random.Random(seed)
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        for act in acts:
            ACTS[act](world, choice)
        world.tunnel.stale = None
        while world.batch():
            pass
        read = [row for batch in world.batches for rows in batch.values() for row in rows]
        assert sorted(read) == list(range(world.tunnel.count))
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, batch in enumerate(world.batches):
            for channel, rows in batch.items():
                if rows:
                    first.setdefault(channel, number)
                    last[channel] = number
        for child, parents in world.tunnel.parents.items():
            for parent in parents:
                assert last.get(parent, -1) < first.get(child, len(world.batches)), f"{child} came before {parent}"
        for channel, rows in world.tunnel.rows.items():
            assert [row for batch in world.batches for row in batch.get(channel, [])] == rows
