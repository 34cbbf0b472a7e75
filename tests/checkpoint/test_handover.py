"""What ``hand_over`` writes; that Spark goes on from it is shown in ``tests/spark_exchange``."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.exceptions import BrokenLogError, CheckpointError, CorruptEntryError
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from tests.checkpoint.test_golden import GOLDEN, open_golden
from tests.checkpoint.world import claimed, entry
from tests.support.spark_log import files_spark_reads


def with_files(root: Path, count: int, *, log: int | None = None) -> Checkpoint:
    """``count`` committed batches of one file each; ``log`` entries in the source log."""
    made = claimed(root)
    for number in range(log or count):
        line = json.dumps({"path": f"file:///data/{number}.json", "timestamp": number, "batchId": number, "size": 1})
        made.source_log("orders").put_if_absent(str(number), f"v1\n{line}".encode())
    for number in range(count):
        made.offset_log.add(number, entry(number))
        made.commit_log.add(number, CommitEntry())
    return made


def compacted(path: Path) -> list[int]:
    version, *lines = path.read_text().split("\n")
    assert version == "v1"
    return [json.loads(line)["batchId"] for line in lines]


@pytest.mark.parametrize(("count", "expected"), [(9, None), (10, 9), (11, 9), (19, 9), (20, 19), (35, 29)])
def test_only_the_newest_compaction_is_written_and_holds_all(tmp_path: Path, count: int, expected: int | None) -> None:
    made = with_files(tmp_path, count)
    folder = tmp_path / "sources" / "orders"
    written = hand_over(made)
    assert written == ([] if expected is None else [f"{folder}/{expected}.compact"])
    assert [path.name for path in folder.glob("*.compact")] == [Path(path).name for path in written]
    for path in written:
        assert compacted(Path(path)) == list(range((expected or 0) + 1))
    assert hand_over(made) == []


def test_a_source_log_ahead_of_the_offset_log_is_compacted_to_its_own_end(tmp_path: Path) -> None:
    """Spark begins at the end of the source log, and looks for the compaction before it."""
    made = with_files(tmp_path, 9, log=10)
    assert hand_over(made) == [f"{tmp_path}/sources/orders/9.compact"]


def test_sparks_own_compaction_is_built_upon(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "spark-4.2.0-v2", tmp_path / "checkpoint"))
    made = open_golden(folder)
    assert hand_over(made) == []
    made.claim(pipeline="orders", sources=("orders", "refunds"), format="v2")
    made.commit_log.add(11, CommitEntry())
    for number in range(12, 21):
        line = json.dumps({"path": f"file:///data/orders/{number}.json", "timestamp": 1, "batchId": number})
        made.source_log("orders").put_if_absent(str(number), f"v1\n{line}".encode())
        ends = {"orders": f'{{"logOffset":{number}}}', "refunds": '{"logOffset":0}'}
        made.offset_log.add(number, replace(entry(number), ends=ends, starts={}))
        made.commit_log.add(number, CommitEntry())
    [written] = hand_over(made)
    assert compacted(Path(written)) == list(range(20))


def after_adoption(root: Path, compacts: list[int], newest: int) -> Path:
    """What a query left (its ``.compact`` files, its newer entries), and plain entries of ours up to ``newest``."""
    made, folder = claimed(root), root / "sources" / "orders"
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"path": f"file:///data/{one}.json", "timestamp": one, "batchId": one}) for one in range(newest + 1)
    ]
    for number in compacts:
        (folder / f"{number}.compact").write_text("\n".join(["v1", *lines[: number + 1]]))
    for number in range(max(compacts, default=-1) + 1, newest + 1):
        (folder / str(number)).write_text(f"v1\n{lines[number]}")
    for number in (newest - 1, newest):
        made.offset_log.add(number, entry(number))
        made.commit_log.add(number, CommitEntry())
    hand_over(made)
    return folder


@pytest.mark.parametrize(
    ("compacts", "newest"),
    [([9], 19), ([9], 29), ([9], 33), ([9], 39), ([19], 49), ([9, 19], 22), ([9, 19], 49), ([9], 15), ([19], 28)],
)
def test_spark_finds_what_its_rule_looks_for_after_an_adoption(
    tmp_path: Path, compacts: list[int], newest: int
) -> None:
    folder = after_adoption(tmp_path, compacts, newest)
    looked_for = files_spark_reads(folder)
    assert all((folder / name).exists() for name in looked_for), looked_for
    [only] = folder.glob("*.compact")
    assert compacted(only) == list(range(int(only.stem) + 1))


@settings(max_examples=40, deadline=None)
@given(interval=st.integers(2, 40), times=st.integers(0, 3), kept=st.integers(1, 3), more=st.integers(1, 45))
def test_nor_does_it_matter_which_interval_the_query_has(interval: int, times: int, kept: int, more: int) -> None:
    """But for one below ten whose newest compactions all happen to fit ten, which nothing in the log tells."""
    compacts = [interval * one - 1 for one in range(1, times + 1)][-kept:]
    assume(interval >= 10 or any((one + 1) % 10 for one in compacts))
    with tempfile.TemporaryDirectory() as root:
        folder = after_adoption(Path(root), compacts, max(compacts, default=0) + more)
        looked_for = files_spark_reads(folder, interval)
        assert all((folder / name).exists() for name in looked_for), (looked_for, list(folder.iterdir()))


def test_killed_before_the_older_compaction_is_gone_it_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            after_adoption(tmp_path, [9], 29)
    assert hand_over(Checkpoint(open_store(str(tmp_path)))) == []
    assert [path.name for path in (tmp_path / "sources" / "orders").glob("*.compact")] == ["29.compact"]


def test_the_index_of_the_source_log_is_dropped_since_spark_goes_on_without_it(tmp_path: Path) -> None:
    made = with_files(tmp_path, 3)
    state = made.source_state("orders")
    state.put_if_absent("index/0-2", b"a segment")
    state.put_if_absent("schema", b"{}")
    hand_over(made)
    assert state.list("index") == []
    assert state.get("schema") == b"{}"


def test_a_gap_in_the_source_log_is_refused(tmp_path: Path) -> None:
    made = with_files(tmp_path, 12)
    (tmp_path / "sources" / "orders" / "4").unlink()
    with pytest.raises(BrokenLogError, match=r"sources/orders lacks \[4\]"):
        hand_over(made)


def test_a_torn_source_log_entry_is_refused(tmp_path: Path) -> None:
    made = with_files(tmp_path, 12)
    (tmp_path / "sources" / "orders" / "4").write_text('v1\n{"path":')
    with pytest.raises(CorruptEntryError, match="sources/orders/4"):
        hand_over(made)
    assert not list((tmp_path / "sources" / "orders").glob("*.compact"))


def test_other_kinds_of_sources_need_nothing(tmp_path: Path) -> None:
    made = claimed(tmp_path)
    ends = {"topic": '{"t":{"0":5}}', "rate": "4", "quiet": None}
    made.offset_log.add(0, replace(entry(0), ends=ends, starts={}))
    assert hand_over(made) == []


def test_names_that_spark_refuses_are_said(tmp_path: Path) -> None:
    made = claimed(tmp_path, sources=("late-orders",))
    made.offset_log.add(0, entry(0, source="late-orders"))
    with pytest.raises(CheckpointError, match=r"letters, digits and '_' only.*late-orders"):
        hand_over(made)


def test_nothing_to_hand_over(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no batch yet"):
        hand_over(claimed(tmp_path))
