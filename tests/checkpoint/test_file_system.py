"""No checkpoint lies, and no table is begun, where other hosts' writes are seen late. The machine of the tests cannot
mount such a file system, so its table of mounts says that it has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.verify import find_unfit
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.connections import Connection
from airflow_provider_microbatch.exceptions import CheckpointError, SinkError
from airflow_provider_microbatch.sinks import Sink, SinkContext
from airflow_provider_microbatch.sinks.delta import DeltaSink
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.kafka import KafkaSink
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.stores.posix import file_system as file_system
from airflow_provider_microbatch.stores.posix.file_system import type_of, unfit
from tests.execution.world import World, run_identity
from tests.support.sql import in_sqlite

MOUNTS = [
    "22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw",
    "30 22 0:40 / /mnt/shared\\040data rw - nfs4 server:/export rw,vers=4.2",
    "31 30 0:41 / /mnt/shared\\040data/scratch rw - xfs /dev/vdb rw",
    "32 22 0:42 / /twice rw - ext4 /dev/vdc rw",
    "33 22 0:43 / /twice rw - cifs //server/share rw",
]


def mounted(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Have the machine say that this type of file system is mounted at the folder."""
    table = folder.parent / "mountinfo"
    table.write_text(f"22 1 0:21 / / rw - ext4 /dev/vda rw\n30 22 0:40 / {folder} rw - {kind} server:/export rw\n")
    monkeypatch.setattr(file_system, "MOUNTS", table)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/checkpoint", "ext4"),
        ("/mnt/shared data/checkpoint", "nfs4"),
        ("/mnt/shared data/scratch/checkpoint", "xfs"),
        ("/mnt/shared datasets", "ext4"),
        ("/twice/checkpoint", "cifs"),
    ],
)
def test_the_innermost_and_latest_mount_is_the_one_that_counts(path: str, kind: str) -> None:
    assert type_of(Path(path), mounts=MOUNTS) == kind


def test_the_tests_own_folder_is_fit_for_a_checkpoint(tmp_path: Path) -> None:
    assert type_of(tmp_path) is not None
    assert unfit(tmp_path) is None


def test_where_there_is_no_table_of_mounts_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "not there")
    assert unfit(tmp_path) is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"])
def test_a_new_checkpoint_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world = World(tmp_path / "world")
    world.land(1)
    mounted(monkeypatch, tmp_path / "world" / "checkpoint", kind)
    with pytest.raises(CheckpointError, match=f"type '{kind}'.*local disk"):
        world.execution.plan(run_identity(0))
    assert world.files() == {}


def test_nor_is_one_begun_in_a_sqlite_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world", checkpoint=in_sqlite(tmp_path / "shared"))
    world.land(1)
    (tmp_path / "shared").mkdir()
    with monkeypatch.context() as patched:
        mounted(patched, tmp_path / "shared", "nfs4")
        with pytest.raises(CheckpointError, match=r"shared/checkpoint\.db is on .*type 'nfs4'.*local disk"):
            world.execution.plan(run_identity(0))
    assert list((tmp_path / "shared").iterdir()) == []
    world.run(0)
    assert find_unfit(world.checkpoint) == []
    mounted(monkeypatch, tmp_path / "shared", "nfs4")
    assert "type 'nfs4'" in str(find_unfit(world.checkpoint))


def test_one_that_is_there_already_goes_on_with_a_warning_and_check_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(tmp_path / "world")
    world.land(1)
    world.run(0)
    assert main(["check", world.pipeline.checkpoint]) == 0
    mounted(monkeypatch, tmp_path / "world", "nfs4")
    world.land(2)
    with caplog.at_level(logging.WARNING):
        world.run(1)
    assert world.table() == {0: [1], 1: [2]}
    assert "the checkpoint should be moved" in caplog.text
    assert main(["check", world.pipeline.checkpoint]) == 1
    assert "type 'nfs4'" in capsys.readouterr().out


@pytest.mark.parametrize("sink", [FileSink, DeltaSink])
def test_no_table_is_begun_there_and_one_that_is_there_goes_on_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sink: Callable[[str], Sink]
) -> None:
    lake = tmp_path / "lake"
    opened = sink(str(lake)).open(SinkContext())
    mounted(monkeypatch, lake, "nfs4")
    with pytest.raises(SinkError, match=r"lake cannot be begun: .* of type 'nfs4'.*local disk"):
        opened.check()
    assert not lake.exists()
    (lake / "lane=live").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        opened.check()
    assert "The table should be moved" in caplog.text


def test_a_new_pipeline_plans_nothing_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world")
    world.land(1)
    mounted(monkeypatch, world.lake, "nfs4")
    with pytest.raises(SinkError, match="cannot be begun"):
        world.run(0)
    assert world.files() == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda stages: PostgresSink("db", "public.orders", stages=stages),
        lambda stages: KafkaSink("orders", conn_id="kafka", stages=stages, on_replay="append"),
    ],
    ids=["postgres", "kafka"],
)
def test_stages_may_be_there_whose_table_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: Callable[[str], Sink]
) -> None:
    """A stage is one attempt's alone: nothing is exchanged, and what is published is no file."""

    class NoServer(Exception):
        pass

    def connect(_: str) -> Connection:
        raise NoServer

    mounted(monkeypatch, tmp_path, "nfs4")
    with caplog.at_level(logging.WARNING), pytest.raises(NoServer):
        make(str(tmp_path / "stages")).open(SinkContext(connect=connect)).check()
    assert caplog.text == ""
