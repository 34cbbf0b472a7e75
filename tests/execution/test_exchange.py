"""``export`` and ``import``: copies that both sides go on from; with a real query in ``tests/spark_exchange``."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from airflow_provider_microbatch.exceptions import BatchSetAsideError, BrokenLogError, CheckpointError, MaintenanceError
from airflow_provider_microbatch.execution.dead_letters import execution_of, replaying
from airflow_provider_microbatch.execution.intervals import lane_of
from airflow_provider_microbatch.runtime.streaming import PROVIDER, ROCKSDB, state_settings
from airflow_provider_microbatch.stores.location import open_store
from airflow_provider_microbatch.stores.posix import PosixStore
from airflow_provider_microbatch.upkeep.commands import exchange_state
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.copying import copy_checkpoint
from airflow_provider_microbatch.upkeep.commands.exchange import plan_export, plan_import
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from tests.checkpoint.test_golden import GOLDEN
from tests.execution.intervals import IntervalWorld, backfill_run, hour
from tests.execution.maintaining import applied, planned, rewind, slow_place
from tests.execution.test_dead_letters import Checked, refusing
from tests.execution.world import CODE, World, run_identity
from tests.support.inline_engine import InlineEngine

CODEC = "spark.sql.streaming.stateStore.compression.codec"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Eleven batches of one row each, all committed."""
    world = World(tmp_path)
    for number in range(11):
        world.land(number)
        world.run(number)
    return world


def exported(world: World, target: Path) -> Plan:
    return applied(world, lambda drafting: plan_export(drafting, target=str(target)))


def imported(source: Path, location: Path, *, pipeline: str = "orders", sources: tuple[str, ...] = ()) -> Plan:
    """As the command line does it."""
    store = open_store(str(location))
    applier = Applier(store=store, engine_of=lambda name: None, clock_ms=lambda: 1)
    applier.finish()

    def make() -> Plan:
        drafting = Drafting(store, command="import", at_ms=1, by="me@here", sources=sources)
        return plan_import(drafting, source=str(source), pipeline=pipeline)

    shown = make()
    applier.apply(make, by="me@here", shown=shown)
    return shown


def test_an_export_is_whole_and_the_original_is_as_it_was(world: World, tmp_path: Path) -> None:
    before = {path: data for path, data in world.files().items() if not path.startswith("maintenance")}
    exported(world, tmp_path / "copy")
    after = {path: data for path, data in world.files().items() if not path.startswith("maintenance")}
    assert after == before
    copied = {
        str(path.relative_to(tmp_path / "copy")): path.read_bytes()
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file()
    }
    assert copied.keys() - before.keys() == {"sources/orders/9.compact"}
    assert {path: copied[path] for path in before} == before


def test_an_export_names_all_sources_that_the_query_needs(tmp_path: Path) -> None:
    """Those that came later too, which the claim of the checkpoint does not have."""
    world = World(tmp_path)
    for number, sources in enumerate([("orders",), ("orders", "refunds")]):
        world.sources = World(tmp_path, sources=sources).sources
        world.land(number, source=sources[-1])
        world.run(number)
    assert any("sources of these names: orders, refunds." in note for note in exported(world, tmp_path / "copy").notes)


def test_a_copy_gives_signs_of_life_for_as_long_as_it_takes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its files takes half of the time for which a command counts as alive after a sign."""
    seen = slow_place(world, str(tmp_path / "copy"), monkeypatch)
    exported(world, tmp_path / "copy")
    assert len(seen) > 20
    assert None not in seen


def test_a_file_is_read_once_to_be_copied(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once more to tell it from a folder: state is gigabytes."""
    read, real = list[str](), PosixStore.get

    def get(store: PosixStore, path: str) -> bytes | None:
        found = real(store, path)
        if found is not None and path.startswith(("offsets/", "attempts/")):
            read.append(path)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(PosixStore, "get", get)
        assert copy_checkpoint(
            open_store(world.pipeline.checkpoint), open_store(str(tmp_path / "copy")), is_over=lambda: False
        )
    assert sorted(read) == sorted(path for path in world.files() if path.startswith(("offsets/", "attempts/")))


