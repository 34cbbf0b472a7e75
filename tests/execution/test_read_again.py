"""A replay reads as the source is defined today: what changed is said, and nothing does not take the place of rows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.definition import reading_back
from airflow_provider_microbatch.exceptions import SourceError
from airflow_provider_microbatch.sources.file import FileSource
from tests.execution.maintaining import applied, rewind
from tests.execution.world import CODE, KEY, World, run_identity
from tests.support.inline_engine import InlineEngine

EMPTY = {"numEmptyRows": {"orders": 2}, "warnings": ["source orders: 2 of 2 rows have nothing in any column"]}
"""What the runtime tells of two rows that do not fit the schema."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    define(world, format="csv")
    world.land(1, 2)
    return world


def define(world: World, name: str = "orders", **arguments: Any) -> None:
    """What the DAG file says from now on."""
    world.sources[name] = FileSource(str(world.landing(name)), **{"schema": "id long", **arguments})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_replay_that_reads_otherwise_says_what_is_set_otherwise(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    define(world, format="csv", options={"mode": "FAILFAST", "Header": True})
    world.run(1)
    define(world, format="json", options={"header": "true", "sep": ";"}, schema="id int")
    world.run(1, clear_number=1)
    (said,) = warnings(caplog)
    assert "Batch live/0 is replayed" in said
    assert "attempt 1" in said
    for change in (
        "source 'orders': format was 'csv', is 'json'",
        "source 'orders': schema was 'id long', is 'id int'",
        "source 'orders': options['mode'] was 'FAILFAST', is not set",
        "source 'orders': options['sep'] was not set, is ';'",
    ):
        assert change in said
    assert "header" not in said
    # It is what a user wants who has mended a wrong option; then it is what the next replay is compared with.
    assert world.table() == {0: [1, 2]}
    caplog.clear()
    world.run(1, clear_number=2)
    assert not warnings(caplog)


def test_nor_is_it_silent_where_folders_are_no_columns_any_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """They were null in all rows of a replay, in green."""
    define(world, format="json")
    world.run(1)
    define(world, format="json", recursive=True)
    world.run(1, clear_number=1)
    (said,) = warnings(caplog)
    assert "source 'orders': recursive was not set, is 'True'" in said


def test_what_is_read_otherwise_than_it_was_planned_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.execution.plan(run_identity(1))
    define(world, format="json", options={"sep": ";"})
    world.run(1, try_number=2)
    (said,) = warnings(caplog)
    assert "Batch live/0 is not read as it was when it was planned" in said
    assert "source 'orders': format was 'csv', is 'json'; source 'orders': options['sep'] was not set" in said
    assert world.table() == {0: [1, 2]}, "a schema that was wrong is mended by its next try"


def test_rows_of_which_nothing_is_left_are_no_batch_if_it_was_planned_to_be_read_otherwise(world: World) -> None:
    world.execution.plan(run_identity(1))
    define(world, format="json", schema="key long")
    refused = r"nothing was published. all 2 rows of source 'orders' .* schema was 'id long', is 'key long'.*--to -1`"
    with pytest.raises(SourceError, match=refused):
        world.run(1, InlineEngine(told=EMPTY), try_number=2)
    assert world.table() == {}
    assert world.checkpoint.commit_log.ids() == []
    applied(world, rewind(-1, drop_output=False))
    world.run(2, InlineEngine(told=EMPTY))
    assert world.table() == {0: [1, 2]}, "planned anew it is what the user wants"


def test_nor_is_it_silent_where_the_attempt_had_read_it_before_it_was_set_back(world: World) -> None:
    """The submit step has read it in one way, the commit step knows another one."""
    world.execution.plan(run_identity(1))
    define(world, schema="key long")
    attempt = world.execution.open_attempt(
        key=KEY, run=run_identity(1), code=CODE, engine=(engine := InlineEngine(told=EMPTY))
    )
    world.execution.run_attempt(attempt=attempt, job=world.execution.job(attempt, None), engine=engine, code=CODE)
    define(world, format="csv")
    with pytest.raises(SourceError, match="was not read as it was set when the batch was planned"):
        world.execution.publish(attempt)


def test_no_secret_of_an_old_definition_gets_into_the_offset_log(world: World) -> None:
    with reading_back():
        define(world, options={"password": "hush-1"})
    world.execution.plan(run_identity(1))
    assert b"hush" not in (world.root / "checkpoint" / "offsets" / "0").read_bytes()


def test_a_retry_and_a_replay_that_read_as_before_say_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.staged(1)
    world.run(1, try_number=2)
    world.land(3)
    define(world, format="csv")
    world.run(2)
    caplog.clear()
    world.run(2, clear_number=1)
    assert not warnings(caplog)


def test_of_sources_that_have_nothing_in_the_batch_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, sources=("orders", "refunds"))
    world.land(1)
    world.run(1)
    world.land(2, source="refunds")
    world.run(2)
    define(world, "refunds", format="csv")
    caplog.clear()
    world.run(1, clear_number=1)
    assert not warnings(caplog)
    world.run(2, clear_number=1)
    (said,) = warnings(caplog)
    assert "source 'refunds': format" in said


