"""Small files of a Delta table become few, across batches: whoever dies, sleeps, replays or joins meanwhile, each batch
has its rows once, and can still be replaced and taken out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import Compacted, Compaction, Manifest, OpenSink
from airflow_provider_microbatch.sinks.compaction import CHANGED
from airflow_provider_microbatch.sinks.delta import compacting, removing
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from tests.sinks.delta_stages import write_delta_stage, write_rows
from tests.sinks.delta_world import opened, optimize_and_vacuum, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.sinks.stages import CHECKPOINT, NOTHING_KNOWN, batch_of, expect

pytestmark = pytest.mark.slow

TOP = Path(__file__).resolve().parents[2]
LONGS = {"id": "long", "epoch": "long"}


def wanted(**given: Any) -> Compaction:
    return Compaction(**{"checkpoint": CHECKPOINT, "tables": NOTHING_KNOWN, "left_alone": lambda found: None, **given})


def key(number: int) -> BatchKey:
    return BatchKey("live", number)


def replace(sink: OpenSink, number: int, *, epoch: int = 2, rows: int = 2) -> None:
    write_delta_stage(sink, epoch, batch=batch_of(key(number)), rows=rows)
    assert sink.replace(expect(key(number)), epoch).epoch == epoch


def actions(root: Path, kind: str) -> list[dict[str, Any]]:
    """Of the newest version."""
    newest = max((root / "_delta_log").glob("*.json"))
    return [line[kind] for line in map(json.loads, newest.read_text().splitlines()) if kind in line]


def before_commit(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], *, once: bool = True) -> None:
    real = DeltaLog.rearrange

    def changed(self: DeltaLog, *given: Any, **named: Any) -> bool:
        if once:
            monkeypatch.setattr(DeltaLog, "rearrange", real)
        what()
        return real(self, *given, **named)

    monkeypatch.setattr(DeltaLog, "rearrange", changed)


def test_files_of_many_batches_become_one_and_no_row_changes(root: Path, sink: OpenSink) -> None:
    for number in range(5):
        publish(sink, number)
    before, found = rows(root), [sink.contains(expect(key(number))) for number in range(5)]
    done = sink.compact(wanted())
    assert (done.files_before, done.files_after, done.batches) == (5, 1, set(map(key, range(5))))
    assert rows(root) == before
    assert len(table(root).file_uris()) == 1
    assert [sink.contains(expect(key(number))) for number in range(5)] == found
    assert {one["dataChange"] for kind in ("add", "remove") for one in actions(root, kind)} == {False}
    assert actions(root, "txn") == []
    assert sink.compact(wanted()) == Compacted()


def test_batches_go_on_and_are_joined_with_what_was_joined(root: Path, sink: OpenSink) -> None:
    for number in range(6):
        publish(sink, number)
        sink.compact(wanted())
    assert rows(root) == {(number, 1): 3 for number in range(6)}
    assert [Path(path).parent.name for path in table(root).file_uris()] == ["0-5"]


def test_a_replay_after_it_replaces_just_its_own_rows(root: Path, sink: OpenSink) -> None:
    for number in range(4):
        publish(sink, number)
    sink.compact(wanted())
    replace(sink, 2)
    assert rows(root) == {(0, 1): 3, (1, 1): 3, (2, 2): 2, (3, 1): 3}
    sink.compact(wanted())
    replace(sink, 2, epoch=3, rows=1)
    assert rows(root) == {(0, 1): 3, (1, 1): 3, (2, 3): 1, (3, 1): 3}


def test_a_batch_is_taken_out_after_it(root: Path, sink: OpenSink) -> None:
    for number in range(3):
        publish(sink, number)
    sink.compact(wanted())
    assert sink.withdraw(expect(key(1)), 1)
    assert rows(root) == {(0, 1): 3, (2, 1): 3}
    assert sink.contains(expect(key(1))) is None
    publish(sink, 1, epoch=2)
    sink.compact(wanted())
    assert rows(root) == {(0, 1): 3, (1, 2): 3, (2, 1): 3}
    assert len(table(root).file_uris()) == 1


def test_all_holds_after_optimize_and_vacuum_too(root: Path, sink: OpenSink) -> None:
    for number in range(4):
        publish(sink, number)
    sink.compact(wanted())
    optimize_and_vacuum(root)
    replace(sink, 3)
    sink.compact(wanted())
    assert rows(root) == {(0, 1): 3, (1, 1): 3, (2, 1): 3, (3, 2): 2}


def test_a_path_says_of_which_batches_a_joined_file_has_no_rows(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where a column has no bounds, as of times, the log's statistics have none at all.
    monkeypatch.setattr("airflow_provider_microbatch.sinks.delta.adding._stats", lambda found: {})
    for number in range(4):
        publish(sink, number)
        if number == 1:
            sink.compact(wanted())
    read: list[str] = []
    real = removing._count
    monkeypatch.setattr(
        removing, "_count", lambda path, *of, **how: (read.append(str(path)), real(path, *of, **how))[1]
    )
    replace(sink, 3)
    assert not [path for path in read if "/rest/" in path]
    manifest = sink.contains(expect(key(2)))
    assert manifest is not None
    table(root).delete("batch_id = 2")
    assert sink.damage(expect(key(2)), manifest) is not None
    one = sink.contains(expect(key(1)))
    assert one is not None
    assert sink.damage(expect(key(1)), one) is None


def test_the_size_of_a_joined_file_is_bounded(root: Path, sink: OpenSink) -> None:
    for number in range(5):
        publish(sink, number)
    size = max(table(root).get_add_actions(flatten=True).column("size_bytes").to_pylist())
    assert sink.compact(wanted(target_bytes=2 * size)).files_after == 2
    assert len(table(root).file_uris()) == 3


def test_the_batches_of_a_joined_file_are_bounded(root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "_BATCHES", 4)
    for number in range(6):
        publish(sink, number)
    assert sink.compact(wanted()).files_after == 2
    publish(sink, 6)
    assert sink.compact(wanted()).batches == {key(4), key(5), key(6)}, "the first is not looked at any more"
    assert rows(root) == {(number, 1): 3 for number in range(7)}


def test_a_dry_run_counts_and_changes_nothing(root: Path, sink: OpenSink) -> None:
    for number in range(3):
        publish(sink, number)
    before = sorted(root.rglob("*"))
    done = sink.compact(wanted(dry_run=True))
    assert (done.files_before, done.files_after, len(done.batches)) == (3, 1, 3)
    assert sorted(root.rglob("*")) == before


def test_a_batch_that_comes_meanwhile_is_there(root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        publish(sink, number)
    before_commit(monkeypatch, lambda: publish(sink, 3))
    assert sink.compact(wanted()).files_after == 1
    assert rows(root) == {(number, 1): 3 for number in range(4)}
    assert len(table(root).file_uris()) == 2


def test_a_replay_or_a_rewind_meanwhile_stays(root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        publish(sink, number)
    before_commit(monkeypatch, lambda: replace(sink, 1))
    done = sink.compact(wanted())
    assert (done.files_after, done.left[CHANGED]) == (0, {key(0), key(1), key(2)})
    assert rows(root) == {(0, 1): 3, (1, 2): 2, (2, 1): 3}
    before_commit(monkeypatch, lambda: sink.withdraw(expect(key(0)), 1))
    sink.compact(wanted())
    assert rows(root) == {(1, 2): 2, (2, 1): 3}


def test_rows_that_others_delete_meanwhile_do_not_come_back(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    before_commit(monkeypatch, lambda: table(root).delete("batch_id = 1 AND id = 0"))
    sink.compact(wanted())
    assert rows(root) == {(0, 1): 3, (1, 1): 2, (2, 1): 3}
    sink.compact(wanted())
    assert rows(root) == {(0, 1): 3, (1, 1): 2, (2, 1): 3}


def test_another_compaction_meanwhile_doubles_nothing(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    before_commit(monkeypatch, lambda: opened(root).compact(wanted()))
    assert sink.compact(wanted()).files_after == 0
    assert rows(root) == {(number, 1): 3 for number in range(3)}


def test_a_commit_whose_answer_was_lost_is_known_by_what_it_added(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    real = DeltaLog.rearrange
    monkeypatch.setattr(DeltaLog, "rearrange", lambda *given, **named: real(*given, **named) and False)
    assert sink.compact(wanted()).files_after == 1
    assert rows(root) == {(number, 1): 3 for number in range(3)}


def test_a_joined_file_that_a_clean_up_has_taken_is_not_committed(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    real = compacting.Compacting._commit

    def after_a_clean_up(self: compacting.Compacting, joined: Sequence[compacting.Joined], *given: Any) -> None:
        for one in joined:
            (root / one.path).unlink()
        real(self, joined, *given)

    monkeypatch.setattr(compacting.Compacting, "_commit", after_a_clean_up)
    assert CHANGED in sink.compact(wanted()).left
    assert rows(root) == {(number, 1): 3 for number in range(3)}


KILL = """
import os, sys
from pathlib import Path
from airflow_provider_microbatch.sinks.delta import compacting
from airflow_provider_microbatch.sinks.delta.log import DeltaLog
from airflow_provider_microbatch.sinks.placed import data_files
from tests.sinks.delta_world import opened
from tests.sinks.test_delta_compaction import wanted
name, after = sys.argv[2], sys.argv[3] == "after"
owner = {"rearrange": DeltaLog, "make_folders": data_files, "add_of": compacting}[name]
real = getattr(owner, name)
def changed(*given, **named):
    if after:
        real(*given, **named)
    os._exit(9)