def test_an_export_says_which_batches_are_set_aside_and_loses_none_unasked(tmp_path: Path) -> None:
    world = World(tmp_path, on_failure="set_aside", set_aside_after=1)
    world.land(0)
    with pytest.raises(BatchSetAsideError):
        world.run(0, InlineEngine(transform=lambda sources: 1 / 0))  # type: ignore[arg-type, return-value]
    world.land(1)
    world.run(1)
    with pytest.raises(MaintenanceError, match=r"live/0 are set aside[\s\S]*--allow-skip"):
        exported(world, tmp_path / "copy")
    target = str(tmp_path / "copy")
    plan = applied(world, lambda drafting: plan_export(drafting, target=target, allow_skip=True))
    assert "lost to the table: the ranges of live/0, which are set aside." in plan.notes
    world.run(0, clear_number=1)
    exported(world, tmp_path / "whole")


def left_behind_the_live_lane(root: Path) -> IntervalWorld:
    """A backfill's run has planned its batch and died; the live lane has read on."""
    world = IntervalWorld(root)
    world.land_at(1.5, 1)
    world.work(hour(1)).plan(backfill_run(1), code=CODE)
    return read_on(world)


def waits_for_audits_behind_the_live_lane(root: Path) -> IntervalWorld:
    """A stage that is whole is published by a later task, if that still runs."""
    world = IntervalWorld(root)
    world.land_at(1.5, 1)
    work = world.work(hour(1))
    work.plan(backfill_run(1), code=CODE)
    key = BatchKey(lane_of(hour(1)), 0)
    execution = work.execution(key)
    attempt = execution.open_attempt(key=key, run=backfill_run(1), code=CODE, engine=InlineEngine())
    execution.keep(attempt, seconds=18_000)
    return read_on(world)


def rewound_behind_the_live_lane(root: Path) -> IntervalWorld:
    """A rewound interval keeps what it has taken."""
    world = IntervalWorld(root)
    world.land_at(1.5, 1)
    world.backfill(hour(1), 1)
    applied(world, rewind(-1, lane=lane_of(hour(1))))
    return read_on(world)


def read_on(world: IntervalWorld) -> IntervalWorld:
    for number in (2, 3):
        world.land_at(number + 5, number)
        world.run(number)
    return world


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (left_behind_the_live_lane, f"batch {lane_of(hour(1))}/0 is planned, not committed"),
        (waits_for_audits_behind_the_live_lane, f"batch {lane_of(hour(1))}/0 is planned, not committed"),
        (rewound_behind_the_live_lane, f"was taken for batch {lane_of(hour(1))}/0, which is not in the logs"),
    ],
    ids=["left", "waits for audits", "rewound"],
)
def test_so_it_is_with_what_an_interval_has_taken_and_not_committed(
    tmp_path: Path, make: Callable[[Path], IntervalWorld], why: str
) -> None:
    """Its entry lies behind the live lane's newest in the source log, so the query counts it as read."""
    world, target = make(tmp_path), str(tmp_path / "copy")
    with pytest.raises(MaintenanceError, match=rf"{why}[\s\S]*backfill exactly[\s\S]*--allow-skip") as refused:
        exported(world, tmp_path / "copy")
    assert "Neither would the query" in str(refused.value)
    assert not (tmp_path / "copy").exists()
    plan = planned(world, lambda drafting: plan_export(drafting, target=target, allow_skip=True))
    assert [note for note in plan.notes if note.startswith("lost to the table") and why in note]
    world.backfill(hour(1), 4)
    plan = exported(world, tmp_path / "copy")
    assert not [note for note in plan.notes if "lost" in note]
    assert world.ids() == [1, 2, 3]


