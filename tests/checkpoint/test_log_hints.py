"""The end of a log is found from a hint, and is what a listing would say."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.log import HINT_EVERY, MetadataLog
from airflow_provider_microbatch.exceptions import BrokenLogError
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.checkpoint.world import claimed, entry


class CountingStore(PosixStore):
    """Counts what is asked of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listings = self.looks = 0

    def list(self, folder: str) -> list[str]:
        self.listings += 1
        return super().list(folder)

    def modified_ms(self, path: str) -> int | None:
        self.looks += 1
        return super().modified_ms(path)


class Logs:
    """A log, its hints, and fresh processes' views of it."""

    def __init__(self, root: Path) -> None:
        self.store = CountingStore(root / "offsets")
        self.hints = PosixStore(root / "hints")

    def open(self) -> MetadataLog[str]:
        def decode(data: bytes, *, where: str) -> str:
            return data.decode()

        return MetadataLog(self.store, encode=str.encode, decode=decode, hints=self.hints)

    def listed(self) -> int | None:
        return max(map(int, self.store.list("")), default=None)

    def append(self, count: int) -> None:
        log = self.open()
        begin = -1 if (newest := log.latest_id()) is None else newest
        for number in range(begin + 1, begin + 1 + count):
            assert log.add(number, "x")


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 80)),
    st.tuples(st.just("append without hints, as Spark does"), st.integers(1, 150)),
    st.tuples(st.just("remove the newest"), st.integers(1, 80)),
    st.tuples(st.just("remove the oldest"), st.integers(1, 80)),
    st.tuples(st.just("lose the hints"), st.just(0)),
    st.tuples(st.just("a hint from nowhere"), st.integers(0, 300)),
    st.tuples(st.just("ask"), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_a_hint_says_what_a_listing_says(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        logs = Logs(Path(folder))
        long_lived = logs.open()
        for step, argument in steps:
            ids = sorted(map(int, logs.store.list("")))
            if step == "append":
                logs.append(argument)
            elif step.startswith("append without"):
                for number in range(argument):
                    (Path(folder) / "offsets").mkdir(exist_ok=True)
                    (Path(folder) / "offsets" / str((ids[-1] if ids else -1) + 1 + number)).write_bytes(b"x")
            elif step == "remove the newest":
                for number in reversed(ids[-argument:]):
                    logs.store.delete(str(number))
            elif step == "remove the oldest":
                for number in ids[:argument]:
                    logs.store.delete(str(number))
            elif step == "lose the hints":
                for name in logs.hints.list(""):
                    logs.hints.delete(name)
            elif step == "a hint from nowhere":
                logs.hints.put_if_absent(str(argument), b"")
            else:
                assert long_lived.latest_id() == logs.listed()
            assert logs.open().latest_id() == logs.listed()


def test_the_end_of_a_long_log_is_found_without_listing_it(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.append(10 * HINT_EVERY + 7)
    logs.store.listings = logs.store.looks = 0
    assert logs.open().latest_id() == 10 * HINT_EVERY + 6
    assert logs.store.listings == 0
    assert logs.store.looks <= 2, "those at the end"
    assert logs.hints.list("") == [str(10 * HINT_EVERY)], "old hints go"


@pytest.mark.parametrize("hidden", [{8}, {7, 8}], ids=["the last one", "the last two"])
def test_an_end_that_is_not_listed_yet_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: set[int]
) -> None:
    logs = Logs(tmp_path)
    logs.append(HINT_EVERY + 9)
    late, real = {str(HINT_EVERY + number) for number in hidden}, logs.store.present
    monkeypatch.setattr(logs.store, "present", lambda folder, names: real(folder, names) - late)
    assert logs.open().latest_id() == HINT_EVERY + 8


def test_a_hint_ahead_of_a_restored_log_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.append(3)
    logs.hints.put_if_absent("320", b"")
    logs.append(HINT_EVERY)
    assert logs.hints.list("") == [str(HINT_EVERY)]


@pytest.mark.parametrize("lost", [(65,), (69,), (70,), (65, 66), (66, 67, 68, 69)])
def test_an_entry_that_is_lost_after_the_hint_is_not_taken_for_the_end(tmp_path: Path, lost: tuple[int, ...]) -> None:
    made = claimed(tmp_path)
    for number in range(72):
        made.offset_log.add(number, entry(number))
    made.offset_log.latest_id()
    for number in lost:
        (tmp_path / "offsets" / str(number)).unlink()
    for reader in (made, claimed(tmp_path)):  # one that has seen the end, one that goes by the hint
        assert reader.offset_log.latest_id() == 71
        if 70 in lost:
            with pytest.raises(BrokenLogError):
                reader.lane("live").tail()


def test_an_entry_that_is_lost_after_what_a_process_has_seen_is_not_taken_for_the_end(tmp_path: Path) -> None:
    made, other = claimed(tmp_path), claimed(tmp_path)
    made.offset_log.add(0, entry(0))
    assert other.offset_log.latest_id() == 0
    for number in (1, 2):
        made.offset_log.add(number, entry(number))
    (tmp_path / "offsets" / "1").unlink()

    assert other.offset_log.latest_id() == 2
    with pytest.raises(BrokenLogError):
        other.lane("live").tail()


@pytest.mark.parametrize("hint", ["from-30", "from-9999"])
def test_a_hint_of_where_the_log_begins_that_is_wrong_hides_no_gap(tmp_path: Path, hint: str) -> None:
    logs = Logs(tmp_path)
    logs.append(HINT_EVERY + 9)
    logs.store.delete("20")
    logs.hints.put_if_absent(hint, b"")
    gap = logs.open().find_gap()
    assert gap is not None
    assert gap.missing == 20


def test_hints_that_cannot_be_written_fail_no_append(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "hints").write_text("in the way")
    log = MetadataLog(logs.store, encode=str.encode, decode=lambda data, where: data.decode(), hints=logs.hints)
    assert log.add(HINT_EVERY, "x")
    assert "no hint was left" in caplog.text
