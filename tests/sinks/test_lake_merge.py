"""Changes that are merged into a Delta table, or one of Iceberg, end as if each had come once and in order: whatever
came when, was replaced or taken out, whoever died, and whatever others do to the table."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks.file.objects.stages import Stages
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.merged import files
from airflow_provider_microbatch.sinks.merged.history import History
from airflow_provider_microbatch.sinks.merged.newest import NewestRecords
from airflow_provider_microbatch.sinks.placed.places import Places
from tests.sinks.changes import (
    MERGE,
    PAIRS,
    VERSIONED,
    WAYS,
    Change,
    Row,
    change,
    check_like_a_dictionary,
    check_one_wins,
    expected,
    histories,
)
from tests.sinks.delta_stages import write_rows
from tests.sinks.merged_delta import MergedInBucket
from tests.sinks.merged_lakes import LAKES, anywhere
from tests.sinks.merged_table import COLUMNS, MergedInFiles, row_of
from tests.sinks.stages import CHECKPOINT, batch_of, expect

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

worlds = itertools.count()


@pytest.fixture(params=LAKES.values(), ids=LAKES)
def lake(request: pytest.FixtureRequest) -> type[MergedInFiles]:
    found: type[MergedInFiles] = request.param
    return found


@pytest.fixture
def table(lake: type[MergedInFiles], tmp_path: Path) -> MergedInFiles:
    return lake(tmp_path / lake.name)


@pytest.mark.parametrize(("one", "other", "left"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("how", WAYS)
def test_of_two_changes_the_same_one_wins_in_whatever_order_they_come(
    table: MergedInFiles, one: Change, other: Change, left: list[Row], how: str
) -> None:
    check_one_wins(table, one, other, left, how=how)


@pytest.mark.parametrize("how", [1, -1])
def test_of_two_changes_with_a_time_that_python_has_not_the_same_one_wins(
    lake: type[MergedInFiles], tmp_path: Path, how: int
) -> None:
    table = lake(tmp_path / "t", {"merge": Merge(keys=("day", "shop"), sequence_by=("ts",))})
    columns = {**COLUMNS, "day": "date", "until": "timestamp"}
    for id, until in [*enumerate([253402300800000000, 0, 253402300800000001])][::how]:
        key, row = BatchKey("live", id), {**row_of(change()), "day": 2932897, "until": until}
        others = [{**row, "day": 7, "until": until} for until in (10, 5)]
        write_rows(table.sink, 1, [[row, *others], [{**row, "until": 1}]], columns, batch=batch_of(key))
        table.sink.publish(expect(key), 1)
    assert sorted(table.read().column("until").cast("int64").to_pylist()) == [10, 253402300800000001]


def test_which_of_two_changes_wins_depends_on_no_column_that_comes_later(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    rows = [{"units": 1}, {"units": 10}, {"id": 2, "units": 0, "vat": 1}]
    for order in ([0, 1, 2], [2, 1, 0]):
        table = lake(tmp_path / f"t{order[0]}", {"schema_policy": "add_columns"})
        for id in order:
            key, columns = BatchKey("live", id), {**COLUMNS, **dict.fromkeys(rows[id], "long")}
            write_rows(table.sink, 1, [[{**row_of(change()), **rows[id]}]], columns, batch=batch_of(key))
            table.sink.publish(expect(key), 1)
        assert table.read().sort_by("id").column("units").to_pylist() == [10, 0]


def test_readers_find_the_columns_but_those_left_out_and_whose_the_newest_change_is(table: MergedInFiles) -> None:
    table.publish(1, change(), change(id=2))
    table.publish(2, change(ts=2))
    found = table.read().sort_by("id")
    assert found.column_names == ["id", "shop", "ts", "seq", "note", "lane", "batch_id"]
    assert [(row["lane"], row["batch_id"]) for row in found.to_pylist()] == [("live", 2), ("live", 1)]


@anywhere
def test_files_of_the_newest_changes_that_are_gone_or_cut_short_are_found_before_they_are_needed(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    """Else the next publish finds it, after its Spark job; and a rewind, in its middle."""
    table = lake(tmp_path / lake.name)
    table.publish(1, change())
    table.sink.check_whole()
    (name,) = (name for name in table.newest_files() if name.endswith(".parquet"))
    file = f"_microbatch/newest/{name}"
    data = table.get(file)
    table.put(file, data[:-9])
    with pytest.raises(SinkError, match=rf"{name}.* has {len(data) - 9} bytes, not {len(data)}.*from a backup"):
        table.again().sink.check_whole()
    table.remove(file)
    with pytest.raises(SinkError, match=rf"a file is gone .*{name}"):
        table.again().sink.check_whole()
    table.put(file, data)
    table.again().sink.check_whole()


@anywhere
def test_a_deletion_is_remembered_whatever_others_do_to_small_and_old_files(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1), change(id=2))
    table.publish(2, change(ts=5, deleted=True), change(id=3))
    table.tidy()
    table.publish(3, change(ts=4, note="late"))
    assert [row[0] for row in table.rows()] == [2, 3]
    assert table.withdraw(2)
    assert table.rows() == [(1, "a", 4, 1, "late"), (2, "a", 1, 1, "x")]


def test_a_change_that_comes_again_or_late_writes_no_file(table: MergedInFiles) -> None:
    table.publish(1, change(ts=5))
    before = table.files()
    table.publish(2, change(ts=5), change(ts=4, note="late"))
    assert table.files() == before
    table.withdraw(1)
    assert table.rows() == [(1, "a", 5, 1, "x")]


def test_what_others_write_stays_until_a_change_of_its_key_wins(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1), change(id=2), change(id=3))
    table.change_by_hand()
    table.append({"id": 3, "ts": 9, "note": "twice"}, {"id": 4, "ts": 9, "shop": None, "note": "theirs"})
    assert len(table.rows()) == 4
    table.publish(2, change(ts=2, note="new"), change(id=2, ts=2), change(id=3, ts=2))
    assert table.rows() == [(1, "a", 2, 1, "new"), (2, "a", 2, 1, "x"), (3, "a", 2, 1, "x"), (4, None, 9, 1, "theirs")]


def test_rows_that_a_table_had_before_are_changed_by_the_first_batch(lake: type[MergedInFiles], tmp_path: Path) -> None:
    table = lake(tmp_path / "customers", {"schema_policy": "add_columns"})
    table.append({"id": 1, "ts": 9, "note": "before"}, {"id": 2, "ts": 9, "note": "before"})
    table.sink.check()
    table.publish(1, change(), change(id=3, deleted=True))
    assert table.rows() == [(1, "a", 1, 1, "x"), (2, "a", 9, 1, "before")]


class Other:
    """Has somebody else do something, once, before or after a step."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, does: Any, *, after: bool = False
    ) -> None:
        self.done = False
        real = getattr(owner, step)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = real(*args, **kwargs) if after else None
            if not self.done:
                self.done = True
                does()
            return value if after else real(*args, **kwargs)

        monkeypatch.setattr(owner, step, wrapped)