def test_so_it_is_with_dead_letters_that_are_planned(tmp_path: Path) -> None:
    world = Checked(tmp_path)
    world.land(1, 2, 3)
    world.run(0, refusing({1: None}))
    letters = replaying(world.pipeline, "mend.py:mend")
    execution_of(letters, world.checkpoint, clock_ms=world._tick).plan(run_identity(10))
    world.expire_leases()
    with pytest.raises(MaintenanceError, match=r"batch dead-letters/0 is planned[\s\S]*goes on with it"):
        exported(world, tmp_path / "copy")


def test_an_export_comes_back_as_the_same_pipeline(world: World, tmp_path: Path) -> None:
    exported(world, tmp_path / "copy")
    shutil.rmtree(world.pipeline.checkpoint)
    imported(tmp_path / "copy", Path(world.pipeline.checkpoint))
    assert verify_all(world.checkpoint) == []
    world.land(11)
    world.run(11)
    assert world.run(12) is None
    assert sorted(world.table()) == list(range(12))


def test_a_checkpoint_of_spark_becomes_a_pipelines(tmp_path: Path) -> None:
    plan = imported(GOLDEN / "spark-4.2.0-v2", tmp_path / "checkpoint")
    world = World(tmp_path, sources=("orders", "refunds"))
    assert verify_all(world.checkpoint) == []
    identity = world.checkpoint.identity()
    assert identity is not None
    assert (identity.pipeline, identity.format, set(identity.sources)) == ("orders", "v2", {"orders", "refunds"})
    assert "pipeline 'orders' has to name its sources: refunds, orders." in plan.notes
    world.landing("orders"), world.landing("refunds")
    assert world.execution.should_fire().reason == "batch 11 is planned and not committed"


