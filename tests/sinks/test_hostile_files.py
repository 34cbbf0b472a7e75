"""Files that strangers put into a table stop nobody: a FIFO, a link, a lock that is held for ever, text without end."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import file
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.file import reading as file_reading
from airflow_provider_microbatch.sinks.file import report as file_report
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from tests.execution.maintaining import filled, planned, rewind
from tests.execution.world import World
from tests.sinks.stages import BATCH, CHECKPOINT, EXPECTED, batch_of, folder_of, write_stage
from tests.tables.stages import write_stage_table


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "table"), format="json")


@pytest.fixture
def published(sink: FileSink) -> Path:
    """The manifest of a published batch; another attempt has a whole stage."""
    write_stage(sink, 1)
    sink.publish(EXPECTED, 1)
    write_stage(sink, 2)
    return sink.root / "lane=live" / "batch_id=7" / "_manifest"


def within(seconds: float, call: Callable[[], object]) -> None:
    """The call, whose error is raised; a call that hangs fails."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "TABLE_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_never_given_back_is_an_error_that_names_its_holder(sink: FileSink, published: Path) -> None:
    lock = sink.root / "_replaced" / "lane=live" / "batch_id=7.lock"
    lock.parent.mkdir(parents=True)
    lock.touch(mode=0o644)
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SinkError, match=rf"locked for more than 0 s by process {os.getpid()}\. .* try again"):
            within(20, lambda: sink.replace(EXPECTED, 2))
        with pytest.raises(SinkError, match="locked for more than"):
            within(20, lambda: sink.withdraw(EXPECTED, 1))
    assert sink.replace(EXPECTED, 2).epoch == 2
    assert lock.stat().st_mode & 0o777 == 0o600, "whoever may not read it cannot lock it"


def test_a_lock_that_is_no_file_is_refused(sink: FileSink, published: Path) -> None:
    lock = sink.root / "_replaced" / "lane=live" / "batch_id=7.lock"
    lock.parent.mkdir(parents=True)
    os.mkfifo(lock)
    with pytest.raises(SinkError, match=r"batch_id=7\.lock"):
        within(20, lambda: sink.replace(EXPECTED, 2))
    reader = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(SinkError, match="look who put it there"):
        within(20, lambda: sink.replace(EXPECTED, 2))
    os.close(reader)


def test_a_manifest_is_read_from_files_alone(sink: FileSink, published: Path, tmp_path: Path) -> None:
    os.mkfifo(published / "part-9.txt")
    for ask in (lambda: sink.contains(EXPECTED), lambda: sink.replace(EXPECTED, 2)):
        with pytest.raises(SinkError, match="no file; look who put it there"):
            within(20, ask)
    (published / "part-9.txt").unlink()
    (tmp_path / "elsewhere").write_text("{}")
    (published / "part-9.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SinkError, match="part-9"):
        sink.contains(EXPECTED)
    (published / "part-9.txt").unlink()
    published.rename(tmp_path / "manifest")
    published.symlink_to(tmp_path / "manifest")
    with pytest.raises(SinkError, match="_manifest"):
        sink.contains(EXPECTED)


@pytest.mark.parametrize("name", ["part-00000-1.json", ".hidden"])
def test_a_stage_in_which_something_is_no_file_is_not_published(sink: FileSink, tmp_path: Path, name: str) -> None:
    """Behind a link may lie what only the orchestrator can read."""
    path = write_stage(sink, 1) / name
    (tmp_path / "elsewhere").write_bytes(path.read_bytes() if path.exists() else b"")
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SinkError, match=r"no file; look who put it there|symbolic links"):
        sink.publish(EXPECTED, 1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SinkError, match="no file; look who put it there"):
        within(20, lambda: sink.publish(EXPECTED, 1))
    assert sink.contains(EXPECTED) is None


