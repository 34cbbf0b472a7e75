"""What comes under a name that was read already is read by nobody, and said; what changes while it is read is an
error."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_microbatch.exceptions import SourceChangedError
from airflow_provider_microbatch.runtime.files import joined, told
from airflow_provider_microbatch.sources import OpenSource
from airflow_provider_microbatch.sources.file import known_names
from tests.sources.support import World
from tests.sources.test_file_changes import OFFSET_0, OFFSET_1, commit, rewrite


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(known_names, "_said", {})
    monkeypatch.setattr(known_names, "_looked", {})


def read_once(world: World, **arguments: Any) -> OpenSource:
    """A source of which a batch has read one file."""
    world.land("export.json", '{"id": 1}\n', age=100)
    source = world.open(**arguments)
    assert source.latest_offset(None) == OFFSET_0
    commit(source, None, OFFSET_0)
    return source


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "changed since a batch has planned" in one.getMessage()]


@pytest.mark.parametrize("clean", [None, "delete", "archive"])
@pytest.mark.parametrize("ask", ["plan", "sensor"])
def test_a_file_under_a_name_that_was_read_is_said(
    world: World, caplog: pytest.LogCaptureFixture, clean: str | None, ask: str
) -> None:
    archive = {"archive_dir": str(world.root / "archive")} if clean == "archive" else {}
    source = read_once(world, clean_source=clean, **archive)
    assert said(caplog) == []
    world.land("export.json", '{"id": 2}\n', age=0)
    if ask == "plan":
        assert source.latest_offset(OFFSET_0) == OFFSET_0
    else:
        assert not source.has_new(OFFSET_0)
    (text,) = said(caplog)
    assert "1 file(s) have changed" in text
    assert "export.json" in text
    assert "on_changed='read'" in text
    source.latest_offset(OFFSET_0)
    assert len(said(caplog)) == 1, "a trigger asks again and again"


def test_what_its_batch_may_have_read_is_not_to_be_landed_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A batch reads a file as that is by then, and no plan knows as what it was read."""
    world.land("export.json", '{"id": 1}\n', age=100)
    source = world.open(on_changed="read")
    source.latest_offset(None)
    rewrite(world.landing / "export.json", '{"id": 1}\n{"id": 2}\n')
    source.latest_offset(OFFSET_0)
    (text,) = said(caplog)
    assert "unless it came before the batch ran" in text
    assert "never used" not in text
    assert "While `microbatch log` lists the batch of the file, clear" in text


def test_what_comes_in_the_place_of_a_taken_file_is_read_by_no_batch_and_is_to_be_landed_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    source = read_once(world, on_changed="read", clean_source="delete")
    assert not (world.landing / "export.json").exists()
    world.land("export.json", '{"id": 2}\n', age=10)
    source.latest_offset(OFFSET_0)
    (text,) = said(caplog)
    assert "Land it under a name that was never used" in text


def test_also_one_that_was_read_long_ago_where_what_is_read_is_cleaned(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    source = read_once(world, clean_source="delete")
    position = OFFSET_0
    for number in range(known_names.RECENT_ENTRIES + 1):
        world.land(f"{number}.json", age=50 - number)
        before, position = position, str(source.latest_offset(position))
        commit(source, before, position)
    assert said(caplog) == []
    world.land("export.json", '{"id": 2}\n', age=0)
    source.latest_offset(position)
    assert "export.json" in said(caplog)[0]


def test_check_looks_at_all(world: World) -> None:
    source = read_once(world)
    position = OFFSET_0
    for number in range(known_names.RECENT_ENTRIES + 1):
        world.land(f"{number}.json", age=50 - number)
        position = str(source.latest_offset(position))
    assert source.not_read() is None
    rewrite(world.landing / "export.json", '{"id": 1}\n{"id": 2}\n')
    told = world.open().not_read() or ""
    assert "1 file(s) have changed since" in told
    assert "a clear of a batch that retention has removed reads nothing" in told
    assert world.open(on_changed="read").not_read() is None


def test_an_untouched_folder_is_no_reason_to_warn(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = read_once(world)
    world.land("other.json")
    assert source.has_new(OFFSET_0)
    assert source.latest_offset(OFFSET_0) == OFFSET_1
    assert not source.has_new(OFFSET_1)
    assert said(caplog) == []


def test_a_file_that_grows_while_it_is_read_is_read_again(world: World) -> None:
    """Its rest would be in no batch: a name is read once."""
    world.land("export.json", '{"id": 1}\n', age=100)
    source = world.open(on_changed="read")
    source.latest_offset(None)
    read = source.read(None, OFFSET_0)
    source.verify(None, OFFSET_0, told(read.arguments))
    for text in ('{"id": 1}\n{"id": 2}\n', '{"id": 1}\n{"id": 2}\n{"id": 3}\n'):
        rewrite(world.landing / "export.json", text)
        with pytest.raises(SourceChangedError, match=r"export.json'\. Run the batch again, .*min_file_age"):
            source.verify(None, OFFSET_0, joined([told(read.arguments)]))
        read = source.read(None, OFFSET_0)
        source.verify(None, OFFSET_0, told(read.arguments))


def test_a_runtime_of_before_that_does_not_tell_is_believed(world: World) -> None:
    world.land("export.json", '{"id": 1}\n', age=100)
    source = world.open(on_changed="read")
    source.latest_offset(None)
    rewrite(world.landing / "export.json", "{}\n{}\n{}\n")
    source.verify(None, OFFSET_0, {"files": 1, "left_out": []})


def test_nor_is_a_file_read_again_that_is_put_back_from_the_archive(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the very file, and its name was read: who puts it back wants it read."""
    archive = world.root / "archive"
    source = read_once(world, clean_source="archive", archive_dir=str(archive))
    (archive / "export.json").rename(world.landing / "export.json")
    assert not source.has_new(OFFSET_0)
    assert "export.json" in said(caplog)[0]
