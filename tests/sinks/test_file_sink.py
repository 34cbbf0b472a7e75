"""The file sink: its table on disk, in every state that a crash can leave."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.sinks import SinkContext, file
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file import posix as file_posix
from airflow_provider_microbatch.sinks.file.lock import locked
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, KEY, NOTHING_KNOWN, batch_of, expect, folder_of, write_stage


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "table"), format="json")


def target(sink: FileSink) -> Path:
    return sink.root / "lane=live" / "batch_id=7"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "hdfs://bucket/x"}, "local"),
        ({"path": "s3://bucket"}, "a table needs a folder of its own"),
        ({"path": "s3://key:secret@bucket/x"}, "no key or password"),
        ({"path": "s3://bucket/a b"}, "other signs"),
        ({"path": "s3://bucket/x", "partition_by": ("day",)}, "not for a table in a bucket"),
        ({"path": "s3://bucket/x", "packages": "org"}, "list of Maven coordinates"),
        ({"path": "file://host/x"}, "local"),
        ({"path": "lake/orders"}, "absolute"),
        ({"path": ""}, "path"),
        ({"path": None}, "path"),
        ({"path": "/lake/[x]"}, "globs"),
        ({"format": "delta"}, "format"),
        ({"partition_by": "day"}, "list"),
        ({"partition_by": ["lane"]}, "'lane'"),
        ({"partition_by": ["Batch_Id"]}, "'Batch_Id'"),
        ({"partition_by": [3]}, "3"),
        ({"options": {"maxRecordsPerFile": 5}}, "maxRecordsPerFile"),
    ],
)
def test_bad_arguments_are_named_where_they_are_written(arguments: dict[str, object], said: str) -> None:
    given = {"path": "/lake/orders", **arguments}
    path = given.pop("path")
    with pytest.raises(DefinitionError, match=said):
        FileSink(path, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/lake/orders", "file:/lake/orders", "file:///lake/orders/", "//lake/orders"])
def test_a_path_and_a_file_url_are_the_same_table(path: str) -> None:
    assert FileSink(path).location() == "file:///lake/orders"


def test_check_names_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SinkError, match="not a folder"):
        FileSink(str(tmp_path / "file" / "table")).check()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(SinkError, match="link is not a folder"):
        FileSink(str(tmp_path / "link" / "table")).check()


def test_check_finds_that_the_table_cannot_be_made_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"no (folder can be made in|permission to read and write) /proc"):
        FileSink("/proc/lake/orders").check()
    FileSink(str(tmp_path / "lake" / "orders")).check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_a_manifest_may_have_any_text_on_one_line(sink: FileSink, mark: str) -> None:
    told = write_stage(sink, 1) / "_manifest" / "part-00000.txt"
    first, *rest = told.read_text().split("\n")
    line = json.loads(first)
    line["result"]["read"] = {"orders": f"one{mark}two"}
    told.write_text("\n".join([json.dumps(line, ensure_ascii=False), *rest]), encoding="utf-8")
    assert sink.publish(EXPECTED, 1).files, "Spark and the driver end a line by a newline, and escape nothing else"


def test_a_target_that_is_not_ours_is_an_error_and_stays(sink: FileSink) -> None:
    write_stage(sink, 1)
    target(sink).mkdir(parents=True)
    (target(sink) / "theirs.json").write_text("{}")
    for call in (lambda: sink.contains(EXPECTED), lambda: sink.publish(EXPECTED, 1), lambda: sink.replace(EXPECTED, 1)):
        with pytest.raises(SinkError, match="no manifest"):
            call()
    assert (target(sink) / "theirs.json").exists()
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]


@pytest.mark.parametrize(
    "text", ["{", "[]\n", '{"result": {"epoch": 1}}\n', '{"result": {"epoch": 1, "batchId": 6}}\n']
)
def test_a_published_manifest_that_somebody_changed_is_an_error(sink: FileSink, text: str) -> None:
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    (target(sink) / "_manifest" / "part-00000.txt").write_text(text)
    with pytest.raises(SinkError, match="manifest"):
        sink.contains(EXPECTED)


def test_a_manifest_that_spark_has_not_finished_is_none(sink: FileSink) -> None:
    folder = write_stage(sink, 1)
    manifest = folder / "_manifest" / "part-00000.txt"
    unfinished = folder / "_manifest" / "_temporary" / "0"
    unfinished.mkdir(parents=True)
    manifest.rename(unfinished / manifest.name)
    assert sink.manifest(BATCH, 1) is None


def test_a_stage_that_is_not_what_its_manifest_says_is_not_published(sink: FileSink) -> None:
    folder = write_stage(sink, 1, files=2)
    data = sorted(folder.glob("part-*"))
    whole = data[0].read_text()
    data[0].write_text(whole[:-5])
    with pytest.raises(SinkError, match=r"of another size: part-00000-1\.json"):
        sink.publish(EXPECTED, 1)
    data[0].unlink()
    with pytest.raises(SinkError, match=r"missing: part-00000-1\.json"):
        sink.publish(EXPECTED, 1)
    data[0].write_text(whole)
    (folder / "part-late.json").write_text("{}")
    with pytest.raises(SinkError, match=r"not in the manifest: part-late\.json"):
        sink.publish(EXPECTED, 1)
    (folder / "part-late.json").unlink()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-x").write_text("left over")
    (folder / ".part-00000.crc").write_text("x")
    assert sink.publish(EXPECTED, 1).epoch == 1


def test_a_stage_that_two_jobs_have_written_is_not_published(sink: FileSink) -> None:
    """Of two copies of a checkpoint, as both are at attempt 1: who ends later lists both's files as its own."""
    folder = write_stage(sink, 1, files=2)
    manifest = folder / "_manifest" / "part-00000.txt"
    text = manifest.read_text()
    for number, path in enumerate(sorted(folder.glob("part-*"))):
        name = f"part-00000-{uuid.uuid4()}-c000.json"
        assert path.name == f"part-{number:05}-1.json"
        text = text.replace(path.name, name)
        path.rename(folder / name)
    manifest.write_text(text)
    with pytest.raises(SinkError, match=r"has files of 2 jobs of Spark.*copy of the checkpoint"):
        sink.publish(EXPECTED, 1)
    assert not (sink.root / "lane=live" / "batch_id=7").exists()


