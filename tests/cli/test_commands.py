"""What people see of a checkpoint: real pipelines made it, only Spark is stood in for."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli import check
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.cli.table import show_splits
from airflow_provider_microbatch.exceptions import BatchSetAsideError, ForeignBatchError, TransformError
from airflow_provider_microbatch.execution.engine import Code
from airflow_provider_microbatch.execution.intervals import batch_of
from airflow_provider_microbatch.execution.summary import summarize
from tests.execution.intervals import IntervalWorld, hour
from tests.execution.world import KEY, World, run_identity
from tests.support.inline_engine import InlineEngine

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three batches: 0 and 1 committed, 2 planned, its one attempt failed in the transform."""
    world = World(tmp_path)
    for number in range(2):
        world.land(10 * number, 10 * number + 1, 10 * number + 2)
        world.run(number)
    world.land(20)

    def fail(_: object) -> list[dict[str, object]]:
        raise ValueError("no such column: amuont")

    with pytest.raises(TransformError):
        world.run(2, InlineEngine(transform=fail))
    return world


def microbatch(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_log_tells_every_batch_on_one_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = microbatch(capsys, "log", world.pipeline.checkpoint)
    header, _, *lines = out.splitlines()
    assert status == 0
    assert header.split() == ["batch", "state", "attempt", "offsets", "read", "rows", "seconds", "run"]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert [cell[:6] for cell in cells] == [
        ["0", "committed", "1", "orders - → 0", "1 files", "3 → 3"],
        ["1", "committed", "1", "orders 0 → 1", "1 files", "3 → 3"],
        ["2", "planned", "1", "orders 1 → 2", "-", "-"],
    ]
    assert [cell[-1] for cell in cells] == ["run-0", "run-1", "run-2"]


def test_log_as_json_is_the_summary_that_grid_and_xcom_show(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = microbatch(capsys, "log", world.pipeline.checkpoint, "--json", "-n", 2)
    expected = [summarize(world.checkpoint, BatchKey("live", number)).to_dict() for number in (1, 2)]
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_log_shows_the_newest_and_at_most_the_count(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = microbatch(capsys, "log", world.pipeline.checkpoint, "-n", "1")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["2"]


def test_log_of_a_pipeline_that_never_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = World(tmp_path / "empty")
    empty.checkpoint.claim(pipeline="orders", sources=["orders"], format="v2")
    assert microbatch(capsys, "log", empty.pipeline.checkpoint)[:2] == (
        0,
        f"No batch was planned yet in lane live of {empty.pipeline.checkpoint}.\n",
    )


def test_show_tells_ranges_attempt_commit_and_progress(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = microbatch(capsys, "show", world.pipeline.checkpoint, 1)
    assert status == 0
    (attempt,) = world.checkpoint.attempts.all(BatchKey("live", 1))
    for expected in (
        "batch live/1 of pipeline orders in ",
        'orders: {"logOffset":0} → {"logOffset":1}, 3 rows',
        "spark.sql.session.timeZone",
        attempt.handle["tag"],
        "jobs/orders.py:transform",
        "succeeded",
        "numOutputRows",
        "run-1",
    ):
        assert expected in out


@pytest.mark.parametrize("null", [None, {"orders": None}, {"orders": {"rows": None}}])
@pytest.mark.parametrize("figure", ["numInputRows", "sources", "lag", "lagBySplit"])
def test_a_figure_that_is_null_keeps_no_batch_from_being_shown(
    world: World, capsys: pytest.CaptureFixture[str], figure: str, null: object
) -> None:
    if figure == "numInputRows" and isinstance(null, dict):
        null = {"orders": None}
    path = world.root / "checkpoint/commits/1"
    version, line = path.read_text().split("\n", 1)
    entry = json.loads(line)
    entry["microbatch"]["progress"][figure] = null
    path.write_text(f"{version}\n{json.dumps(entry)}")
    for command in (("log",), ("log", "--json"), ("show", 1)):
        name, *arguments = command
        assert microbatch(capsys, name, world.pipeline.checkpoint, *arguments)[0] == 0


def test_show_tells_why_the_attempt_failed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = microbatch(capsys, "show", world.pipeline.checkpoint, 2)
    assert "no such column: amuont" in out
    assert "none: the batch is not committed" in out


def test_log_and_show_tell_a_dead_attempt_from_a_running_one_and_who_finished_the_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.land(1)
    world.staged(0)
    location = world.pipeline.checkpoint

    def told() -> tuple[list[str], str]:
        line = microbatch(capsys, "log", location)[1].splitlines()[2]
        return re.split(r"\s{2,}", line.strip()), microbatch(capsys, "show", location, 0)[1]

    line, shown = told()
    assert (line[1], line[-1]) == ("running", "run-0")
    assert "no end on record\n" in shown
    world.execution.keep(world.checkpoint.attempts.all(KEY)[0], seconds=3600)
    line, shown = told()
    assert (line[1], line[-1]) == ("staged", "run-0")
    assert "no end on record: its stage is whole and waits" in shown
    world.expire_leases()
    line, shown = told()
    assert line[1] == "planned"
    assert "no end on record, and no sign of life: its lease has run out" in shown
    world.run(5)
    line, shown = told()
    assert (line[1], line[-1]) == ("committed", "run-5")
    assert re.search(r"planned by +run-0\n", shown)
    assert re.search(r"\n  run +run-5\n", shown)


def test_show_as_json_has_every_attempt_with_its_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.run(2, try_number=2)
    _, out, _ = microbatch(capsys, "show", world.pipeline.checkpoint, 2, "--json")
    shown = json.loads(out)
    assert [(attempt["epoch"], attempt["end"]["state"]) for attempt in shown["attempts"]] == [
        (1, "failed"),
        (2, "succeeded"),
    ]
    assert shown["commit"]["epoch"] == 2
    assert shown["state"] == "committed"


def test_show_of_a_batch_that_is_not_there_names_those_that_are(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = microbatch(capsys, "show", world.pipeline.checkpoint, 7)
    assert (status, out) == (2, "")
    assert "no batch 7" in err
    assert "batches 0 to 2" in err


def test_check_of_a_sound_checkpoint(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = microbatch(capsys, "check", world.pipeline.checkpoint)
    assert (status, out) == (
        0,
        f"{world.pipeline.checkpoint}: nothing wrong (live: 3 planned, 2 committed; table: 2 of 2 asked for)\n",
    )
    assert microbatch(capsys, "check", world.pipeline.checkpoint, "--json")[:2] == (0, "[]\n")


def test_check_finds_a_batch_that_nobody_has_been_at_for_long(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Every log is whole, `repair` has nothing to do, and yet the table has stopped."""
    checkpoint = world.pipeline.checkpoint
    assert microbatch(capsys, "check", checkpoint, "--standing", "3000")[0] == 0
    for path in Path(checkpoint).rglob("*"):
        os.utime(path, (path.stat().st_mtime - 4000,) * 2)
    status, out, _ = microbatch(capsys, "check", checkpoint, "--standing", "3000", "--json")
    (finding,) = json.loads(out)
    assert (status, finding["kind"]) == (1, "standing")
    assert "nobody has been at it for 67 minutes" in finding["message"]
    assert "Attempt 1 ended as failed" in finding["message"]
    assert "jobs/orders.py:transform' failed" in finding["message"]
    assert microbatch(capsys, "check", checkpoint)[0] == 1
    assert microbatch(capsys, "check", checkpoint, "--standing", "5000")[0] == 0
    world.run(2)
    assert microbatch(capsys, "check", checkpoint, "--standing", "0")[0] == 0


def test_check_says_what_is_wrong_and_how_to_repair_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    torn = Path(world.pipeline.checkpoint) / "offsets" / "0"
    torn.write_text("v2")
    status, out, _ = microbatch(capsys, "check", world.pipeline.checkpoint)
    assert status == 1
    assert str(torn) in out
    assert "repair: " in out
    status, out, _ = microbatch(capsys, "check", world.pipeline.checkpoint, "--json")
    (finding,) = json.loads(out)
    assert (status, finding["kind"], finding["where"]) == (1, "unreadable", str(torn))
    assert finding["repair"]


@pytest.mark.parametrize("command", ["log", "check"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "nowhere", "is not a checkpoint"),
        (lambda _: "nowhere", f"{Path('nowhere').absolute()} is not a checkpoint: it is not there"),
        (lambda folder: folder, "is not a checkpoint"),
        (lambda folder: folder / "file", "A checkpoint needs a folder"),
        (lambda folder: "ftp://bucket/checkpoint", "no checkpoint store for ftp://"),
    ],
    ids=["missing", "relative", "no-checkpoint", "a-file", "scheme"],
)
def test_a_location_that_is_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, make: object, says: str
) -> None:
    (tmp_path / "file").write_text("x")
    status, out, err = microbatch(capsys, command, make(tmp_path))  # type: ignore[operator]
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_lane_that_is_not_there(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = microbatch(capsys, "log", world.pipeline.checkpoint, "--lane", "backfill")
    assert status == 2
    assert "no lane 'backfill'; it has live" in err


def test_lanes_of_intervals_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = IntervalWorld(tmp_path)
    for number in (2, 1):
        world.land_at(number + 0.5, number)
        world.backfill(hour(number), number)
    location = world.pipeline.checkpoint
    _, out, _ = microbatch(capsys, "log", location)
    assert out == f"No batch was planned yet in lane live of {location}.\n2 other lanes; --lanes lists their batches.\n"
    _, out, _ = microbatch(capsys, "log", location, "--lanes")
    keys = [line.split()[0] for line in out.splitlines()[2:]]
    assert keys == [str(batch_of(hour(1))), str(batch_of(hour(2)))]
    _, listed, _ = microbatch(capsys, "log", location, "--lanes", "--json")
    assert [batch["key"] for batch in json.loads(listed)] == keys
    status, out, _ = microbatch(capsys, "show", location, keys[0])
    assert status == 0
    assert out.startswith(f"batch {keys[0]} of pipeline orders")
    assert microbatch(capsys, "check", location)[0] == 0


@pytest.mark.parametrize("arguments", [["log"], ["show", "x", "-3"], ["log", "x", "-n", "0"], ["polish", "x"], []])
def test_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_a_relative_path_and_a_file_url_are_locations(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.root)
    expected = microbatch(capsys, "log", world.pipeline.checkpoint)
    assert microbatch(capsys, "log", "checkpoint") == expected
    assert microbatch(capsys, "log", f"file://{world.pipeline.checkpoint}") == expected


def test_a_checkpoint_that_spark_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = microbatch(capsys, "log", GOLDEN / "spark-4.2.0-v2")
    assert status == 0
    assert "committed" in out
    assert microbatch(capsys, "check", GOLDEN / "spark-4.2.0-v2")[0] == 0


@pytest.mark.parametrize("command", ["log", "check"])
def test_a_v1_checkpoint_that_spark_wrote_needs_names(capsys: pytest.CaptureFixture[str], command: str) -> None:
    location = GOLDEN / "spark-4.1.3-v1"
    status, out, err = microbatch(capsys, command, location)
    assert (status, out) == (2, "")
    assert "Name them with --sources" in err
    assert microbatch(capsys, command, location, "--sources", "orders")[0] == 2
    assert microbatch(capsys, command, location, "--sources", "orders,returns")[0] == 0


def test_nothing_is_written(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = world.files()
    for arguments in (["log"], ["check"], ["check", "--json"]):
        microbatch(capsys, arguments[0], world.pipeline.checkpoint, *arguments[1:])
    microbatch(capsys, "show", world.pipeline.checkpoint, 0)
    assert world.files() == before


def test_the_command_starts_without_airflow_and_spark() -> None:
    code = (
        "import sys, airflow_provider_microbatch.cli.main; "
        "print(sorted({'airflow', 'pyspark', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_reader_that_goes_away_is_no_error(world: World) -> None:
    command = [sys.executable, "-m", "airflow_provider_microbatch.cli.main", "log", world.pipeline.checkpoint]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_log_and_show_tell_what_was_set_aside_and_why_and_then_which_replay_ran_which_code(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.options |= {"on_failure": "set_aside", "set_aside_after": 1}
    with pytest.raises(BatchSetAsideError):
        world.run(2)
    location = world.pipeline.checkpoint
    _, out, _ = microbatch(capsys, "log", location)
    assert re.split(r"\s{2,}", out.splitlines()[-1].strip())[:3] == ["2", "set_aside", "1"]
    _, out, _ = microbatch(capsys, "show", location, 2)
    assert re.search(r"state +set_aside", out)
    assert "no such column: amuont" in out.partition("commit\n")[2]
    world.execution.run(
        run=run_identity(2, clear_number=1),
        engine=InlineEngine(),
        code=Code(transform="jobs/orders.py:transform", code_hash="0123abcd", bundle_version="v2"),
        transform=None,
    )
    _, out, _ = microbatch(capsys, "log", location)
    assert re.split(r"\s{2,}", out.splitlines()[-1].strip())[:3] == ["2", "committed", "3"]
    _, out, _ = microbatch(capsys, "show", location, 2)
    newest = out.partition("  attempt 3")[2]
    assert '"code_hash": "0123abcd"' in newest
    assert '"bundle_version": "v2"' in newest
    assert "made for request 1" in newest


def test_check_asks_the_table_and_names_what_is_missing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(world.lake / "lane=live" / "batch_id=0")
    status, out, _ = microbatch(capsys, "check", world.pipeline.checkpoint, "--table")
    assert status == 1
    assert "batch live/0 is committed and not in" in out
    assert "repair: Clear task 'micro_batch' of run 'run-0' of DAG 'orders'" in out


def test_a_new_checkpoint_is_told_apart_and_started_behind_or_adopts_by_command(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = World(tmp_path / "new", sink=world.pipeline.sink)
    new.land(30)
    with pytest.raises(ForeignBatchError):
        new.run(0)
    location = new.pipeline.checkpoint
    status, out, _ = microbatch(capsys, "check", location)
    assert (status, "is another one than" in out) == (1, True)
    status, _, err = microbatch(capsys, "adopt", location, 0)
    assert (status, "batch live/0 is not planned" in err) == (2, True)
    assert microbatch(capsys, "start-behind", location, "--dry-run")[0] == 0
    assert new.checkpoint.offset_log.ids() == []
    assert microbatch(capsys, "start-behind", location)[0] == 0
    assert new.run(0) is not None
    assert microbatch(capsys, "check", location, "--table")[0] == 0
    assert microbatch(capsys, "log", location)[0] == 0


def test_figures_that_somebody_else_wrote_into_an_entry_are_shown_as_far_as_they_are_numbers() -> None:
    assert show_splits({"a": {"files": 1_200, "bytes": 5}, "b": {"shard": "a-7", "files": 3}}) == "1,203 files"  # type: ignore[dict-item]
    assert show_splits({}) == "-"


def test_what_pyiceberg_tells_of_its_own_doings_is_no_output_of_a_command(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow, whose hooks find a catalog's connection, sets the level of the root logger."""
    caplog.set_level(logging.INFO)
    loggers = [logging.getLogger(name) for name in ("pyiceberg.io", "airflow_provider_microbatch")]

    def tells(_: object) -> list[object]:
        for logger in loggers:
            logger.info("Loaded FileIO")
            logger.warning("attention")
        return []

    monkeypatch.setattr(check, "check_sources", tells)
    microbatch(capsys, "check", world.checkpoint.location)
    told = [(record.name, record.levelno) for record in caplog.records if record.name in {one.name for one in loggers}]
    assert told == [
        (loggers[0].name, logging.WARNING),
        *((loggers[1].name, at) for at in (logging.INFO, logging.WARNING)),
    ]
    assert loggers[0].isEnabledFor(logging.INFO)
