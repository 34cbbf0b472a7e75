"""A Delta table that somebody has put back to before a replay: its batches have rows that the replay has changed."""

from __future__ import annotations

import datetime as dt
import os
import shlex
import time
from pathlib import Path

import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from airflow_provider_microbatch.sinks.delta import come_back, present
from airflow_provider_microbatch.sinks.delta.log import DeltaLog, Snapshot
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import damage, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import EXPECTED, NONE_PASSED, NOTHING_KNOWN, batch_of, expect


@pytest.mark.parametrize("optimized", [False, True])
def test_rows_of_before_a_replay_that_a_restore_brought_back_are_told_of(
    sink: OpenSink, root: Path, optimized: bool
) -> None:
    """Whoever reads them, as those who run dead letters again, would have rows that the replay has changed."""
    for number in (6, 7):
        publish(sink, number)
    if optimized:
        optimize_and_vacuum(root)
    before = table(root).version()
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    after = table(root).version()
    table(root).restore(before)
    assert "are those of before attempt 2: put back by version" in (damage(sink, 7) or "")
    with pytest.raises(SinkError, match=r"are those of before attempt 2: put back by .* Bring them back"):
        sink.published_rows(EXPECTED)
    assert damage(sink, 6) is None
    restored = table(root).version()
    table(root).restore(after)
    assert damage(sink, 7) is None
    table(root).restore(restored)
    assert "are those of before attempt 2: put back by version" in (damage(sink, 7) or "")
    table(root).delete("batch_id = 6")  # which brings no row of the newer attempt
    assert "are those of before attempt 2: put back by version" in (damage(sink, 7) or "")
    write_deltalake(str(root), table(root).to_pyarrow_table(), mode="append")
    assert damage(sink, 7) is None  # by hand, they may have been brought back
    with pytest.raises(SinkError, match=r"are those of before attempt 2: put back by .* Bring them back"):
        sink.published_rows(EXPECTED)
    write_delta_stage(sink, 3)
    sink.replace(EXPECTED, 3)
    assert damage(sink, 7) is None


@pytest.mark.parametrize("how", ["a RESTORE to a moment", "an overwrite"])
def test_batches_that_are_there_as_they_were_published_are_not_told_of(sink: OpenSink, root: Path, how: str) -> None:
    for number in (6, 7):
        publish(sink, number)
    if how == "an overwrite":
        write_deltalake(str(root), table(root).to_pyarrow_table(), mode="overwrite")
    else:
        table(root).delete("batch_id = 7")
        an_hour_ago = time.time() - 3600
        for version in (0, 1):
            os.utime(root / "_delta_log" / f"{version:020}.json", (an_hour_ago, an_hour_ago))
        table(root).restore(dt.datetime.fromtimestamp(an_hour_ago + 60, dt.UTC))
    assert [damage(sink, number) for number in (6, 7)] == [None, None]


def test_what_a_file_of_others_might_have_of_a_batch_that_was_taken_out_is_looked_for_there(
    sink: OpenSink, root: Path
) -> None:
    """By its statistics the file that all share has rows of the one between the others, too."""
    for number in (6, 7, 8):
        publish(sink, number)
    optimize_and_vacuum(root)
    before = table(root).version()
    assert sink.withdraw(EXPECTED, 1)
    assert list(sink.batches_after("live", 5, NOTHING_KNOWN)) == [6, 8]
    assert sink.strays(NOTHING_KNOWN, NONE_PASSED.__contains__) == []
    table(root).restore(before)
    with pytest.raises(SinkError, match="has rows of batch live/7 again"):
        sink.batches_after("live", 5, NOTHING_KNOWN)
    assert list(sink.batches_after("live", 7, NOTHING_KNOWN)) == [8]
    assert sink.batches("live", NOTHING_KNOWN) == [6, 8]
    (told,) = sink.strays(NOTHING_KNOWN, NONE_PASSED.__contains__)
    assert (
        f"has rows of batch live/7 again, which was taken out; put back, most likely, by version {before + 2}" in told
    )