def test_so_is_what_a_job_says_of_its_failure(sink: FileSink) -> None:
    folder = write_stage(sink, 1, complete=False)
    (folder / "_error").mkdir()
    os.mkfifo(folder / "_error" / "part-0.txt")
    with pytest.raises(SinkError, match="no file"):
        within(20, lambda: sink.failure(BATCH, 1))
    (folder / "_error" / "part-0.txt").unlink()
    (folder / "_error" / "part-0.txt").write_text("[" * 100_000)
    assert sink.failure(BATCH, 1) is None
    (folder / "_error" / "part-0.txt").write_text("[]")
    assert sink.failure(BATCH, 1) is None


def test_a_manifest_larger_than_any_of_ours_is_not_read(
    sink: FileSink, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in published.iterdir())
    monkeypatch.setattr(file_report, "LARGEST", size)
    assert sink.contains(EXPECTED) is not None
    (published / "part-9.txt").write_text("\n")
    with pytest.raises(SinkError, match=r"larger than 0 bytes"):
        sink.contains(EXPECTED)
    assert file_reading.LARGEST > 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps({"result": {"epoch": float("inf"), "batchId": 7}}),
        json.dumps({"result": {"epoch": 1, "batchId": 7, "identity": {**batch_of().to_dict(), "plannedMs": 10**30}}}),
        json.dumps({"result": {"epoch": 1, "batchId": 7, "identity": {**batch_of().to_dict(), "plannedMs": -1}}}),
        json.dumps({"file": "x", "bytes": float("-inf")}),
        json.dumps({"result": {"epoch": "9" * 5000, "batchId": 7}}),
        '"result"',
        "7",
    ],
    ids=["nested", "infinite epoch", "year 10000", "before 1970", "infinite bytes", "digits", "text", "number"],
)
def test_what_is_no_manifest_is_an_error_of_the_sink(sink: FileSink, published: Path, text: str) -> None:
    (published / "part-00000.txt").write_text(text)
    with pytest.raises(SinkError, match=r"is no manifest of a batch .* Somebody changed it"):
        sink.contains(EXPECTED)


def test_a_command_does_not_hang_at_a_manifest(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    os.mkfifo(world.lake / "lane=live" / "batch_id=1" / "_manifest" / "part-9.txt")
    world.expire_leases()
    with pytest.raises(SinkError, match="no file; look who put it there"):
        within(20, lambda: planned(world, rewind(0)))
    with pytest.raises(SinkError, match="no file; look who put it there"):
        within(20, lambda: world.run(1, clear_number=1))


def test_the_stages_of_a_folder_that_cannot_be_read_are_an_error_of_the_sink(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stage(sink, 1)

    def away(*_: object) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", away)
        with pytest.raises(SinkError, match="list the stages"):
            sink.stages(CHECKPOINT)
    huge = folder_of(sink, 1).with_name("attempt=" + "9" * 200)
    huge.mkdir()
    assert len(sink.stages(CHECKPOINT)) == 2


def test_a_mark_of_a_catalog_is_read_from_a_file_alone(tmp_path: Path) -> None:
    sink = TableSink(PathCatalog(str(tmp_path)), "sales.orders", format="json")
    write_stage_table(sink, 1)
    (mark,) = (tmp_path / "sales" / "orders" / "_staging").rglob("*.table")
    mark.unlink()
    os.mkfifo(mark)
    with pytest.raises(SinkError, match="no file; look who put it there"):
        within(20, lambda: sink.stages(CHECKPOINT))
    mark.unlink()
    mark.write_text("[" * 100_000)
    assert sink.stages(CHECKPOINT) == []


def test_an_epoch_that_nobody_can_have_reached_is_refused(tmp_path: Path) -> None:
    world = filled(World(tmp_path), 2)
    (part,) = (world.lake / "lane=live" / "batch_id=1" / "_manifest").glob("part-*")
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    for line in lines:
        if "result" in line:
            line["result"]["epoch"] = 10**12
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SinkError, match=r"attempt 1000000000000; this checkpoint has 1 on record"):
        within(20, lambda: world.run(1, clear_number=1))
    assert world.checkpoint.attempts.latest_epoch(BatchKey("live", 1)) == 1
