"""A table of this package as a source: the rows of a batch that is replayed would come again, in new files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.listing import Listing
from tests.execution.world import World as Pipeline
from tests.sources.support import World


def table(root: Path, *, known: bool = True) -> Path:
    """A table with one batch. :param known: it has an id, as all have but those of older versions."""
    batch = root / "lane=live" / "batch_id=0"
    (batch / "_manifest").mkdir(parents=True)
    (batch / "region=eu").mkdir()
    (batch / "region=eu" / "part-0.json").write_text('{"id": 1}\n')
    (batch / "part-0.json").write_text('{"id": 2}\n')
    if known:
        (root / "_table_id").mkdir()
    return root


def plan(source: OpenSource) -> str | None:
    """As a run does it."""
    source.check()
    return source.latest_offset(None)


PLACES: list[tuple[str, dict[str, Any]]] = [
    ("orders", {}),
    ("orders/lane=live", {}),
    ("orders/lane=live/batch_id=0", {}),
    ("orders/lane=live/batch_id=0/part-0.json", {}),
    ("orders/lane=live/batch_id=0/region=eu", {}),
    ("orders/lane=live/batch_id=*", {}),
    ("orders/lane=live/*/*.json", {}),
    ("orders", {"file_name_pattern": "*.json"}),
    ("orders", {"ordered": True}),
    ("orders", {"bounded": True}),
    ("*", {}),
    ("*/lane=live", {}),
    ("*/*/*/*.json", {}),
    (".", {"recursive": True}),
]
PARTS = ("orders/lane=live/batch_id=0/part-0.json", "orders/lane=live/batch_id=0/region=eu")
"""Of a batch: in a table of before ids they show nothing."""


@pytest.mark.parametrize(
    ("path", "arguments", "known"),
    [
        *((path, arguments, True) for path, arguments in PLACES),
        *((path, arguments, False) for path, arguments in PLACES if path not in PARTS),
    ],
)
def test_a_source_that_is_lies_in_or_contains_a_table_is_refused(
    world: World, path: str, arguments: dict[str, Any], known: bool
) -> None:
    table(world.landing / "orders", known=known)
    address = str(world.landing / path) if path != "." else str(world.landing)
    with pytest.raises(SourceError, match=r"allow_table=True") as refused:
        plan(world.open(address, **arguments))
    assert str(world.landing / "orders") in str(refused.value)
    assert not world.log.list("")
    assert plan(world.open(address, allow_table=True, **arguments)) is not None


def test_a_table_that_is_replaced_as_a_whole_is_one_too(world: World) -> None:
    world.land("sales/orders/part-0.json")
    world.land("sales/orders/_table.json")
    for path in ("sales/orders", "sales/*", "*/*/*.json"):
        with pytest.raises(SourceError, match="allow_table"):
            plan(world.open(str(world.landing / path)))


def test_a_table_that_comes_later_stops_the_sensor_too(world: World) -> None:
    world.land("a.json")
    first = plan(world.open())
    table(world.landing / "kind=out")
    with pytest.raises(SourceError, match="allow_table"):
        world.open().has_new(first)


def test_what_lies_beside_a_table_or_only_looks_like_one_is_read(world: World) -> None:
    table(world.root / "lake")
    table(world.landing / "_out")  # no walk enters it
    table(world.landing / "out")
    world.land("a.json")
    world.land("batch_id=7/b.json")
    world.land("_manifest/c.json")
    world.land("_table_ids")
    assert world.drain() == [["a.json", "batch_id=7/b.json"]]
    (world.root / "lake" / "landing").mkdir()
    (world.root / "lake" / "landing" / "d.json").write_text('{"id": 1}\n')
    assert plan(world.open(str(world.root / "lake" / "landing"))) is not None


def test_looking_for_a_table_costs_a_few_looks_and_no_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        world.land(f"day={number}/a.json")
    looks = []

    def lexists(path: Path) -> bool:
        looks.append(path)
        return False

    monkeypatch.setattr(os.path, "lexists", lexists)
    monkeypatch.setattr(Listing, "_scan", lambda *_, **__: pytest.fail("listed"))
    world.open().check()
    assert len(looks) == 2


def test_a_chain_of_pipelines_does_not_double_what_a_replay_writes_anew(tmp_path: Path) -> None:
    first = Pipeline(tmp_path / "first")
    second = Pipeline(tmp_path / "second")
    first.land(1, 2, 3)
    first.run(1)
    second.sources = {"orders": FileSource(str(first.lake), format="json", schema="id long")}
    with pytest.raises(SourceError, match=r"source 'orders'.*task is cleared.*allow_table=True"):
        second.run(1)
    assert not second.checkpoint.offset_log.ids()
    second.sources = {"orders": FileSource(str(first.lake), format="json", schema="id long", allow_table=True)}
    second.run(1)
    assert second.table() == {0: [1, 2, 3]}
