"""Partitions of a day that somebody has dropped: of each batch that had rows of it readers find a part, which commands
know of, and whatever makes the batch again takes the place of."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.replays import Replays
from airflow_provider_microbatch.exceptions import (
    BatchSetAsideError,
    EngineError,
    ForeignBatchError,
    MaintenanceError,
    SinkError,
    SourceError,
)
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.partition_values import Values
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements, Rows, StatementError
from airflow_provider_microbatch.sinks.table.table_of_folders import TableOfFolders
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.commands.withdraw_clear import plan_withdraw_clear
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, rewind
from tests.execution.test_dead_letters import Checked, OfLetters
from tests.execution.test_letters_once import again
from tests.execution.world import CODE, KEY, Killed, World, run_identity
from tests.state.counting import CountingWorld
from tests.state.test_replay_beside_the_next import an_hour_passes
from tests.support.inline_engine import InlineEngine
from tests.tables.metastore_in_memory import InMemory

pytestmark = pytest.mark.slow  # a metastore, or processes, of their own

URL = "sc://127.0.0.1:1"
NAME = Metastore.add_partitions


def by_day(job: Job) -> None:
    """The job's rows, each in the partition of its day: even numbers, and odd ones."""
    folder = Path(job.stage.report.removeprefix("file://"))
    told, written = folder / "_manifest" / "part-0.txt", folder / "part-0.json"
    lines, listed = written.read_text().splitlines(), []
    written.unlink()
    for line in lines:
        path = folder / f"of={json.loads(line)['id'] % 2}" / "part-0.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(line + "\n")
        listed.append({"file": str(path.relative_to(folder)), "bytes": path.stat().st_size})
    result = told.read_text().splitlines()[0]
    told.write_text("\n".join([result, *map(json.dumps, listed)]) + "\n")


def rows_of(metastore: InMemory) -> list[int]:
    return sorted(row["id"] for row in metastore.rows("`orders`"))


def drop_odd_day(metastore: InMemory) -> None:
    named = metastore.partitions["`orders`"]
    metastore.partitions["`orders`"] = {path: at for path, at in named.items() if not path.endswith("of=1")}


def on_two_days(job: Job) -> None:
    """The job's rows, all of them on each of two days."""
    folder = Path(job.stage.report.removeprefix("file://"))
    told, written = folder / "_manifest" / "part-0.txt", folder / "part-0.json"
    text, listed = written.read_text(), []
    written.unlink()
    for day in range(2):
        path = folder / f"of={day}" / "part-0.json"
        path.parent.mkdir()
        path.write_text(text)
        listed.append({"file": str(path.relative_to(folder)), "bytes": path.stat().st_size})
    result = told.read_text().splitlines()[0]
    told.write_text("\n".join([result, *map(json.dumps, listed)]) + "\n")


