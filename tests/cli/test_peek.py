"""``microbatch peek``: a look ahead that leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.execution.execution import Execution
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.local_spark import another_jvm

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def own_jvm() -> Iterator[None]:
    """As in the command's own process."""
    with another_jvm():
        yield


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_next_range_is_read_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.land(1, 2)
    world.run(0)
    world.land(10, 11, 12)
    before = everything(tmp_path)
    assert main(["peek", world.pipeline.checkpoint, "--rows", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith('batch live/1 would be planned now: {"logOffset":0} → {"logOffset":1}, 1 files')
    assert re.findall(r"\| *(\d+) *\|", told) == ["10", "11"]
    assert everything(tmp_path) == before
    # As if nobody had looked.
    assert world.run(1) is not None
    assert world.table() == {0: [1, 2], 1: [10, 11, 12]}


def test_a_planned_batch_is_shown_as_it_was_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.land(1)
    world.staged(0)
    world.land(2)
    assert main(["peek", world.pipeline.checkpoint, "--source", "orders", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batch"], told["planned"], told["rows"]) == ("live/0", True, [{"id": 1}])


def test_where_nothing_is_new_no_spark_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.land(1)
    world.run(0)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["peek", world.pipeline.checkpoint]) == 0
    assert capsys.readouterr().out.endswith("nothing new\n")


def test_what_cannot_be_shown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, sources=("orders", "refunds"))
    world.land(1)
    world.land(2, source="refunds")
    world.run(0)
    assert main(["peek", world.pipeline.checkpoint]) == 2
    assert "--source: it reads 'orders', 'refunds'" in capsys.readouterr().err
    assert main(["peek", world.pipeline.checkpoint, "--source", "order"]) == 2
    assert "no source 'order'" in capsys.readouterr().err


def test_a_range_without_a_known_end_is_left_to_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    (tmp_path / "head").write_text("3")
    late = CounterSource(str(tmp_path / "head"), late=True)
    pipeline = dataclasses.replace(world.pipeline, sources={"orders": late})
    execution = Execution(pipeline=pipeline, checkpoint=world.checkpoint, clock_ms=lambda: 1_700_000_000_000)
    planned = execution.plan(run_identity(0))
    assert planned is not None
    execution.open_attempt(key=planned.key, run=run_identity(0), code=CODE, engine=InlineEngine())
    assert main(["peek", world.pipeline.checkpoint]) == 2
    assert "is known only after" in capsys.readouterr().err