setattr(owner, name, changed)
opened(Path(sys.argv[1])).compact(wanted())
"""


@pytest.mark.parametrize(
    ("step", "when"),
    [("make_folders", "before"), ("add_of", "before"), ("rearrange", "before"), ("rearrange", "after")],
)
def test_killed_anywhere_each_batch_is_there_once(root: Path, sink: OpenSink, step: str, when: str) -> None:
    for number in range(3):
        publish(sink, number)
    ended = subprocess.run(
        [sys.executable, "-c", KILL, str(root), step, when], cwd=TOP, env={**os.environ, "PYTHONPATH": _path()}
    )
    assert ended.returncode == 9
    assert rows(root) == {(number, 1): 3 for number in range(3)}
    sink.compact(wanted())
    assert rows(root) == {(number, 1): 3 for number in range(3)}
    assert len(table(root).file_uris()) == 1
    table(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(list((root / "microbatch").rglob("*.parquet"))) == 1, "what was left goes with VACUUM"


def _path() -> str:
    return os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])


def test_an_error_leaves_no_file_behind(root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sink, 0)
    publish(sink, 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(compacting, "add_of", fail)
    with pytest.raises(SinkError, match="the disk is full"):
        sink.compact(wanted())
    assert list((root / "microbatch" / "rest").rglob("*.parquet")) == []


def test_with_a_change_feed_batches_stay_apart_so_that_a_replay_can_go_on(root: Path, sink: OpenSink) -> None:
    for number in range(2):
        write_delta_stage(sink, 1, batch=batch_of(key(number)), files=3)
        sink.publish(expect(key(number)), 1)
    table(root).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert sink.compact(wanted()).files_after == 2
    replace(sink, 0)
    assert rows(root) == {(0, 2): 2, (1, 1): 9}


def test_a_table_that_only_appends_can_be_compacted(root: Path, sink: OpenSink) -> None:
    for number in range(2):
        publish(sink, number)
    table(root).alter.set_table_properties({"delta.appendOnly": "true"})
    assert sink.compact(wanted()).files_after == 1
    assert rows(root) == {(0, 1): 3, (1, 1): 3}


def test_what_is_to_be_left_alone_stays_in_a_file_of_its_own(root: Path, sink: OpenSink) -> None:
    for number in range(4):
        publish(sink, number)

    def why(found: Manifest) -> str | None:
        return "to be erased" if found.key.id == 1 else None

    done = sink.compact(wanted(left_alone=why))
    assert (done.left, done.batches) == ({"to be erased": {key(1)}}, {key(0), key(2), key(3)})
    assert rows(root) == {(number, 1): 3 for number in range(4)}
    assert sink.compact(wanted(checkpoint="another")).files_before == 0
    sink.compact(wanted())
    assert sink.compact(wanted(left_alone=why)).files_before == 0
    publish(sink, 4)
    assert sink.compact(wanted(left_alone=why)).batches == set(), "nor with a file that has rows of it"


def test_what_is_asked_to_be_left_alone_meanwhile_is(
    root: Path, sink: OpenSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        publish(sink, number)
    told: list[str] = []
    real = compacting.add_of
    monkeypatch.setattr(compacting, "add_of", lambda *given, **named: (told.append("forget"), real(*given, **named))[1])
    assert sink.compact(wanted(left_alone=lambda found: next(iter(told), None))).files_after == 0
    assert len(table(root).file_uris()) == 3


def test_partitions_and_columns_stay_apart_and_lanes_too(tmp_path: Path) -> None:
    sink = opened(tmp_path / "lake", partition_by=("day",), schema_policy="add_columns")
    for number in range(6):
        lane = "live" if number < 4 else "year"
        columns = {**LONGS, "day": "string", **({"more": "string"} if number in (2, 3) else {})}
        part = [{"id": one, "epoch": 1, "day": day, "more": "x"} for one, day in enumerate(["a", "b", None])]
        batch = batch_of(BatchKey(lane, number))
        write_rows(sink, 1, [part], columns, batch=batch, partition_by="day")
        sink.publish(expect(BatchKey(lane, number)), 1)
    before = table(tmp_path / "lake").to_pyarrow_table().to_pylist()
    done = sink.compact(wanted())
    assert (done.files_before, done.files_after) == (18, 9)
    after = table(tmp_path / "lake").to_pyarrow_table().to_pylist()
    assert Counter(map(str, after)) == Counter(map(str, before))
    write_rows(sink, 2, [[{"id": 9, "epoch": 2, "day": "a"}]], {**LONGS, "day": "string"},
               batch=batch_of(key(0)), partition_by="day")  # fmt: skip
    sink.replace(expect(key(0)), 2)
    assert rows(tmp_path / "lake")[0, 2] == 1
    assert rows(tmp_path / "lake")[1, 1] == 3


def test_rows_that_others_append_are_theirs(root: Path, sink: OpenSink) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    publish(sink, 0)
    for _ in range(2):
        theirs = pa.table({"id": [1], "epoch": [9], "lane": ["live"], "batch_id": [77]})
        write_deltalake(root.as_uri(), theirs, mode="append")
    assert sink.compact(wanted()) == Compacted()
    assert rows(root) == {(0, 1): 3, (77, 9): 2}


def test_a_table_that_cannot_be_written_is_refused_by_name(root: Path, sink: OpenSink) -> None:
    for number in range(2):
        publish(sink, number)
    table(root).alter.set_table_properties({"delta.checkpointPolicy": "v2"})
    with pytest.raises(SinkError, match="v2 checkpoints"):
        sink.compact(wanted())


def test_rows_that_keep_to_a_constraint_are_joined(root: Path, sink: OpenSink) -> None:
    for number in range(2):
        publish(sink, number)
    table(root).alter.add_constraint({"positive": "id >= 0"})
    assert sink.compact(wanted()).files_before == 2
    assert rows(root) == {(0, 1): 3, (1, 1): 3}


def test_a_table_that_is_not_there_yet_has_nothing_to_do(sink: OpenSink) -> None:
    assert sink.compact(wanted()) == Compacted()


def test_who_follows_the_table_reads_no_row_again(root: Path, sink: OpenSink) -> None:
    from airflow_provider_microbatch.sources.delta.commits import Commits

    for number in range(3):
        publish(sink, number)
    sink.compact(wanted())
    commit = Commits(str(root)).get(table(root).version())
    assert commit is not None
    assert (commit.added, commit.removed) == ((), ())
