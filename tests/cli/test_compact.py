"""``microbatch compact`` and its operator's work: beside a checkpoint's own batches, and whatever was asked of them."""

from __future__ import annotations

import errno
import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.sinks import Compacted, Sink, SinkContext
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.upkeep.compaction import compact
from tests.execution.world import World
from tests.support.foreach_sinks import RowsInSqlite


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two batches of three small files each."""
    world = World(tmp_path)
    for number in range(2):
        world.land(number * 3, number * 3 + 1, number * 3 + 2)
        world.run(number)
        split(world, number)
    return world


def split(world: World, number: int) -> None:
    """The rows of a published batch in a file each, as Spark's tasks leave them."""
    folder = world.lake / "lane=live" / f"batch_id={number}"
    (manifest,) = (folder / "_manifest").glob("part-*")
    first, *_ = (line for line in manifest.read_text().splitlines() if '"result"' in line)
    lines = [line for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()]
    for path in folder.glob("*.json"):
        path.unlink()
    for index, line in enumerate(lines):
        path = folder / f"part-{index:05}.json"
        path.write_text(f"{line}\n")
        first += "\n" + json.dumps({"file": path.name, "bytes": path.stat().st_size})
    manifest.write_text(f"{first}\n")


def files(world: World) -> Counter[str]:
    return Counter(path.parent.name for path in world.lake.glob("lane=live/*/*.json"))


def location(world: World) -> str:
    return str(world.root / "checkpoint")


def test_small_files_become_few_and_everything_else_goes_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = world.table()
    assert main(["compact", location(world), "--dry-run"]) == 0
    assert "6 files of 2 batches → 2, dry run: nothing was done" in capsys.readouterr().out
    assert files(world) == {"batch_id=0": 3, "batch_id=1": 3}
    assert main(["compact", location(world)]) == 0
    told = capsys.readouterr().out
    assert "6 files of 2 batches → 2, " in told
    assert "left" not in told
    assert files(world) == {"batch_id=0": 1, "batch_id=1": 1}
    assert world.table() == before
    assert main(["check", location(world), "--table"]) == 0
    world.land(9)
    world.run(2)
    assert world.table() == {**before, 2: [9]}
    assert main(["compact", location(world)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_cleared_batch_is_replaced_after_it(world: World) -> None:
    before = world.table()
    main(["compact", location(world)])
    world.run(0, clear_number=1)
    assert world.table() == before
    assert main(["check", location(world), "--table"]) == 0


def test_a_rewind_takes_batches_out_after_it(world: World) -> None:
    main(["compact", location(world)])
    assert main(["rewind", location(world), "--to", "0", "--drop-output"]) == 0
    assert list(world.table()) == [0]
    world.run(2)
    assert world.table() == {0: [0, 1, 2], 1: [3, 4, 5]}


def test_the_janitor_removes_what_it_put_out(world: World) -> None:
    main(["compact", location(world)])
    assert len(world.janitor(grace_seconds=0).of("replaced output removed")) == 2
    assert list((world.lake / "_compacted").rglob("*.json")) == []
    assert world.table() == {0: [0, 1, 2], 1: [3, 4, 5]}


def test_rows_that_are_to_be_erased_are_not_written_anew(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", location(world), "--where", "id = 4"]) == 0
    world.run(1, clear_number=1)
    split(world, 1)
    capsys.readouterr()
    assert main(["compact", location(world), "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    ((why, left),) = report["left"].items()
    assert left == {"batches": 1, "such_as": ["live/0"]}
    assert "forget` entry 0" in why
    assert "clear its task" in why
    assert files(world) == {"batch_id=0": 3, "batch_id=1": 1}


def test_a_command_that_is_changing_the_checkpoint_comes_first(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.execution.world import Killed

    def die(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(FileSink, "withdraw", die)
    with pytest.raises(Killed):
        main(["rewind", location(world), "--to", "0", "--drop-output"])
    assert main(["compact", location(world)]) == 2
    assert "being changed by `microbatch rewind" in capsys.readouterr().err


def test_a_table_that_is_away_is_an_error_and_the_next_one_is_done(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.lake.rename(world.root / "away")
    world.lake.mkdir()
    assert main(["compact", location(world)]) == 1
    assert "not compacted to its end" in capsys.readouterr().out
    assert list(world.lake.iterdir()) == []


def test_a_full_disk_of_this_host_is_an_error_of_the_table_that_met_it(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Compacted:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSink, "compact", full)
    assert main(["compact", location(world)]) == 1
    told = capsys.readouterr().out
    assert "not compacted to its end" in told
    assert "No space left" in told


def test_what_is_told_does_not_grow_with_the_table(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Compacted(left={f"of one batch: {number}": {BatchKey("live", number)} for number in range(50)})
    done.left["of most"] = {BatchKey("live", number) for number in range(50, 90)}
    monkeypatch.setattr(FileSink, "compact", lambda *_: done)
    with caplog.at_level(logging.INFO):
        main(["compact", location(world), "--json"])
    (report,) = json.loads(capsys.readouterr().out)
    assert (len(report["left"]), report["further_reasons"]) == (10, 41)
    assert report["left"]["of most"] == {"batches": 40, "such_as": [f"live/{number}" for number in range(50, 60)]}
    assert (caplog.text.count("left as they are"), caplog.text.count("41 further reasons")) == (11, 1)
    main(["compact", location(world)])
    assert capsys.readouterr().out.count("left as they are") == 11


def test_a_folder_that_is_somebody_elses_by_now_stays_as_it_is(world: World, tmp_path: Path) -> None:
    """Where the table was once; or a place that a stranger names in the checkpoint."""
    world.lake.rename(tmp_path / "moved")
    world.options["sink"] = FileSink(str(tmp_path / "moved"), format="json")
    world.land(9)
    world.run(2)
    world.lake.mkdir()
    (world.lake / "theirs.json").write_text("{}\n")
    main(["compact", location(world)])
    assert [path.name for path in world.lake.iterdir()] == ["theirs.json"]


def test_a_table_that_cannot_be_compacted_is_refused_with_what_to_do(world: World, tmp_path: Path) -> None:
    sinks: list[Sink] = [RowsInSqlite(str(tmp_path / "stages"), str(tmp_path / "rows.db"), format="json")]
    sinks.append(world.pipeline.sink)
    reports = compact(world.checkpoint, sinks=[sink.open(SinkContext()) for sink in sinks])
    assert "no files that this package could join" in (reports[0].refused or "")
    assert reports[1].done.batches == {BatchKey("live", 0), BatchKey("live", 1)}


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5"])
def test_a_size_that_is_none_is_refused(world: World, given: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["compact", location(world), f"--target-bytes={given}"])
    assert refused.value.code == 2
