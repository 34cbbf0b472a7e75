"""Changes that are merged into a table, by whichever sink, and what the table has after them: held against a plain
dictionary."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.merge import Merge
from tests.sinks.stages import expect

MERGE = Merge(keys=("id", "shop"), sequence_by=("ts", "seq"), delete_when="op = 'D'", leave_out=("op",))

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
    """A table into which changes are merged by :data:`MERGE`."""

    @property
    def sink(self) -> OpenSink: ...

    def write(self, key: BatchKey, epoch: int, changes: Sequence[Change]) -> None:
        """An attempt's stage, in two files."""

    def rows(self) -> list[Row]:
        """What a reader finds: id, shop, ts, seq and note, in the order of id and shop."""


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


def check_like_a_dictionary(table: MergedTable, history: Sequence[tuple[str, int, Sequence[Change]]]) -> None:
    """After each thing that is done the table has what a dictionary has after the changes that are in, in order."""
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
        assert table.rows() == expected(itertools.chain.from_iterable(held.values()))


PAIRS = {
    "text decides last": (change(note="x"), change(note="y"), [(1, "a", 1, 1, "y")]),
    "a deletion wins a tie": (change(), change(deleted=True), []),
    "the first column decides first": (change(ts=2), change(ts=1, seq=9, note="late"), [(1, "a", 2, 1, "x")]),
    "no late change comes back": (change(ts=2, deleted=True), change(ts=1, note="late"), []),
}
"""Two changes of a key, and what is left of them."""

WAYS = ("in this order", "in the other", "in one batch")


def check_one_wins(table: MergedTable, one: Change, other: Change, left: Sequence[Row], *, how: str) -> None:
    """Of two changes the same one wins in whatever order they come."""
    batches = {"in this order": ([one], [other]), "in the other": ([other], [one]), "in one batch": ([other, one],)}
    for id, found in enumerate(batches[how]):
        table.write(BatchKey("live", id), 1, found)
        table.sink.publish(expect(BatchKey("live", id)), 1)
    assert table.rows() == left
