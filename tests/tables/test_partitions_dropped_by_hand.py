"""Partitions of a day that somebody has dropped: of each batch that had rows of it readers find a part, which commands
know of, and whatever makes the batch again takes the place of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_microbatch import settings
from airflow_provider_microbatch.checkpoint.entries import Attempt
from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import BatchSetAsideError, ForeignBatchError, MaintenanceError, SinkError
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.settings import Settings
from airflow_provider_microbatch.sinks.table import TableSink
from airflow_provider_microbatch.sinks.table.metastore import Metastore
from airflow_provider_microbatch.sinks.table.partition_values import Values
from airflow_provider_microbatch.sinks.table.spark_catalog import SparkCatalog
from airflow_provider_microbatch.sinks.table.statements import ConnectStatements, Rows, StatementError
from airflow_provider_microbatch.upkeep.commands.adopt import plan_adopt
from airflow_provider_microbatch.upkeep.commands.site import Recorded
from airflow_provider_microbatch.upkeep.table_check import check_table
from tests.execution.maintaining import applied, rewind
from tests.execution.world import Killed, World, run_identity
from tests.support.inline_engine import InlineEngine
from tests.tables.metastore_in_memory import InMemory

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


class Shop(World):
    """A pipeline that writes partitions into a metastore of this process, behind the address of a server."""

    metastore = InMemory()

    def run_by_day(self, number: int, **given: Any) -> None:
        self.run(number, InlineEngine(after_stage=by_day), **given)

    def staged_by_day(self, number: int) -> Attempt:
        attempt = self.staged(number)
        by_day(self.execution.job(attempt, None))
        return attempt

    def rows(self) -> list[int]:
        return sorted(row["id"] for row in self.metastore.rows("`orders`"))

    def drop_odd_day(self) -> None:
        named = self.metastore.partitions["`orders`"]
        self.metastore.partitions["`orders`"] = {path: at for path, at in named.items() if not path.endswith("of=1")}


def name_a_part(store: Metastore, name: str, key: BatchKey, locations: Mapping[Values, Path]) -> None:
    NAME(store, name, key, dict(sorted(locations.items())[:1]))
    raise Killed


def fail(*_: object) -> bool:
    raise StatementError("DOWN", "no server")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Nothing has run there yet."""
    shop = Shop(tmp_path)
    shop.metastore = metastore = InMemory()

    def run(_: object, statements: Sequence[str], *, handle: Mapping[str, Any] | None = None) -> list[Rows]:
        return metastore.run(statements)

    monkeypatch.setattr(ConnectStatements, "run", run)
    monkeypatch.setattr(settings, "_given", lambda: Settings(trusted_servers=(URL,)))
    catalog = SparkCatalog(ConnectStatements(URL), str(tmp_path / "lake"))
    schema = "id long, of string"
    shop.options["sink"] = TableSink(catalog, "orders", format="json", schema=schema, partition_by=("of",))
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
