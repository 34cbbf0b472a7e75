"""What a table has lost is missed also where a definition on record cannot be loaded here any more: that of a table
beside it, or its own, since its class has changed."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from tests.execution.test_dead_letters import refusing
from tests.execution.test_lost_in_table import restore, table
from tests.execution.test_lost_since_a_change import LOST, two_batches
from tests.execution.world import World

pytestmark = pytest.mark.slow  # many tables are made by libraries of their own


@dataclass(frozen=True)
class Ours(FileSink):
    """A class of the company's own."""


@pytest.fixture(autouse=True)
def _trusts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_given", Settings)


def our_lake(*fields: str, version: int = 1) -> type[DeltaSink]:
    """The company's own Delta table, as the class is with these fields."""
    added = [(name, str, dataclasses.field(default="", kw_only=True)) for name in fields]
    made = dataclasses.make_dataclass("Lake", added, bases=(DeltaSink,), namespace={"version": version}, frozen=True)
    made.__module__ = __name__
    return made


def beside_ours(root: Path, own: type[FileSink] = Ours) -> Sinks:
    return Sinks({"lake": DeltaSink(str(root / "lake")), "ours": own(str(root / "ours"), format="json")})


@pytest.mark.parametrize("own", [FileSink, Ours])
def test_what_a_table_has_lost_that_was_beside_another_class(tmp_path: Path, own: type[FileSink]) -> None:
    """The pipeline names the class no more, so that nobody trusts it."""
    both = beside_ours(tmp_path, own)
    world = two_batches(World(tmp_path, sink=both), backup=True)
    world.options["sink"] = both.sinks["lake"]
    restore(world)
    _comes_back(world)


@pytest.mark.parametrize(
    "later", [our_lake("owner"), our_lake(), our_lake("owner", version=2)], ids=["as it was", "a field less", "version"]
)
def test_what_a_table_has_lost_whose_class_has_changed(tmp_path: Path, later: type[DeltaSink]) -> None:
    world = two_batches(World(tmp_path, sink=our_lake("owner")(str(tmp_path / "lake"))), backup=True)
    world.options["sink"] = later(str(tmp_path / "lake"))
    restore(world)
    _comes_back(world)


def _comes_back(world: World) -> None:
    """By the clear that is named."""
    with pytest.raises(SinkError, match=f"{LOST}.*clear their tasks"):
        world.run(2)
    assert table(world) == {0: [0]}
    world.run(1, clear_number=1)
    world.run(2, try_number=2)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_a_rewind_that_cannot_ask_the_other_class_is_not_named(tmp_path: Path) -> None:
    both = beside_ours(tmp_path)
    world = two_batches(World(tmp_path, sink=both), backup=True)
    world.options["sink"] = both.sinks["lake"]
    restore(world)
    with pytest.raises(SinkError, match=LOST) as told:
        world.run(2)
    assert "microbatch rewind" not in str(told.value)


def test_nor_is_it_said_to_remove_the_definition_by_which_the_others_are_missed(tmp_path: Path) -> None:
    """Two batches are lost, and the first is cleared into the lake and into a table that never got it."""
    both = beside_ours(tmp_path)
    lake, world = both.sinks["lake"], two_batches(World(tmp_path, sink=both), backup=True)
    world.run(2)
    world.land(3)
    restore(world)
    world.options["sink"] = Sinks({"lake": lake, "moved": FileSink(str(tmp_path / "moved"), format="json")})
    told = r"live/1 was made for another table before.* Nobody has looked: .* Or name \S+/lake alone for this batch"
    with pytest.raises(SinkError, match=told) as refused:
        world.run(1, clear_number=1)
    assert " remove " not in str(refused.value)
    world.options["sink"] = lake
    world.run(1, clear_number=1, try_number=2)
    with pytest.raises(SinkError, match=r"batch live/2 is committed, and .* does not know it"):
        world.run(3)
    world.run(2, clear_number=1)
    assert table(world) == {0: [0], 1: [1], 2: [2]}


