"""Sources without a stream that reads exactly a planned range: Spark streams a copy of the range's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acme_microbatch.counter import CounterSource

from airflow_provider_microbatch.exceptions import EngineError
from airflow_provider_microbatch.lifetime import lifetime
from airflow_provider_microbatch.sources import Source
from airflow_provider_microbatch.sources.delta import DeltaSource
from airflow_provider_microbatch.sources.file import FileSource
from airflow_provider_microbatch.sources.python import PythonSource
from tests.execution.world import run_identity
from tests.state.stateful import SessionEngine, StatefulWorld
from tests.support.delta_orders import OrdersOfDelta
from tests.support.local_spark import another_jvm, local_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STREAMS = Path(__file__).resolve().parents[1] / "user_code" / "number_streams.py"
HALVES = "tests.state.transforms:halves"

KINDS = [
    "a source of a third party",
    "an end that reading tells",
    "a Python data source",
    "a Delta table",
    "archived files",
]


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with lifetime():
        yield


@pytest.fixture(scope="module")
def engine() -> Iterator[SessionEngine]:
    """Has the user's modules, as an engine ships them."""
    # Python workers that another session has left have not looked for them there.
    with another_jvm(), local_spark() as session:
        session.sparkContext.addPyFile(str(STREAMS))
        yield SessionEngine(session)


class CopiedWorld(StatefulWorld):
    """A stateful pipeline over a source of one kind."""

    def __init__(self, root: Path, kind: str, engine: SessionEngine) -> None:
        super().__init__(root, HALVES, engine=engine)
        self.head = root / "head"
        self.head.write_text("0")
        made: dict[str, Callable[[], Source]] = {
            KINDS[0]: lambda: CounterSource(str(self.head)),
            KINDS[1]: lambda: CounterSource(str(self.head), late=True),
            KINDS[2]: lambda: PythonSource("number_streams:Numbers", options={"path": str(self.head)}),
            KINDS[3]: lambda: DeltaSource(str(root / "orders")),
            KINDS[4]: self._archived,
        }
        self.made = made[kind]
        self.orders = OrdersOfDelta(root / "orders") if kind == KINDS[3] else None

    def source(self, name: str) -> Source:
        return self.made() if name == "orders" else super().source(name)

    def _archived(self) -> FileSource:
        folder = self.root / "landing" / "orders"
        folder.mkdir(parents=True, exist_ok=True)
        return FileSource(
            str(folder),
            format="json",
            schema="id long",
            clean_source="archive",
            archive_dir=str(self.root / "archive"),
        )

    def grow(self) -> None:
        """Two rows more, of an odd and of an even id."""
        head = int(self.head.read_text()) + 2
        if self.orders is not None:
            self.orders.append(2)
        self.land(str(head), head - 1, head)
        self.head.write_text(str(head))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_counts_go_on_and_the_newest_batch_is_replayed(tmp_path: Path, engine: SessionEngine, kind: str) -> None:
    world = CopiedWorld(tmp_path, kind, engine)
    for number in range(2):
        world.grow()
        world.run(number)
    world.run(1, clear_number=1)

    assert world.table() == {number: [{"half": half, "count": number + 1} for half in (0, 1)] for number in range(2)}
    committed = world.checkpoint.commit_log.get(1)
    assert committed is not None
    assert committed.progress["numInputRows"] == {"orders": 2}
    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())


def test_what_is_read_twice_in_the_plan_is_the_same_and_is_counted_once(tmp_path: Path, engine: SessionEngine) -> None:
    root = tmp_path / "a 50%20 é"
    root.mkdir()
    world = CopiedWorld(root, KINDS[1], engine)
    world.transform = "tests.state.transforms:halves_twice"
    world.grow()
    world.run(0)

    assert world.table() == {0: [{"half": half, "count": 2} for half in (0, 1)]}
    committed = world.checkpoint.commit_log.get(0)
    assert committed is not None
    assert committed.progress["numInputRows"] == {"orders": 2}


def test_a_batch_without_rows_of_one_source_has_its_columns(tmp_path: Path, engine: SessionEngine) -> None:
    world = CopiedWorld(tmp_path, KINDS[0], engine)
    world.transform, world.sources = "tests.state.transforms:joined", ("orders", "payments")
    world.options["output_mode"] = "append"
    world.land("a", 2, source="payments")
    world.run(0)
    world.grow()
    world.run(1)

    assert world.table() == {0: [], 1: [{"id": 2}]}


def test_copies_of_a_killed_attempt_are_gone_with_it(tmp_path: Path, engine: SessionEngine) -> None:
    world = CopiedWorld(tmp_path, KINDS[0], engine)
    world.grow()
    run, (code, _) = run_identity(0), world.code()
    planned = world.execution.plan(run)
    assert planned is not None
    attempt = world.execution.open_attempt(key=planned.key, run=run, code=code, engine=engine)
    left = tmp_path / "checkpoint" / "streaming" / f"0-{attempt.epoch}" / "rows" / "orders"
    left.mkdir(parents=True)
    (left / "part-0.parquet").touch()
    world.transform = "tests.state.transforms:no_stream"
    with pytest.raises(EngineError):
        world.run(0, try_number=2)

    assert not list((tmp_path / "checkpoint" / "streaming").iterdir())