def test_a_removal_that_was_cut_off_can_never_be_published(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stage(sink, 1)
    removed: list[Path] = []
    real = shutil.rmtree

    def first_step_only(path: Path, ignore_errors: bool, dir_fd: int) -> None:
        if not removed:
            removed.append(path)
            real(path, ignore_errors=ignore_errors, dir_fd=dir_fd)

    monkeypatch.setattr("shutil.rmtree", first_step_only)
    with pytest.raises(SinkError, match="cannot be removed"):
        sink.drop_stage(BATCH, 1)
    monkeypatch.undo()
    assert sink.stages(CHECKPOINT) == [(KEY, 1)], "what is left of it is found"
    assert sink.manifest(BATCH, 1) is None
    with pytest.raises(SinkError, match="no complete stage"):
        sink.publish(EXPECTED, 1)
    assert sink.drop_stage(BATCH, 1)
    assert sink.stages(CHECKPOINT) == []


def test_a_dropped_stage_leaves_no_folder_of_its_batch(sink: FileSink) -> None:
    folder = write_stage(sink, 1, complete=False)
    assert sink.drop_stage(BATCH, 1)
    assert not folder.parent.exists()
    assert sink.drop_stage(BATCH, 1) is False


def test_strange_folders_in_staging_are_no_stages(sink: FileSink) -> None:
    write_stage(sink, 2)
    for name in ("lane=live/batch_id=x/attempt=1", "lane=live/batch_id=1/attempt=y", "lane=..x/batch_id=1/attempt=1"):
        (sink.root / "_staging" / CHECKPOINT / name).mkdir(parents=True)
    assert sink.stages(CHECKPOINT) == [(KEY, 2)]


def test_without_renameat2_a_publish_still_never_replaces(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(flags: int, source: Path, target: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(file_posix, "rename_with", unsupported)
    one, other = write_stage(sink, 1), write_stage(sink, 2)
    assert sink.publish(EXPECTED, 1).epoch == 1
    assert not one.exists()
    assert file_posix.rename_new(other, target(sink)) is False
    assert other.exists()
    with pytest.raises(SinkError, match="cannot exchange"):
        sink.replace(EXPECTED, 2)
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 1


def test_a_publish_is_on_disk_when_it_returns(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stage(sink, 1)
    after: list[Path] = []
    monkeypatch.setattr(file, "sync", lambda folder: after.append(folder) if target(sink).exists() else None)
    sink.publish(EXPECTED, 1)
    assert target(sink).parent in after


def test_nothing_is_renamed_over_a_folder_that_happens_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "target").mkdir()
    assert file_posix.rename_new(tmp_path / "stage", tmp_path / "target") is False
    assert file_posix.rename_new(tmp_path / "stage", tmp_path / "other") is True


def test_replaced_output_is_kept_aside_and_hidden(sink: FileSink) -> None:
    write_stage(sink, 1, rows=1)
    sink.publish(EXPECTED, 1)
    with (target(sink) / "part-00000-1.json").open() as reader:
        write_stage(sink, 2, rows=2)
        sink.replace(EXPECTED, 2)
        assert json.loads(reader.readline())["epoch"] == 1
    kept = sink.root / "_replaced" / CHECKPOINT / "lane=live" / "batch_id=7" / "attempt=1"
    assert (kept / "part-00000-1.json").exists()
    assert sink.stages(CHECKPOINT) == []
    assert [path.name for path in sink.root.glob("lane=*/batch_id=*/part-*")] == ["part-00000-2.json"]


@pytest.mark.parametrize("finish", ["replace", "drop_stage"])
def test_a_replay_cut_off_after_its_exchange_is_finished_by_saying_it_again(sink: FileSink, finish: str) -> None:
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    assert file_posix.exchange(write_stage(sink, 2), target(sink))
    assert sink.manifest(BATCH, 2) is None
    getattr(sink, finish)(EXPECTED if finish == "replace" else BATCH, 2)
    assert sink.stages(CHECKPOINT) == []
    assert (
        sink.root / "_replaced" / CHECKPOINT / "lane=live" / "batch_id=7" / "attempt=1" / "part-00000-1.json"
    ).exists()
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == 2


def test_of_many_publishing_at_once_exactly_one_wins(sink: FileSink) -> None:
    epochs = range(1, 9)
    for epoch in epochs:
        write_stage(sink, epoch)
    barrier = threading.Barrier(len(epochs))
    winners: list[int] = []

    def publish(epoch: int) -> None:
        barrier.wait()
        winners.append(sink.publish(EXPECTED, epoch).epoch)

    threads = [threading.Thread(target=publish, args=(epoch,)) for epoch in epochs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == len(epochs)
    assert len(set(winners)) == 1
    assert [path.name for path in target(sink).glob("part-*")] == [f"part-00000-{winners[0]}.json"]


READER = """
import json, pathlib, sys
import pyarrow.dataset as dataset
root = pathlib.Path(sys.argv[1])
print("reading", flush=True)
looks = listings = 0
while not (root / "_stop").exists():
    looks += 1
    for path in root.glob("lane=*/batch_id=*"):
        try:
            rows = [json.loads(line)["epoch"] for part in sorted(path.glob("part-*")) for line in part.open()]
        except FileNotFoundError:
            continue  # listed before an exchange, opened after it: the reader is told, and lists again
        assert rows and len(set(rows)) == 1 and len(rows) == 30, (path, rows)
    try:
        files = dataset.dataset(root, format="json", partitioning="hive").files
    except FileNotFoundError:
        continue  # Arrow walks through the stages before it leaves them out, and one was gone: it says so
    listings += 1
    assert not [path for path in files if "_staging" in path or "_replaced" in path], files
print(looks, listings, flush=True)
"""


def test_a_reader_that_keeps_listing_sees_whole_batches_only(sink: FileSink) -> None:
    write_stage(sink, 1, rows=10, files=3)
    sink.publish(EXPECTED, 1)
    command = [sys.executable, "-c", READER, str(sink.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == "reading"
        for number in range(60):
            key = BatchKey("live", 100 + number)
            write_stage(sink, 1, batch=batch_of(key), rows=10, files=3)
            sink.publish(expect(key), 1)
            write_stage(sink, number + 2, rows=10, files=3)
            sink.replace(EXPECTED, number + 2)
            write_stage(sink, 9, batch=batch_of(BatchKey("live", 500)), complete=False)
            sink.drop_stage(batch_of(BatchKey("live", 500)), 9)
        (sink.root / "_stop").touch()
        output, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, errors
    looks, listings = map(int, output.split())
    assert looks > 1
    assert listings > 0


def test_a_replay_waits_for_the_lock_of_another(sink: FileSink) -> None:
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 2)
    done = threading.Event()

    def replay() -> None:
        sink.replace(EXPECTED, 2)
        done.set()

    with locked(sink.root / "_replaced" / "lane=live" / "batch_id=7.lock", seconds=1):
        thread = threading.Thread(target=replay)
        thread.start()
        assert not done.wait(0.3)
        assert folder_of(sink, 2).exists()
    assert done.wait(10)
    thread.join()


@pytest.mark.parametrize(("kind", "log"), [("Delta", "_delta_log/0.json"), ("Iceberg", "metadata/1.metadata.json")])
def test_a_table_that_has_a_log_of_its_own_gets_no_files(sink: FileSink, kind: str, log: str) -> None:
    (sink.root / log).parent.mkdir(parents=True)
    (sink.root / log).touch()
    opened = sink.open(SinkContext())
    with pytest.raises(SinkError, match=f"is a table of {kind}"):
        opened.check()
    with pytest.raises(SinkError, match=f"is a table of {kind}"):
        opened.make_ready(NOTHING_KNOWN, is_there=lambda: False)
    assert [path.name for path in sink.root.iterdir()] == [log.partition("/")[0]]