@anywhere
@pytest.mark.parametrize(
    "step",
    [None, (NewestRecords, "get"), (files, "_marks")],
    ids=["commits first", "and sweeps", "and sweeps what is read"],
)
def test_of_two_that_publish_at_once_each_sees_what_the_other_has_changed(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str] | None
) -> None:
    table.publish(1, change(ts=1))
    table.write(BatchKey("live", 2), 1, [change(ts=2, note="two"), change(id=2, ts=9)])
    their = table.again()
    step = step or (table.log, "commit")
    other = Other(monkeypatch, *step, lambda: their.publish(3, change(ts=3), change(id=2, ts=3)))
    table.sink.publish(expect(BatchKey("live", 2)), 1)
    assert other.done
    assert table.rows() == [(1, "a", 3, 1, "x"), (2, "a", 9, 1, "x")]
    assert len(table.newest_files()) == 2  # the record, and one file of both


def test_an_append_of_others_beside_a_publish_stays(table: MergedInFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    table.publish(1, change(ts=1))
    table.write(BatchKey("live", 2), 1, [change(ts=2)])
    Other(monkeypatch, table.log, "commit", lambda: table.append({"id": 1, "ts": 9}, {"id": 2, "ts": 9}))
    table.sink.publish(expect(BatchKey("live", 2)), 1)
    assert table.rows() == [(1, "a", 2, 1, "x"), (2, "a", 9, 1, None)]


@anywhere
def test_who_sweeps_late_leaves_what_is_about_to_be_committed(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, sweep = list[int](), NewestRecords.sweep
    with monkeypatch.context() as asleep:
        asleep.setattr(NewestRecords, "sweep", lambda _, number: late.append(number))
        table.publish(1, change(ts=1))
    Other(monkeypatch, table.log, "commit", lambda: sweep(table.newest, *late))
    table.publish(2, change(ts=2), change(id=2))
    sweep(table.newest, *late)
    table.publish(3, change(ts=3))
    assert table.rows() == [(1, "a", 3, 1, "x"), (2, "a", 1, 1, "x")]


class Died(BaseException):
    """The process is gone: nothing handles it."""


def die() -> None:
    raise Died


IN_FOLDER = {
    "the changes are in place": (Places, "take"),
    "a part of the newest changes is written": (files, "_written"),
    "their record is written": (NewestRecords, "put"),
    "it is committed": (None, "commit"),
    "what went out is removed": (Places, "remove"),
    "old records are removed": (NewestRecords, "sweep"),
}
OF_BUCKET = {
    "the changes are in place": (Stages, "claim"),
    "what goes out is marked": (Stages, "give_up"),
    "what went out is removed": (Stages, "remove"),
}
IN_BUCKET = {**IN_FOLDER, **OF_BUCKET}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "step"), IN_FOLDER.values(), ids=IN_FOLDER)
@pytest.mark.parametrize(
    ("lake", "doing"),
    [
        *(pytest.param(LAKES["delta"], doing, id=f"delta-{doing}") for doing in ("publish", "replace", "withdraw")),
        pytest.param(LAKES["iceberg"], "replace", id="iceberg-replace"),  # the order of all writes is in it
    ],
)
def test_who_dies_between_two_writes_leaves_nothing_that_the_next_attempt_does_not_finish(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, after: bool, doing: str
) -> None:
    check_who_dies(table, monkeypatch, doing, owner, step, after=after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("doing", "done"),
    [*(("replace", done) for done in OF_BUCKET), ("replace", "it is committed"), ("withdraw", "it is committed")],
)
def test_nor_does_who_dies_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doing: str, done: str) -> None:
    """At the steps that are others there, and at the one that is seen."""
    check_who_dies(MergedInBucket(tmp_path / MergedInBucket.name), monkeypatch, doing, *IN_BUCKET[done], after=True)


