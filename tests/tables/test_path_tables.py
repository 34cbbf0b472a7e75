"""Tables of a path catalog, from plan to commit: each statement where the table exists and where it does not, and what
is in storage when."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import (
    AttemptCanceledError,
    DefinitionError,
    HookError,
    MaintenanceError,
    PublishConflictError,
    SinkError,
    TransformError,
)
from airflow_provider_microbatch.job_status import JobContext, check_hook
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table import whole_folder as whole_folder
from airflow_provider_microbatch.sinks.table.path_catalog import PathCatalog
from airflow_provider_microbatch.sinks.table.staged_table import StagedTableHook
from tests.execution.maintaining import applied, rewind
from tests.execution.world import World
from tests.sinks.stages import batch_of, expect, write_stage
from tests.support.hooks import Diary, lines
from tests.support.inline_engine import InlineEngine
from tests.tables.stages import write_stage_table

pytestmark = pytest.mark.slow  # tables, services or worlds that live long

KEY = BatchKey("live", 0)
BATCH = batch_of(KEY)
EXPECTED = expect(KEY)
WHOLE = ("create", "create_if_not_exists", "replace", "create_or_replace")


def rows_of(folder: Path) -> list[int]:
    """Ids in the files below the folder that readers do not skip."""
    return sorted(
        json.loads(line)["id"] for path in folder.rglob("[!._]*.json") for line in path.read_text().splitlines()
    )


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Shop:
    """A world whose sink is the table ``sales.orders``."""

    world: World
    target: Path

    def ids(self) -> list[int] | None:
        """What a reader of a table that is made as a whole finds; None if there is no table."""
        if not self.target.exists():
            return None
        found = [path.read_text().splitlines() for path in self.target.glob("[!._]*.json")]
        return sorted(json.loads(line)["id"] for part in found for line in part)

    def somebody_else_makes_it(self, *ids: int) -> None:
        self.target.mkdir(parents=True)
        (self.target / "theirs.json").write_text("".join(json.dumps({"id": number}) + "\n" for number in ids))

    def kept(self) -> list[int]:
        """What was there before this catalog was told to replace it."""
        return rows_of(self.target.parent / "_tables" / self.target.name / "_kept")

    def kill(self, point: Callable[[pytest.MonkeyPatch], None]) -> None:
        """Run the next batch in a process that dies at ``point`` and cleans up nothing."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow_provider_microbatch.execution.execution.Execution.abandon", lambda *_, **__: None)
            point(patch)
            with pytest.raises(Killed):
                self.world.run(0)


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def shop(tmp_path: Path) -> Callable[[str], Shop]:
    def make(mode: str) -> Shop:
        catalog = PathCatalog(str(tmp_path / "lake"))
        world = World(tmp_path, sink=TableSink(catalog, "sales.orders", mode=mode, format="json"))
        world.land(1, 2)
        return Shop(world, tmp_path / "lake" / "sales" / "orders")

    return make


Make = Callable[[str], Shop]


@pytest.mark.parametrize("mode", ["create", "create_if_not_exists", "create_or_replace"])
def test_a_table_that_is_not_there_is_made(shop: Make, mode: str) -> None:
    made = shop(mode)
    summary = made.world.run(0)
    assert summary is not None
    assert summary.state == "committed"
    assert made.ids() == [1, 2]
    assert made.world.stages() == []


def test_replace_of_a_table_that_is_not_there_fails_before_anything_is_written(shop: Make) -> None:
    made, engine = shop("replace"), InlineEngine()
    with pytest.raises(SinkError, match=r"REPLACE TABLE sales.orders AS: there is no such table"):
        made.world.run(0, engine)
    assert engine.jobs == []
    assert made.world.checkpoint.offset_log.ids() == []
    assert not made.target.exists()


def test_create_of_a_table_that_is_there_fails_before_anything_is_written(shop: Make) -> None:
    made, engine = shop("create"), InlineEngine()
    made.somebody_else_makes_it(7)
    with pytest.raises(SinkError, match=r"CREATE TABLE sales.orders AS: the table exists, made by somebody else"):
        made.world.run(0, engine)
    assert engine.jobs == []
    assert made.world.checkpoint.offset_log.ids() == []
    assert made.ids() == [7]


