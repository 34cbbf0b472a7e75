"""What the history of an Iceberg branch tells about whose batches it has, and how much of it is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_provider_microbatch.sinks.iceberg.look import Descent, Look
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.stages import EXPECTED
from tests.support.iceberg_table import opened_in

LENGTH = 300

seen = Counter[str]()
"""How often a snapshot was gone to by its link, and how often one was met in the list of all."""


class Linked(Snapshot):
    def __getattribute__(self, name: str) -> Any:
        seen["links"] += name == "parent_snapshot_id"
        return super().__getattribute__(name)


class Listed(list[Snapshot]):
    def __iter__(self) -> Iterator[Snapshot]:
        for one in super().__iter__():
            seen["listed"] += 1
            yield one


@pytest.fixture
def table(tmp_path: Path) -> Table:
    sink = opened_in(tmp_path / "lake")
    write_delta_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    look = sink._log.look()
    assert look is not None
    return look.table


def grown(table: Table, marks: Mapping[str, int], *, first: int = 1, is_cut: bool = False) -> Look:
    """The table with ``LENGTH`` commits to its main branch, snapshot 7 being the seventh, and so on.

    :param marks: the last snapshot of this package on each branch.
    :param first: the oldest snapshot that has not expired.
    :param is_cut: whether that one has lost the link to its parent by that.
    """
    metadata = table.metadata
    (made,) = metadata.snapshots
    snapshots = Listed()
    for number in range(first, LENGTH + 1):
        parent = None if number == 1 or (is_cut and number == first) else number - 1
        changed = {"snapshot-id": number, "sequence-number": number, "parent-snapshot-id": parent}
        snapshots.append(Linked(**{**made.model_dump(by_alias=True), **changed, "summary": made.summary}))
    properties = {name: value for name, value in metadata.properties.items() if not name.startswith("microbatch.last.")}
    properties |= {f"microbatch.last.{branch}": f"{number} {number}" for branch, number in marks.items()}
    update = {
        "snapshots": snapshots,
        "refs": {"main": metadata.refs["main"].model_copy(update={"snapshot_id": LENGTH})},
        "properties": properties,
        "current_snapshot_id": LENGTH,
        "last_sequence_number": LENGTH,
    }
    changed_table = Table(
        table.name(), metadata.model_copy(update=update), table.metadata_location, table.io, table.catalog
    )
    look = Look(changed_table, "main")
    seen.clear()
    return look


def test_a_mark_that_others_have_left_long_ago_is_not_looked_for(table: Table) -> None:
    look = grown(table, {"main": LENGTH, **{f"old{number}": number for number in range(2, 22)}})
    assert look.goes_on_from() == Descent(branch="main", sequence=LENGTH)
    assert look.came_since(LENGTH) == {}
    assert seen["links"] < 5


def test_a_long_way_back_meets_each_snapshot_once(table: Table) -> None:
    look = grown(table, {"old": 2})
    assert look.goes_on_from() == Descent(branch="old", sequence=2)
    assert len(list(look.chain())) == LENGTH
    assert seen["listed"] <= LENGTH


def test_the_link_to_a_snapshot_that_has_expired_tells_that_it_was_there(table: Table) -> None:
    look = grown(table, {"main": 5, "audit": 100}, first=101)
    assert look.goes_on_from() == Descent(branch="audit", sequence=100)


@pytest.mark.parametrize(("first", "is_cut"), [(101, True), (102, False), (200, True)])
def test_without_one_nobody_knows_whether_the_other_branch_was_merged(table: Table, first: int, is_cut: bool) -> None:
    look = grown(table, {"main": 5, "audit": 100}, first=first, is_cut=is_cut)
    assert look.goes_on_from() == Descent(branch="main", sequence=5, unsure=("audit",))


def test_the_last_of_those_that_it_has_counts(table: Table) -> None:
    look = grown(table, {"main": 5, "audit": 100, "test": 200, "gone": 1}, first=4)
    assert look.goes_on_from() == Descent(branch="test", sequence=200)
