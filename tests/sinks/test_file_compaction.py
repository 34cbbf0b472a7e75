"""Small files of a table on disk become few: whoever dies or replays meanwhile, each batch has its rows once."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Compacted, Compaction, ExpectedBatch, Manifest, file
from airflow_provider_microbatch.sinks.compaction.lines import LineJoining
from airflow_provider_microbatch.sinks.file import FileSink, compacting
from airflow_provider_microbatch.sinks.file.lock import locked
from tests.sinks.stages import (
    CHECKPOINT,
    EXPECTED,
    KEY,
    NOTHING_KNOWN,
    batch_of,
    expect,
    folder_of,
    write_stage,
)

STEPS = ("make_folders", "_prepare", "sync_tree", "exchange", "sync")
"""Where a compaction of a batch may die: before and after each of them."""


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "table"), format="json")


def wanted(**given: Any) -> Compaction:
    return Compaction(**{"checkpoint": CHECKPOINT, "tables": NOTHING_KNOWN, "left_alone": lambda found: None, **given})


def batch_folder(sink: FileSink, key: BatchKey = KEY) -> Path:
    return sink.root / f"lane={key.lane}" / f"batch_id={key.id}"


def data(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json*") if path.is_file())


def rows(sink: FileSink) -> Counter[tuple[int, int, int]]:
    """How often a reader that lists the table finds each row: its batch, attempt and id."""
    found: Counter[tuple[int, int, int]] = Counter()
    for path in data_of_all(sink.root):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[int(path.parent.name.removeprefix("batch_id=")), row["epoch"], row["id"]] += 1
    return found


def data_of_all(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.glob("lane=live/*/*.json")) if not path.name.startswith("_"))


def publish(sink: FileSink, key: BatchKey = KEY, *, files: int = 4, epoch: int = 1) -> Counter[tuple[int, int, int]]:
    write_stage(sink, epoch, batch=batch_of(key), files=files)
    sink.publish(expect(key), epoch)
    return rows(sink)


def test_a_batchs_files_become_one_and_a_reader_finds_the_same_rows(sink: FileSink) -> None:
    publish(sink)
    before = publish(sink, BatchKey("live", 8), files=2)
    done = sink.compact(wanted())
    assert (done.files_before, done.files_after, done.batches) == (6, 2, {KEY, BatchKey("live", 8)})
    assert done.bytes_after == done.bytes_before
    assert len(data(batch_folder(sink))) == 1
    assert rows(sink) == before


def test_a_batch_is_in_as_before_for_whoever_asks(sink: FileSink) -> None:
    publish(sink)
    before = sink.contains(EXPECTED)
    sink.compact(wanted())
    after = sink.contains(EXPECTED)
    assert before is not None
    assert after is not None
    assert (after.identity, after.epoch, after.result) == (before.identity, before.epoch, before.result)
    assert sink.damage(EXPECTED, after) is None
    assert sink.strays(NOTHING_KNOWN) == []
    assert sink.published_rows(EXPECTED).paths == tuple(f"file://{path}" for path in data(batch_folder(sink)))
    assert sink.publish(EXPECTED, 2) == after, "a late attempt finds it in"


def test_files_that_it_exchanges_while_somebody_looks_for_them_are_not_gone(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink)
    contains, waiting = FileSink.contains, [sink.compact]

    def looking(self: FileSink, batch: ExpectedBatch) -> Manifest | None:
        found = contains(self, batch)
        if waiting:
            waiting.pop()(wanted())
        return found

    monkeypatch.setattr(FileSink, "contains", looking)
    assert sink.published_rows(EXPECTED).paths == tuple(f"file://{path}" for path in data(batch_folder(sink)))
    data(batch_folder(sink))[0].unlink()
    with pytest.raises(SinkError, match="is gone"):
        sink.published_rows(EXPECTED)


def test_a_second_compaction_finds_nothing_to_do(sink: FileSink) -> None:
    publish(sink)
    sink.compact(wanted())
    left = data(batch_folder(sink))
    assert sink.compact(wanted()) == Compacted()
    assert data(batch_folder(sink)) == left


def test_files_that_are_large_enough_stay_as_they_are(sink: FileSink) -> None:
    before = publish(sink, files=5)
    size = data(batch_folder(sink))[0].stat().st_size
    sink.compact(wanted(target_bytes=2 * size))
    assert [path.stat().st_size // size for path in data(batch_folder(sink))] == [2, 2, 1]
    assert rows(sink) == before
    large = [path.stat().st_ino for path in data(batch_folder(sink)) if path.stat().st_size > size]
    publish(sink, BatchKey("live", 8))
    sink.compact(wanted(target_bytes=2 * size))
    assert set(large) <= {path.stat().st_ino for path in data(batch_folder(sink))}


def test_a_dry_run_counts_and_changes_nothing(sink: FileSink) -> None:
    publish(sink)
    before = sorted(sink.root.rglob("*"))
    done = sink.compact(wanted(dry_run=True))
    assert (done.files_before, done.files_after) == (4, 1)
    assert sorted(sink.root.rglob("*")) == before


def test_a_replay_after_it_replaces_the_batch(sink: FileSink) -> None:
    publish(sink)
    sink.compact(wanted())
    write_stage(sink, 2, files=2)
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert set(rows(sink)) == {(7, 2, 0), (7, 2, 1), (7, 2, 2)}
    assert sink.stages(CHECKPOINT) == []


def test_a_file_system_that_cannot_exchange_folders_is_named_and_nothing_changes(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = publish(sink)
    monkeypatch.setattr(compacting, "exchange", lambda one, other: False)
    with pytest.raises(SinkError, match="cannot exchange two folders"):
        sink.compact(wanted())
    assert rows(sink) == before
    assert list((sink.root / "_compacted").rglob("*.json")) == []


def test_a_batch_is_taken_out_after_it(sink: FileSink) -> None:
    publish(sink)
    sink.compact(wanted())
    assert sink.withdraw(EXPECTED, 1)
    assert rows(sink) == Counter()
    assert sink.compact(wanted()) == Compacted()


def at(step: str, what: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Have something happen before or after a step of the compaction, once."""
    owner: Any = compacting.Folders if step == "_prepare" else compacting
    real = getattr(owner, step)

    def changed(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, step, real)
        result = real(*given, **named) if after else None
        what()
        return result if after else real(*given, **named)

    monkeypatch.setattr(owner, step, changed)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_the_batch_is_there_once_and_the_janitor_leaves_nothing(
    sink: FileSink, step: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = publish(sink)
    at(step, lambda: os._exit(9), monkeypatch, after=after)
    child = os.fork()
    if child == 0:
        sink.compact(wanted())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert rows(sink) == before
    found = sink.contains(EXPECTED)
    assert found is not None
    assert sink.damage(EXPECTED, found) is None
    monkeypatch.undo()
    sink.compact(wanted())
    assert (rows(sink), len(data(batch_folder(sink)))) == (before, 1)
    sink.drop_replaced(CHECKPOINT, older_seconds=0)
    assert list((sink.root / "_compacted").rglob("*.json")) == []
    assert rows(sink) == before


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_an_error_anywhere_leaves_the_batch_and_nothing_else(
    sink: FileSink, step: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = publish(sink)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    at(step, fail, monkeypatch, after=after)
    with pytest.raises(SinkError, match="the disk is full"):
        sink.compact(wanted())
    assert rows(sink) == before
    left = list((sink.root / "_compacted").rglob("*.json"))
    is_done = (step, after) == ("exchange", True)
    assert len(left) == (4 if is_done else 0), "what readers have listed is kept for a while; nothing else is"


@pytest.mark.parametrize("step", ["_prepare", "sync_tree"])
def test_a_replay_meanwhile_stays(sink: FileSink, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink)
    write_stage(sink, 2)
    at(step, lambda: sink.replace(EXPECTED, 2), monkeypatch, after=True)
    done = sink.compact(wanted())
    assert done.left == {compacting.CHANGED: {KEY}}
    assert set(rows(sink)) == {(7, 2, 0), (7, 2, 1), (7, 2, 2)}
    assert list((sink.root / "_compacted").rglob("*.json")) == []


def test_nobody_else_changes_the_batch_between_the_last_look_and_the_exchange(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink)
    held: list[str] = []

    def try_it() -> None:
        with pytest.raises(TimeoutError) as refused:
            locked(sink.root / "_replaced" / "lane=live" / "batch_id=7.lock", seconds=0).__enter__()
        held.append(str(refused.value))

    at("exchange", try_it, monkeypatch, after=False)
    assert sink.compact(wanted()).files_after == 1
    assert f"process {os.getpid()}" in held[0]


@pytest.mark.parametrize("step", ["kind", "join"])
def test_a_replay_while_files_are_read_is_no_error_and_the_next_batch_is_done(
    sink: FileSink, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink)
    publish(sink, BatchKey("live", 8))
    write_stage(sink, 2)
    real = getattr(LineJoining, step)

    def changed(self: LineJoining, *given: Any) -> Any:
        monkeypatch.setattr(LineJoining, step, real)
        sink.replace(EXPECTED, 2)
        if step == "kind":
            raise FileNotFoundError("no such file")  # as a reader of footers finds
        return real(self, *given)

    monkeypatch.setattr(LineJoining, step, changed)
    done = sink.compact(wanted())
    assert (done.left, done.batches) == ({compacting.CHANGED: {KEY}}, {BatchKey("live", 8)})
    assert {row for row in rows(sink) if row[0] == 7} == {(7, 2, 0), (7, 2, 1), (7, 2, 2)}
    assert len(list((sink.root / "_compacted").rglob("*.json"))) == 4, "of batch 8, for its readers"


def test_a_batch_whose_lock_is_held_keeps_no_other_one_small(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by a replay that is stopped."""
    publish(sink)
    publish(sink, BatchKey("live", 8))
    monkeypatch.setattr(file, "TABLE_SECONDS", 0.1)
    with sink._locked(KEY):
        done = sink.compact(wanted())
    assert (list(done.left.values()), done.batches) == ([{KEY}], {BatchKey("live", 8)})
    assert f"process {os.getpid()}" in next(iter(done.left))


def test_nor_does_one_with_a_pipe_that_somebody_has_put_there(sink: FileSink) -> None:
    before = publish(sink)
    publish(sink, BatchKey("live", 8))
    os.mkfifo(batch_folder(sink) / "_pipe")
    done = sink.compact(wanted())
    assert (list(done.left.values()), done.batches) == ([{KEY}], {BatchKey("live", 8)})
    assert rows(sink).items() >= before.items()


def test_a_batch_of_which_a_file_is_gone_is_named_and_the_next_one_is_done(tmp_path: Path) -> None:
    lake = FileSink(str(tmp_path / "lake"))
    publish(lake)
    lost, *_ = (path for path in batch_folder(lake).iterdir() if path.is_file())
    lost.unlink()
    assert lost.name in next(iter(lake.compact(wanted()).left))


def test_a_table_without_small_files_gets_no_folder_of_compactions(sink: FileSink) -> None:
    publish(sink, files=1)
    publish(sink, BatchKey("live", 8))
    sink.compact(wanted(checkpoint="another"))
    sink.compact(wanted(left_alone=lambda found: "no"))
    assert not (sink.root / "_compacted").exists()


def test_a_rewind_meanwhile_stays(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink)
    at("sync_tree", lambda: sink.withdraw(EXPECTED, 1), monkeypatch, after=True)
    assert sink.compact(wanted()).left == {compacting.CHANGED: {KEY}}
    assert rows(sink) == Counter()


def test_a_file_that_somebody_adds_meanwhile_is_not_lost(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink)
    theirs = batch_folder(sink) / "theirs.json"
    at("sync_tree", lambda: theirs.write_text(json.dumps({"id": 9, "epoch": 9}) + "\n"), monkeypatch, after=True)
    sink.compact(wanted())
    assert rows(sink)[7, 9, 9] == 1
    done = sink.compact(wanted())
    assert "theirs.json" in next(iter(done.left)), "and it says that the batch is not what was published"


def test_a_late_replay_does_not_put_back_what_a_compaction_has_seen(sink: FileSink) -> None:
    publish(sink)
    write_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    sink.compact(wanted())
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert set(rows(sink)) == {(7, 2, 0), (7, 2, 1), (7, 2, 2)}


def test_another_one_at_work_is_waited_for_by_nobody_and_named(sink: FileSink) -> None:
    publish(sink)
    sink.compact(wanted())
    publish(sink, BatchKey("live", 8))
    with locked(sink.root / "_compacted" / "lock", seconds=0), pytest.raises(SinkError, match=f"process {os.getpid()}"):
        sink.compact(wanted())


def test_the_janitor_takes_nothing_from_a_compaction_at_work(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    before = publish(sink)
    at("sync_tree", lambda: sink.drop_replaced(CHECKPOINT, older_seconds=0), monkeypatch, after=True)
    assert sink.compact(wanted()).files_after == 1
    assert rows(sink) == before


def test_what_it_put_out_is_kept_for_readers_and_then_goes(sink: FileSink) -> None:
    publish(sink)
    sink.compact(wanted())
    assert sink.drop_replaced(CHECKPOINT, older_seconds=3600) == []
    (gone,) = sink.drop_replaced(CHECKPOINT, older_seconds=0)
    assert not Path(gone).exists()


def test_batches_of_others_and_those_to_be_left_alone_stay(sink: FileSink) -> None:
    publish(sink)
    files = data(batch_folder(sink))
    done = sink.compact(wanted(checkpoint="another"))
    assert (done.files_before, list(done.left.values())) == (0, [{KEY}])
    assert sink.compact(wanted(left_alone=lambda found: "no")).left == {"no": {KEY}}
    assert data(batch_folder(sink)) == files


def test_what_is_asked_to_be_left_alone_meanwhile_is(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink)
    told: list[str] = []
    at("sync_tree", lambda: told.append("forget"), monkeypatch, after=True)
    done = sink.compact(wanted(left_alone=lambda found: next(iter(told), None)))
    assert done.left == {"forget": {KEY}}
    assert len(data(batch_folder(sink))) == 4


def test_a_damaged_batch_stays_and_is_named(sink: FileSink) -> None:
    publish(sink)
    lost, *_ = data(batch_folder(sink))
    lost.unlink()
    assert lost.name in next(iter(sink.compact(wanted()).left))
    assert len(data(batch_folder(sink))) == 3


def test_partitions_stay_partitions(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "table"), format="json", partition_by=("day",))
    folder = write_stage(sink, 1, files=4)
    lines = (folder / "_manifest" / "part-00000.txt").read_text()
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        (folder / f"day={number % 2}").mkdir(exist_ok=True)
        path.rename(folder / f"day={number % 2}" / path.name)
        lines = lines.replace(f'"{path.name}"', f'"day={number % 2}/{path.name}"')
    (folder / "_manifest" / "part-00000.txt").write_text(lines)
    sink.publish(EXPECTED, 1)
    assert sink.compact(wanted()).files_after == 2
    found = [path.parent.name for path in batch_folder(sink).glob("day=*/*.json")]
    assert sorted(found) == ["day=0", "day=1"]


def test_modes_of_files_and_folders_stay_what_they_were(sink: FileSink) -> None:
    publish(sink)
    batch_folder(sink).chmod(0o2750)
    for path in data(batch_folder(sink)):
        path.chmod(0o640)
    sink.compact(wanted())
    (joined,) = data(batch_folder(sink))
    assert [oct(path.stat().st_mode & 0o7777) for path in (batch_folder(sink), joined)] == ["0o2750", "0o640"]
    assert (sink.root / "_compacted").stat().st_mode & 0o077 == 0


def test_a_link_in_place_of_a_file_is_not_followed(sink: FileSink, tmp_path: Path) -> None:
    publish(sink)
    secret = tmp_path / "secret"
    victim, *_ = data(batch_folder(sink))
    secret.write_bytes(victim.read_bytes())
    victim.unlink()
    victim.symlink_to(secret)
    done = sink.compact(wanted())
    assert done.files_before == 0
    assert done.left


def test_a_stage_is_not_looked_at(sink: FileSink) -> None:
    write_stage(sink, 1, files=3)
    assert sink.compact(wanted()) == Compacted()
    assert len(data(folder_of(sink, 1))) == 3
