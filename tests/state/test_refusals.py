"""A change that state cannot survive is refused with the way on, and does no harm to who takes it back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.exceptions import DefinitionError, EngineError
from airflow_provider_microbatch.execution.engine import Code, Handle
from airflow_provider_microbatch.runtime import streaming
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.other_state import refuse_other_spark
from tests.state.dying import dying
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.state.test_parse import STORE, stateful

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OF = "tests.state.transforms:"


@pytest.mark.parametrize(
    ("before", "refusals"),
    [
        (
            "counts",
            {
                "counts_by_text": r"key_schema=.*LongType.*StringType",
                "sums": r"value_schema=.*count.*sum",
                "as_they_are": r"\[\(OperatorId: 0 -> OperatorName: stateStoreSave\)\]; .* batch: \[\]",
                "once": r"OperatorName: stateStoreSave\)\]; .* batch: \[\(OperatorId: 0 -> OperatorName: dedupe",
            },
        ),
        ("as_they_are", {"counts": r"have kept none, and the transform has an operator that keeps it \(Aggregate\)"}),
    ],
    ids=["what operators keep", "the first operator"],
)
def test_a_transform_that_keeps_other_state_is_refused_and_the_one_of_before_goes_on(
    tmp_path: Path, engine: SessionEngine, before: str, refusals: dict[str, str]
) -> None:
    world = StatefulWorld(tmp_path, OF + before, engine=engine)
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)
    for number, (then, what) in enumerate(refusals.items(), start=1):
        world.transform = OF + then
        with pytest.raises(EngineError, match=what) as refused:
            world.run(1, try_number=number)
        assert "Put them back as they were, or begin a checkpoint and a table of their own" in str(refused.value)
        assert "stateSchemaCheck" not in str(refused.value)
    world.transform = OF + before
    world.run(1, try_number=len(refusals) + 1)

    assert list(world.table()) == [0, 1]


class _Told(SessionEngine):
    """Has each job told something else of who has kept the state."""

    def __init__(self, engine: SessionEngine, version: str, **conf: str) -> None:
        super().__init__(engine._spark)
        self._version, self._conf = version, {key.replace("__", "."): value for key, value in conf.items()}

    def start(self, handle: Handle, job: Job, code: Code) -> None:
        streaming = job.streaming
        if streaming is not None and streaming.before is not None:
            assert streaming.before["sparkVersion"] == self._spark.version
            conf = {**streaming.before["conf"], **self._conf}
            before = {**streaming.before, "sparkVersion": self._version, "conf": conf}
            job = replace(job, streaming=replace(streaming, before=before))
        super().start(handle, job, code)


def test_state_that_another_spark_has_kept_is_refused_where_this_one_does_not_read_it(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(tmp_path, OF + "counts", engine=_Told(engine, "4.0.4"))
    world.land("a", 1)
    world.run(0)
    world.land("b", 1)

    with pytest.raises(
        EngineError, match=r"kept by Spark 4\.0\.4, and this is Spark 4\.1.*version of before; or begin"
    ):
        world.run(1)


def test_state_that_a_newer_spark_lays_otherwise_is_refused_by_one_that_would_take_it_for_something_else(
    tmp_path: Path, engine: SessionEngine
) -> None:
    """Each row would be told again. Of an aggregate it reads the state as it is."""
    newer = _Told(engine, "4.3.0", spark__sql__dropDuplicates__deterministicKeyOrder__enabled="true")
    for transform in ("once_by_five", "counts"):
        (tmp_path / transform).mkdir()
        world = StatefulWorld(
            tmp_path / transform, OF + transform, engine=newer, mode="append" if "once" in transform else "update"
        )
        world.land("a", 1)
        world.run(0)
        world.land("b", 1)
        if transform == "counts":
            world.run(1)
            continue
        with pytest.raises(
            EngineError, match=r"kept by Spark 4\.3\.0 with \S+KeyOrder\S+=true, .* take what Deduplicate"
        ):
            world.run(1)
        assert list(world.table()) == [0]


@pytest.mark.parametrize("versions", [("4.1.3", "4.2.0"), ("4.3.0", "4.1.3"), ("4.0.4", "4.0.1")], ids=str)
def test_state_of_a_spark_that_is_read_is_not_refused(versions: tuple[str, str]) -> None:
    refuse_other_spark(*versions)


def test_what_keeps_no_state_goes_on_without(tmp_path: Path, engine: SessionEngine) -> None:
    world = StatefulWorld(tmp_path, OF + "beside_a_table", engine=engine)
    for number in range(2):
        world.land(f"{number}", number, 7)
        world.run(number)

    assert world.table() == {number: [{"id": number, "count": 1}] for number in range(2)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (STORE + "providerClass", "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"),
        (STORE + "checkpointFormatVersion", "1"),
        (STORE + "stateSchemaCheck", "false"),
    ],
)
def test_settings_that_no_state_of_two_attempts_survives_are_refused_at_parse(
    tmp_path: Path, name: str, value: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"conf '{name}'.*Leave it out"):
        stateful(tmp_path, conf={name: value})


def test_older_batches_are_made_again_behind_a_rewind_that_shows_what_it_takes_back(
    tmp_path: Path, engine: SessionEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """State too is that of the batch which it goes back to."""
    world = StatefulWorld(tmp_path, OF + "counts", engine=engine)
    for number in range(4):
        world.land(f"{number}", 1, 10 + number)
        world.run(number)
    words: list[Any] = ["rewind", str(tmp_path / "checkpoint"), "--to", "0", "--drop-output"]
    world.transform = OF + "counts_twice"

    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert list(world.table()) == [0, 1, 2, 3]
    assert main(words) == 0
    assert [number for number in (1, 2, 3) if f"batch {number}" not in shown and f"live/{number}" not in shown] == []
    number = 4
    while world.run(number) is not None:
        number += 1

    assert world.table() == {
        0: [{"id": 1, "count": 1}, {"id": 10, "count": 1}],
        **{number: [{"id": 1, "count": 1 + 2 * number}, {"id": 10 + number, "count": 2}] for number in (1, 2, 3)},
    }


@pytest.mark.parametrize("then", ["as_they_are", "sums"])
def test_an_attempt_at_the_first_batch_that_dies_leaves_no_operator_behind(
    tmp_path: Path, engine: SessionEngine, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Spark compares no operators at batch 0, and at batch 1 those that it finds: it would refuse that one for ever."""
    world = StatefulWorld(tmp_path, OF + "counts", engine=engine)
    world.land("a", 1)
    with monkeypatch.context() as patched:
        patched.setattr(streaming, "read_commit", dying(streaming.read_commit))
        with pytest.raises(EngineError, match="killed"):
            world.run(0)
    world.transform = OF + then
    world.run(0, try_number=2)
    world.land("b", 1)
    world.run(1)
    assert list(world.table()) == [0, 1]