def check_who_dies(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch, doing: str, owner: Any, step: str, *, after: bool
) -> None:
    owner = owner or table.log
    old, new = [change(ts=2), change(id=2, ts=2, deleted=True)], [change(ts=3, deleted=True), change(id=3)]
    table.publish(1, change(ts=1), change(id=2, ts=1))
    if doing != "publish":
        table.publish(7, *old)
    epoch = 1 if doing == "publish" else 2
    key, others = BatchKey("live", 7), [change(ts=1), change(id=2, ts=1)]
    if doing != "withdraw":
        table.write(key, epoch, new)
    with monkeypatch.context() as dying:
        other = Other(dying, owner, step, die, after=after)
        try:
            table.withdraw(7) if doing == "withdraw" else getattr(table.sink, doing)(expect(key), epoch)
        except Died:
            assert other.done
    assert table.rows() in [expected([*others, *one]) for one in ([], old, new)]
    again = table.again()
    if doing == "withdraw":
        again.withdraw(7)
    else:
        again.write(key, epoch + 1, new)
        found = getattr(again.sink, doing)(expect(key), epoch + 1)
        again.sink.drop_stage(batch_of(key), 2 * epoch + 1 - found.epoch)
    for key_of, number in again.sink.stages(CHECKPOINT):  # as the janitor does
        assert again.sink.drop_stage(batch_of(key_of), number)
    in_now = [] if doing == "withdraw" else new
    assert again.rows() == expected([*others, *in_now])
    again.publish(8, change(id=4, ts=1))
    assert again.batches_with_changes() == ["live/1", *(["live/7"] if in_now else []), "live/8"]
    assert again.sink.stages(CHECKPOINT) == []
    record = next(name for name in again.newest_files() if name.endswith(".json"))
    assert int(record.partition(".")[0]) == again.version()
    assert len(again.newest_files()) <= 4