@pytest.mark.parametrize("first", [6, 7])
def test_rows_that_were_read_again_before_the_restore_stay_until_what_was_made_of_them_is_in_again(
    sink: OpenSink, root: Path, first: int
) -> None:
    """They are the only ones: the batch that was made of all those ranges went with the RESTORE."""
    for number in (5, 6, 7, 8):
        publish(sink, number)
    before = table(root).version()
    for number in range(8, first - 1, -1):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    publish(sink, first, epoch=2, rows=3 * (9 - first))
    table(root).restore(before)
    whole, following = rows(root), first + 1
    told = rf"put back by version .* First bring back live/{first}, by a clear .*; then look again: what is left to do"
    with pytest.raises(SinkError, match=told):
        sink.batches_after("live", following, NOTHING_KNOWN)
    with pytest.raises(SinkError, match=told) as refused:
        publish(sink, following, epoch=3)
    assert "python" not in str(refused.value)  # typed after the clear and the next run, it would take out good rows
    assert rows(root) == whole
    write_delta_stage(sink, 4, batch=batch_of(BatchKey("live", first)), rows=3 * (9 - first))
    sink.replace(expect(BatchKey("live", first)), 4)
    if first == 6:
        with pytest.raises(
            SinkError, match=r"has rows of batch live/8 again.* Nothing was done there\..* Take them out"
        ):
            sink.batches_after("live", following, NOTHING_KNOWN)
    take_out(*sink.strays(NOTHING_KNOWN, NONE_PASSED.__contains__))
    assert list(sink.batches_after("live", following, NOTHING_KNOWN)) == []
    assert rows(root) == {(number, 1): 3 for number in range(5, first)} | {(first, 4): 3 * (9 - first)}
    sink.publish(expect(BatchKey("live", following)), 3)
    assert rows(root)[(following, 3)] == 3


