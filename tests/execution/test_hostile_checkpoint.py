"""A checkpoint that somebody else can write: the janitor does what it can, names the rest, and obeys none of it."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch.checkpoint.marks import Mark
from airflow_provider_microbatch.checkpoint.records import decode_record, encode_record
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.exceptions import CheckpointError, HandleError, MaintenanceError, UntrustedError
from airflow_provider_microbatch.job_status import JobContext, JobStatusHook
from airflow_provider_microbatch.runtime.statements import StatementFailure
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table import statements as statements
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.upkeep.commands.steps import DropOutput
from airflow_provider_microbatch.upkeep.janitor import Janitor
from airflow_provider_microbatch.upkeep.janitor_report import JanitorReport
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import planned, rewind
from tests.execution.world import CODE, KEY, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.support.leases import expire_leases


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.land(1)
    return made


def rewrite(world: World, path: str, **changes: Any) -> None:
    """Change an entry of the checkpoint by hand."""
    file = world.root / "checkpoint" / path
    values = {**decode_record(file.read_bytes(), where=path), **changes}
    file.write_bytes(encode_record(values))


def janitor(world: World) -> JanitorReport:
    """The janitor with the engines that there are."""
    return Janitor(checkpoint=world.checkpoint, engine_of=find_engine).run()


HANDLES: list[Any] = [
    {"engine": "spark-submit"},
    {"engine": "spark-submit", "host": "{host}", "tag": "{dags}", "master": "local[1]", "deploy_mode": "client",
     "application": "orders"},
    {"engine": "spark-connect", "host": "{host}", "tag": "", "pid": 1, "started": 0, "url": "sc://x", "conn_id": "y"},
]  # fmt: skip


@pytest.mark.parametrize("handle", HANDLES, ids=["no fields", "a folder for a tag", "init's pid"])
def test_a_hostile_handle_is_a_finding_and_the_stage_goes_all_the_same(world: World, handle: Any) -> None:
    dags = world.root / "dags"
    dags.mkdir()
    (dags / "orders.py").write_text("dag")
    world.staged()
    world.expire_leases()
    text = json.dumps(handle).replace("{host}", socket.gethostname()).replace("{dags}", str(dags))
    rewrite(world, "attempts/live/0/1", handle=json.loads(text))
    report = janitor(world)
    assert report.of("refused") == ["live/0 attempt 1"]
    assert "was not acted on" in report.problems[0]
    assert report.failed
    assert world.stages() == []
    assert (dags / "orders.py").exists()
    assert janitor(world).actions == []
    assert world.run(1).epoch == 3  # type: ignore[union-attr]
    assert world.table() == {0: [1]}


class Unknown(FileSink):
    """A sink whose module nobody trusts."""


def test_a_sink_that_may_not_be_loaded_is_named_with_the_setting_and_the_rest_is_done(world: World) -> None:
    world.run(0)
    world.land(2)
    world.options["sink"] = Unknown(str(world.lake), format="json")
    world.staged(1)
    world.expire_leases()
    report = janitor(world)
    assert "live/1 attempt 1" in report.of("refused")
    assert all("trusted_modules = tests.execution.test_hostile_checkpoint" in told for told in report.problems)
    assert world.stages() == ["live/1 attempt 1"], "nobody can tell whether it is published"
    at_hand = Janitor(checkpoint=world.checkpoint, engine_of=find_engine, sinks=[world.pipeline.sink]).run()
    assert at_hand.of("stage dropped") == ["live/1 attempt 1"]
    assert not at_hand.failed
    assert world.stages() == []


@dataclass(frozen=True)
class Trap(JobStatusHook):
    """A hook whose module nobody trusts."""

    path: str

    def on_failed(self, context: JobContext, error: str) -> None:
        Path(self.path).write_text(error)


def test_a_hook_that_may_not_be_loaded_is_named_and_the_stage_goes(world: World, tmp_path: Path) -> None:
    told = tmp_path / "told"
    world.options["hooks"] = [Trap(str(told))]
    world.staged()
    world.expire_leases()
    report = janitor(world)
    assert report.of("refused") == ["a hook of live/0 attempt 1"]
    assert "trusted_modules = tests.execution.test_hostile_checkpoint" in report.problems[0]
    assert report.of("stage dropped") == ["live/0 attempt 1"]
    assert not told.exists()
    at_hand = Janitor(
        checkpoint=world.checkpoint, engine_of=find_engine, sinks=[world.pipeline.sink], hooks=world.pipeline.hooks
    ).run()
    assert at_hand.of("attempt ended") == ["live/0 attempt 1"]
    assert "found dead" in told.read_text()
    assert janitor(world).actions == []


def test_who_has_the_pipeline_needs_no_trust_in_its_hooks(world: World, tmp_path: Path) -> None:
    told = tmp_path / "told"
    world.options["hooks"] = [Trap(str(told))]
    world.staged()
    world.expire_leases()
    world.run(1)
    assert "found dead" in told.read_text()
    assert janitor(world).actions == []


@pytest.mark.parametrize("path", ["evil_module:Hook", "os:system", "subprocess:Popen"])
def test_a_definition_that_names_another_program_is_not_run(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = world.root / "imported"
    (world.root / "evil_module.py").write_text(f"open({str(flag)!r}, 'w')\nclass Hook: pass\n")
    monkeypatch.syspath_prepend(str(world.root))
    world.staged()
    world.expire_leases()
    (name,) = world.checkpoint.definitions.names()
    whole = world.checkpoint.definitions.get(name)
    assert whole is not None
    hook = {"class": path, "version": 1, "arguments": {"path": "x", "args": ["touch", str(flag)]}}
    rewrite(world, f"microbatch/pipelines/{name}", arguments={**whole["arguments"], "hooks": [hook]})
    assert "a hook of live/0 attempt 1" in janitor(world).of("refused")
    assert not flag.exists()
    assert "evil_module" not in sys.modules
    assert world.stages() == []
    rewrite(world, f"microbatch/pipelines/{name}", arguments=whole["arguments"])
    assert not janitor(world).failed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Servers that were spoken to, none of which answers."""
    seen: list[str] = []

    def nobody(url: str, *_: Any, **__: Any) -> Any:
        seen.append(url)
        raise StatementFailure("", "nobody answers")

    monkeypatch.setattr(statements, "run_by_connect", nobody)
    monkeypatch.setattr(statements, "end_by_connect", nobody)
    return seen