def test_if_not_exists_of_a_table_that_is_there_does_nothing(shop: Make) -> None:
    made, engine = shop("create_if_not_exists"), InlineEngine()
    made.somebody_else_makes_it(7)
    assert made.world.run(0, engine) is None
    assert engine.jobs == []
    assert made.world.checkpoint.offset_log.ids() == []
    assert made.ids() == [7]


@pytest.mark.parametrize("mode", ["replace", "create_or_replace"])
def test_a_table_that_is_there_is_replaced_and_kept_for_its_readers(shop: Make, mode: str) -> None:
    made = shop(mode)
    made.somebody_else_makes_it(7)
    made.world.run(0)
    assert made.ids() == [1, 2]
    assert made.world.stages() == []
    made.world.land(3)
    made.world.run(1)
    (kept,) = made.world.pipeline.sink.drop_replaced(made.world.checkpoint_id, older_seconds=0, dry_run=True)
    assert len(rows_of(Path(kept))) == 2
    assert made.ids() == [3]
    assert len(made.world.janitor(grace_seconds=0).of("replaced output removed")) == 1
    assert made.kept() == [7], "what somebody else has made is never removed"


@pytest.mark.parametrize("mode", ["replace", "create_or_replace"])
@pytest.mark.parametrize("of", ["append", "FileSink"])
def test_the_batches_of_a_continuous_table_are_not_replaced(shop: Make, mode: str, of: str) -> None:
    made = shop("append" if of == "append" else "create")
    if of == "append":
        made.world.run(0)
    else:
        sink = FileSink(str(made.target), format="json")
        write_stage(sink, 1, batch=BATCH)
        sink.publish(EXPECTED, 1)
    before = sorted(made.target.rglob("*"))
    after = dataclasses.replace(made.world.pipeline.sink, mode=mode)  # type: ignore[type-var]
    with pytest.raises(SinkError, match="holds the batches of a continuous table"):
        after.admits(BATCH)
    assert sorted(made.target.rglob("*")) == before