def test_the_command_that_was_told_takes_out_no_batch_that_has_come_in_since(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    before = table(root).version()
    assert sink.withdraw(expect(BatchKey("live", 6)), 1)
    table(root).restore(before)
    (told,) = sink.strays(NOTHING_KNOWN, NONE_PASSED.__contains__)
    publish(sink, 6, epoch=2)
    with pytest.raises(DeltaError):
        take_out(told)
    assert rows(root) == {(5, 1): 3, (6, 2): 3}
    assert "Those of the batch that is planned next go by themselves as it comes in. This fails once version" in told


def test_batches_of_all_lanes_that_are_back_are_looked_for_in_one_load_of_the_table(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = (f"interval-2026010{day}T000000Z-2026010{day + 1}T000000Z" for day in (1, 2))
    keys = [BatchKey(lane, 0) for lane in (*days, "live")]
    for key in keys:
        write_delta_stage(sink, 1, batch=batch_of(key))
        sink.publish(expect(key), 1)
    before = table(root).version()
    for key in keys:
        assert sink.withdraw(expect(key), 1)
    table(root).restore(before)
    opened, open_it = list[DeltaLog](), DeltaLog.open

    def counted(log: DeltaLog) -> Snapshot | None:
        opened.append(log)
        return open_it(log)

    monkeypatch.setattr(DeltaLog, "open", counted)
    told = sink.strays(NOTHING_KNOWN, NONE_PASSED.__contains__)
    assert len(opened) == 1
    assert [f"has rows of batch {key} again" in one for key, one in zip(keys, told, strict=True)] == [True] * 3


def take_out(told: str) -> None:
    """What is told."""
    python, option, code = shlex.split(told.partition("Take them out: ")[2])
    assert (python, option) == ("python", "-c")
    exec(code)


@pytest.mark.parametrize("how", ["others have written since", "the log has lost them"])
def test_rows_may_be_the_only_ones_whatever_the_newest_commits_tell(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """On top of them a batch would take them out, and nothing would tell that they are gone."""
    monkeypatch.setattr(present, "_COMMITS", 1)
    read_again(sink, root)
    write_deltalake(str(root), table(root).to_pyarrow_table().slice(0, 0), mode="append")
    if how == "the log has lost them":
        table(root).create_checkpoint()
        for entry in sorted((root / "_delta_log").glob("*.json"))[:-1]:
            entry.unlink()
    with pytest.raises(SinkError, match=r"no rows there any more: live/6, put back by .* First bring back live/6,"):
        sink.batches_after("live", 7, NOTHING_KNOWN)
    with pytest.raises(SinkError, match=r"First bring back live/6,"):
        publish(sink, 7, epoch=3)
    assert rows(root) == {(number, 1): 3 for number in (5, 6, 7)}


def test_a_batch_whose_files_are_there_was_not_put_back_by_what_the_log_has_lost(sink: OpenSink, root: Path) -> None:
    publish(sink, 5)
    publish(sink, 6)
    before = table(root).version()
    assert sink.withdraw(expect(BatchKey("live", 6)), 1)
    table(root).restore(before)
    table(root).create_checkpoint()
    for entry in sorted((root / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert list(sink.batches_after("live", 6, NOTHING_KNOWN)) == []
    publish(sink, 6, epoch=2)
    assert rows(root) == {(5, 1): 3, (6, 2): 3}


def test_rows_may_be_the_only_ones_however_many_numbers_lie_between(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many are named at most is no limit of those that are looked at."""
    monkeypatch.setattr(come_back, "_NAMED", 1)
    publish(sink, 5)
    publish(sink, 8)
    before = table(root).version()
    assert sink.withdraw(expect(BatchKey("live", 8)), 1)
    publish(sink, 6, epoch=2, rows=9)
    table(root).restore(before)
    with pytest.raises(SinkError, match=r"First bring back live/6,"):
        sink.batches_after("live", 8, NOTHING_KNOWN)


@pytest.mark.parametrize("last", [7, 8])
def test_rows_stay_where_what_they_are_of_may_have_been_passed_over(sink: OpenSink, root: Path, last: int) -> None:
    """The number before theirs is a position by hand, behind what they are of: no batch reads that."""
    published = range(5, last + 1)
    for number in published:
        publish(sink, number)
    before = table(root).version()
    for number in range(last, 5, -1):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    table(root).restore(before)
    with pytest.raises(SinkError, match=r"live/7.* again.* So was live/6, in whose place is none") as refused:
        sink.batches_after("live", 7, NOTHING_KNOWN)
    told = r"To have it read again, `microbatch rewind` to before live/6\."
    with pytest.raises(SinkError, match=told):
        publish(sink, 7, epoch=2)
    assert rows(root) == {(number, 1): 3 for number in published}
    take_out(str(refused.value))
    publish(sink, 7, epoch=2)
    assert rows(root) == {(5, 1): 3, (6, 1): 3, (7, 2): 3}


def test_after_a_rewind_of_many_batches_a_publish_asks_the_log_for_no_more_than_its_own(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question replays the log, between snapshot and commit: others would be first, again and again."""
    for number in range(12):
        publish(sink, number)
    for number in range(11, -1, -1):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    asked, ask = list[BatchKey](), Snapshot.is_taken_out

    def counted(snapshot: Snapshot, key: BatchKey) -> bool:
        asked.append(key)
        return ask(snapshot, key)

    monkeypatch.setattr(Snapshot, "is_taken_out", counted)
    publish(sink, 0, epoch=2)
    assert len(asked) <= 1


def test_what_was_published_before_the_rewind_is_not_made_of_what_that_took_out(sink: OpenSink, root: Path) -> None:
    """Somebody has put batch 4 away on purpose, long before: it does not stop the pipeline after another RESTORE."""
    for number in (1, 2, 3, 4):
        publish(sink, number)
    table(root).restore(table(root).version() - 1)
    for number in (5, 6):
        publish(sink, number)
    before = table(root).version()
    assert sink.withdraw(expect(BatchKey("live", 6)), 1)
    table(root).restore(before)
    assert list(sink.batches_after("live", 6, NOTHING_KNOWN)) == []
    publish(sink, 6, epoch=2)
    assert rows(root) == {(1, 1): 3, (2, 1): 3, (3, 1): 3, (5, 1): 3, (6, 2): 3}


@pytest.mark.parametrize("read", [True, False])
def test_after_a_restore_to_a_moment_the_files_tell_what_went_with_it(sink: OpenSink, root: Path, read: bool) -> None:
    """It does not tell how far it went back."""
    for number in (5, 6, 7):
        publish(sink, number)
    an_hour_ago = time.time() - 3600
    for version in range(table(root).version() + 1):
        os.utime(root / "_delta_log" / f"{version:020}.json", (an_hour_ago, an_hour_ago))
    for number in (7, 6) if read else (7,):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    if read:
        publish(sink, 6, epoch=2, rows=6)
    table(root).restore(dt.datetime.fromtimestamp(an_hour_ago + 60, dt.UTC))
    assert rows(root) == {(number, 1): 3 for number in (5, 6, 7)}
    if read:
        for look in (lambda: sink.batches_after("live", 7, NOTHING_KNOWN), lambda: publish(sink, 7, epoch=3)):
            with pytest.raises(
                SinkError, match=r"no rows there any more: live/6, put back by .* First bring back live/6"
            ):
                look()
        assert rows(root) == {(number, 1): 3 for number in (5, 6, 7)}
    else:
        assert list(sink.batches_after("live", 7, NOTHING_KNOWN)) == []
        publish(sink, 7, epoch=2)
        assert rows(root) == {(5, 1): 3, (6, 1): 3, (7, 2): 3}


def test_only_batches_that_a_restore_may_have_put_back_are_asked_for(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question replays the log, and a table has batches without end."""
    for number in range(12):
        publish(sink, number)
    before = table(root).version()
    assert sink.withdraw(expect(BatchKey("live", 11)), 1)
    table(root).restore(before)
    asked = list[BatchKey]()

    def counted(question: str) -> None:
        ask = getattr(Snapshot, question)

        def count(snapshot: Snapshot, key: BatchKey) -> object:
            asked.append(key)
            return ask(snapshot, key)

        monkeypatch.setattr(Snapshot, question, count)

    counted("number")
    counted("is_taken_out")
    assert list(sink.batches_after("live", 11, NOTHING_KNOWN)) == []
    assert set(asked) == {BatchKey("live", 11)}


def test_rows_that_nobody_has_counted_may_have_gone_with_a_restore(sink: OpenSink, root: Path) -> None:
    read_again(sink, root, counted=False)
    with pytest.raises(SinkError, match=r"First bring back live/6,"):
        sink.batches_after("live", 7, NOTHING_KNOWN)


def read_again(sink: OpenSink, root: Path, *, counted: bool = True) -> None:
    """Batches 6 and 7 are taken out, what they had read is published as 6, and a RESTORE undoes that in the table."""
    for number in (5, 6, 7):
        publish(sink, number)
    before = table(root).version()
    for number in (7, 6):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    folder = write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", 6)), rows=6)
    if not counted:
        told = folder / "_manifest" / "part-00000.txt"
        told.write_text(told.read_text().replace('"numOutputRows": 6', '"numOutputRows": null'))
        assert "null" in told.read_text()
    sink.publish(expect(BatchKey("live", 6)), 2)
    table(root).restore(before)


def test_an_attempt_that_was_planned_before_the_restore_is_not_published_beside_rows_of_later_batches(
    sink: OpenSink, root: Path
) -> None:
    """It may be made of what they are of, and no plan has seen them there."""
    for number in (6, 7):
        publish(sink, number)
    before = table(root).version()
    for number in (7, 6):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    table(root).restore(before)
    with pytest.raises(SinkError, match=r"has rows of batches live/6, live/7 again.* Nothing was done there\."):
        publish(sink, 6, epoch=2, rows=6)
    assert rows(root) == {(6, 1): 3, (7, 1): 3}


def test_a_restore_that_names_no_version_which_a_table_can_have_stops_nobody(sink: OpenSink, root: Path) -> None:
    """Whoever may commit to the table writes its infos."""
    publish(sink, 7)
    before, version = table(root).version(), "9" * 5000
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    table(root).restore(before)
    entry = root / "_delta_log" / f"{before + 2:020}.json"
    entry.write_text(entry.read_text().replace(f'"version":"{before}"', f'"version":"{version}"'))
    assert version in entry.read_text()
    assert damage(sink, 7) is None