def names_a_server(world: World) -> TableSink:
    """Have a dead attempt whose pipeline on record writes, and is hooked, by a server."""
    world.staged()
    world.expire_leases()
    (name,) = world.checkpoint.definitions.names()
    whole = world.checkpoint.definitions.get(name)
    assert whole is not None
    catalog = SparkCatalog(ConnectStatements("sc://evil:1"), str(world.root / "evil"))
    table = TableSink(catalog, "orders", schema="id long").of_pipeline("orders")
    hooks = [hook.to_dict() for hook in table.hooks()]
    (world.root / "evil/orders/_replaced").mkdir(parents=True)
    arguments = {**whole["arguments"], "sink": table.to_dict(), "hooks": hooks}
    rewrite(world, f"microbatch/pipelines/{name}", arguments=arguments)
    return table


def test_a_server_that_a_checkpoint_names_is_not_spoken_to(world: World, asked: list[str]) -> None:
    table = names_a_server(world)
    report = janitor(world)
    assert "live/0 attempt 1" in report.of("refused")
    assert all("trusted_servers = sc://evil:1" in told for told in report.problems)
    assert asked == []
    with pytest.raises(MaintenanceError, match="trusted_servers = sc://evil:1"):
        planned(world, rewind(-1))
    step = DropOutput(key="live/0", epoch=1, sink=table.to_dict(), where="x", why="")
    with pytest.raises(UntrustedError):
        step.apply(open_store(world.pipeline.checkpoint), is_over=lambda: False)
    assert check_table(world.checkpoint, everything=True).unasked is not None
    assert asked == []
    Janitor(checkpoint=world.checkpoint, engine_of=find_engine, sinks=[table]).run()
    assert set(asked) == {"sc://evil:1"}, "who has the pipeline at hand names its servers"


@pytest.mark.parametrize("sink", ["x", 7, [], {"class": "os:system"}, {"class": None}, {}], ids=repr)
def test_a_definition_that_is_none_is_a_finding(world: World, sink: Any) -> None:
    world.staged()
    world.expire_leases()
    (name,) = world.checkpoint.definitions.names()
    whole = world.checkpoint.definitions.get(name)
    assert whole is not None
    rewrite(world, f"microbatch/pipelines/{name}", arguments={**whole["arguments"], "sink": sink})
    assert janitor(world).failed
    for arguments in (None, "x", [], {"hooks": 7}, {"sink": whole["arguments"]["sink"], "hooks": "abc"}):
        rewrite(world, f"microbatch/pipelines/{name}", arguments=arguments)
        assert janitor(world).failed