@pytest.mark.parametrize("then", ["as_they_are", "once"])
def test_a_replay_of_the_first_batch_with_other_operators_is_refused(
    tmp_path: Path, engine: SessionEngine, then: str
) -> None:
    """It would be green, and the batch after it refused for ever."""
    world = StatefulWorld(tmp_path, OF + "counts", engine=engine)
    world.land("a", 1)
    world.run(0)
    world.transform = OF + then
    with pytest.raises(EngineError, match=r"an attempt at this batch has left before.* Put them back as they were, or"):
        world.run(0, clear_number=1)
    world.transform = OF + "counts"
    world.run(0, clear_number=1, try_number=2)
    world.land("b", 1)
    world.run(1)
    assert world.table() == {0: [{"id": 1, "count": 1}], 1: [{"id": 1, "count": 2}]}


def test_behind_a_rewind_to_before_the_first_batch_any_operators_begin_anew(
    tmp_path: Path, engine: SessionEngine
) -> None:
    world = StatefulWorld(tmp_path, OF + "counts", engine=engine)
    for number in range(2):
        world.land(f"{number}", 1)
        world.run(number)
    assert main(["rewind", str(tmp_path / "checkpoint"), "--to", "-1", "--drop-output"]) == 0
    world.transform = OF + "as_they_are"
    world.land("2", 2)
    for number in range(2, 5):
        world.run(number)
    assert world.table() == {0: [{"id": 1}], 1: [{"id": 1}], 2: [{"id": 2}]}
    (aside,) = (tmp_path / "checkpoint" / "repaired").glob("*/state")
    assert [path.name for path in aside.iterdir()] == ["0"]
