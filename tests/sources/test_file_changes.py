"""Planned files that vanish, change or are cleaned away, and paths that may not be used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError, SourceError
from airflow_provider_microbatch.runtime.files import told
from airflow_provider_microbatch.sources import OpenSource
from tests.sources.support import World, paths

OFFSET_0 = '{"logOffset":0}'
OFFSET_1 = '{"logOffset":1}'


def planned(world: World, **arguments: Any) -> OpenSource:
    """Two batches of two files each, both planned."""
    for number in range(4):
        world.land(f"day={number}/{number}.json", f'{{"id": {number}}}\n', age=100 - number)
    source = world.open(max_files=2, **arguments)
    assert source.latest_offset(None) == OFFSET_0
    assert source.latest_offset(OFFSET_0) == OFFSET_1
    return source


def commit(source: OpenSource, start: str | None, end: str) -> None:
    """The range is published by a batch of this checkpoint, and committed."""
    source.release(start, end)
    source.commit(end)


def rewrite(path: Path, text: str, *, keep_mtime: bool = False) -> None:
    status = path.stat()
    path.write_text(text)
    if keep_mtime:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_vanished_is_named_with_what_to_do(world: World) -> None:
    source = planned(world)
    source.read(None, OFFSET_0)
    gone = world.landing / "day=1/1.json"
    gone.unlink()
    for ask in (source.read, source.verify):
        with pytest.raises(SourceChangedError, match=rf"'orders'.*{gone}.*Restore.*on_missing='skip'"):
            ask(None, OFFSET_0)
    source.read(OFFSET_0, OFFSET_1)


def test_a_vanished_file_can_be_skipped(world: World) -> None:
    source = planned(world, on_missing="skip")
    (world.landing / "day=1/1.json").unlink()
    read = source.read(None, OFFSET_0)
    assert world.names(read) == ["day=0/0.json"]
    assert read.arguments["left_out"] == [str(world.landing / "day=1/1.json")]
    source.verify(None, OFFSET_0, told(read.arguments))


def test_a_file_that_was_left_out_and_is_back_before_publish_was_not_read(world: World) -> None:
    """As a file server that was away for a moment: what is there now is not what the batch has."""
    source = planned(world, on_missing="skip")
    away = (world.landing / "day=1/1.json").rename(world.root / "away")
    read = source.read(None, OFFSET_0)
    away.rename(world.landing / "day=1/1.json")
    with pytest.raises(
        SourceChangedError, match=r"1 planned file\(s\) were missing when .*day=1/1\.json.*Run the batch again"
    ):
        source.verify(None, OFFSET_0, told(read.arguments))
    source.verify(None, OFFSET_0, told(source.read(None, OFFSET_0).arguments))


@pytest.mark.parametrize("path", ["", "/day=*/*.json"], ids=["folder", "glob"])
def test_a_folder_that_is_not_mounted_is_no_reason_to_skip_what_is_in_it(world: World, path: str) -> None:
    """The batch would be committed without its rows, which are there again a moment later."""
    source = planned(world, path=f"{world.landing}{path}", on_missing="skip")
    told_before = told(source.read(None, OFFSET_0).arguments)
    away = world.landing.rename(world.root / "away")
    for ask in (source.read, source.verify):
        with pytest.raises(SourceChangedError, match=rf"'orders'.*path '{world.landing}' does not exist.*Mount"):
            ask(None, OFFSET_0)
    world.landing.mkdir()
    for ask in (source.read, source.verify):
        with pytest.raises(SourceChangedError, match=rf"'orders'.*all 2 planned.*'{world.landing}' is empty.*Mount"):
            ask(None, OFFSET_0)
    world.landing.rmdir()
    away.rename(world.landing)
    source.verify(None, OFFSET_0, told_before)
    assert len(world.names(source.read(None, OFFSET_0))) == 2


def test_files_that_were_really_removed_are_skipped_where_anything_is_beside_them(world: World) -> None:
    source = planned(world, on_missing="skip")
    shutil.rmtree(world.landing)
    world.landing.mkdir()
    (world.landing / ".keep").touch()
    read = source.read(None, OFFSET_0)
    assert paths(read) == []
    source.verify(None, OFFSET_0, told(read.arguments))


def test_a_path_of_one_file_is_looked_for_in_its_folder(world: World) -> None:
    file = world.land("in/orders.json")
    world.land("in/other.json")
    source = world.open(str(file), on_missing="skip")
    source.latest_offset(None)
    file.unlink()
    assert paths(source.read(None, OFFSET_0)) == []
    (world.landing / "in" / "other.json").unlink()
    with pytest.raises(SourceChangedError, match=rf"'{file.parent}' is empty"):
        source.read(None, OFFSET_0)
    file.parent.rmdir()
    with pytest.raises(SourceChangedError, match=rf"'{file.parent}' does not exist"):
        source.read(None, OFFSET_0)


@pytest.mark.parametrize(
    ("text", "keep_mtime"),
    [('{"id": 1}\n{"id": 9}\n', False), ('{"id": 1}\n{"id": 9}\n', True), ("", True), ('{"id": 7}\n', False)],
    ids=["grew", "grew in the same instant", "shrank", "same size"],
)
def test_a_file_that_changed_is_named_with_what_to_do(world: World, text: str, keep_mtime: bool) -> None:
    source = planned(world)
    changed = world.landing / "day=0/0.json"
    rewrite(changed, text, keep_mtime=keep_mtime)
    for ask in (source.read, source.verify):
        with pytest.raises(SourceChangedError, match=rf"{changed}.*planned.*on_changed='read'.*min_file_age"):
            ask(None, OFFSET_0)


def test_a_changed_file_can_be_read_as_it_is(world: World) -> None:
    source = planned(world, on_changed="read")
    rewrite(world.landing / "day=0/0.json", "{}\n{}\n")
    assert world.names(source.read(None, OFFSET_0)) == ["day=0/0.json", "day=1/1.json"]
    source.verify(None, OFFSET_0)


def test_many_bad_files_do_not_make_an_endless_message(world: World) -> None:
    for number in range(30):
        world.land(f"{number}.json")
    source = world.open()
    source.latest_offset(None)
    for path in world.landing.iterdir():
        path.unlink()
    with pytest.raises(SourceChangedError, match=r"30 planned file\(s\).*and 25 more"):
        source.read(None, OFFSET_0)


def test_without_clean_source_a_commit_touches_nothing(world: World) -> None:
    source = planned(world)
    before = world.snapshot()
    source.commit(OFFSET_1)
    assert world.snapshot() == before


def test_archive_moves_the_range_and_it_can_be_read_there(world: World) -> None:
    archive = world.root / "archive"
    source = planned(world, clean_source="archive", archive_dir=str(archive))
    commit(source, None, OFFSET_0)
    assert [path.name for path in sorted(world.landing.rglob("*.json"))] == ["2.json", "3.json"]
    assert (archive / "day=0/0.json").read_text() == '{"id": 0}\n'
    read = source.read(None, OFFSET_0)
    assert paths(read) == [f"{archive}/day=0/0.json", f"{archive}/day=1/1.json"]
    assert [group["base_path"] for group in read.arguments["groups"]] == [str(archive)]
    assert source.not_replayable(None, OFFSET_0) is None
    before = world.snapshot()
    source.commit(OFFSET_0)
    assert world.snapshot() == before


def test_a_file_that_came_back_after_archiving_does_not_replace_the_archived_one(world: World) -> None:
    source = planned(world, clean_source="archive", archive_dir=str(world.root / "archive"))
    commit(source, None, OFFSET_0)
    world.land("day=0/0.json", "other")
    assert paths(source.read(None, OFFSET_0))[0] == str(world.root / "archive" / "day=0/0.json")
    assert not source.has_new(OFFSET_1)


def test_delete_removes_the_range_and_says_that_it_cannot_be_replayed(world: World) -> None:
    source = planned(world, clean_source="delete")
    commit(source, None, OFFSET_0)
    assert [path.name for path in sorted(world.landing.rglob("*.json"))] == ["2.json", "3.json"]
    assert "0.json' was deleted by clean_source" in (source.not_replayable(None, OFFSET_0) or "")
    assert source.not_replayable(OFFSET_0, OFFSET_1) is None
    assert source.not_replayable(OFFSET_0, OFFSET_0) is None


def test_one_record_says_what_was_cleaned_and_an_older_commit_that_comes_late_cleans_nothing(world: World) -> None:
    source = planned(world, clean_source="archive", archive_dir=str(world.root / "archive"))
    commit(source, None, OFFSET_0)
    commit(source, OFFSET_0, OFFSET_1)
    assert len(list(world.root.rglob("cleaning/*"))) == 1
    put_back = world.landing / "day=0/0.json"
    put_back.parent.mkdir(parents=True, exist_ok=True)
    (world.root / "archive" / "day=0/0.json").rename(put_back)
    before = world.snapshot()
    source.commit(OFFSET_0)
    assert world.snapshot() == before


def test_a_commit_that_was_missed_is_made_up_by_the_next(world: World) -> None:
    source = planned(world, clean_source="delete")
    (world.landing / "day=0/0.json").unlink()
    source.release(None, OFFSET_0)
    commit(source, OFFSET_0, OFFSET_1)
    assert list(world.landing.rglob("*.json")) == []


def test_a_file_that_changed_after_it_was_read_is_not_cleaned_away(world: World) -> None:
    source = planned(world, clean_source="delete")
    rewrite(world.landing / "day=0/0.json", "new content")
    commit(source, None, OFFSET_0)
    assert [path.name for path in sorted(world.landing.rglob("*.json"))] == ["0.json", "2.json", "3.json"]


def test_a_clean_that_failed_is_tried_again(world: World) -> None:
    archive = world.root / "archive"
    source = planned(world, clean_source="archive", archive_dir=str(archive))
    archive.mkdir()
    (archive / "day=0").write_text("in the way")
    with pytest.raises(SourceError, match=r"'orders'.*day=0/0\.json.*tries again"):
        commit(source, None, OFFSET_0)
    with pytest.raises(SourceError, match=r"day=0/0\.json"):
        commit(source, OFFSET_0, OFFSET_1)
    assert sorted(path.name for path in archive.rglob("*.json")) == ["1.json", "2.json", "3.json"]
    (archive / "day=0").unlink()
    commit(source, OFFSET_0, OFFSET_1)
    assert sorted(path.name for path in archive.rglob("*.json")) == ["0.json", "1.json", "2.json", "3.json"]


def test_a_clean_never_overwrites_what_is_in_the_archive(world: World) -> None:
    archive = world.root / "archive"
    source = planned(world, clean_source="archive", archive_dir=str(archive))
    (archive / "day=0").mkdir(parents=True)
    (archive / "day=0" / "0.json").write_text("precious")
    with pytest.raises(SourceError, match="exists already"):
        commit(source, None, OFFSET_0)
    assert (archive / "day=0" / "0.json").read_text() == "precious"
    assert (world.landing / "day=0/0.json").exists()


def test_check_refuses_what_can_never_work(world: World) -> None:
    for path in (f"{world.root}/gone", f"{world.root}/gone/*.json"):
        with pytest.raises(SourceError, match=r"gone.*does not exist"):
            world.open(path).check()
    (world.landing / "_spark_metadata").mkdir()
    with pytest.raises(SourceError, match="Structured Streaming file sink"):
        world.open().check()
    (world.landing / "_spark_metadata").rmdir()
    (world.root / "archive").write_text("a file")
    with pytest.raises(SourceError, match="archive_dir"):
        world.open(clean_source="archive", archive_dir=str(world.root / "archive")).check()
    world.open().check()
    world.open(f"{world.landing}/*.json").check()


def test_check_and_listing_name_a_folder_that_may_not_be_read(world: World, as_nobody: None) -> None:
    world.land("day=1/a.json")
    source = world.open()
    (world.landing / "day=1").chmod(0)
    with pytest.raises(SourceError, match=r"cannot list .*day=1.*rights"):
        source.has_new(None)
    world.landing.chmod(0)
    with pytest.raises(SourceError, match=r"may not be read"):
        source.check()
    world.landing.chmod(0o700)
    (world.landing / "day=1").chmod(0o700)
