"""Plan, submit and commit as tasks of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_microbatch.checkpoint.attempts import Attempts
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines.spark_connect import SparkConnectEngine
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    AttemptFencedError,
    BrokenLogError,
    DefinitionError,
    OutrunError,
    SinkError,
    TransformError,
)
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.operators.steps import (
    CommitMicroBatchOperator,
    PlanMicroBatchOperator,
    SubmitMicroBatchOperator,
    micro_batch_steps,
)
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.several import Sinks
from airflow_provider_microbatch.task_context.run_context import identity_of
from airflow_provider_microbatch.upkeep.commands.alive import alive
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.airflow_face.support import InlineOperator, InlineSubmit, context, transform_file
from tests.execution.test_clears import committed_two
from tests.execution.world import CODE, World
from tests.support.inline_engine import InlineEngine

KEY = BatchKey("live", 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    transform_file(tmp_path / "bundle")
    world = World(tmp_path)
    world.landing()
    return world


def plan(world: World, **kwargs: Any) -> str:
    given = context(world.root / "bundle", task_id="plan", **kwargs)
    return PlanMicroBatchOperator(task_id="plan", pipeline=world.pipeline).execute(given)


def submit(world: World, key: str, engine: InlineEngine | None = None, **kwargs: Any) -> dict[str, Any]:
    given = context(world.root / "bundle", task_id="submit", **kwargs)
    task = InlineSubmit(task_id="submit", pipeline=world.pipeline, key=key, inline=engine or InlineEngine())
    return task.execute(given)


def commit(world: World, submitted: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    given = context(world.root / "bundle", task_id="commit", **kwargs)
    return CommitMicroBatchOperator(task_id="commit", pipeline=world.pipeline, submitted=submitted).execute(given)


def test_output_of_before_a_clear_that_is_published_first_does_not_pass_for_the_clears(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land(1)
    key = plan(world)
    before = submit(world, key)
    take = Attempts.take_exactly

    def late(attempts: Attempts, attempt: Attempt) -> bool:
        published = world.checkpoint.attempts.get(KEY, before["epoch"])
        assert published is not None
        world.execution.publish(published)
        return take(attempts, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(Attempts, "take_exactly", late)
        again = submit(world, key, clear_number=1)
    with pytest.raises(OutrunError, match="Clear the submit task"):
        commit(world, again, clear_number=1)


def test_the_steps_make_a_batch_and_audits_find_the_stage(world: World) -> None:
    world.land(1, 2)
    key = plan(world)
    assert key == "live/0"
    submitted = submit(world, key)
    assert (submitted["key"], submitted["epoch"], submitted["format"]) == ("live/0", 1, "json")
    staged = Path(submitted["stage"].removeprefix("file://"))
    assert list(staged.glob("*.json"))
    assert world.table() == {}
    summary = commit(world, submitted)
    assert world.table() == {0: [1, 2]}
    assert (summary["state"], summary["rows_out"]) == ("committed", 2)


def test_audits_find_the_stage_of_each_of_several_sinks(world: World) -> None:
    names = ("orders", "daily")
    world.options["sink"] = Sinks({name: FileSink(str(world.root / name), format="json") for name in names})
    world.land(1, 2)
    submitted = submit(world, plan(world))
    assert list(submitted["stages"]) == list(names)
    assert submitted["stage"] == submitted["stages"]["orders"]["stage"]
    for handed_on in submitted["stages"].values():
        assert handed_on["format"] == "json"
        assert list(Path(handed_on["stage"].removeprefix("file://")).glob("*.json"))
    assert commit(world, submitted)["rows_by_sink"] == dict.fromkeys(names, 2)


def test_nothing_new_skips_all_steps_at_plan(world: World) -> None:
    with pytest.raises(AirflowSkipException):
        plan(world)


def test_plan_finds_a_missing_transform_before_it_writes(world: World) -> None:
    world.land(1)
    (world.root / "bundle" / "jobs" / "orders.py").unlink()
    with pytest.raises(DefinitionError):
        plan(world)
    assert world.files() == {}


def test_clearing_submit_begins_the_next_attempt_and_drops_the_stage_before(world: World) -> None:
    world.land(1)
    first = submit(world, plan(world))
    second = submit(world, "live/0", clear_number=1)
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert world.stages() == ["live/0 attempt 2"]
    with pytest.raises((AttemptFencedError, SinkError)):
        commit(world, first)
    assert world.table() == {}
    commit(world, second)
    assert world.table() == {0: [1]}


def test_a_refused_batch_keeps_its_stage_until_the_next_run_takes_it_up(world: World) -> None:
    world.land(1)
    submit(world, plan(world))
    world.land(2)
    assert world.stages() == ["live/0 attempt 1"]
    key = plan(world, number=2)
    assert key == "live/0"
    submitted = submit(world, key, number=2)
    assert world.stages() == ["live/0 attempt 2"]
    commit(world, submitted, number=2)
    assert world.table() == {0: [1]}


def test_plan_leaves_a_batch_to_the_running_run_that_is_at_it(world: World) -> None:
    world.land(1)
    submitted = submit(world, plan(world))
    with pytest.raises(AirflowSkipException, match="attempt 1 of run 'run-1' of DAG 'orders' is alive"):
        plan(world, number=2, running=("run-1",))
    commit(world, submitted)
    assert world.table() == {0: [1]}


def test_plan_leaves_a_batch_to_the_running_run_that_has_not_submitted_it(world: World) -> None:
    world.land(1)
    plan(world)
    with pytest.raises(AirflowSkipException, match="live/0 is in progress: run 'run-1' of DAG 'orders' planned it"):
        plan(world, number=2, running=("run-1",))
    assert plan(world, number=2) == "live/0", "that run has ended"


def test_of_two_runs_past_plan_the_second_submit_skips_and_stops_nothing(world: World) -> None:
    world.land(1)
    key = plan(world)
    assert plan(world, number=2) == key
    submitted = submit(world, key)
    engine = InlineEngine()
    with pytest.raises(AirflowSkipException, match="attempt 1 of run 'run-1'"):
        submit(world, key, engine, number=2, running=("run-1",))
    assert (engine.jobs, engine.cancelled) == ([], [])
    commit(world, submitted)
    with pytest.raises(AirflowSkipException, match="committed already"):
        submit(world, key, engine, number=2)
    assert engine.jobs == []
    assert world.table() == {0: [1]}


def test_two_submits_that_both_find_the_batch_free_open_one_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land(1)
    plan(world, number=9)
    key = plan(world)
    plan(world, number=2)
    real = Attempts.take_exactly

    def take_exactly(self: Attempts, attempt: Attempt) -> bool:
        monkeypatch.setattr(Attempts, "take_exactly", real)
        submit(world, key)
        return real(self, attempt)

    monkeypatch.setattr(Attempts, "take_exactly", take_exactly)
    with pytest.raises(AirflowSkipException, match="attempt 1 of run 'run-1'"):
        submit(world, key, number=2, running=("run-1",))
    assert [attempt.run.run_id for attempt in world.checkpoint.attempts.all(KEY) if attempt.run] == ["run-1"]


def test_steps_whose_task_before_was_marked_success_say_which_to_clear(world: World) -> None:
    """Airflow hands them nothing."""
    world.land(1)
    with pytest.raises(AirflowFailException, match="Clear the plan task"):
        submit(world, None)  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match="Clear the submit task"):
        commit(world, None)  # type: ignore[arg-type]
    submitted = submit(world, plan(world))
    commit(world, submitted)
    assert world.table() == {0: [1]}


def test_a_command_names_the_run_whose_stage_waits_for_audits(world: World) -> None:
    world.land(1)
    submit(world, plan(world))
    (found,) = alive(world.checkpoint, lambda name: None)
    attempt = world.checkpoint.attempts.get(KEY, 1)
    assert attempt is not None
    assert attempt.run is not None
    assert "waits for its audits" in found
    assert f"Clear the submit task of run {attempt.run.run_id!r}" in found


def test_a_command_goes_on_despite_audits_if_that_is_said_and_only_then(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """An audit has refused the stage, and nothing runs: its lease would keep all commands out for a day."""
    world.land(1)
    commit(world, submit(world, plan(world)))
    world.land(2)
    refused = submit(world, plan(world, number=2), number=2)
    location = world.pipeline.checkpoint
    assert main(["rewind", location, "--to", "-1", "--drop-output"]) == 2
    assert "run this again with --despite-audits" in capsys.readouterr().err
    assert main(["rewind", location, "--to", "-1", "--drop-output", "--despite-audits"]) == 0
    with pytest.raises((AttemptFencedError, BrokenLogError)):
        commit(world, refused, number=2)
    assert world.table() == {}
    world.run(7)
    world.run(8)
    assert world.table() == {0: [1], 1: [2]}
    assert world.stages() == []


def test_a_source_is_renamed_despite_audits_and_its_stage_is_published(world: World) -> None:
    world.land(1)
    waiting = submit(world, plan(world))
    assert main(["rename-source", world.pipeline.checkpoint, "orders", "sales"]) == 2
    assert main(["rename-source", world.pipeline.checkpoint, "orders", "sales", "--despite-audits"]) == 0
    world.sources = {"sales": world.sources.pop("orders")}
    commit(world, waiting)
    world.land(2)
    world.run(7)
    assert world.table() == {0: [1], 1: [2]}


def test_an_attempt_that_is_at_its_batch_keeps_commands_out_also_despite_audits(world: World) -> None:
    world.land(1)
    world.staged(0)
    assert main(["rewind", world.pipeline.checkpoint, "--to", "-1", "--despite-audits"]) == 2


def test_clearing_commit_only_says_commit_again(world: World) -> None:
    world.land(1)
    submitted = submit(world, plan(world))
    first = commit(world, submitted)
    before = world.files()
    assert commit(world, submitted, clear_number=1) == first
    assert world.files() == before
    assert world.table() == {0: [1]}


def test_clearing_all_steps_replays_the_batch(world: World) -> None:
    world.land(1)
    commit(world, submit(world, plan(world)))
    world.land(2)
    key = plan(world, clear_number=1)
    assert key == "live/0"
    double = InlineEngine(transform=lambda sources: [{"id": row["id"] * 10} for row in sources["orders"]])
    commit(world, submit(world, key, double, clear_number=1), clear_number=1)
    assert world.table() == {0: [10]}


def test_check_says_to_clear_all_steps_of_a_batch_that_is_missing(world: World) -> None:
    """Of the first alone the others stay green, and the batch missing."""
    world.land(1)
    commit(world, submit(world, plan(world)))
    shutil.rmtree(world.lake / "lane=live" / "batch_id=0")
    (finding,) = check_table(world.checkpoint, everything=True).findings
    assert (
        "Clear task 'plan' of run 'run-1' of DAG 'orders' with all that comes after it (\"Downstream\")"
        in finding.repair
    )


def test_of_a_run_that_has_made_several_the_steps_replay_the_last_and_name_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator of one task had made them, and died after the commit; the DAG has steps since."""
    committed_two(world)
    with caplog.at_level("WARNING"):
        assert plan(world, number=0, clear_number=1) == "live/2"
    assert "This run has made batch live/0 too" in caplog.text
    assert "put a MicroBatchOperator in the place of the steps, and clear the run again" in caplog.text
    engine = InlineEngine()
    InlineOperator(task_id="micro_batch", pipeline=world.pipeline, inline=engine).execute(
        context(world.root / "bundle", number=0, clear_number=2)
    )
    assert [job.batch_id for job in engine.jobs] == [0, 2]