def test_nor_where_it_is_the_class_of_the_dead_letters(tmp_path: Path) -> None:
    lake, letters = DeltaSink(str(tmp_path / "lake")), Ours(str(tmp_path / "letters"), format="json")
    world = World(tmp_path, sink=lake, dead_letters=letters, expect={"version = 1": "dead_letter"})
    for number in (0, 1):
        world.land(number)
        world.run(number, refusing({0: None, 1: None}))
        if number == 0:
            shutil.copytree(world.lake, tmp_path / "backup")
    world.options |= {"dead_letters": None, "expect": {}}
    restore(world)
    with pytest.raises(SinkError, match="Nobody has looked") as refused:
        world.run(1, clear_number=1)
    assert not {"remove", "name"} & set(str(refused.value).split())


def test_nor_is_what_has_lost_nothing_named_alone(tmp_path: Path) -> None:
    """It would change there, beside what the other table keeps."""
    both = beside_ours(tmp_path)
    world = two_batches(World(tmp_path, sink=both))
    world.options["sink"] = Sinks(
        {"lake": both.sinks["lake"], "moved": FileSink(str(tmp_path / "moved"), format="json")}
    )
    with pytest.raises(SinkError, match="Nobody has looked") as refused:
        world.run(1, clear_number=1)
    assert not {"alone", "remove"} & set(str(refused.value).split())


def test_nor_is_the_table_of_the_dead_letters(tmp_path: Path) -> None:
    ours, letters = Ours(str(tmp_path / "ours"), format="json"), FileSink(str(tmp_path / "letters"), format="json")
    world = World(tmp_path, sink=ours, dead_letters=letters, expect={"version = 1": "dead_letter"})
    world.land(0)
    world.run(0, refusing({0: None}))
    world.options["sink"] = DeltaSink(str(tmp_path / "lake"))
    with pytest.raises(SinkError, match="Nobody has looked") as refused:
        world.run(0, refusing({0: None}), clear_number=1)
    assert not {"alone", "remove"} & set(str(refused.value).split())


def test_what_a_backup_lacks_comes_back_at_the_path_that_it_was_put_to_though_the_class_has_changed(
    tmp_path: Path,
) -> None:
    world = two_batches(World(tmp_path, sink=our_lake("owner")(str(tmp_path / "lake"))), backup=True)
    shutil.rmtree(world.lake)
    world.lake = tmp_path / "backup"
    world.options["sink"] = our_lake()(str(world.lake))
    _comes_back(world)


def test_but_not_while_the_table_itself_has_more(tmp_path: Path) -> None:
    world = two_batches(World(tmp_path, sink=our_lake("owner")(str(tmp_path / "lake"))), backup=True)
    world.lake = tmp_path / "backup"
    world.options["sink"] = our_lake()(str(world.lake))
    with pytest.raises(SinkError, match=r"Nobody has looked: .* remove /\S+/pipelines/"):
        world.run(1, clear_number=1)


@pytest.mark.parametrize("where", ["another class", "another place"])
def test_nothing_is_missed_in_a_table_that_a_class_of_before_did_not_write(tmp_path: Path, where: str) -> None:
    """It cannot be loaded either."""
    ours, other = Ours(str(tmp_path / "before"), format="json"), our_lake("owner")(str(tmp_path / "before"))
    world = two_batches(World(tmp_path, sink=ours if where == "another class" else other))
    world.options["sink"] = (DeltaSink if where == "another class" else our_lake())(str(world.lake))
    world.run(2)
    assert table(world) == {2: [2]}
    with pytest.raises(SinkError, match=r"Nobody has looked: .* remove /\S+/pipelines/"):
        world.run(1, clear_number=1)


def test_a_definition_is_read_as_far_as_its_own_class_goes() -> None:
    written = our_lake("owner")("/lake").to_dict()
    now = our_lake()
    assert now.as_far_as_known(written) == now("/lake")
    assert DeltaSink.as_far_as_known(written) is None
    assert now.as_far_as_known({**written, "arguments": {"folder": "/lake"}}) is None


def test_the_form_of_a_table_is_known_that_was_beside_another_class(tmp_path: Path) -> None:
    orders = FileSink(str(tmp_path / "orders"), format="json")
    world = two_batches(
        World(tmp_path, sink=Sinks({"orders": orders, "ours": Ours(str(tmp_path / "ours"), format="json")}))
    )
    world.options["sink"] = dataclasses.replace(orders, format="csv")
    with pytest.raises(SinkError, match="could not read both"):
        world.run(2)
