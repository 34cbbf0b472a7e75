"""A Delta table that somebody has put back to before a replay: its batches have rows that the replay has changed."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import ExpectedBatch, OpenSink
from tests.sinks.delta_stages import write_delta_stage
from tests.sinks.delta_world import damage, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import EXPECTED, NOTHING_KNOWN, batch_of, expect


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
        moment = an_hour_ago(root)
        table(root).delete("batch_id = 7")
        table(root).restore(moment)
    assert [damage(sink, number) for number in (6, 7)] == [None, None]


def back(sink: OpenSink, *asked: int) -> list[int]:
    """Those of the live lane that came back."""
    return list(sink.came_back("live", asked or None, NOTHING_KNOWN))


def is_not_published(sink: OpenSink, root: Path, number: int, *of: int) -> None:
    """Since rows of these are there again."""
    before, version = rows(root), table(root).version()
    named = ", ".join(f"live/{one}" for one in of)
    told = rf"taken out, of batch {named}: .* Nothing was published\. `microbatch check .* --table` names the way on"
    with pytest.raises(SinkError, match=told):
        publish(sink, number, epoch=9)
    assert (rows(root), table(root).version()) == (before, version)


def take_out(sink: OpenSink, *numbers: int) -> None:
    for number in numbers:
        assert sink.withdraw(expect(BatchKey("live", number)), 1)


def test_what_a_file_of_others_might_have_of_a_batch_that_was_taken_out_is_looked_for_there(
    sink: OpenSink, root: Path
) -> None:
    """By its statistics the file that all share has rows of the one between the others, too."""
    for number in (6, 7, 8):
        publish(sink, number)
    optimize_and_vacuum(root)
    before = table(root).version()
    take_out(sink, 7)
    assert list(sink.batches_after("live", 5, NOTHING_KNOWN)) == [6, 8]
    assert back(sink) == []
    table(root).restore(before)
    assert [back(sink), back(sink, 6, 8), back(sink, 7)] == [[7], [], [7]]
    assert sink.batches("live", NOTHING_KNOWN) == [6, 8]
    is_not_published(sink, root, 7, 7)
    take_out(sink, 7)
    assert (back(sink), rows(root)) == ([], {(6, 1): 3, (8, 1): 3})
    assert not sink.withdraw(EXPECTED, 1)
    publish(sink, 7, epoch=2)
    assert rows(root) == {(6, 1): 3, (7, 2): 3, (8, 1): 3}


def test_rows_of_a_plan_of_before_came_back_though_their_number_is_in(sink: OpenSink, root: Path) -> None:
    """Another batch has read what they are of; rows of an attempt of the same plan are in nobody's way."""
    for number in (6, 7):
        publish(sink, number)
    before = table(root).version()
    take_out(sink, 7, 6)
    planned_anew(sink, 6, digest="bbb", epoch=2)
    anew = table(root).version()
    table(root).restore(before)
    assert back(sink) == [6, 7]
    table(root).restore(anew)
    assert back(sink) == []
    planned_anew(sink, 6, digest="bbb", epoch=3)
    table(root).restore(anew)
    assert rows(root) == {(6, 2): 3}
    assert back(sink) == []


def test_in_a_file_of_others_the_commits_tell_whether_rows_of_a_plan_of_before_came_back(
    sink: OpenSink, root: Path
) -> None:
    for number in (6, 7):
        publish(sink, number)
    table(root).optimize.compact()
    before = table(root).version()
    take_out(sink, 7)
    planned_anew(sink, 7, digest="bbb", epoch=2)
    table(root).optimize.compact()
    replayed = table(root).version()
    planned_anew(sink, 7, digest="bbb", epoch=3)
    table(root).restore(replayed)
    assert back(sink) == []
    table(root).restore(before)
    assert back(sink) == [7]
    planned_anew(sink, 7, digest="bbb", epoch=4)
    table(root).optimize.compact()
    assert rows(root) == {(6, 1): 3, (7, 4): 3}
    assert back(sink) == []


def planned_anew(sink: OpenSink, number: int, *, digest: str, epoch: int) -> None:
    batch = batch_of(BatchKey("live", number), digest=digest)
    write_delta_stage(sink, epoch, batch=batch)
    sink.replace(expect(batch.key, digest=digest), epoch)


@pytest.mark.parametrize("back_to", ["before the replay", "after it"])
def test_a_restore_to_a_moment_is_known_by_the_files_that_it_left(sink: OpenSink, root: Path, back_to: str) -> None:
    """Also where a copy of the table has given all files of its log another time since."""
    for number in (6, 7):
        publish(sink, number)
    optimize_and_vacuum(root)
    if back_to == "before the replay":
        moment = an_hour_ago(root)
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    table(root).optimize.compact()
    if back_to == "after it":
        moment = an_hour_ago(root)
    table(root).delete("batch_id = 6")
    table(root).restore(moment)
    an_hour_ago(root)
    before = "are those of before attempt 2: put back by version"
    assert (before in (damage(sink, 7) or "")) is (back_to == "before the replay")


