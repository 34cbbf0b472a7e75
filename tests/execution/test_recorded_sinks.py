"""A pipeline whose sinks name servers or classes of its own: its tables are looked at as every other's are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.execution.identity import expected
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks import Sink
from airflow_provider_microbatch.sinks.dead_letters import with_letters
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.world import KEY, World
from tests.support.delta_table import batches_of

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own

OURS, THEIRS = "lake:1", "sea:1"


@dataclass(frozen=True)
class Served(DeltaSink):
    """A table behind a server that the definition names."""

    server: str = OURS

    def servers(self) -> set[str]:
        return {self.server}


def only(folder: Path, server: str = OURS) -> Sink:
    return Served(str(folder), server=server)


def beside(folder: Path, server: str = OURS) -> Sink:
    """The same of a table of files beside such a one."""
    return Sinks({"orders": DeltaSink(str(folder)), "events": Served(f"{folder}-events", server=server)})


def of_letters(folder: Path, server: str = OURS) -> Sink:
    """The same of one whose letters go to such a one."""
    return with_letters(DeltaSink(str(folder)), Served(f"{folder}-letters", server=server))


MAKES = [only, beside, of_letters]


def trust(monkeypatch: pytest.MonkeyPatch, *servers: str) -> None:
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_modules=(__name__,), trusted_servers=servers))


@pytest.fixture(params=["its module is trusted", "its class is at hand alone"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(settings, "_given", Settings)
    if request.param == "its module is trusted":
        trust(monkeypatch)
    return World(tmp_path)


def run(world: World, number: int) -> None:
    world.land(number)
    world.run(number)


def rows(folder: Path) -> list[int]:
    found = batches_of(str(folder), apart=False) if folder.exists() else {}
    return sorted(row["id"] for batch in found.values() for row in batch)


@pytest.mark.parametrize("make", MAKES)
def test_a_table_that_was_made_anew_gets_nothing_on_top(world: World, make: Callable[[Path], Sink]) -> None:
    world.options["sink"] = make(world.lake)
    for number in range(2):
        run(world, number)
    shutil.rmtree(world.lake / "_delta_log")
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and .*lake does not know it"):
        run(world, 2)
    assert rows(world.lake) == []


@pytest.mark.parametrize("make", MAKES)
def test_what_was_published_and_not_committed_is_not_made_in_another_table(
    world: World, make: Callable[[Path], Sink]
) -> None:
    world.options["sink"] = make(world.lake)
    run(world, 0)
    world.land(1)
    world.execution.publish(world.staged(1))
    world.expire_leases()
    world.options["sink"] = make(world.root / "newer")
    with pytest.raises(SinkError, match=r"live/1 was published to .*lake, and is there\..*its rows would be in both"):
        world.run(2)
    assert rows(world.lake) == [0, 1]
    assert rows(world.root / "newer") == []


def test_where_a_server_of_before_is_nobodys_any_more_the_run_says_what_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch)
    world = World(tmp_path, sink=only(tmp_path / "lake"))
    world.land(1)
    world.execution.publish(world.staged())
    world.expire_leases()
    world.options["sink"] = only(tmp_path / "newer", THEIRS)
    told = r"live/0 was made for .*lake before, .* would be in both\. Nobody has looked: .*trusted_servers = lake:1"
    with pytest.raises(SinkError, match=told):
        world.run(1)
    assert rows(tmp_path / "newer") == []
    trust(monkeypatch, OURS)
    with pytest.raises(SinkError, match=r"live/0 was published to .*lake, and is there"):
        world.run(2)


def test_a_server_that_nobody_trusts_hides_nothing_of_the_tables_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch)
    world = World(tmp_path, sink=beside(tmp_path / "lake"))
    for number in range(2):
        run(world, number)
    shutil.rmtree(world.lake / "_delta_log")
    world.options["sink"] = Sinks(
        {"orders": DeltaSink(str(world.lake)), "events": Served(str(tmp_path / "other"), server=THEIRS)}
    )
    with pytest.raises(SinkError, match=r"batch live/1 is committed, and .*lake does not know it"):
        run(world, 2)


@pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted then", "given up"])
def test_what_a_class_of_before_may_have_published_is_not_made_in_another_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    monkeypatch.setattr(settings, "_given", Settings)
    world = World(tmp_path, sink=only(tmp_path / "lake"))
    world.land(1)
    world.execution.publish(world.staged())
    world.expire_leases()
    world.options["sink"] = FileSink(str(tmp_path / "files"), format="json")
    told = rf"would be in both\. Nobody has looked: .*trusted_modules = {__name__} .* remove (/\S+/pipelines/\w+)\.$"
    for number in (1, 2):
        with pytest.raises(SinkError, match=told) as refused:
            world.run(number)
    if is_trusted:
        trust(monkeypatch, OURS)
        with pytest.raises(SinkError, match=r"live/0 was published to .*lake, and is there"):
            world.run(3)
        return
    (entry,) = re.findall(told, str(refused.value))
    Path(entry).unlink()
    world.run(3)
    assert (tmp_path / "files" / "lane=live" / "batch_id=0").is_dir()


def test_a_class_of_before_stops_no_replay_of_what_is_in_the_table_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that takes other arguments by now."""
    monkeypatch.setattr(settings, "_given", Settings)
    world = World(tmp_path, sink=only(tmp_path / "lake"))
    run(world, 0)
    world.options["sink"] = DeltaSink(str(tmp_path / "lake"))
    world.run(0, clear_number=1)
    assert world.checkpoint.replays.is_answered(KEY)
    assert rows(tmp_path / "lake") == [0]


def test_a_strangers_attempt_that_names_a_class_stops_no_run_and_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write into the checkpoint could."""
    world.land(1)
    attempt = world.staged()
    trap = {"class": "strangers:Trap", "version": 1, "arguments": {}}
    name = world.checkpoint.definitions.put({**trap, "arguments": {"sink": trap, "sources": {}, "hooks": []}})
    theirs = replace(attempt, epoch=attempt.epoch + 1, definition=name, identity=None)
    world.checkpoint.attempts.take_exactly(theirs)
    world.expire_leases()
    world.run(1)
    assert world.table() == {0: [1]}
    told = [line for line in caplog.messages if "in a table that it was made for before, nobody can ask" in line]
    assert "strangers" in told[0]


def test_what_was_staged_for_a_table_of_before_is_published_there_by_nobody(tmp_path: Path) -> None:
    """Its process has passed the fence, and sleeps."""
    world = World(tmp_path)
    world.land(1)
    before, attempt = world.execution, world.staged()
    world.expire_leases()
    world.options["sink"] = FileSink(str(tmp_path / "newer"), format="json")
    world.run(1)
    assert world.checkpoint.attempts.ended(attempt.key, attempt.epoch) is not None
    with pytest.raises(SinkError, match="has no complete stage"):
        before.sink.publish(expected(world.checkpoint, attempt.batch, attempt), attempt.epoch)
    assert world.table() == {}
    assert (tmp_path / "newer" / "lane=live" / "batch_id=0").is_dir()


def test_an_attempt_of_a_class_that_is_gone_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_given", Settings)
    world = World(tmp_path, sink=only(tmp_path / "lake"))
    world.land(1)
    attempt = world.staged()
    world.expire_leases()
    trust(monkeypatch)
    monkeypatch.delattr(f"{__name__}.Served")
    world.options["sink"] = FileSink(str(tmp_path / "newer"), format="json")
    with pytest.raises(SinkError, match="has no attribute 'Served'"):
        world.run(1)
    assert world.checkpoint.attempts.ended(attempt.key, attempt.epoch) is not None