def test_commit_without_a_stage_publishes_nothing(world: World) -> None:
    world.land(1)
    plan(world)
    with pytest.raises(BrokenLogError, match="no attempt 3"):
        commit(world, {"key": "live/0", "epoch": 3})
    assert world.checkpoint.commit_log.latest_id() is None


def test_a_submit_that_fails_leaves_no_stage(world: World) -> None:
    def broken(sources: Any) -> Any:
        raise ValueError("no such column")

    world.land(1)
    key = plan(world)
    with pytest.raises(TransformError, match="no such column"):
        submit(world, key, InlineEngine(transform=broken))
    assert world.stages() == []
    end = world.checkpoint.attempts.ended(KEY, 1)
    assert end is not None
    assert end.state == "failed"


def test_a_submit_that_fails_too_often_sets_the_batch_aside_and_a_clear_runs_it(world: World) -> None:
    def broken(sources: Any) -> Any:
        raise ValueError("no such column")

    world.options |= {"on_failure": "set_aside", "set_aside_after": 2}
    world.land(1)
    key = plan(world)
    with pytest.raises(TransformError):
        submit(world, key, InlineEngine(transform=broken))
    with pytest.raises(AirflowFailException, match="live/0 was set aside after 2 failed attempts"):
        submit(world, key, InlineEngine(transform=broken), try_number=2)
    world.land(2)
    commit(world, submit(world, plan(world, number=2), number=2), number=2)
    assert world.table() == {1: [2]}
    with pytest.raises(AirflowFailException, match=r"live/0 was set aside.* comes after it, .Downstream"):
        submit(world, key, try_number=3)
    summary = commit(world, submit(world, key, clear_number=1), clear_number=1)
    assert (summary["state"], summary["rows_out"]) == ("committed", 1)
    assert world.table() == {0: [1], 1: [2]}