@pytest.mark.parametrize("mode", WHOLE)
def test_the_table_appears_only_on_success(shop: Make, mode: str) -> None:
    made = shop(mode)
    if mode == "replace":
        made.somebody_else_makes_it(7)
    before = made.ids()
    seen: list[object] = []

    def look(job: Job) -> None:
        seen.append((made.ids(), made.world.stages()))

    assert made.world.stages() == []
    with pytest.raises(TransformError):
        made.world.run(0, InlineEngine(before_stage=look, transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    assert seen == [(before, ["live/0 attempt 1"])]
    assert made.ids() == before
    assert made.world.stages() == []
    with pytest.raises(AttemptCanceledError):
        made.world.run(0, InlineEngine(after_stage=look), should_stop=lambda: True)
    assert seen[1:] == [(before, ["live/0 attempt 2"])]
    assert made.ids() == before
    assert made.world.stages() == []
    made.world.run(0, try_number=2)
    assert made.ids() == [1, 2]


def test_a_continuous_table_is_there_before_batch_0_and_no_failure_drops_it(shop: Make) -> None:
    made = shop("append")
    with pytest.raises(TransformError):
        made.world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    assert made.target.is_dir()
    assert made.world.stages() == []
    made.world.lake = made.target
    made.world.run(0, try_number=2)
    made.world.land(3)
    made.world.run(1)
    assert made.world.table() == {0: [1, 2], 1: [3]}
    made.world.run(0, InlineEngine(transform=lambda sources: [{"id": 9}]), clear_number=1)
    assert made.world.table() == {0: [9], 1: [3]}
    assert made.world.stages() == []


def test_a_continuous_table_is_partitioned_by_the_same_columns_until_all_of_its_batches_are_out(shop: Make) -> None:
    """Spark finds no columns in folders of two depths: the whole table could not be read."""
    made = shop("append")
    made.world.run(0)
    made.world.land(3)
    sink = made.world.options["sink"]
    made.world.options["sink"] = dataclasses.replace(sink, partition_by=("day",))
    with pytest.raises(SinkError, match=r"written with partition_by=\(\), not \('day',\).* --to -1 --drop-output"):
        made.world.run(1)
    assert made.world.checkpoint.offset_log.ids() == [0], "nothing is planned"
    made.world.options["sink"] = sink
    applied(made.world, rewind(-1))
    made.world.options["sink"] = dataclasses.replace(sink, partition_by=("day",))
    made.world.run(1)
    made.world.lake = made.target
    assert made.world.table() == {0: [1, 2]}


def test_a_continuous_table_of_another_pipeline_or_of_nobody_is_not_touched(shop: Make) -> None:
    made = shop("append")
    made.somebody_else_makes_it(7)
    with pytest.raises(SinkError, match="not made by this catalog"):
        made.world.run(0)
    for path in made.target.iterdir():
        path.unlink()
    made.world.run(0)
    with pytest.raises(SinkError, match="pipeline 'orders', not 'other'"):
        made.world.pipeline.sink.of_pipeline("other").admits(BATCH)


@pytest.mark.parametrize("mode", ["append", "create_or_replace"])
def test_what_somebody_else_has_put_in_the_stages_place_stays(shop: Make, mode: str) -> None:
    made, engine = shop(mode), InlineEngine()
    made.world.run(0)
    made.world.land(3)
    theirs = made.world.stage_folder(key=BatchKey("live", 1)) / "theirs.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    with pytest.raises(HookError, match="is there already"):
        made.world.run(1, engine)
    assert engine.jobs == []
    assert theirs.exists()
    assert made.world.stages() == []
    assert made.world.run(1, try_number=2) is not None, "the next attempt has another stage"


def test_a_stage_table_of_another_pipeline_stays(shop: Make) -> None:
    made = shop("create_or_replace")
    sink = made.world.pipeline.sink
    own = made.world.checkpoint.claim(pipeline="orders", sources=["orders"], format="v2").query_id
    other = sink.of_pipeline("other")
    (hook,) = other.hooks()
    assert isinstance(hook, StagedTableHook)
    hook.on_created(JobContext(pipeline="other", key=KEY, epoch=1, run=None, stage="", checkpoint=own))
    with pytest.raises(HookError, match="is there already"):
        made.world.run(0)
    assert sink.stages(own) == []
    assert other.stages(own) == [(KEY, 1)]


def test_the_janitor_drops_the_stage_table_of_a_dead_attempt(shop: Make) -> None:
    made = shop("create_or_replace")
    made.kill(lambda patch: patch.setattr(InlineEngine, "result", die))
    assert made.world.stages() == ["live/0 attempt 1"]
    made.world.expire_leases()
    report = made.world.janitor()
    assert not report.failed
    assert report.of("stage dropped") == ["live/0 attempt 1"]
    assert made.world.stages() == []
    assert made.world.run(1) is not None
    assert made.ids() == [1, 2]


def test_the_hook_alone_drops_a_stage_of_which_there_is_only_the_mark(shop: Make) -> None:
    made = shop("create")
    made.kill(lambda patch: patch.setattr(InlineEngine, "start", die))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableSink, "drop_stage", lambda *_: False)
        made.world.expire_leases()
        made.world.janitor()
    assert made.world.stages() == []


def test_the_sinks_hook_comes_first_once_and_survives_the_log(tmp_path: Path) -> None:
    sink = TableSink(PathCatalog(str(tmp_path / "lake")), "orders", partition_by=["day"], options={"a": "b"})  # type: ignore[arg-type]
    diary = Diary(str(tmp_path / "diary"))
    pipeline = World(tmp_path, sink=sink, hooks=(diary,)).pipeline
    assert pipeline.hooks == (*pipeline.sink.hooks(), diary)
    assert Pipeline.from_dict(json.loads(json.dumps(pipeline.to_dict()))) == pipeline
    check_hook(pipeline.hooks[0], where="here")


def test_a_user_hook_that_refuses_leaves_no_stage_table(shop: Make, tmp_path: Path) -> None:
    made, diary = shop("create"), tmp_path / "diary"
    made.world.options["hooks"] = (Diary(str(diary)),)
    Path(f"{diary}.fails").write_text("diary created")
    with pytest.raises(HookError):
        made.world.run(0)
    assert lines(diary) == ["diary created live/0 1", "diary failed live/0 1"]
    assert made.world.stages() == []


AT = [
    ("before the mark of the table", lambda patch: patch.setattr(whole_folder, "put_mark", die)),
    ("before the rename or exchange", lambda patch: patch.setattr(whole_folder, "make_folders", die)),
    ("after it", lambda patch: patch.setattr(whole_folder.WholeFolder, "_keep_displaced", die)),
]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("name", "point"), AT, ids=[name for name, _ in AT])
def test_killed_while_it_publishes_the_table_is_whole_and_the_old_one_kept(
    shop: Make, name: str, point: Callable[[pytest.MonkeyPatch], None], exists: bool
) -> None:
    made = shop("create_or_replace")
    if exists:
        made.somebody_else_makes_it(7)
    made.kill(point)
    assert made.ids() == ([1, 2] if name == "after it" else [7] if exists else None)
    made.world.expire_leases()
    made.world.janitor()
    made.world.run(0, try_number=2)
    assert made.ids() == [1, 2]
    made.world.expire_leases()
    made.world.janitor()
    assert made.world.stages() == []
    kept = made.world.pipeline.sink.drop_replaced(made.world.checkpoint_id, older_seconds=0)
    assert kept == []
    assert made.kept() == ([7] if exists else [])
    assert not list((made.target.parent / "_tables" / "orders" / "_staging").glob("*/*/*"))


