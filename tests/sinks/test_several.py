"""Several sinks of one batch: cut off between any two tables, whoever comes next brings all of them to one attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import DefinitionError, PublishConflictError, SinkError
from airflow_provider_microbatch.sinks import OpenSink, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.manifest import as_adopted
from airflow_provider_microbatch.sinks.several import Sinks
from tests.sinks.stages import BATCH, EXPECTED, batch_of, write_stage

NAMES = ("orders", "daily", "audit")


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def sink(tmp_path: Path) -> OpenSink:
    return Sinks({name: FileSink(str(tmp_path / name), format="json") for name in NAMES}).open(SinkContext())


def stage(sink: OpenSink, *epochs: int) -> None:
    for epoch in epochs:
        for table in sink.tables:
            write_stage(table, epoch)


def held(sink: OpenSink) -> list[int | None]:
    """The attempt that each table has the batch of."""
    found = [table.contains(EXPECTED) for table in sink.tables]
    return [None if one is None else one.epoch for one in found]


def cut_off(
    monkeypatch: pytest.MonkeyPatch, sink: OpenSink, method: str, *, after: int, call: Callable[[], object]
) -> None:
    """Make a call whose process dies when so many tables have changed."""
    changed = 0
    real = getattr(FileSink, method)

    def counted(*given: object) -> object:
        nonlocal changed
        if changed == after:
            raise Killed
        made = real(*given)
        changed += 1
        return made

    with monkeypatch.context() as patched:
        patched.setattr(FileSink, method, counted)
        with pytest.raises(Killed):
            call()


@pytest.mark.parametrize("after", [1, 2])
def test_a_publish_that_was_cut_off_is_finished_from_what_the_attempt_staged(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    stage(sink, 1)
    cut_off(monkeypatch, sink, "publish", after=after, call=lambda: sink.publish(EXPECTED, 1))
    assert held(sink) == [1] * after + [None] * (3 - after)
    assert sink.contains(EXPECTED) is None, "not in as long as one lacks it"
    finished = sink.finish(EXPECTED)
    assert finished is not None
    assert finished.epoch == 1
    assert held(sink) == [1, 1, 1]
    assert sink.finish(EXPECTED) == finished == sink.contains(EXPECTED)


def test_the_attempt_itself_goes_on_where_it_was_cut_off(sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(sink, 1)
    cut_off(monkeypatch, sink, "publish", after=1, call=lambda: sink.publish(EXPECTED, 1))
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert held(sink) == [1, 1, 1]


@pytest.mark.parametrize("after", [1, 2])
def test_where_its_stages_are_gone_the_next_attempt_takes_the_place_of_all(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    stage(sink, 1)
    cut_off(monkeypatch, sink, "publish", after=after, call=lambda: sink.publish(EXPECTED, 1))
    sink.drop_stage(BATCH, 1)
    assert sink.finish(EXPECTED) is None
    stage(sink, 2)
    assert sink.publish(EXPECTED, 2).epoch == 2
    assert held(sink) == [2, 2, 2]


def test_what_was_adopted_in_one_table_is_replaced_for_none_that_lacks_it(sink: OpenSink) -> None:
    """Whoever publishes: its stage may be of before the output was adopted."""
    first, *_ = sink.tables
    write_stage(first, 7)
    assert first.publish(EXPECTED, 7)
    adopting = replace(EXPECTED, recognise=as_adopted, identity=batch_of(digest="d2"))
    for table in sink.tables:
        write_stage(table, 8, batch=adopting.identity)
    with pytest.raises(SinkError, match=r"adopted in \S+orders, and not in \S+daily and \S+audit: .* Name \S+orders"):
        sink.publish(adopting, 8)
    assert held(sink) == [7, None, None]


def test_an_attempt_that_lacks_a_stage_is_published_nowhere(sink: OpenSink) -> None:
    first, second, _ = sink.tables
    write_stage(first, 1)
    write_stage(second, 1)
    assert sink.manifest(BATCH, 1) is None
    with pytest.raises(SinkError, match="no complete stage for each of"):
        sink.publish(EXPECTED, 1)
    assert held(sink) == [None, None, None]


def test_who_wakes_up_between_two_tables_finds_the_later_attempt(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(sink, 1)
    real = FileSink.manifest
    slept = False

    def sleeps(table: FileSink, *given: object) -> object:
        nonlocal slept
        if held(sink)[0] == 1 and not slept:
            slept = True
            # Meanwhile another run opens the next attempt, drops what this one staged, and publishes its own.
            sink.drop_stage(BATCH, 1)
            stage(sink, 2)
            assert sink.publish(EXPECTED, 2).epoch == 2
        return real(table, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(FileSink, "manifest", sleeps)
    with pytest.raises(PublishConflictError, match="attempt 2 is published"):
        sink.publish(EXPECTED, 1)
    assert slept
    assert held(sink) == [2, 2, 2]


@pytest.mark.parametrize("after", [1, 2])
def test_a_replay_that_was_cut_off_is_not_over_and_is_finished(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    stage(sink, 1, 2)
    sink.publish(EXPECTED, 1)
    cut_off(monkeypatch, sink, "replace", after=after, call=lambda: sink.replace(EXPECTED, 2))
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 1, "the older one: else the replay would be answered"
    finished = sink.finish(EXPECTED)
    assert finished is not None
    assert finished.epoch == 2
    assert held(sink) == [2, 2, 2]


def test_a_replay_that_was_cut_off_and_lost_its_stages_is_made_by_the_next(
    sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(sink, 1, 2)
    sink.publish(EXPECTED, 1)
    cut_off(monkeypatch, sink, "replace", after=1, call=lambda: sink.replace(EXPECTED, 2))
    sink.drop_stage(BATCH, 2)
    found = sink.finish(EXPECTED)
    assert found is not None
    assert found.epoch == 1
    stage(sink, 3)
    assert sink.replace(EXPECTED, 3).epoch == 3
    assert held(sink) == [3, 3, 3]


def test_a_table_that_has_lost_the_batch_gets_it_back_by_a_replay(sink: OpenSink) -> None:
    stage(sink, 1, 2)
    sink.publish(EXPECTED, 1)
    assert sink.tables[1].withdraw(EXPECTED, 1)
    assert sink.contains(EXPECTED) is None
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert held(sink) == [2, 2, 2]


def test_what_is_published_tells_the_files_of_all(sink: OpenSink) -> None:
    stage(sink, 1)
    assert sorted(sink.publish(EXPECTED, 1).files) == sorted(f"{name}/part-00000-1.json" for name in NAMES)


FILE = FileSink("/lake/orders", format="json")


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ({"orders": FILE}, "at least two"),
        ([FILE, FILE], "at least two"),
        ({"orders": FILE, "daily": "table"}, "sink 'daily' is a str"),
        ({"orders": FILE, "both": Sinks({"a": FileSink("/a"), "b": FileSink("/b")})}, "sink 'both' is a Sinks"),
        ({"orders": FILE, "daily": FileSink("file:/lake/orders/")}, "write to one table"),
        ({"orders": FILE, "daily": FileSink("/lake/orders/daily")}, "one within the other's"),
        ({"or ders": FILE, "daily": FileSink("/b")}, "or ders"),
    ],
)
def test_what_are_no_sinks_of_one_batch(sinks: dict[str, Sink], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Sinks(sinks)


@dataclass(frozen=True)
class Aliased(FileSink):
    """A table by an address that does not show whose it is, as a topic is by a connection.

    :param known: what its server knows it as, then the tables that have rows in common with it.
    """

    known: tuple[str, ...] = ()
    alias: str = ""

    @property
    def only_folder(self) -> Path | None:
        return None

    def is_same_place(self, other: Sink) -> bool:
        return self.location() == other.location()

    def would_show(self, location: str) -> bool:
        return False

    def location(self) -> str:
        return f"{self.alias}:{super().location()}"

    def known_as(self) -> tuple[str, ...]:
        return self.known


def aliased(folder: Path, **known: tuple[str, ...]) -> OpenSink:
    """Sinks of these names that are all one table."""
    made = {name: Aliased(str(folder), format="json", alias=name, known=told) for name, told in known.items()}
    return Sinks(made).open(SinkContext())


def test_two_sinks_that_a_server_knows_as_one_table_are_refused_before_anything_is_planned(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"a:\S+ and c:\S+ are one table, by two addresses or connections\. Give each"):
        aliased(tmp_path, a=("t1",), b=("t2",), c=("t1",)).check()
    aliased(tmp_path, a=("t1",), b=("t2",), c=(), d=()).check()


@pytest.mark.parametrize("known", [{"a": ("t1",), "b": ("t2", "t1")}, {"a": ("t1", "t2"), "b": ("t2",)}])
def test_two_sinks_one_of_which_is_a_part_of_the_other_are_refused_likewise(
    tmp_path: Path, known: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(SinkError, match=r"[ab]:\S+ and [ab]:\S+ have rows in common: .* Give each sink a table"):
        aliased(tmp_path, **known).check()


def test_two_parts_of_one_table_are_two_tables(tmp_path: Path) -> None:
    aliased(tmp_path, a=("t1", "all"), b=("t2", "all")).check()


def test_a_frame_that_came_to_no_table_of_its_own_is_no_batch(tmp_path: Path) -> None:
    sink = aliased(tmp_path, a=(), b=())
    write_stage(sink.tables[0], 1, frame="a")
    told = r"live/7 is in by the frame 'a' alone: a:\S+ and b:\S+ are one table"
    for _ in range(2):
        with pytest.raises(SinkError, match=told):
            sink.publish(EXPECTED, 1)
        with pytest.raises(SinkError, match=told):
            sink.finish(EXPECTED)


def test_sinks_whose_names_were_exchanged_are_not_taken_for_one_table(tmp_path: Path) -> None:
    tables = {name: FileSink(str(tmp_path / name), format="json") for name in ("a", "b")}
    for name, table in tables.items():
        write_stage(table, 1, frame=name)
        table.publish(EXPECTED, 1)
    exchanged = Sinks({"a": tables["b"], "b": tables["a"]}).open(SinkContext())
    assert exchanged.finish(EXPECTED) is not None
    for name, table in tables.items():
        write_stage(table, 2, frame="ab".replace(name, ""))
    assert exchanged.replace(EXPECTED, 2).epoch == 2