def test_on_kill_of_submit_leaves_no_stage(world: World) -> None:
    world.land(1)
    engine = InlineEngine()
    task = InlineSubmit(task_id="submit", pipeline=world.pipeline, key=plan(world), inline=engine)

    def kill(job: Job) -> None:
        task.on_kill()

    engine.after_stage = kill
    with pytest.raises(AttemptCanceledError):
        task.execute(context(world.root / "bundle"))
    assert world.stages() == []


def test_on_kill_of_commit_publishes_nothing(world: World) -> None:
    world.land(1)
    submitted = submit(world, plan(world))
    task = CommitMicroBatchOperator(task_id="commit", pipeline=world.pipeline, submitted=submitted)
    task.on_kill()
    with pytest.raises(AttemptCanceledError):
        task.execute(context(world.root / "bundle"))
    assert world.table() == {}


def test_submit_of_a_batch_that_was_never_planned_opens_no_attempt(world: World) -> None:
    with pytest.raises(BrokenLogError):
        submit(world, "live/0")
    assert world.checkpoint.attempts.all(KEY) == []


def test_what_a_running_server_cannot_heed_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WARM", '{"conn_type": "spark_connect", "host": "localhost"}')
    given: dict[str, Any] = {"conn_id": "warm", "jars": "a.jar", "driver_memory": "1g", "conf": {"spark.x": "1"}}
    for operator in (
        SubmitMicroBatchOperator(task_id="submit", pipeline=world.pipeline, key="live/0", **given),
        MicroBatchOperator(task_id="batch", pipeline=world.pipeline, **given),
    ):
        caplog.clear()
        assert isinstance(operator.engine(), SparkConnectEngine)
        assert "not used: driver_memory, jars" in caplog.text


