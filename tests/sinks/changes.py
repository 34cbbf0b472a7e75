"""Changes that are merged into a table, by whichever sink, and what the table has after them: held against a plain
dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.stages import expect

MERGE = Merge(keys=("id", "shop"), sequence_by=("ts", "seq"), delete_when="op = 'D'", leave_out=("op",))
VERSIONED = replace(MERGE, scd_type=2, leave_out=("op", "ts", "seq"))
"""Of each key all versions, which show neither of the columns that order changes."""

Row = tuple[Any, ...]


@dataclass(frozen=True, order=True)
class Change:
    """In the order of its fields behind the key the higher one wins."""

    id: int = field(compare=False)
    shop: str = field(compare=False)
    ts: int
    seq: int
    deleted: bool
    note: str | None = field(compare=False)


def change(**given: Any) -> Change:
    return Change(**{"id": 1, "shop": "a", "ts": 1, "seq": 1, "deleted": False, "note": "x", **given})


class MergedTable(Protocol):
    """A table into which changes are merged by :data:`MERGE` or :data:`VERSIONED`."""

    @property
    def sink(self) -> OpenSink: ...

    def write(self, key: BatchKey, epoch: int, changes: Sequence[Change]) -> None:
        """An attempt's stage, in two files."""

    def rows(self) -> list[Row]:
        """What a reader finds: id, shop, ts, seq and note, in the order of id and shop; of versions id, shop, note,
        valid_from and valid_to, in the order of id, shop and valid_from."""


changes = st.builds(
    Change,
    id=st.integers(0, 2),
    shop=st.sampled_from(["a", "B"]),
    ts=st.integers(0, 3),
    seq=st.integers(0, 2),
    deleted=st.booleans(),
    note=st.none() | st.sampled_from(["", "x", "y"]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, list[Change]]]:
    """What is done, to which batch, with which changes. Two changes of a key with one sequence are the same: those that
    differ have an order of their own, which :data:`PAIRS` hold."""
    seen: dict[tuple[object, ...], Change] = {}

    def same(change: Change) -> Change:
        return seen.setdefault((change.id, change.shop, change.ts, change.seq), change)

    done, done_ids = list[tuple[str, int, list[Change]]](), set[int]()
    for _ in range(draw(st.integers(1, 7))):
        doing = draw(st.sampled_from(["publish", "publish", "replace", "withdraw"] if done_ids else ["publish"]))
        id = len(done) + 10 if doing == "publish" else draw(st.sampled_from(sorted(done_ids)))
        done_ids = done_ids - {id} if doing == "withdraw" else done_ids | {id}
        found = [] if doing == "withdraw" else [same(one) for one in draw(st.lists(changes, max_size=8))]
        done.append((doing, id, found))
    return done


def expected(changes: Iterable[Change]) -> list[Row]:
    """What a dictionary has after them, in their order."""
    table: dict[tuple[int, str], Change] = {}
    for change in sorted(changes):
        table[change.id, change.shop] = change
    return [(*key, one.ts, one.seq, one.note) for key, one in sorted(table.items()) if not one.deleted]


def versions(changes: Iterable[Change]) -> list[Row]:
    """What a dictionary of dictionaries has seen after them, in their order."""
    chains: dict[tuple[int, str], dict[int, Change]] = {}
    for change in sorted(changes):
        chains.setdefault((change.id, change.shop), {})[change.ts] = change
    rows = list[Row]()
    for key, chain in sorted(chains.items()):
        held: tuple[str | None] | None = None
        since = None
        for ts, one in chain.items():
            state = None if one.deleted else (one.note,)
            if state == held:
                continue
            if held is not None:
                rows.append((*key, *held, since, ts))
            held, since = state, ts
        if held is not None:
            rows.append((*key, *held, since, None))
    return rows


def check_like_a_dictionary(
    table: MergedTable,
    history: Sequence[tuple[str, int, Sequence[Change]]],
    model: Callable[[Iterable[Change]], list[Row]] = expected,
) -> None:
    """After each thing that is done the table has what a dictionary has after the changes that are in, in order.

    :param model: the rows, of these changes.
    """
    held: dict[int, Sequence[Change]] = {}
    epochs: dict[int, int] = {}
    for doing, id, found in history:
        key = BatchKey("live", id)
        if doing == "withdraw":
            assert table.sink.withdraw(expect(key), epochs[id])
            del held[id]
        else:
            epochs[id] = epochs.get(id, 0) + 1
            table.write(key, epochs[id], found)
            getattr(table.sink, doing)(expect(key), epochs[id])
            held[id] = found
        assert table.rows() == model(itertools.chain.from_iterable(held.values()))


PAIRS = {
    "text decides last": (change(note="x"), change(note="y"), [(1, "a", 1, 1, "y")]),
    "a deletion wins a tie": (change(), change(deleted=True), []),
    "the first column decides first": (change(ts=2), change(ts=1, seq=9, note="late"), [(1, "a", 2, 1, "x")]),
    "no late change comes back": (change(ts=2, deleted=True), change(ts=1, note="late"), []),
}
"""Two changes of a key, and what is left of them."""

VERSIONS = {
    "a change ends the version of before where it begins": (
        change(note="x"),
        change(ts=5, note="y"),
        [(1, "a", "x", 1, 5), (1, "a", "y", 5, None)],
    ),
    "a deletion ends the version, and none is open": (change(), change(ts=5, deleted=True), [(1, "a", "x", 1, 5)]),
    "what comes after a deletion begins anew": (
        change(deleted=True),
        change(ts=5),
        [(1, "a", "x", 5, None)],
    ),
    "a change that alters nothing begins none": (change(), change(ts=5), [(1, "a", "x", 1, None)]),
    "of one place the last change counts": (
        change(seq=1, note="x"),
        change(seq=2, note="y"),
        [(1, "a", "y", 1, None)],
    ),
    "text decides last": (change(note="x"), change(note="y"), [(1, "a", "y", 1, None)]),
    "a deletion wins a tie": (change(), change(deleted=True), []),
}
"""Two changes of a key, and the versions of them."""

WAYS = ("in this order", "in the other", "in one batch")


def check_one_wins(table: MergedTable, one: Change, other: Change, left: Sequence[Row], *, how: str) -> None:
    """Of two changes the same one wins in whatever order they come."""
    _bring([one], [other], into=table, how=how)
    assert table.rows() == left


def check_same_versions(table: MergedTable, *, how: str) -> None:
    """All of :data:`VERSIONS` at once, each of a key of its own."""
    of_keys = [
        (replace(one, id=id), replace(other, id=id), [(id, *row[1:]) for row in left])
        for id, (one, other, left) in enumerate(VERSIONS.values())
    ]
    _bring([one for one, _, _ in of_keys], [other for _, other, _ in of_keys], into=table, how=how)
    assert table.rows() == [row for _, _, left in of_keys for row in left]


def _bring(ones: list[Change], others: list[Change], *, into: MergedTable, how: str) -> None:
    batches = {"in this order": (ones, others), "in the other": (others, ones), "in one batch": ([*others, *ones],)}
    for id, found in enumerate(batches[how]):
        into.write(BatchKey("live", id), 1, found)
        into.sink.publish(expect(BatchKey("live", id)), 1)