def an_hour_ago(root: Path) -> dt.datetime:
    """A moment at which the table was as it is now."""
    ago = time.time() - 3600
    for entry in (root / "_delta_log").glob("*.json"):
        os.utime(entry, (ago, ago))
    return dt.datetime.fromtimestamp(ago + 60, dt.UTC)


def test_after_a_restore_to_a_moment_nothing_comes_on_top_of_what_was_taken_out(sink: OpenSink, root: Path) -> None:
    """It does not tell how far it went back; what was made since has gone, and the rows may be the only ones."""
    for number in (5, 6, 7):
        publish(sink, number)
    moment = an_hour_ago(root)
    take_out(sink, 7, 6)
    publish(sink, 6, epoch=2, rows=6)
    table(root).restore(moment)
    is_not_published(sink, root, 7, 7)


@pytest.mark.parametrize("how", ["others have written since", "the log has lost them"])
def test_whatever_the_newest_commits_tell_rows_came_back(sink: OpenSink, root: Path, how: str) -> None:
    for number in (5, 6, 7):
        publish(sink, number)
    before = table(root).version()
    take_out(sink, 7, 6)
    table(root).restore(before)
    write_deltalake(str(root), table(root).to_pyarrow_table().slice(0, 0), mode="append")
    if how == "the log has lost them":
        table(root).create_checkpoint()
        for entry in sorted((root / "_delta_log").glob("*.json"))[:-1]:
            entry.unlink()
    assert back(sink) == [6, 7]
    is_not_published(sink, root, 6, 6, 7)


def test_an_attempt_that_was_planned_before_the_restore_is_not_published_below_rows_of_later_batches(
    sink: OpenSink, root: Path
) -> None:
    """It may be made of what they are of, and no plan has seen them there."""
    for number in (6, 7):
        publish(sink, number)
    before = table(root).version()
    take_out(sink, 7)
    table(root).restore(before)
    is_not_published(sink, root, 5, 7)


def test_after_a_rewind_of_many_batches_a_publish_asks_the_log_for_its_own_and_the_one_before(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question replays the log, between snapshot and commit: others would be first, again and again."""
    for number in range(12):
        publish(sink, number)
    take_out(sink, *range(11, 0, -1))
    assert asked_for(monkeypatch, lambda: publish(sink, 1, epoch=2)) == {0, 1}


def test_only_those_that_are_named_and_of_which_files_may_have_rows_are_asked_for(
    sink: OpenSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question replays the log, and a table has batches without end."""
    for number in range(12):
        publish(sink, number)
    before = table(root).version()
    take_out(sink, 11, 10)
    table(root).restore(before)
    take_out(sink, 10)
    assert asked_for(monkeypatch, lambda: back(sink, 10, 11)) == {11}


def asked_for(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> set[int]:
    """The batches of which the log is asked."""
    asked, ask = set[int](), DeltaTable.transaction_version

    def counted(table: DeltaTable, transaction: str) -> int | None:
        if transaction.startswith("microbatch/live/"):
            asked.add(int(transaction.rpartition("/")[2]))
        return ask(table, transaction)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    look()
    return asked


def test_a_restore_that_names_no_version_which_a_table_can_have_is_known_by_what_it_left(
    sink: OpenSink, root: Path
) -> None:
    """Whoever may commit to the table writes its infos."""
    publish(sink, 7)
    before, version = table(root).version(), "9" * 5000
    write_delta_stage(sink, 2)
    sink.replace(EXPECTED, 2)
    table(root).restore(before)
    entry = root / "_delta_log" / f"{before + 2:020}.json"
    entry.write_text(entry.read_text().replace(f'"version":"{before}"', f'"version":"{version}"'))
    assert version in entry.read_text()
    assert "are those of before attempt 2: put back by version" in (damage(sink, 7) or "")


def test_rows_that_were_adopted_and_made_anew_since_were_not_taken_out(sink: OpenSink, root: Path) -> None:
    """They are of another checkpoint's plan. Where the caller knows that the batch was taken out, they may be that."""
    key = BatchKey("live", 7)
    write_delta_stage(sink, 1, batch=batch_of(key, checkpoint="another"))
    sink.publish(expect(key, checkpoint="another"), 1)
    before = table(root).version()
    write_delta_stage(sink, 2, batch=batch_of(key))
    taken_for_it = ExpectedBatch(identity=batch_of(key), tables=NOTHING_KNOWN, recognise=lambda found: found)
    sink.replace(taken_for_it, 2)
    assert rows(root) == {(7, 2): 3}
    table(root).restore(before)
    assert [back(sink), back(sink, 7)] == [[], [7]]
