"""What no run of an interval pipeline reads, since Airflow made none for it or it came after its run, is named."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import NothingInIntervalError
from airflow_provider_microbatch.execution.unread import find_unread, way_on
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.file.listing import Listing
from airflow_provider_microbatch.sources.intervals import Interval, Unread
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.world import run_identity

LOG = "airflow_provider_microbatch.execution.backfill"


@pytest.fixture
def world(tmp_path: Path) -> IntervalWorld:
    return IntervalWorld(tmp_path, plan="interval")


def run(world: IntervalWorld, interval: Interval, *, others: bool = False) -> None:
    work = world.work(interval, others_run=lambda: others)
    try:
        world.finish(work, interval.start_ms)
    except NothingInIntervalError:
        return


def found(world: IntervalWorld, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    """Exit status and findings of ``microbatch check``."""
    status = main(["check", str(world.root / "checkpoint"), "--json"])
    return status, json.loads(capsys.readouterr().out)


def paused(world: IntervalWorld) -> None:
    """Hours 1 and 4 have their run; for 2 and 3 there was none."""
    for number in range(1, 5):
        world.land_at(number + 0.5, number)
    run(world, hour(1))
    run(world, hour(4))
    assert world.ids() == [1, 4]


def test_check_names_what_lies_where_no_run_was_made(world: IntervalWorld, capsys: pytest.CaptureFixture[str]) -> None:
    paused(world)
    status, (finding,) = found(world, capsys)
    assert status == 1
    assert finding["kind"] == "unread"
    assert finding["where"] == str(world.landing())
    assert "2 files of source 'orders', of 2023-11-15T02:30:00Z to 2023-11-15T03:30:00Z." in finding["message"]
    command = "airflow backfill create --dag-id orders --from-date 2023-11-15T01:30:00Z --to-date 2023-11-15T04:30:00Z"
    assert command in finding["repair"]
    assert "lookback=9000 (seconds)" in finding["repair"]
    for number in (2, 3):
        run(world, hour(number))
    assert found(world, capsys) == (0, [])


def test_check_names_what_came_after_its_run_and_what_lies_before_the_first(
    world: IntervalWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world.land_at(1.5, 1)
    run(world, hour(1))
    assert found(world, capsys) == (0, [])
    world.land_at(1.2, 2)
    world.land_at(0.5, 3)
    world.land_at(2.5, 4)
    status, (finding,) = found(world, capsys)
    assert status == 1
    assert "2 files of source 'orders', of 2023-11-15T00:30:00Z to 2023-11-15T01:12:00Z." in finding["message"]


def test_check_says_nothing_of_a_pipeline_whose_live_lane_reads_all_that_is_new(
    world: IntervalWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    paused(world)
    world.land_at(5.5, 5)
    world.options["plan"] = "live"
    world.sources = {"orders": FileSource(str(world.landing()), schema="id long", max_files=1)}
    world.run(9)
    assert found(world, capsys) == (0, [])


def test_a_run_warns_of_what_it_has_passed(world: IntervalWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG)
    paused(world)
    (warned,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "2 files of source 'orders', of 2023-11-15T02:30:00Z to 2023-11-15T03:30:00Z." in warned.getMessage()
    assert "airflow backfill create --dag-id orders" in warned.getMessage()


def test_while_others_are_on_their_way_it_is_no_warning(world: IntervalWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG)
    world.land_at(1.5, 1)
    world.land_at(2.5, 2)
    run(world, hour(2), others=True)
    (told,) = [one for one in caplog.records if re.search("No batch has read 1 file", one.getMessage())]
    assert told.levelno == logging.INFO


def test_a_run_with_nothing_in_its_interval_warns_too(world: IntervalWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.land_at(1.5, 1)
    run(world, hour(2))
    assert world.ids() == []
    assert "No batch has read 1 files" in caplog.text


def test_the_warning_costs_no_listing(world: IntervalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, real = list[int](), Listing.files

    def files(self: Listing, *args: object, **kwargs: object) -> object:
        listed.append(1)
        return real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Listing, "files", files)
    world.land_at(2.5, 2)
    run(world, hour(2))
    first = len(listed)
    listed.clear()
    world.land_at(1.5, 1)
    world.land_at(3.5, 3)
    run(world, hour(3))
    assert len(listed) == first


def test_what_cannot_be_listed_from_here_is_left_out(world: IntervalWorld) -> None:
    paused(world)
    world.landing().rename(world.root / "elsewhere")
    assert find_unread(world.checkpoint) == []


@pytest.mark.parametrize("on_overlap", ["skip", "replay"])
def test_an_interval_that_somebody_else_put_on_record_fails_no_run_and_no_check(
    tmp_path: Path, on_overlap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who can write the checkpoint: as long before the data as that is, no moment can be written."""
    world = IntervalWorld(tmp_path, plan="interval", on_overlap=on_overlap)
    paused(world)
    record = world.root / "checkpoint/microbatch/intervals/interval-00010101T000000Z-99991231T235959Z"
    record.write_bytes(b"v1")
    world.land_at(5.5, 5)
    run(world, hour(5))
    assert world.ids() == [1, 4, 5]
    _, (finding,) = found(world, capsys)
    assert "--from-date 1970-01-01T00:00:00Z" in finding["repair"]


@pytest.mark.parametrize("sources", [[], "orders", None])
def test_sources_on_record_that_are_none_stop_no_check(world: IntervalWorld, sources: object) -> None:
    paused(world)
    (path,) = (world.root / "checkpoint/microbatch/pipelines").iterdir()
    values = decode_record(path.read_bytes(), where=str(path))
    path.write_bytes(encode_record({**values, "arguments": {**values["arguments"], "sources": sources}}))
    assert find_unread(world.checkpoint) == []


def test_the_command_that_is_offered_names_the_dag_and_does_nothing_else() -> None:
    """A run on record may be anybody's who can write the checkpoint, and people paste the command."""
    run = replace(run_identity(0), dag_id="orders; rm -rf ~")
    told = way_on(Unread(count=1, first_ms=1, last_ms=1), run=run, limit_ms=2, length_ms=1)
    assert "--dag-id 'orders; rm -rf ~' --from-date" in told