def test_submit_is_never_resumed_by_airflow(world: World) -> None:
    # durable=True skips the submission after a clear, since its note of the job's success survives that.
    assert SubmitMicroBatchOperator(task_id="s", pipeline=world.pipeline, key="live/0").durable is False


@pytest.mark.parametrize("argument", ["application", "py_files"])
def test_submit_refuses_an_application_of_the_users_own(world: World, argument: str) -> None:
    with pytest.raises(DefinitionError, match=argument):
        SubmitMicroBatchOperator(task_id="s", pipeline=world.pipeline, key="live/0", **{argument: "job.py"})


def test_the_group_puts_the_audits_between_submit_and_commit(world: World) -> None:
    @task
    def decorated(staged: dict[str, Any]) -> None: ...

    def plain(staged: dict[str, Any]) -> None: ...

    with DAG("d", schedule=None, max_active_runs=1) as dag:
        micro_batch_steps(world.pipeline, audit=[decorated, plain], executor_memory="2g")
    assert dag.get_task("micro_batch.submit").downstream_task_ids == {
        "micro_batch.decorated",
        "micro_batch.plain",
        "micro_batch.commit",
    }
    assert dag.get_task("micro_batch.commit").upstream_task_ids == {
        "micro_batch.decorated",
        "micro_batch.plain",
        "micro_batch.submit",
    }
    assert dag.get_task("micro_batch.plan").downstream_task_ids == {"micro_batch.submit"}


def test_the_group_refuses_a_dag_that_lets_two_runs_be_between_plan_and_commit(world: World) -> None:
    with DAG("d", schedule=None, max_active_runs=2), pytest.raises(DefinitionError, match="max_active_runs=1"):
        micro_batch_steps(world.pipeline)


def test_the_plan_of_a_clear_hands_on_the_batch_that_submit_of_its_run_is_still_alive_at(world: World) -> None:
    """The submit that follows takes its own attempt over."""
    world.land(1)
    planned = world.execution.load(BatchKey.parse(plan(world)))
    run = identity_of(context(world.root / "bundle", task_id="submit"))
    world.execution.open_attempt(key=planned.key, run=run, code=CODE, engine=InlineEngine())
    key = plan(world, clear_number=1)
    assert submit(world, key, clear_number=1)["epoch"] == 2
