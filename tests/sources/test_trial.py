"""``microbatch check-source``: what it says of sources that keep their promises, and of those that break one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs.orders_api import OrdersApi

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.sources.polling import PollingSource
from airflow_provider_microbatch.sources.python import PythonSource
from airflow_provider_microbatch.sources.trial import CASES, Trial, verdicts
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.verdict import FAILED, NOT_TRIED, OK, Verdict
from tests.support.orders_api import OrdersServer, serving


@dataclass(frozen=True)
class Log(PollingSource):
    """Numbers up to 10, by a source that keeps every promise."""

    schema = "id long"

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any) -> Any:
        return min(10, start + (limit.rows or 10))

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        yield from ({"id": number} for number in range(start, end))

    def count(self, start: Any, end: Any) -> int | None:
        return int(end - start)


@dataclass(frozen=True)
class ReadsOneTooMany(Log):
    def read(self, start: Any, end: Any) -> Iterator[Any]:
        yield from ({"id": number} for number in range(start, min(end + 1, 10)))

    def count(self, start: Any, end: Any) -> None:
        return None


READS: list[int] = []


@dataclass(frozen=True)
class ReadsWhatIsThereNow(Log):
    def read(self, start: Any, end: Any) -> Iterator[Any]:
        READS.append(1)
        yield from ({"id": number, "read": len(READS)} for number in range(start, end))


@dataclass(frozen=True)
class StandsStillUnderALimit(Log):
    def latest_offset(self, start: Any, limit: Any) -> Any:
        return min(10, start + (limit.rows or 10) // 2 * 2)


@dataclass(frozen=True)
class HasEmptyRanges(Log):
    def latest_offset(self, start: Any, limit: Any) -> Any:
        return min(12, start + (limit.rows or 12))

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        yield from ({"id": number} for number in range(start, end) if number < 4 or number > 7)

    def count(self, start: Any, end: Any) -> None:
        return None


@dataclass(frozen=True)
class HasTuplesForOffsets(Log):
    def latest_offset(self, start: Any, limit: Any) -> Any:
        return (1, 2)


@dataclass(frozen=True)
class CountsTwice(Log):
    def count(self, start: Any, end: Any) -> int:
        return int(2 * (end - start))


@dataclass(frozen=True)
class LosesWhatIsCommitted(Log):
    folder: str = ""

    def commit(self, end: Any) -> None:
        (Path(self.folder) / "committed").write_text(str(end))

    def read(self, start: Any, end: Any) -> Iterator[Any]:
        if not (Path(self.folder) / "committed").exists():
            yield from super().read(start, end)


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., dict[str, Verdict]]:
    def tried(source: Any, **options: Any) -> dict[str, Verdict]:
        trial = Trial(source, store=PosixStore(tmp_path / "checkpoint"), **{"rows": 4, **options})
        return {verdict.case: verdict for verdict in verdicts(trial)}

    return tried


def states(found: dict[str, Verdict]) -> dict[str, set[str]]:
    return {state: {case for case, one in found.items() if one.state == state} for state in (OK, FAILED, NOT_TRIED)}


COMMIT = "a commit can be said twice and takes nothing away"


def test_one_that_keeps_its_promises_has_them_all_tried(tried: Any) -> None:
    assert states(tried(Log(), commits=True))[OK] == {case.__name__.replace("_", " ") for case in CASES}
    assert states(tried(Log()))[NOT_TRIED] == {COMMIT}


@pytest.mark.parametrize(
    ("source", "broken"),
    [
        (ReadsOneTooMany(), {"ranges tile the stream"}),
        (ReadsWhatIsThereNow(), {"a range read twice gives the same rows", "ranges tile the stream"}),
        (StandsStillUnderALimit(), {"limits are respected"}),
        (HasEmptyRanges(), {"a planned range is not empty"}),
        (CountsTwice(), {"figures agree with the rows"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PollingSource) else "",
)
def test_each_broken_promise_is_found_and_no_other(tried: Any, source: Any, broken: set[str]) -> None:
    found = tried(source)
    assert states(found)[FAILED] == broken


def test_an_offset_that_json_changes_is_named(tried: Any) -> None:
    found = tried(HasTuplesForOffsets())
    messages = {one.message for one in found.values() if one.state == FAILED}
    assert any(
        "HasTuplesForOffsets.latest_offset gave (1, 2), which comes back from JSON as [1, 2]" in m for m in messages
    )


def test_commit_is_called_only_if_it_may_be(tried: Any, tmp_path: Path) -> None:
    source = LosesWhatIsCommitted(str(tmp_path))
    assert tried(source)[COMMIT].state == NOT_TRIED
    assert not (tmp_path / "committed").exists()
    assert tried(source, commits=True)[COMMIT].state == FAILED


def test_an_api_keeps_them_over_http(tried: Any) -> None:
    with serving(OrdersServer()) as server:
        server.add(*range(9))
        assert not states(tried(OrdersApi(server.url)))[FAILED]
        assert {*server.asked} == {"GET /newest", "GET /orders"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["LimitedNumbers", "Numbers", "SimpleNumbers"])
def test_a_stream_of_pyspark_keeps_them(tried: Any, tmp_path: Path, reader: str) -> None:
    (tmp_path / "head").write_text("9")
    found = tried(PythonSource(f"number_streams:{reader}", options={"path": str(tmp_path / "head")}), commits=True)
    assert not states(found)[FAILED], found
    assert found["a range read twice gives the same rows"].state == OK
    tiles, limits = ("ranges tile the stream", "limits are respected")
    untold = {"LimitedNumbers": set(), "Numbers": {tiles, limits}, "SimpleNumbers": set()}[reader]
    assert states(found)[NOT_TRIED] == {"figures agree with the rows", *untold}


def test_a_source_without_data_is_not_passed_as_good(tried: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(OrdersServer()) as server:
        assert main(["check-source", "jobs.orders_api:OrdersApi", "--set", f"url={server.url}"]) == 1
        assert "the source has no data: let some come, and try again" in capsys.readouterr().out
        server.add(1, 2, 3)
        assert main(["check-source", "jobs.orders_api:OrdersApi", "--set", f"url={server.url}", "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert "ok         ranges tile the stream" in out
    assert "jobs.orders_api:OrdersApi: 13 ok, 0 FAILED, 1 not tried" in out


def test_a_broken_one_is_told_by_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-source", f"{__name__}:CountsTwice", "--json"]) == 1
    found = {one["case"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["figures agree with the rows"]["message"] == "(0, 10] has 10 rows, and it counts 20"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["jobs.orders_api:Orders"], "jobs.orders_api:Orders"),
        (["jobs.orders_api:OrdersApi", "--set", "addres=x"], "cannot be made of ['addres']"),
        (["nowhere:Nothing"], "No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_tried_is_said(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-source", *arguments]) == 2
    assert told in capsys.readouterr().err