class Shop(World):
    """A pipeline that writes partitions into a metastore of this process, behind the address of a server."""

    metastore = InMemory()

    def run_by_day(self, number: int, *, adds: int = 0, **given: Any) -> None:
        """:param adds: to each id, as other code would."""

        def added(sources: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
            return [{"id": row["id"] + adds} for row in sources["orders"]]

        self.run(number, InlineEngine(after_stage=by_day, transform=added), **given)

    def staged_by_day(self, number: int) -> Attempt:
        attempt = self.staged(number)
        by_day(self.execution.job(attempt, None))
        return attempt

    def rows(self) -> list[int]:
        return rows_of(self.metastore)

    def drop_odd_day(self) -> None:
        drop_odd_day(self.metastore)


def name_a_part(store: Metastore, name: str, key: BatchKey, locations: Mapping[Values, Path]) -> None:
    NAME(store, name, key, dict(sorted(locations.items())[:1]))
    raise Killed


def killed(*_: object) -> None:
    raise Killed


def fail(*_: object) -> bool:
    raise StatementError("DOWN", "no server")


@pytest.fixture
def metastore(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    metastore = InMemory()

    def run(_: object, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        return metastore.run(statements)

    monkeypatch.setattr(ConnectStatements, "run", run)
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_servers=(URL,)))
    return metastore


def orders_in(folder: Path) -> TableSink:
    catalog = SparkCatalog(ConnectStatements(URL), str(folder / "lake"))
    return TableSink(catalog, "orders", format="json", schema="id long, of string", partition_by=("of",))


@pytest.fixture
def empty(tmp_path: Path, metastore: InMemory) -> Shop:
    """Nothing has run there yet."""
    shop = Shop(tmp_path, sink=orders_in(tmp_path))
    shop.metastore = metastore
    return shop


@pytest.fixture
def shop(empty: Shop) -> Shop:
    """Two batches of two rows each; the odd day of both was dropped."""
    shop = empty
    for number in range(2):
        shop.land(2 * number, 2 * number + 1)
        shop.run_by_day(number)
    assert shop.rows() == [0, 1, 2, 3]
    shop.drop_odd_day()
    return shop


def test_a_rewind_wants_to_take_out_what_readers_find_and_does(shop: Shop) -> None:
    assert Recorded(shop.checkpoint).of_another_life(BatchKey("live", 0)) == []
    with pytest.raises(MaintenanceError, match=r"in it twice: batch 0, 1[\s\S]*--drop-output"):
        applied(shop, rewind(-1, drop_output=False))
    applied(shop, rewind(-1))
    assert shop.rows() == []
    for number in 2, 3:
        shop.run_by_day(number)
    assert shop.rows() == [0, 1, 2, 3]


def test_a_clear_brings_the_whole_batch_back(shop: Shop) -> None:
    shop.run_by_day(1, clear_number=1)
    assert shop.rows() == [0, 2, 3]


def test_a_clear_that_reads_less_than_readers_find_a_part_of_replaces_nothing(shop: Shop) -> None:
    shop.sources["orders"] = dataclasses.replace(shop.sources["orders"], on_missing="skip")
    gone = shop.land(4)
    shop.land(5)
    shop.run_by_day(2)
    shop.drop_odd_day()
    gone.unlink()
    with pytest.raises(SourceError, match="nothing was replaced, since attempt 1, which is published, has more"):
        shop.run_by_day(2, clear_number=1)
    assert shop.rows() == [0, 2, 4]


def test_a_clear_behind_a_restored_checkpoint_brings_its_own_rows(shop: Shop) -> None:
    """Of the attempt that readers find a part of, which has the number of the next one on record, nothing is left."""
    backup = shop.root / "backup"
    shutil.copytree(shop.root / "checkpoint", backup)
    shop.run_by_day(1, clear_number=1)
    shop.drop_odd_day()
    shutil.rmtree(shop.root / "checkpoint")
    shutil.copytree(backup, shop.root / "checkpoint")

    def fails(job: Job) -> None:
        raise EngineError("no executors")

    with pytest.raises(EngineError):
        shop.run(1, InlineEngine(before_stage=fails), clear_number=2)
    assert shop.rows() == [0, 2]
    shop.run_by_day(1, clear_number=2, try_number=2, adds=10)
    assert shop.rows() == [0, 12, 13]


@pytest.mark.parametrize("is_restored_too", [False, True], ids=["a day was dropped", "the metastore was restored too"])
def test_an_attempt_behind_a_restored_checkpoint_is_not_taken_for_the_one_that_lies_there(
    shop: Shop, is_restored_too: bool
) -> None:
    """It has the number of that one, and the same plan. Its driver dies before it has written anything."""
    shop.land(4, 5)
    shop.execution.plan(run_identity(2))
    backup = shop.root / "backup"
    shutil.copytree(shop.root / "checkpoint", backup)
    named = dict(shop.metastore.partitions["`orders`"])
    shop.run_by_day(2)
    shop.drop_odd_day()
    shutil.rmtree(shop.root / "checkpoint")
    shutil.copytree(backup, shop.root / "checkpoint")
    if is_restored_too:
        shop.metastore.partitions["`orders`"] = named

    def fails(job: Job) -> None:
        raise EngineError("no executors")

    with pytest.raises(EngineError):
        shop.run(2, InlineEngine(before_stage=fails), try_number=2)
    assert shop.rows() == ([0, 2] if is_restored_too else [0, 2, 4])
    shop.run_by_day(2, try_number=3, adds=10)
    assert shop.rows() == [0, 2, 14, 15]


def test_letters_of_an_attempt_are_not_run_again_while_readers_find_a_part_of_the_next(
    tmp_path: Path, metastore: InMemory
) -> None:
    """A replay was cut off between the tables, and its clear withdrawn: its rows are those of the letters, too."""
    world = Checked(tmp_path, sink=orders_in(tmp_path))
    world.land(1, 2)
    world.run(0, InlineEngine(after_stage=by_day, refuse=lambda row: "dead_letter" if row["id"] == 2 else None))
    replace = FileSink.replace

    def killed_at_letters(sink: FileSink, *given: Any) -> object:
        if sink.path == str(tmp_path / "letters"):
            raise Killed
        return replace(sink, *given)

    with mock.patch.object(FileSink, "replace", killed_at_letters), pytest.raises(Killed):
        world.run(0, InlineEngine(after_stage=by_day), clear_number=1)
    assert rows_of(metastore) == [1, 2]
    drop_odd_day(metastore)
    world.expire_leases()
    world.janitor()
    applied(world, lambda drafting: plan_withdraw_clear(drafting, KEY))
    with pytest.raises(
        SourceError, match=r"they are attempt 1's, and spark_catalog\.orders has the batch of attempt 2"
    ):
        again(world).run(run=run_identity(9), engine=OfLetters(after_stage=by_day), code=CODE, transform=None)
    assert rows_of(metastore) == [2]


def test_state_goes_on_from_the_attempt_that_readers_find_a_part_of(tmp_path: Path, metastore: InMemory) -> None:
    world = CountingWorld(tmp_path, sink=orders_in(tmp_path))
    world.come(1)
    world.run(0, world.engine(after_stage=on_two_days))
    world.come(2)
    with mock.patch.object(Replays, "complete", side_effect=Killed), pytest.raises(Killed):
        world.run(0, world.engine(times=2, after_stage=on_two_days), clear_number=1)
    assert rows_of(metastore) == [2, 2]
    drop_odd_day(metastore)
    an_hour_passes(world)
    world.run(1, world.engine(after_stage=on_two_days))
    assert rows_of(metastore) == [2, 3, 3]


def test_a_look_at_the_table_tells_that_a_part_is_there(shop: Shop) -> None:
    told = [finding.message for finding in check_table(shop.checkpoint, everything=True).findings]
    lacks = "is committed and not in spark_catalog.orders: readers find only a part of its rows there."
    assert told == [f"batch live/{number} {lacks}" for number in range(2)]


@pytest.mark.parametrize("is_down", [False, True])
def test_no_batch_is_set_aside_while_readers_find_a_part_of_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    """The worker dies when a part is named, and the server may be down when the attempt's stage is to be dropped."""
    shop.options |= {"on_failure": "set_aside", "set_aside_after_dead": 1}
    shop.land(4, 5)
    attempt = shop.staged_by_day(2)
    with monkeypatch.context() as dying:
        dying.setattr(Metastore, "add_partitions", name_a_part)
        with pytest.raises(Killed):
            shop.execution.publish(attempt)
    assert shop.rows() == [0, 2, 4]
    shop.expire_leases()
    if is_down:
        monkeypatch.setattr(SparkCatalog, "drop_table", fail)
    with pytest.raises(SinkError if is_down else BatchSetAsideError, match="is not set aside" if is_down else None):
        shop.run_by_day(2, try_number=2)
    assert shop.rows() == ([0, 2, 4] if is_down else [0, 2])


def test_a_batch_that_a_run_has_found_published_keeps_what_readers_find_of_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher died before it could put that on record. The day is dropped before the janitor comes."""
    shop.land(4, 5)
    attempt = shop.staged_by_day(2)
    with monkeypatch.context() as dying:
        dying.setattr(TableOfFolders, "note_whole", killed)
        with pytest.raises(Killed):
            shop.execution.publish(attempt)
    shop.expire_leases()
    shop.run_by_day(2, try_number=2)
    assert shop.rows() == [0, 2, 4, 5]
    shop.drop_odd_day()
    shop.janitor()
    assert shop.rows() == [0, 2, 4]


def test_nobody_adopts_a_part_of_a_batch(empty: Shop) -> None:
    """It is not in, so the next run would make the batch, and put away what was adopted."""
    adopt = partial(plan_adopt, key=BatchKey("live", 0), allow_skip=True)
    shop, here = empty, empty.pipeline.checkpoint
    shop.land(0, 1)
    shop.execution.plan(run_identity(0))
    shop.options["checkpoint"] = str(shop.root / "of another")
    shop.run_by_day(0)
    whole = dict(shop.metastore.partitions["`orders`"])
    shop.drop_odd_day()
    shop.options["checkpoint"] = here
    with pytest.raises(ForeignBatchError, match="microbatch adopt"):
        shop.run_by_day(0, try_number=2)
    with pytest.raises(MaintenanceError, match=r"readers of spark_catalog\.orders find only a part .* the rest of it"):
        applied(shop, adopt)
    assert shop.rows() == [0]
    shop.metastore.partitions["`orders`"] = whole
    applied(shop, adopt)
    engine = InlineEngine()
    shop.run(0, engine, try_number=3)
    assert engine.jobs == []
    assert shop.rows() == [0, 1]