def test_a_v1_checkpoint_is_imported_by_names_in_their_order(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        imported(GOLDEN / "spark-4.1.3-v1", tmp_path / "checkpoint")
    imported(GOLDEN / "spark-4.1.3-v1", tmp_path / "checkpoint", sources=("refunds", "orders"))
    identity = World(tmp_path).checkpoint.identity()
    assert identity is not None
    assert (identity.format, identity.sources) == ("v1", ("refunds", "orders"))


def test_a_target_that_is_taken_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(MaintenanceError, match=r"is not empty: it has 000000\.json"):
        planned(world, lambda drafting: plan_export(drafting, target=str(world.landing())))
    with pytest.raises(MaintenanceError, match="is not empty"):
        imported(GOLDEN / "spark-4.2.0-v2", tmp_path / "checkpoint")


def test_a_target_that_spark_cannot_open_is_refused_and_any_other_named_as_the_query_needs_it(
    world: World, tmp_path: Path
) -> None:
    target = f"sqlite://{tmp_path}/copy.db"
    with pytest.raises(MaintenanceError, match="Spark cannot open sqlite:"):
        planned(world, lambda drafting: plan_export(drafting, target=target))
    assert not (tmp_path / "copy.db").exists()
    plan = planned(world, lambda drafting: plan_export(drafting, target=str(tmp_path / "copy")))
    assert f"the query's checkpointLocation is file://{tmp_path}/copy." in plan.notes


def test_a_broken_checkpoint_is_not_copied(world: World, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets" / "3").unlink()
    with pytest.raises(MaintenanceError, match="is broken: Previous batch 3"):
        exported(world, tmp_path / "copy")
    with pytest.raises(MaintenanceError, match="is broken"):
        imported(tmp_path / "checkpoint", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_source_log_that_spark_could_not_use_is_found_before_anything_is_copied(world: World, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "sources" / "orders" / "4").unlink()
    with pytest.raises(BrokenLogError, match=r"lacks \[4\]"):
        exported(world, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_batch_that_is_only_planned_is_left_to_the_query_unless_the_table_has_it(
    world: World, tmp_path: Path
) -> None:
    world.land(11)
    batch, engine = world.execution.plan(run_identity(11)), InlineEngine()
    assert batch is not None
    plan = planned(world, lambda drafting: plan_export(drafting, target=str(tmp_path / "copy")))
    assert "batch 11 is planned and not committed: the query runs it first." in plan.notes
    attempt = world.execution.open_attempt(key=batch.key, run=run_identity(11), code=CODE, engine=engine)
    world.execution.run_attempt(attempt=attempt, job=world.execution.job(attempt, None), engine=engine, code=CODE)
    world.execution.publish(attempt)
    with pytest.raises(MaintenanceError, match="would run it a second time"):
        planned(world, lambda drafting: plan_export(drafting, target=str(tmp_path / "copy")))


def test_nor_is_it_left_where_the_table_cannot_be_asked(world: World, tmp_path: Path) -> None:
    """It may have the batch: that the folder is away tells nothing."""
    world.land(11)
    attempt = world.staged(11)
    world.execution.publish(attempt)
    world.lake.rename(tmp_path / "away")
    with pytest.raises(MaintenanceError, match=r"batch 11 is planned .* cannot be told from here: .*lake.*Then export"):
        planned(world, lambda drafting: plan_export(drafting, target=str(tmp_path / "copy")))


def test_nor_where_its_sink_is_of_a_class_that_is_not_found_here(world: World, tmp_path: Path) -> None:
    world.land(11)
    world.execution.publish(world.staged(11))
    folder = world.root / "checkpoint" / "microbatch"
    for path in [*(folder / "pipelines").iterdir(), *(folder / "in-force").iterdir()]:
        path.write_bytes(path.read_bytes().replace(b"sinks.file:FileSink", b"sinks.gone:GoneSink"))
    with pytest.raises(MaintenanceError, match="cannot be told from here"):
        planned(world, lambda drafting: plan_export(drafting, target=str(tmp_path / "copy")))


def test_another_pipelines_checkpoint_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="belongs to pipeline 'orders', not to 'refunds'"):
        imported(tmp_path / "checkpoint", tmp_path / "copy", pipeline="refunds")


OPERATOR = {"operatorId": 0, "operatorName": "stateStoreSave"}
STORE = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}


@pytest.mark.parametrize(
    ("conf", "metadata", "message"),
    [
        ({PROVIDER: "com.example.Provider"}, "v1\n{}", "by com.example.Provider, which only its own query reads"),
        ({CODEC: "com.example.Codec"}, "v1\n{}", f"made with {CODEC}='com.example.Codec'"),
        ({}, None, "metadata is not there.*let the query make a batch by Spark 4"),
        ({}, "v2\n" + json.dumps({"operatorInfo": OPERATOR, "stateStoreInfo": [STORE]}), "of another version"),
        (
            {},
            "v1\n" + json.dumps({"operatorInfo": {"operatorName": "custom"}, "stateStoreInfo": [STORE]}),
            "stores of 'custom' are none that are known",
        ),
        (
            {},
            "v1\n" + json.dumps({"operatorInfo": {"operatorName": "symmetricHashJoin"}, "stateStoreInfo": [STORE]}),
            "stores of 'symmetricHashJoin' are none that are known",
        ),
        (
            {},
            "v1\n" + json.dumps({"operatorInfo": OPERATOR, "stateStoreInfo": [{**STORE, "storeName": "../.."}]}),
            "stores of 'stateStoreSave' are none that are known",
        ),
    ],
    ids=["provider", "codec", "old", "families", "operator", "join in one store", "path"],
)
def test_state_that_cannot_be_converted_is_refused_before_anything_is_copied(
    tmp_path: Path, conf: dict[str, str], metadata: str | None, message: str
) -> None:
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    operator = query / "state" / "0" / "_metadata"
    operator.mkdir(parents=True)
    if metadata is not None:
        (operator / "metadata").write_text(metadata)
    pin(query, conf)
    with pytest.raises(CheckpointError, match=message):
        imported(query, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_families_of_columns_are_not_taken_over_of_checkpoint_format_1(tmp_path: Path) -> None:
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    columns = query / "state" / "0" / "_stateSchema" / "default"
    columns.mkdir(parents=True)
    (columns / "0_x").write_text("")
    pin(query, {PROVIDER: ROCKSDB})
    with pytest.raises(CheckpointError, match=r"operator 0 of .* several families of columns.*in format 2 alone"):
        imported(query, tmp_path / "copy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"/\d+ does not say what operator 0 keeps"),
        ("v1\n{}", "/1 does not say what operator 0 keeps: it is of version 'v1'"),
        ("v2\n{}", "/1 does not say what operator 0 keeps: it names no files"),
        (
            'v2\n{"stateStoreInfo": [{"stateSchemaFilePaths": ["file:/old/state/0/_stateSchema/default/0_y"]}]}',
            "_stateSchema/default/0_y is not there",
        ),
    ],
    ids=["nothing", "old", "empty", "gone"],
)
def test_families_of_columns_that_are_not_whole_are_refused_before_anything_is_copied(
    tmp_path: Path, text: str | None, message: str
) -> None:
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    operator = query / "state" / "0"
    for folder in ("_stateSchema/default", "_metadata/v2"):
        (operator / folder).mkdir(parents=True)
    (operator / "_stateSchema" / "default" / "0_x").write_text("")
    if text is not None:
        (operator / "_metadata" / "v2" / "1").write_text(text)
    newest = pin(query, {PROVIDER: ROCKSDB})
    (operator / "_metadata" / "v2" / f"{newest + 1}").write_text("of a batch that nobody has committed")
    ids = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[str(uuid.UUID(int=7))]]}}
    (query / "commits" / f"{newest}").write_text(f"v2\n{json.dumps(ids)}")
    with pytest.raises(CheckpointError, match=message):
        imported(query, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_state_is_not_converted_where_pyspark_client_alone_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the module, and no Spark."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(exchange_state, "version", version)
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    (query / "state" / "0").mkdir(parents=True)
    with pytest.raises(MaintenanceError, match=r"pyspark is not installed\. Type this where it is"):
        imported(query, tmp_path / "copy")


def pin(query: Path, conf: dict[str, str]) -> int:
    """Have the newest entry of a query say that its state was made with these settings; its number."""
    newest = max(int(path.name) for path in (query / "commits").iterdir() if path.name.isdecimal())
    entry = query / "offsets" / str(newest)
    version, metadata, *ends = entry.read_text().split("\n")
    values = json.loads(metadata)
    values["conf"] |= conf
    entry.write_text("\n".join([version, json.dumps(values), *ends]))
    return newest


def test_a_batch_that_names_no_files_of_state_is_not_taken_for_one_of_another_format(tmp_path: Path) -> None:
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    (query / "state" / "0").mkdir(parents=True)
    newest = pin(query, state_settings())
    commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {}}
    (query / "commits" / str(newest)).write_text("v2\n" + json.dumps(commit))
    with pytest.raises(CheckpointError, match=f"keeps state, and batch {newest} does not say which"):
        imported(query, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("ids", "conf", "message"),
    [
        ([["../../elsewhere"]], {}, "what it tells of its state cannot be read"),
        ([[str(uuid.UUID(int=1))]], {CODEC: "com.example.Codec"}, f"made with {CODEC}='com.example.Codec'"),
    ],
    ids=["ids", "codec"],
)
def test_state_that_no_batch_would_go_on_from_is_refused_before_anything_is_copied(
    tmp_path: Path, ids: object, conf: dict[str, str], message: str
) -> None:
    """The first run would fail, and so would each run after it."""
    query = tmp_path / "stateful"
    shutil.copytree(GOLDEN / "spark-4.2.0-v2", query)
    (query / "state" / "0").mkdir(parents=True)
    newest = pin(query, {**state_settings(), **conf})
    commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}}
    (query / "commits" / str(newest)).write_text("v2\n" + json.dumps(commit))
    with pytest.raises(CheckpointError, match=message):
        imported(query, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_source_of_the_import_is_only_read(tmp_path: Path) -> None:
    origin = Path(shutil.copytree(GOLDEN / "spark-4.2.0-v2", tmp_path / "origin"))
    before = {path: path.stat().st_mtime_ns for path in origin.rglob("*")}
    imported(origin, tmp_path / "checkpoint")
    assert {path: path.stat().st_mtime_ns for path in origin.rglob("*")} == before
