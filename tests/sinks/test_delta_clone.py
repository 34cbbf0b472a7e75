"""A Delta table that somebody has made by SHALLOW CLONE of another: its files are that one's, which removes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SinkError
from airflow_provider_microbatch.sinks import OpenSink
from tests.sinks.delta_world import damage, opened, publish, rows, table
from tests.sinks.delta_world import root as root
from tests.sinks.delta_world import sink as sink
from tests.support.merged_changes import MERGES

_CLONED = {
    "commitInfo": {"timestamp": 1795799596896, "operation": "CLONE", "operationParameters": {}, "readVersion": -1}
}
"""As Delta's Spark tells it. delta-rs cannot read that."""


@pytest.fixture
def clone(sink: OpenSink, root: Path, tmp_path: Path) -> Path:
    """Of a table with batches 5 and 6."""
    for number in (5, 6):
        publish(sink, number)
    lines = [json.loads(line) for log in sorted((root / "_delta_log").glob("*.json")) for line in log.open()]
    files = [
        {"add": {**line["add"], "path": f"{root.as_uri()}/{line['add']['path']}"}} for line in lines if "add" in line
    ]
    made = [line for line in lines if {"metaData", "protocol"} & line.keys()]
    to = tmp_path / "clone"
    (to / "_delta_log").mkdir(parents=True)
    (to / "_delta_log" / f"{0:020}.json").write_text(
        "".join(json.dumps(one) + "\n" for one in (_CLONED, *made, *files))
    )
    return to


@pytest.mark.parametrize("given", [{}, {"merge": MERGES[1]}], ids=["rows", "changes"])
def test_it_is_refused_before_anything_is_written(clone: Path, given: dict[str, object]) -> None:
    at = opened(clone, **given)
    for ask in (at.check, at.check_whole):
        with pytest.raises(SinkError, match="lies in another table's folder: it is a clone"):
            ask()


def test_nothing_is_published_to_a_table_that_has_become_one(clone: Path) -> None:
    with pytest.raises(SinkError, match="it is a clone"):
        publish(opened(clone), 7)
    assert table(clone).version() == 0


def test_commits_that_delta_rs_cannot_read_are_told_as_the_sinks_error(sink: OpenSink, root: Path) -> None:
    for number in (5, 6):
        publish(sink, number)
    table(root).delete("batch_id = 6")
    (log,) = (root / "_delta_log").glob(f"{0:020}.json")
    log.write_text(json.dumps(_CLONED) + "\n" + "".join(x for x in log.open() if "commitInfo" not in x))
    assert rows(root) == {(5, 1): 3}
    with pytest.raises(SinkError, match=r"cannot read the commits of the Delta table .*invalid value"):
        damage(sink, 6)