def test_a_retention_that_no_pipeline_has_removes_nothing(world: World) -> None:
    for number in range(4):
        world.land(number + 1)
        world.run(number)
    (name,) = world.checkpoint.definitions.names()
    whole = world.checkpoint.definitions.get(name)
    assert whole is not None
    for kept in (-5, 0, 1, True, "2"):
        rewrite(world, f"microbatch/pipelines/{name}", arguments={**whole["arguments"], "min_batches_to_retain": kept})
        janitor(world)
        assert world.checkpoint.offset_log.ids() == [0, 1, 2, 3]


def test_a_mark_of_no_known_status_is_no_mark(world: World) -> None:
    world.staged()
    run = run_identity(0)
    mark = Mark(dag_id=run.dag_id, run_id=run.run_id, task_id=None, status="x", reason="y", marked_ms=2**62)
    world.checkpoint.marks.put(mark)
    world.expire_leases()
    assert not janitor(world).failed
    assert world.stages() == []


class Refusing(InlineEngine):
    """An engine to which every handle but its own is none."""

    def cancel(self, handle: Any) -> bool:
        if handle["tag"] == "hostile":
            raise HandleError("the handle was not acted on")
        return super().cancel(handle)


def test_the_next_attempt_ends_one_with_a_hostile_handle(world: World) -> None:
    world.staged()
    rewrite(world, "attempts/live/0/1", handle={"engine": "inline", "tag": "hostile"})
    expire_leases(world.root / "checkpoint")
    assert world.execution.run(run=run_identity(1), engine=Refusing(), code=CODE, transform=None) is not None
    assert world.checkpoint.attempts.ended(KEY, 1) is not None
    assert world.stages() == []


@pytest.mark.parametrize(
    "change",
    [
        {"handle": "spark-submit"},
        {"handle": None},
        {"handle": []},
        {"code": 7},
        {"started_ms": "now"},
        {"definition": "../../../etc/passwd"},
        {"definition": 7},
        {"request": "1"},
    ],
    ids=str,
)
def test_an_attempt_that_is_none_is_one_finding_and_the_rest_is_done(world: World, change: dict[str, Any]) -> None:
    world.run(0)
    world.land(2)
    world.staged(1)
    world.expire_leases()
    rewrite(world, "attempts/live/1/1", **change)
    report = janitor(world)
    assert report.of("failed")
    assert "attempts/live/1/1 is not what it should be" in " ".join(report.problems)
    assert world.table() == {0: [1]}


def test_an_entry_nested_without_end_is_a_broken_entry(world: World) -> None:
    world.staged()
    world.expire_leases()
    path = world.root / "checkpoint/attempts/live/0/1"
    path.write_bytes(b"v1\n" + b'{"handle":' + b"[" * 200_000)
    assert "is torn or no JSON" in " ".join(janitor(world).problems)


@pytest.mark.parametrize("path", ["attempts/live/1", "hooks/live/0/1", "replays/live", "attempts"])
def test_a_link_for_a_folder_of_old_entries_is_not_followed(tmp_path: Path, path: str) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        world.land(number)
        world.run(number)
    victim = tmp_path / "victim"
    (victim / "1" / "1").mkdir(parents=True)
    for file in ("dag.py", "1.failed", "1/1/1.failed", "1/dag.py", "1/1/dag.py"):
        (victim / file).write_text("x")
    before = sorted(victim.rglob("*"))
    link = tmp_path / "checkpoint" / path
    if link.is_dir():
        link.rename(tmp_path / "moved")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    with contextlib.suppress(CheckpointError):
        report = janitor(world)
        assert not report.failed or f"{link} is a link" in " ".join(report.problems)
    assert sorted(victim.rglob("*")) == before


def test_retention_leaves_files_that_are_none_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path, min_batches_to_retain=2)
    for number in range(4):
        world.land(number)
        world.run(number)
    kept = [world.root / "checkpoint" / path for path in ("attempts/live/0/note.txt", "hooks/live/0/1/note.txt")]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    janitor(world)
    assert all(file.exists() for file in kept)


@pytest.mark.parametrize("depth", [300, 700, 900, 5_000])
def test_a_definition_that_is_nested_too_deep_keeps_the_janitor_from_nothing_else(world: World, depth: int) -> None:
    world.staged()
    world.expire_leases()
    deep = '{"a":' * depth + "1" + "}" * depth
    path = world.root / "checkpoint/microbatch/pipelines" / ("0" * 64)
    path.write_text(f'v1\n{{"class": "x", "arguments": {{"sink": {deep}}}}}')
    report = janitor(world)
    assert report.of("stage dropped") == ["live/0 attempt 1"]
    assert any("0" * 64 in told for told in [*report.of("failed"), *report.of("refused")])
    assert world.run(1)
