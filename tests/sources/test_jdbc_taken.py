"""What lanes take of a table is kept in an entry, and which tables may be planned by intervals, without a database."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import CorruptEntryError, DefinitionError
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.jdbc.moment import Made, Moment
from airflow_provider_microbatch.sources.jdbc.taken import Found, Log, Taken
from airflow_provider_microbatch.stores import Versioned
from airflow_provider_microbatch.stores.posix import PosixStore


def test_a_pipeline_by_intervals_takes_no_table_that_is_read_by_numbers(tmp_path: Path) -> None:
    def pipeline(**options: Any) -> Pipeline:
        return Pipeline(
            "orders",
            checkpoint=str(tmp_path),
            sources={"orders": JdbcSource("orders", "orders_db", **options)},
            sink=FileSink(str(tmp_path / "lake")),
            plan="interval",
        )

    with pytest.raises(
        DefinitionError, match=r"plan='interval'.*source 'orders'.*'id', which tell no time.*timestamp="
    ):
        pipeline()
    pipeline(timestamp="updated_at")


def test_the_entry_keeps_of_a_live_lane_no_more_than_the_last_claim(tmp_path: Path) -> None:
    taken, place = Taken(PosixStore(tmp_path)), Moment()
    for minute in range(9):
        end = Moment(time=f"2026-01-01 00:0{minute}:00+00", key=minute, below=minute, digest="")
        assert taken.claim(taken.find(), place, end, log=Log())
        place = end
    assert not taken.claim(Found(), Moment(), place, log=Log()), "somebody has written since"
    assert [one.end for one in taken.find().live] == [place]
    by_hand = Moment(time="2026-01-01 00:03:00+00")
    assert taken.claim(taken.find(), by_hand, place, log=Log())
    assert [one.after for one in taken.find().live] == [Moment(), by_hand]


def interval(number: int) -> tuple[str, Moment]:
    """The lane of an hour, and its batch."""
    made = Made(name="public.orders", oid=16500, file=16500, by="updated_at, id", numbers=(3, 1))
    hour = 3_600_000_000
    batch = Moment(below=number + 1, rows=1, digest="1", made=made, spans=((number * hour, (number + 1) * hour),))
    return f"interval-{number}", batch


class CountingStore(PosixStore):
    """Counts the bytes that are read of it."""

    read = 0

    def get(self, path: str) -> bytes | None:
        data = super().get(path)
        self.read += len(data or b"")
        return data

    def get_versioned(self, path: str) -> Versioned | None:
        found = super().get_versioned(path)
        self.read += 0 if found is None else len(found.data)
        return found


def test_a_look_does_not_read_again_what_thousands_of_intervals_have_taken(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    store.put_if_absent("taken", _entry(range(2999)))  # as a version that packed nothing wrote it
    assert Taken(store).take(Taken(store).find(), *interval(2999))
    assert Taken(store).take(Taken(store).find(), *interval(3000))
    store.read = 0
    found = Taken(store).find()
    assert found.intervals == tuple(interval(number) for number in range(3001))
    assert store.read < 1000
    assert found.of("interval-7") == interval(7)[1]


def test_packed_intervals_stay_in_the_order_in_which_they_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sources.jdbc.taken.MOST_NEWEST", 3)
    taken, begin = Taken(PosixStore(tmp_path)), Moment()
    for number in range(10):
        found = taken.find()
        assert taken.take(found, *interval(number))
        assert not taken.take(found, *interval(99)), "another lane was first"
        end = Moment(time=f"2026-01-01 00:0{number}:00+00", below=number, digest="")
        assert taken.claim(taken.find(), begin, end, log=Log())
        begin = end
    found = Taken(PosixStore(tmp_path)).find()
    assert found.intervals == tuple(interval(number) for number in range(10))
    assert [one.end for one in found.live] == [begin]
    assert len(found.packed) == 3
    assert "intervals" not in json.loads((tmp_path / "taken").read_text()), "a version that packs none takes it for all"


def test_a_planner_that_dies_while_it_packs_leaves_what_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(PosixStore):
        def compare_and_put(self, path: str, data: bytes, *, version: str) -> str | None:
            raise SystemExit

    monkeypatch.setattr("airflow_provider_microbatch.sources.jdbc.taken.MOST_NEWEST", 3)
    store = PosixStore(tmp_path)
    store.put_if_absent("taken", _entry(range(2)))
    with pytest.raises(SystemExit):
        Taken(Dying(tmp_path)).take(Taken(store).find(), *interval(2))
    assert len(list(tmp_path.glob("taken-*"))) == 1
    assert Taken(store).find().intervals == (interval(0), interval(1))
    assert Taken(store).take(Taken(store).find(), *interval(2))
    assert Taken(store).find().intervals == tuple(interval(number) for number in range(3))


@pytest.mark.parametrize("damage", ["gone", "torn", "another path"])
def test_packed_intervals_that_are_not_as_they_were_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("airflow_provider_microbatch.sources.jdbc.taken.MOST_NEWEST", 1)
    taken = Taken(PosixStore(tmp_path))
    assert taken.take(taken.find(), *interval(100))  # which this process has read for no other test
    (packed,), entry = tmp_path.glob("taken-*"), tmp_path / "taken"
    if damage == "gone":
        packed.unlink()
    elif damage == "torn":
        packed.write_bytes(packed.read_bytes()[:-9])
    else:
        entry.write_text(entry.read_text().replace(packed.name.removeprefix("taken-"), "/../../other"))
    said = (
        "names no packed intervals"
        if damage == "another path"
        else f"{packed.name}, .* not as it was written: {damage}"
    )
    with pytest.raises(CorruptEntryError, match=said):
        taken.find()


def _entry(numbers: Iterable[int]) -> bytes:
    """The entry of these intervals, of a version that packed none."""
    intervals = [[lane, batch.values()] for lane, batch in map(interval, numbers)]
    return json.dumps({"live": [], "intervals": intervals}, separators=(",", ":")).encode()