def test_what_looks_like_a_secret_is_not_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with reading_back():  # an older version has let it pass
        define(world, options={"password": "hush-1"})
    world.run(1)
    define(world, options={"sep": ";"})
    world.run(1, clear_number=1)
    (said,) = warnings(caplog)
    assert "options['password'] was ***, is not set" in said
    assert "hush" not in said


def test_a_class_that_is_gone_keeps_no_replay_from_its_work(world: World) -> None:
    world.run(1)
    for path in (world.root / "checkpoint" / "microbatch" / "pipelines").iterdir():
        path.write_text(path.read_text().replace("sources.file:FileSource", "sources.gone:Source"))
    define(world, format="csv", options={"sep": ";"})
    world.run(1, clear_number=1)
    assert world.table() == {0: [1, 2]}


@pytest.mark.parametrize("was_told", [{}, {"numEmptyRows": {}}, {"numEmptyRows": {"orders": 1}}])
def test_a_replay_of_which_nothing_is_left_replaces_nothing(world: World, was_told: dict[str, Any]) -> None:
    world.run(1, InlineEngine(told=was_told))
    define(world, format="json", options={"sep": ";"})
    with pytest.raises(SourceError, match="nothing was replaced") as refused:
        world.run(1, InlineEngine(transform=lambda _: [{"id": 0}], told=EMPTY), clear_number=1)
    for part in ("all 2 rows of source 'orders'", "format was 'csv', is 'json'", "options['sep']", "withdraw-clear"):
        assert part in str(refused.value)
    assert world.table() == {0: [1, 2]}
    assert not world.stages()
    # The ways on: mend it and try again.
    define(world, format="csv")
    world.run(1, clear_number=1, try_number=2)
    assert world.table() == {0: [1, 2]}
    assert not world.checkpoint.replays.pending(KEY)


def test_a_replay_that_names_no_change_says_so(world: World) -> None:
    world.run(1)
    with pytest.raises(SourceError, match="read as it was then"):
        world.run(1, InlineEngine(told=EMPTY), clear_number=1)


@pytest.mark.parametrize(
    "was_told",
    [EMPTY, {"numInputRows": {"orders": 0}}, {"numOutputRows": 0}],
    ids=["published rows were nothing", "no row was read", "no row is published"],
)
def test_where_nothing_is_lost_a_replay_is_published(world: World, was_told: dict[str, Any]) -> None:
    world.run(1, InlineEngine(told=was_told))
    world.run(1, InlineEngine(transform=lambda _: [{"id": 7}], told=EMPTY), clear_number=1)
    assert world.table() == {0: [7]}


def test_some_rows_that_do_not_fit_are_no_reason(world: World) -> None:
    world.run(1)
    some = {"numEmptyRows": {"orders": 1}}
    world.run(1, InlineEngine(transform=lambda _: [{"id": 7}], told=some), clear_number=1)
    assert world.table() == {0: [7]}


def test_the_tasks_log_warns_of_rows_that_do_not_fit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.run(1, InlineEngine(told=EMPTY))
    assert [said for said in warnings(caplog) if "2 of 2 rows have nothing in any column" in said]
    entry = world.checkpoint.commit_log.get(0)
    assert entry is not None
    assert entry.progress["numEmptyRows"] == {"orders": 2}
    assert "warnings" not in entry.progress


class Records(FileSource):
    """Its ranges have as many rows each time, as those of Kafka have."""

    def keeps_rows(self) -> bool:
        return True


@pytest.mark.parametrize("rows", [0, 1])
def test_a_replay_with_fewer_records_of_a_source_that_keeps_them_replaces_nothing(world: World, rows: int) -> None:
    world.sources["orders"] = Records(str(world.landing()), format="csv", schema="id long")
    world.run(1)
    fewer = InlineEngine(transform=lambda _: [{"id": 7}], told={"numInputRows": {"orders": rows}})
    with pytest.raises(SourceError, match=f"nothing was replaced.*'orders' gave {rows} rows, and 2 then.*withdraw-cle"):
        world.run(1, fewer, clear_number=1)
    assert world.table() == {0: [1, 2]}
    # Read in another way on purpose, it may have fewer.
    world.sources["orders"] = Records(str(world.landing()), format="csv", schema="id long", options={"comment": "1"})
    world.run(1, fewer, clear_number=1, try_number=2)
    assert world.table() == {0: [7]}


def test_a_replay_whose_records_spark_has_not_counted_says_that_they_are_not_compared(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sources["orders"] = Records(str(world.landing()), format="csv", schema="id long")
    world.run(1)
    world.run(1, InlineEngine(told={"numInputRows": {"orders": None}}), clear_number=1)
    assert world.table() == {0: [1, 2]}
    assert [said for said in warnings(caplog) if "no count of the rows of source 'orders', which gave 2" in said]
