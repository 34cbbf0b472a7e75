"""A commit that the catalog of an Iceberg table refuses: what the table names stays there, and nothing else does. Files
and tables that the sink refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StringType

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import RolledBackError, SinkError
from airflow_provider_microbatch.sinks.iceberg.opened import OpenIceberg
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.stages import EXPECTED, NOTHING_KNOWN, batch_of, expect
from tests.sinks.test_iceberg_sink import append, before_the_next_commit, expire, publish, rows, table
from tests.support.iceberg_table import opened_in

JANUARY = "interval-20260101T000000Z-20260201T000000Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def sink(folder: Path) -> OpenIceberg:
    return opened_in(folder)


@pytest.mark.parametrize("behind", ["nothing", "a commit", "a commit alone is left"])
def test_a_commit_that_the_catalog_has_carried_out_and_then_refused_is_in(
    sink: OpenIceberg, folder: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """So does one behind a transport that sends a request again whose answer was lost: the second is refused."""
    publish(sink, 6)
    catalog, refused = sink._log.catalog.get(), list[str]()
    commit = catalog.commit_table

    def refusing(*given: Any) -> Any:
        done = commit(*given)
        if refused:
            return done
        refused.append("what is done")
        if behind != "nothing":
            append(opened_in(folder))
        if behind == "a commit alone is left":
            expire(opened_in(folder))
        raise CommitFailedException("Requirement failed: branch main has changed")

    monkeypatch.setattr(catalog, "commit_table", refusing)
    publish(sink, 7)
    assert refused
    assert rows(sink) == {(6, 1): 3, (7, 1): 3, **({} if behind == "nothing" else {(None, 9): 1})}


def test_a_commit_that_is_refused_leaves_no_manifest(
    sink: OpenIceberg, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sink, 6)
    before_the_next_commit(monkeypatch, lambda: append(sink))
    publish(sink, 7)
    now = table(sink)
    named = {snapshot.manifest_list for snapshot in now.snapshots()}
    named |= {one.manifest_path for snapshot in now.snapshots() for one in snapshot.manifests(now.io)}
    assert {f"file://{path}" for path in folder.rglob("metadata/*.avro")} == named


def test_a_dot_in_the_name_of_a_column_is_a_part_of_the_name(sink: OpenIceberg, folder: Path) -> None:
    """A table that a first batch has made is written by the next ones too."""
    publish(sink, 6)
    with table(sink).update_schema() as update:
        update.add_column(("v.x",), StringType())
    sink = opened_in(folder, schema_policy="add_columns")
    publish(sink, 7)
    assert rows(sink) == {(6, 1): 3, (7, 1): 3}


@pytest.mark.parametrize("notes", [["", None], [None, ""], ["a", None]])
def test_a_file_with_rows_of_a_partition_and_of_none_is_not_published(folder: Path, notes: list[str | None]) -> None:
    """Readers of the other one would miss rows: so were stages written of an empty text and of none."""
    sink = opened_in(folder, partition_by=("note",))
    parts = [[{"id": id, "note": note} for id, note in enumerate(notes)]]
    write_rows(sink, 1, parts, {"id": "long", "note": "string"})
    with pytest.raises(SinkError, match=r"rows with and without note, .* run the batch again"):
        sink.publish(EXPECTED, 1)
    assert not table(sink).metadata.snapshots


def roll_back(sink: OpenIceberg, to: Snapshot, *, to_stay: bool) -> None:
    """:param to_stay: somebody says so, as the error names it."""
    table(sink).manage_snapshots().set_current_snapshot(snapshot_id=to.snapshot_id).commit()
    if to_stay:
        with table(sink).transaction() as change:
            change.remove_properties("microbatch.last.main")


def put_back_before_a_rewind(sink: OpenIceberg, *, to_stay: bool) -> None:
    """A rewind takes batches 3 and 2 out, and somebody sets the branch back to before that."""
    for number in range(4):
        publish(sink, number)
    before = table(sink).current_snapshot()
    assert before is not None
    for number in (3, 2):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    roll_back(sink, before, to_stay=to_stay)


def test_a_rollback_to_before_a_rewind_is_told_as_what_it_is(sink: OpenIceberg) -> None:
    put_back_before_a_rewind(sink, to_stay=False)
    told = "by which batches live/2, live/3 had been taken out: rows of them are back, without a record"
    for asks in (sink.check, sink.check_whole):
        with pytest.raises(RolledBackError, match=told) as refused:
            asks()
        assert "count as published" not in str(refused.value)
    assert sink.contains(expect(BatchKey("live", 1))) is not None
    assert sink.contains(expect(BatchKey("live", 2))) is None


def test_whatever_a_rollback_took_away_it_is_told_before_a_batch_of_another_lane_is_taken_out(
    sink: OpenIceberg,
) -> None:
    """A rewind of the live lane stopped half way."""
    publish(sink, 0)
    before = table(sink).current_snapshot()
    assert before is not None
    put(sink, BatchKey(JANUARY, 0), live=0)
    roll_back(sink, before, to_stay=False)
    assert sink.contains(expect(BatchKey("live", 0))) is not None
    told = f"by which batches {JANUARY}/0 were published"
    for asks in (sink.check_whole, lambda: sink.withdraw(expect(BatchKey("live", 0)), 1)):
        with pytest.raises(RolledBackError, match=told):
            asks()


@pytest.mark.parametrize(("number", "epoch"), [(2, 1), (2, 3), (0, 2)])
def test_once_it_is_to_stay_no_batch_comes_beside_rows_that_came_back(
    sink: OpenIceberg, number: int, epoch: int
) -> None:
    """Not those of its own number alone: the next commit would make the table one that nobody asks any more."""
    put_back_before_a_rewind(sink, to_stay=True)
    key = BatchKey("live", number)
    write_delta_stage(sink, epoch, batch=batch_of(key))
    puts = sink.publish if number == 2 else sink.replace
    with pytest.raises(SinkError, match=r"6 rows of batches live/2, live/3, .*batch_id BETWEEN 2 AND 3\)"):
        puts(expect(key), epoch)
    table(sink).delete("lane = 'live' AND batch_id BETWEEN 2 AND 3")
    puts(expect(key), epoch)
    assert rows(sink) == {(0, 1): 3, (1, 1): 3} | {(number, epoch): 3} if number else {(0, epoch): 3, (1, 1): 3}
    publish(sink, 3 if number else 2, epoch=3)
    sink.check()


def test_a_batch_that_is_taken_out_then_ends_nothing(sink: OpenIceberg) -> None:
    """A rewind asks for no rows. Its snapshot ended that the rollback is to stay, and the next batch came in beside
    rows that had come back."""
    for number in range(4):
        publish(sink, number)
    before = table(sink).current_snapshot()
    assert before is not None
    for number in (3, 2):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    publish(sink, 2, epoch=2)
    roll_back(sink, before, to_stay=True)
    assert sink.withdraw(expect(BatchKey("live", 2)), 2)
    with pytest.raises(SinkError, match=r"3 rows of batch live/3, .*batch_id = 3\)"):
        publish(sink, 2, epoch=3)
    table(sink).delete("lane = 'live' AND batch_id = 3")
    publish(sink, 2, epoch=4)
    assert rows(sink) == {(0, 1): 3, (1, 1): 3, (2, 4): 3}
    assert "microbatch.last.main" in table(sink).properties


def put(sink: OpenIceberg, key: BatchKey, epoch: int = 1, **past: int) -> None:
    """:param past: the newest batch of the live lane that the checkpoint has committed."""
    write_delta_stage(sink, epoch, batch=batch_of(key))
    sink.publish(replace(expect(key), is_past=lambda one: one.id <= past.get(one.lane, -1)), epoch)


def test_rows_of_a_lane_that_was_taken_out_as_a_whole_are_asked_for_by_a_batch_of_any(sink: OpenIceberg) -> None:
    """The checkpoint has committed none of it any more, as if it had never had it."""
    put(sink, BatchKey("live", 0))
    put(sink, BatchKey(JANUARY, 0), live=0)
    before = table(sink).current_snapshot()
    assert before is not None
    assert sink.withdraw(expect(BatchKey(JANUARY, 0)), 1)
    roll_back(sink, before, to_stay=True)
    with pytest.raises(SinkError, match=rf"3 rows of batch {JANUARY}/0, .*WHERE lane = '{JANUARY}' AND batch_id = 0\)"):
        put(sink, BatchKey("live", 1), live=0)
    table(sink).delete(f"lane = '{JANUARY}'")
    put(sink, BatchKey("live", 1), 2, live=0)
    assert rows(sink) == {(0, 1): 3, (1, 2): 3}


def test_so_are_those_of_a_batch_whose_number_has_been_set_aside_since(sink: OpenIceberg) -> None:
    """Its commit entry is of another life. What is on record between those that came back is named by no DELETE."""
    for number in range(5):
        publish(sink, number)
    table(sink).overwrite(table(sink).scan().to_arrow())  # a compaction writes one file of all
    before = table(sink).current_snapshot()
    assert before is not None
    for number in (4, 3, 2, 1):
        assert sink.withdraw(expect(BatchKey("live", number)), 1)
    put(sink, BatchKey("live", 2), 2, live=1)
    roll_back(sink, before, to_stay=True)
    told = (
        r"9 rows of batches live/1, live/3, live/4, .*WHERE "
        r"\((lane = 'live' AND batch_id = 1\) OR \(lane = 'live' AND batch_id BETWEEN 3 AND 4)\)\), then"
    )
    with pytest.raises(SinkError, match=told):
        put(sink, BatchKey("live", 5), live=4)
    table(sink).delete("batch_id = 1 OR batch_id BETWEEN 3 AND 4")
    put(sink, BatchKey("live", 5), 2, live=4)
    assert rows(sink) == {(0, 1): 3, (2, 1): 3, (5, 2): 3}


def test_rows_of_an_attempt_before_are_found_once_a_rollback_of_its_replay_is_to_stay(sink: OpenIceberg) -> None:
    for number in (0, 1):
        publish(sink, number)
    before = table(sink).current_snapshot()
    assert before is not None
    for number in (0, 1):
        write_delta_stage(sink, 2, batch=batch_of(BatchKey("live", number)))
        sink.replace(expect(BatchKey("live", number)), 2)

    def told(number: int) -> list[str | None]:
        asked = expect(BatchKey("live", number))
        found = sink.contains(asked)
        assert found is not None
        return [sink.damage(asked, found), sink.put_back(asked, found)]

    assert told(0) == told(1) == [None, None]
    roll_back(sink, before, to_stay=True)
    assert told(1) == [f"its rows in snapshot {before.snapshot_id} are those of before attempt 2"] * 2
    write_delta_stage(sink, 3, batch=batch_of(BatchKey("live", 0)))
    sink.replace(expect(BatchKey("live", 0)), 3)
    assert told(0) == [None, None]
    assert rows(sink) == {(0, 3): 3, (1, 1): 3}
    assert told(1) != [None, None]


def make_branch(sink: OpenIceberg, name: str) -> None:
    """Of the newest snapshot of main."""
    head = table(sink).current_snapshot()
    assert head is not None
    table(sink).manage_snapshots().create_branch(head.snapshot_id, name).commit()


def fast_forward(sink: OpenIceberg, to: str) -> None:
    """Main has no commit of its own since."""
    refs = table(sink).metadata.refs
    table(sink).manage_snapshots().set_current_snapshot(snapshot_id=refs[to].snapshot_id).commit()


@pytest.mark.parametrize("of", ["main", "main, before its last batch", "main, whose history has expired since"])
def test_what_main_has_is_on_record_in_a_branch_that_is_made_of_it_anew(
    sink: OpenIceberg, folder: Path, of: str
) -> None:
    """Its audit was rejected, and that is to stay. To another pipeline's rows no DELETE leads, and main, fast-forwarded
    to the branch, has them on record."""
    put(sink, BatchKey("live", 0))
    make_branch(sink, "audit")
    audit = opened_in(folder, branch="audit")
    put(audit, BatchKey("live", 1), live=0)
    put(sink, BatchKey(JANUARY, 0), live=0)
    table(sink).manage_snapshots().remove_branch("audit").commit()
    make_branch(sink, "audit")
    if of == "main, before its last batch":
        put(sink, BatchKey(JANUARY, 1), live=0)
    with pytest.raises(RolledBackError, match=r"UNSET TBLPROPERTIES \('microbatch.last.audit'\)"):
        audit.check()
    with table(sink).transaction() as change:
        change.remove_properties("microbatch.last.audit")
    if of == "main, whose history has expired since":
        for _ in range(2):
            table(sink).append(pa.table({"id": [1]}), branch="audit")
        expire(sink)
    for asks in (audit.check, audit.check_whole):
        asks()
    gone = expect(BatchKey("live", 1))
    found = audit.contains(gone)
    assert found is not None
    assert audit.damage(gone, found) is not None
    write_delta_stage(audit, 2, batch=batch_of(BatchKey("live", 1)))
    audit.replace(gone, 2)
    if of == "main":
        fast_forward(sink, "audit")
        assert rows(sink)[1, 2] == 3
    for one in (audit, sink) if of == "main" else (audit,):
        one.check_whole()
        for key in (BatchKey("live", 0), BatchKey("live", 1), BatchKey(JANUARY, 0)):
            found = one.contains(expect(key))
            assert found is not None
            assert one.damage(expect(key), found) is None
        assert one.contains(expect(BatchKey(JANUARY, 1))) is None


@pytest.mark.parametrize("is_back", [False, True], ids=["never had it", "had it, and took it out"])
def test_what_main_has_replaced_since_is_on_record_in_a_branch_that_was_made_of_it_before(
    sink: OpenIceberg, folder: Path, is_back: bool
) -> None:
    """The branch has the rows as they were. None of them has come back, unless it is the branch that took them out."""
    put(sink, BatchKey("live", 0))
    make_branch(sink, "audit")
    audit = opened_in(folder, branch="audit")
    january = expect(BatchKey(JANUARY, 0))
    if is_back:
        put(audit, january.key, live=0)
        head = table(sink).metadata.refs["audit"].snapshot_id
        assert audit.withdraw(january, 1)
    else:
        put(audit, BatchKey("live", 1), live=0)
    put(sink, january.key, live=0, epoch=2)
    if not is_back:
        refs = table(sink).metadata.refs
        head = refs["main"].snapshot_id
    table(sink).manage_snapshots().remove_branch("audit").commit()
    table(sink).manage_snapshots().create_branch(head, "audit").commit()
    with table(sink).transaction() as change:
        change.remove_properties("microbatch.last.audit")
    write_delta_stage(sink, 3, batch=batch_of(january.key))
    sink.replace(january, 3)
    if is_back:
        with pytest.raises(SinkError, match=r"3 rows of .*DELETE"):
            audit.check()
        return
    audit.check()
    audit.check_whole()
    found = audit.contains(january)
    assert found is not None
    assert audit.damage(january, found) is None


def test_what_another_branch_has_hides_no_row_that_came_back(sink: OpenIceberg, folder: Path) -> None:
    """Nor does it count as in what has been taken out since of what the branch got by a fast-forward."""
    publish(sink, 0)
    make_branch(sink, "audit")
    audit = opened_in(folder, branch="audit")
    for number in (1, 2):
        publish(audit, number)
    fast_forward(sink, "audit")
    assert sink.withdraw(expect(BatchKey("live", 2)), 1)
    for number in (2, 3):
        publish(sink, number, epoch=2)
    before = table(sink).current_snapshot()
    assert before is not None
    for number in (3, 2):
        assert sink.withdraw(expect(BatchKey("live", number)), 2)
    roll_back(sink, before, to_stay=True)
    with pytest.raises(SinkError, match=r"6 rows of batches live/2, live/3, .*batch_id BETWEEN 2 AND 3\)"):
        sink.check()
    table(sink).delete("lane = 'live' AND batch_id BETWEEN 2 AND 3")
    sink.check()
    assert sink.batches("live", NOTHING_KNOWN) == [0, 1]
    publish(sink, 2, epoch=3)
    assert rows(sink) == {(0, 1): 3, (1, 1): 3, (2, 3): 3}


def test_a_table_that_is_partitioned_anew_goes_on_and_batches_of_before_are_replaced(
    sink: OpenIceberg, folder: Path
) -> None:
    for number in (0, 1, 2):
        publish(sink, number)
    with table(sink).update_spec() as update:
        update.add_identity("epoch")
    with pytest.raises(SinkError, match=r"partition_by=\['epoch'\]"):
        sink.check()
    anew = opened_in(folder, partition_by=("epoch",))
    anew.check()
    assert anew.definition.unlike(sink.definition) is None
    publish(anew, 3)

    def replace(number: int, epoch: int) -> None:
        write_delta_stage(anew, epoch, batch=batch_of(BatchKey("live", number)))
        anew.replace(expect(BatchKey("live", number)), epoch)

    replace(0, 2)
    assert rows(anew) == {(0, 2): 3, (1, 1): 3, (2, 1): 3, (3, 1): 3}
    table(anew).overwrite(table(anew).scan().to_arrow())  # a compaction writes files of both anew
    replace(1, 2)
    assert anew.withdraw(expect(BatchKey("live", 3)), 1)
    assert anew.withdraw(expect(BatchKey("live", 2)), 1)
    assert rows(anew) == {(0, 2): 3, (1, 2): 3}
    assert len(table(anew).scan(row_filter="epoch = 2").to_arrow()) == 6


def test_a_time_that_python_has_no_value_for_is_told_with_its_column(folder: Path) -> None:
    sink, kind = opened_in(folder, partition_by=("day(at)",)), pa.timestamp("us", tz="UTC")
    stage = write_rows(
        sink, 1, [[{"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}]], {"id": "long", "at": "timestamp"}
    )
    (path,), manifest = stage.glob("part-*.parquet"), stage / "_manifest" / "part-00000.txt"
    far, before = pa.array([253_402_300_800_000_000]).cast(kind), parquet.read_table(path)
    size = path.stat().st_size
    parquet.write_table(before.set_column(before.schema.get_field_index("at"), "at", far), path)
    told = manifest.read_text()
    assert told.count(f'"bytes": {size}') == 1
    manifest.write_text(told.replace(f'"bytes": {size}', f'"bytes": {path.stat().st_size}'))
    with pytest.raises(SinkError, match="a value of at, by which the table is partitioned"):
        sink.publish(EXPECTED, 1)