def removal_in(table: MergedInFiles) -> Any:
    """Who removes the changes of an attempt that is out."""
    return Stages if isinstance(table, MergedInBucket) else Places


@anywhere
def test_who_sleeps_does_not_publish_what_was_taken_out_while_its_changes_go(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.publish(1, change(ts=1))
    key = BatchKey("live", 7)
    table.write(key, 1, [change(ts=2)])

    def publish_withdraw_and_die() -> None:
        awake = table.again()
        awake.sink.publish(expect(key), 1)
        with monkeypatch.context() as dying:
            Other(dying, removal_in(table), "remove", die)
            with pytest.raises(Died):
                awake.withdraw(7)

    # On a file system who is about to commit has the attempt's lock, and nobody else publishes it meanwhile.
    sleeps = (table.log, "commit") if isinstance(table, MergedInBucket) else (Places, "locked")
    Other(monkeypatch, *sleeps, publish_withdraw_and_die)
    with pytest.raises(SinkError, match="no complete stage"):
        table.sink.publish(expect(key), 1)
    assert table.rows() == [(1, "a", 1, 1, "x")]
    assert table.sink.manifest(batch_of(key), 1) is None
    assert table.sink.stages(CHECKPOINT) == [(key, 1)]
    assert table.sink.drop_stage(batch_of(key), 1)
    assert table.batches_with_changes() == ["live/1"]
    table.write(key, 2, [change(ts=3)])
    table.sink.publish(expect(key), 2)
    assert table.rows() == [(1, "a", 3, 1, "x")]


@anywhere
def test_changes_that_went_out_go_whoever_has_looked_at_their_batch_before(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, their = BatchKey("live", 7), table.again()
    table.publish(7, change(ts=1))
    table.write(key, 2, [change(ts=2)])

    def look_and_drop() -> None:
        assert their.sink.contains(expect(key)) is not None
        assert their.sink.replace(expect(key), 1).epoch == 1
        assert not their.sink.drop_stage(batch_of(key), 1)
        assert their.sink.stages(CHECKPOINT) == [(key, 2)]

    with monkeypatch.context() as dying:
        Other(dying, table.log, "commit", look_and_drop)
        Other(dying, removal_in(table), "remove", die)
        with pytest.raises(Died):
            table.sink.replace(expect(key), 2)
    assert their.batches_with_changes() == ["live/7", "live/7"]
    assert their.sink.stages(CHECKPOINT) == [(key, 1)]
    assert their.sink.drop_stage(batch_of(key), 1)
    assert their.batches_with_changes() == ["live/7"]
    assert their.rows() == [(1, "a", 2, 1, "x")]


@anywhere
def test_who_dies_before_a_batch_is_out_leaves_nothing_for_a_janitor(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = BatchKey("live", 7)
    table.publish(7, change(ts=1))
    with monkeypatch.context() as dying:
        Other(dying, table.log, "commit", die)
        with pytest.raises(Died):
            table.withdraw(7)
    again = table.again()
    assert again.sink.stages(CHECKPOINT) == []
    assert not again.sink.drop_stage(batch_of(key), 1)
    assert again.rows() == [(1, "a", 1, 1, "x")]
    again.replace(7, change(ts=2))
    assert again.batches_with_changes() == ["live/7"]
    assert again.sink.stages(CHECKPOINT) == []


@anywhere
def test_a_replay_goes_on_where_a_janitor_has_removed_what_another_one_has_replaced(
    table: MergedInFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.publish(7, change(ts=1))
    table.publish(8, change(ts=2))

    def replace_and_die() -> None:
        their = table.again()
        with monkeypatch.context() as dying:
            Other(dying, removal_in(table), "remove", die)
            with pytest.raises(Died):
                their.replace(7, change(ts=3))
        for key, epoch in their.sink.stages(CHECKPOINT):
            if key.id == 7:
                their.sink.drop_stage(batch_of(key), epoch)

    Other(monkeypatch, History, "changes", replace_and_die)
    table.replace(8, change(id=2))
    assert table.rows() == [(1, "a", 3, 1, "x"), (2, "a", 1, 1, "x")]


@anywhere
def test_a_replay_needs_the_changes_of_all_batches_and_says_whose_are_gone(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1))
    found = table.publish(2, change(ts=2))
    (gone,) = [file for file in table.stored("_microbatch/changes/live/1") if file.endswith("00000-d1-1.parquet")]
    kept = table.get(gone)
    table.remove(gone)
    assert table.sink.damage(expect(BatchKey("live", 2)), found) is None
    told = table.sink.damage(expect(BatchKey("live", 1)), found)
    assert told is not None
    assert gone in told
    before = table.rows()
    with pytest.raises(SinkError, match=rf"{gone}.*Nothing was changed"):
        table.replace(2, change(id=5))
    assert table.rows() == before
    table.put(gone, kept)
    table.sink.replace(expect(BatchKey("live", 2)), 2)
    assert table.rows() == [(1, "a", 1, 1, "x"), (5, "a", 1, 1, "x")]


@anywhere
def test_a_record_of_the_newest_changes_that_is_gone_or_changed_stops_publishes(table: MergedInFiles) -> None:
    table.publish(1, change(ts=1))
    (record,) = [file for file in table.stored("_microbatch/newest") if file.endswith(".json")]
    kept = table.get(record)
    table.write(BatchKey("live", 2), 1, [change(ts=2)])
    table.put(record, kept.replace(b'"id"', b'"ID"', 1))
    with pytest.raises(SinkError, match="somebody has changed"):
        table.sink.publish(expect(BatchKey("live", 2)), 1)
    table.remove(record)
    with pytest.raises(
        SinkError, match=r"Bring the folder _microbatch of the table back.* another table and another checkpoint"
    ):
        table.sink.publish(expect(BatchKey("live", 2)), 1)
    table.put(record, kept)
    table.sink.publish(expect(BatchKey("live", 2)), 1)
    assert table.rows() == [(1, "a", 2, 1, "x")]


@pytest.mark.parametrize(
    ("merge", "row"), [(MERGE, (1, "a", 1, 1, "x")), (VERSIONED, (1, "a", "x", 1, None))], ids=["newest", "versions"]
)
def test_a_batch_without_a_frame_is_in_and_later_ones_bring_the_columns(
    lake: type[MergedInFiles], tmp_path: Path, merge: Merge, row: Row
) -> None:
    table = lake(tmp_path / "t", {"merge": merge})
    write_rows(table.sink, 1, [], {}, batch=batch_of(BatchKey("live", 1)))
    folder = table.sink.stage(batch_of(BatchKey("live", 1)), 1).arguments["path"].removeprefix("file://")
    for path in Path(folder, "_schema").iterdir():
        path.unlink()
    Path(folder, "_schema").rmdir()
    table.sink.publish(expect(BatchKey("live", 1)), 1)
    table.publish(2, change())
    assert table.rows() == [row]
    assert table.withdraw(1)
    assert table.sink.batches("live", expect().tables) == [2]


def test_a_column_that_comes_later_is_kept_with_the_changes_too(lake: type[MergedInFiles], tmp_path: Path) -> None:
    table = lake(tmp_path / "t", {"schema_policy": "add_columns"})
    table.publish(1, change(ts=1))
    key, columns = BatchKey("live", 2), {**COLUMNS, "more": "double"}
    write_rows(table.sink, 1, [[{**row_of(change(ts=2)), "more": 0.5}]], columns, batch=batch_of(key))
    table.sink.publish(expect(key), 1)
    assert table.read().column("more").to_pylist() == [0.5]
    table.publish(3, change(ts=1, id=2))
    table.withdraw(2)
    assert table.read().column("more").to_pylist() == [None, None]
    assert table.rows() == [(1, "a", 1, 1, "x"), (2, "a", 1, 1, "x")]


def test_small_files_do_not_add_up(table: MergedInFiles) -> None:
    for id in range(files.MANY + 3):
        table.publish(id, change(id=id))
    assert len(table.files()) < files.MANY
    assert len(table.newest_files()) < files.MANY
    assert [row[0] for row in table.rows()] == list(range(files.MANY + 3))


@pytest.mark.slow
@anywhere
def test_what_comes_out_is_what_a_dictionary_has_after_the_changes_in_order(
    lake: type[MergedInFiles], tmp_path: Path
) -> None:
    @given(history=histories())
    @settings(max_examples=lake.examples, deadline=None)
    def check(history: list[tuple[str, int, list[Change]]]) -> None:
        check_like_a_dictionary(lake(tmp_path / str(next(worlds))), history)

    check()