def test_an_attempt_that_slept_cannot_put_an_older_batch_back(shop: Make) -> None:
    made = shop("create_or_replace")
    sink = made.world.pipeline.sink
    assert isinstance(sink, TableSink)
    later = expect(BatchKey("live", 1))
    write_stage_table(sink, 1, batch=BATCH, rows=1)
    write_stage_table(sink, 1, batch=later.identity, rows=2)
    sink.publish(later, 1)
    with pytest.raises(PublishConflictError, match=r"output of batch live/1, which is later than batch live/0"):
        sink.publish(EXPECTED, 1)
    assert made.ids() == [0, 1]


def test_a_table_made_meanwhile_by_somebody_else_is_not_replaced_by_create(shop: Make) -> None:
    made = shop("create")
    with pytest.raises(SinkError, match="the table exists"):
        made.world.run(0, InlineEngine(after_stage=lambda job: made.somebody_else_makes_it(7)))
    assert made.ids() == [7]
    assert made.world.stages() == []


def test_a_clear_replays_the_statement_but_never_over_a_later_batch(shop: Make) -> None:
    made = shop("create_or_replace")
    made.world.run(0)
    made.world.run(0, InlineEngine(transform=lambda sources: [{"id": 9}]), clear_number=1)
    assert made.ids() == [9]
    made.world.land(3)
    made.world.run(1)
    engine = InlineEngine()
    with pytest.raises(HookError, match=r"output of batch live/1, which is later than batch live/0"):
        made.world.run(0, engine, clear_number=2)
    assert engine.jobs == []
    assert made.ids() == [3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"catalog": "/lake"}, "not a Catalog"),
        ({"table": "Sales.orders"}, "small letters"),
        ({"table": "a.b.c"}, "namespace.table"),
        ({"table": "orders__stage"}, "single underscores"),
        ({"mode": "overwrite"}, "none of append, create"),
        ({"format": "delta"}, "format 'delta'"),
        ({"partition_by": "day"}, "list of columns"),
        ({"schema": " "}, "DDL"),
    ],
)
def test_bad_arguments_are_named_where_they_are_written(changes: dict[str, object], said: str) -> None:
    given = {"catalog": PathCatalog("/lake"), "table": "sales.orders", **changes}
    with pytest.raises(DefinitionError, match=said):
        TableSink(given.pop("catalog"), given.pop("table"), **given)  # type: ignore[arg-type]


def test_a_rewind_that_would_have_to_take_a_batch_out_of_a_table_that_is_made_whole_is_not_begun(shop: Make) -> None:
    made = shop("create_or_replace")
    made.world.run(0)
    made.world.expire_leases()
    before = made.world.files()
    with pytest.raises(MaintenanceError, match=r"no batch can be taken out of[\s\S]*drop the table"):
        applied(made.world, rewind(-1))
    assert made.world.files() == before
    shutil.rmtree(made.target)
    applied(made.world, rewind(-1))
    made.world.run(1)
    assert made.ids() == [1, 2]
