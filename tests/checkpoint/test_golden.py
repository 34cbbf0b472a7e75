"""Checkpoints that real streaming queries wrote (``tests/data/golden/make_golden.py``) are read whole, and written back
byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.codec import decode_offsets, encode_commit, encode_offsets
from airflow_provider_microbatch.checkpoint.entries import CommitEntry
from airflow_provider_microbatch.checkpoint.lane import Tail
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import ForeignCheckpointError, SourceCountError
from airflow_provider_microbatch.stores.location import open_store

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CASES = {"spark-4.1.3-v1": "v1", "spark-4.2.0-v2": "v2"}
SOURCES = ("orders", "refunds")


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden checkpoint."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def open_golden(folder: Path) -> Checkpoint:
    return Checkpoint(open_store(str(folder)), sources=SOURCES)


def test_everything_is_read(golden: Path) -> None:
    checkpoint = open_golden(golden)
    identity = checkpoint.identity()
    assert identity is not None
    assert identity.pipeline is None
    assert identity.format == CASES[golden.name]
    assert identity.query_id == json.loads((golden / "metadata").read_text())["id"]
    assert checkpoint.lane("live").tail() == Tail(offset_id=11, commit_id=10)
    assert checkpoint.offset_log.ids() == list(range(12))
    first, last = checkpoint.offset_log.get(0), checkpoint.offset_log.get(11)
    assert first is not None
    assert last is not None
    assert first.ends.get("refunds") is None
    assert first.ends["orders"] == '{"logOffset":0}'
    assert last.ends == {"orders": '{"logOffset":11}', "refunds": '{"logOffset":0}'}
    assert last.conf["spark.sql.shuffle.partitions"] == "1"
    assert last.batch_timestamp_ms > 1_700_000_000_000
    assert last.run is last.pipeline is None
    assert checkpoint.commit_log.get(10) == CommitEntry()
    assert verify_all(checkpoint) == []


def test_what_was_read_is_written_back_byte_for_byte(golden: Path) -> None:
    for path in (golden / "offsets").iterdir():
        data = path.read_bytes()
        entry = decode_offsets(data, where=str(path), names=SOURCES)
        assert encode_offsets(entry, version=CASES[golden.name], names=SOURCES) == data
    for path in (golden / "commits").iterdir():
        assert encode_commit(open_golden(golden).commit_log.get(int(path.name)) or CommitEntry()) == path.read_bytes()


def test_adoption_keeps_format_query_and_source_logs(golden: Path) -> None:
    before = open_golden(golden).identity()
    assert before is not None
    checkpoint = open_golden(golden)
    claimed = checkpoint.claim(pipeline="orders", sources=SOURCES, format="v1" if before.format == "v2" else "v2")
    assert claimed.pipeline == "orders"
    assert (claimed.format, claimed.query_id) == (before.format, before.query_id)
    assert "9.compact" in checkpoint.source_log("orders").list("")
    assert checkpoint.source_log("refunds").list("") == ["0"]
    assert open_golden(golden).identity() == claimed
    with pytest.raises(ForeignCheckpointError, match=r"belongs to pipeline 'orders', not to 'other'"):
        open_golden(golden).claim(pipeline="other", sources=SOURCES, format="v2")
    assert verify_all(checkpoint) == []


def test_a_v1_checkpoint_is_not_adopted_with_another_number_of_sources(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "spark-4.1.3-v1", tmp_path / "checkpoint"))
    before = sorted(folder.rglob("*"))
    checkpoint = Checkpoint(open_store(str(folder)), sources=("orders",))
    with pytest.raises(SourceCountError, match=r"There are \[2\] sources .* now there are \[1\] sources"):
        checkpoint.lane("live").tail()
    with pytest.raises(SourceCountError, match=r"There are \[2\] sources"):
        checkpoint.claim(pipeline="orders", sources=("orders",), format="v2")
    assert sorted(folder.rglob("*")) == before, "nothing was written"


def test_golden_data_names_no_machine() -> None:
    for path in GOLDEN.rglob("*"):
        if path.parent.parent.name == "sources":
            urls = [json.loads(line)["path"] for line in path.read_text().split("\n")[1:]]
            assert all(url.startswith(("file:///data/", "file://@ROOT@/")) for url in urls)
