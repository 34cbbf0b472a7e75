"""Sources of the user's own, polled: what they answer is looked at before it is written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.job import Requirements
from airflow_provider_microbatch.runtime.polling import check_parts, rows_of
from airflow_provider_microbatch.runtime.rows import in_columns
from airflow_provider_microbatch.sources import OpenSource, ReadLimit, SourceContext
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.jdbc import JdbcSource
from airflow_provider_microbatch.sources.polling import PollingSource
from airflow_provider_microbatch.sources.polling.offsets import decoded, encoded, same
from airflow_provider_microbatch.stores.posix import PosixStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@dataclass(frozen=True)
class Answers(PollingSource):
    """Answers what it is told to."""

    newest: Any = 5
    first: Any = None
    token_file: str = "/run/token"

    schema = "id long"

    def initial_offset(self) -> Any:
        return self.first

    def latest_offset(self, start: Any, limit: Any) -> Any:
        if isinstance(self.newest, Exception):
            raise self.newest
        return self.newest

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., OpenSource]:
    def opened(**answers: Any) -> OpenSource:
        store = PosixStore(tmp_path / "checkpoint")
        context = SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0)
        return Answers(**answers).open(context)

    return opened


@given(JSON)
def test_an_offset_comes_back_as_it_was(value: Any) -> None:
    text = encoded(value, who="it")
    assert same(decoded(text), value)
    assert text is None or (text != "-" and "\n" not in text and json.loads(text) == value)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {"a": (1,)}, float("nan"), {1, 2}, b"x", [object()]])
def test_what_would_come_back_as_something_else_is_refused(opened: Any, value: Any) -> None:
    with pytest.raises(SourceError, match=r"'orders': Answers.latest_offset\(.*(gave|raised).*JSON"):
        opened(newest=value).latest_offset("1")


def test_what_it_raises_names_source_and_method_and_what_was_asked(opened: Any) -> None:
    with pytest.raises(SourceError, match=r"source 'orders': Answers.latest_offset\(3, .*\) raised KeyError: 'id'"):
        opened(newest=KeyError("id")).has_new("3")


def test_a_source_that_goes_back_is_not_read_again(opened: Any) -> None:
    with pytest.raises(SourceError, match="5, which lies before"):
        opened().latest_offset("7")
    with pytest.raises(SourceError, match="gave None, which is before anything"):
        opened(newest=None).latest_offset("7")


def test_the_same_offset_written_otherwise_is_nothing_new(opened: Any) -> None:
    by_hand = '{ "b":2,"a" : 1}'
    source = opened(newest={"a": 1, "b": 2})
    assert source.latest_offset(by_hand) == by_hand
    assert not source.has_new(by_hand)


def test_the_first_position_is_the_sources_own(opened: Any) -> None:
    assert opened(first=5).latest_offset(None) is None
    assert not opened(first=5).has_new(None)
    assert opened(first=3).latest_offset(None) == "5"
    assert opened(first=3).read(None, "5").arguments["start"] == 3
    assert opened(first=3).read(None, None).arguments["end"] == 3


def test_a_limit_is_what_the_source_is_given(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Answers, "latest_offset", lambda self, start, limit: asked.append((start, limit.rows)) or 5)
    opened().latest_offset("3", ReadLimit(rows=2))
    assert asked == [(3, 2)]


def test_a_field_that_holds_a_secret_is_refused_and_one_that_names_it_is_not(opened: Any) -> None:
    opened().check()
    with pytest.raises(SourceError, match="credential") as refused:
        opened(token_file="https://ada:hunter2@example.org/").check()
    assert "hunter2" not in str(refused.value)


def test_a_class_of_a_dag_file_is_refused_before_anything_is_planned(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "__module__", "unusual_prefix_3f_orders")
    with pytest.raises(SourceError, match="Spark cannot import unusual_prefix_3f_orders:Answers"):
        opened().check()


def test_its_module_travels_unless_it_is_installed_there(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened().read("1", "5").requires == Requirements(modules=("tests",))
    monkeypatch.setattr(Answers, "travels", False)
    assert opened().read("1", "5").requires == Requirements()


@dataclass(frozen=True)
class Short(Answers):
    """Has as many rows as it says, or fewer."""

    rows: int = 3

    def count(self, start: Any, end: Any) -> int:
        return 3

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        return iter([(number,) for number in range(self.rows)])


def test_a_read_with_fewer_rows_than_were_counted_is_not_published(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "checkpoint")
    source = Short().open(SourceContext(name="orders", log=store, state=store, clock_ms=lambda: 0))
    with pytest.raises(SourceChangedError, match=r"'orders': Short.read\(2, 5\) gave 1 rows, and count says 3"):
        source.verify("2", "5", {"rows": 1})
    for told in ({"rows": 3}, {"rows": 4}, {}, None):
        source.verify("2", "5", told)
    # Of partitions, by whoever reads one.
    arguments = {**source.read("2", "5").arguments, "fields": {"rows": 1}}
    column = SimpleNamespace(dataType=SimpleNamespace(typeName=lambda: "long"))
    schema = SimpleNamespace(fieldNames=lambda: ["id"], fields=[column])
    with pytest.raises(ValueError, match=r"'orders': Short.read\(2, 5\) gave 1 rows, and count says 3"):
        list(rows_of(arguments, (2, 5), schema))


@dataclass(frozen=True)
class Parts(Answers):
    """Has as many rows as numbers lie in a range; in the parts that it is told to."""

    parts: tuple[tuple[int, int], ...] = ()
    known: bool = True

    def count(self, start: Any, end: Any) -> int | None:
        return end - start if self.known or (start, end) == (2, 5) else None


@pytest.mark.parametrize("parts", [(), ((3, 5),), ((2, 5), (2, 5))])
def test_partitions_that_do_not_make_up_the_range_are_not_read(parts: tuple[tuple[int, int], ...]) -> None:
    """An API that lists the parts of a range, and answers with none, or with one of them twice."""
    with pytest.raises(
        ValueError, match=r"'orders': Parts.partitions\(2, 5\) gave \d ranges of [026] rows together, and"
    ):
        check_parts(Parts(parts=parts), 2, 5, parts, name="orders")


def test_partitions_whose_rows_nobody_knows_are_read_as_they_are() -> None:
    check_parts(Parts(), 2, 5, [(2, 3), (3, 5)], name="orders")
    check_parts(Parts(known=False), 2, 5, [(3, 5)], name="orders")
    check_parts(Answers(), 2, 5, [], name="orders")


@pytest.mark.parametrize("rows", [True, -1, 0.5, float("-inf"), "3"])
def test_a_count_that_is_no_number_of_rows_is_refused_before_it_is_written_down(
    opened: Any, monkeypatch: pytest.MonkeyPatch, rows: object
) -> None:
    """A commit entry that had it was read by nobody, and every run failed."""
    monkeypatch.setattr(Answers, "count", lambda *_: rows)
    with pytest.raises(SourceError, match=r"Answers.count\(2, 5\) raised ValueError: .* is no number of rows"):
        opened().describe("2", "5")
    monkeypatch.setattr(Answers, "count", lambda *_: 3.0)
    assert opened().describe("2", "5").rows == 3


def test_a_fraction_in_a_column_of_whole_numbers_is_refused() -> None:
    """Spark Connect cut it off, in green."""
    kinds = {"id": "long", "amount": "double"}
    fields = [SimpleNamespace(dataType=SimpleNamespace(typeName=lambda kind=kind: kind)) for kind in kinds.values()]
    schema: Any = SimpleNamespace(fieldNames=lambda: list(kinds), fields=fields)
    assert list(in_columns([(1, 1), (2, 1.5), (None, None)], schema, name="orders")) == [
        (1, 1.0),
        (2, 1.5),
        (None, None),
    ]
    with pytest.raises(ValueError, match=r"source 'orders': its read gave 1.5 in column 'id', which is of type long"):
        list(in_columns([(1.5, 1)], schema, name="orders"))


def test_every_field_tells_how_it_is_read() -> None:
    """A path, or an address, that is another one gave other rows to a replay, and nothing said so."""
    assert Short(newest={"a": 1}, token_file="/else").reads_as() == {
        "newest": '{"a": 1}', "first": "null", "token_file": "/else", "rows": "3", "schema": "id long",
    }  # fmt: skip


def test_one_that_is_elsewhere_goes_on_where_it_was(tmp_path: Path) -> None:
    assert Short(rows=1).moved_from(Short()) is None
    assert FileSource("/b", format="json").moved_from(FileSource("/a", format="json")).startswith("all that is there")
    said = JdbcSource("b", "db").moved_from(JdbcSource("a", "db"))
    assert "goes on at the position" in said
    assert "twice" not in said
