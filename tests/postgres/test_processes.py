"""Publishers that die, sleep and race, as processes of their own; readers that look all the time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.exceptions import PublishConflictError
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import open as opened
from airflow_provider_microbatch.sinks.postgres import rows
from airflow_provider_microbatch.sinks.postgres.open import OpenPostgres
from airflow_provider_microbatch.sinks.postgres.records import Records
from tests.postgres import database
from tests.postgres.stages import write_stage
from tests.sinks.stages import CHECKPOINT, EXPECTED, KEY, batch_of, expect
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CASES = {"appended": None, "merged": Merge(keys=("id",), sequence_by=("epoch",))}
POINTS: dict[str, tuple[Any, str]] = {
    "stage table on record": (Records, "add_stage"),
    "loaded": (opened, "load"),
    "place taken": (Records, "add"),
    "old rows out": (rows.Rows, "take_out"),
    "rows in": (rows.Rows, "_insert"),
    "before the commit": (Records, "drop_stage"),
    "after the commit": (OpenPostgres, "drop_stage"),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def merge(request: pytest.FixtureRequest) -> Merge | None:
    found: Merge | None = request.param
    return found


def at(point: str, action: Callable[[], object]) -> None:
    """Have this process do something where it first reaches the point: right after it; before, of the last one."""
    owner, name = POINTS[point]
    real = getattr(owner, name)

    def wrapped(*given: Any, **more: Any) -> Any:
        setattr(owner, name, real)
        if point == "after the commit":
            action()
        result = real(*given, **more)
        if point != "after the commit":
            action()
        return result

    setattr(owner, name, wrapped)


def signalled(number: signal.Signals) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


@contextmanager
def process(work: Callable[[], object]) -> Iterator[int]:
    """Its id; ends with 0 if the work raised nothing."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        yield pid
    finally:
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break


def status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(folder: Path, sink: OpenPostgres, *, epoch: int, count: int) -> None:
    """The attempt's rows are in once, and nothing else is left."""
    assert database.rows(database.table_in(folder), "id, epoch") == [(id, epoch) for id in range(count)]
    found = sink.contains(EXPECTED)
    assert found is not None
    assert found.epoch == epoch
    assert sink.stages(CHECKPOINT) == []
    assert "stage" not in database.tables_of_ours(folder)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("replay", [False, True], ids=["publish", "replace"])
def test_a_publisher_that_is_killed_leaves_all_or_nothing_and_the_next_attempt_ends_it(
    tmp_path: Path, merge: Merge | None, point: str, replay: bool
) -> None:
    sink, before = database.sink_in(tmp_path, merge=merge), 1
    if replay:
        write_stage(sink, 1, rows=2)
        sink.publish(EXPECTED, 1)
        before = 2
    elif point == "old rows out":
        pytest.skip("nothing is put out")
    write_stage(sink, before, rows=3)

    def dying() -> None:
        at(point, signalled(signal.SIGKILL))
        (sink.replace if replay else sink.publish)(EXPECTED, before)

    with process(dying) as pid:
        assert status(pid) == -signal.SIGKILL
    found = sink.contains(EXPECTED)
    done = point == "after the commit"
    assert (None if found is None else found.epoch) == (before if done else 1 if replay else None)
    assert sink.stages(CHECKPOINT) == [(KEY, before)]
    if done:
        assert sink.drop_stage(batch_of(), before)
        check(tmp_path, sink, epoch=before, count=3)
        return
    assert sink.drop_stage(batch_of(), before)
    write_stage(sink, before + 1, rows=4)
    (sink.replace if replay else sink.publish)(EXPECTED, before + 1)
    check(tmp_path, sink, epoch=before + 1, count=4)


@pytest.mark.parametrize("point", ["place taken", "rows in", "before the commit"])
def test_a_publisher_that_sleeps_in_its_transaction_is_ended_by_the_server_and_learns_who_won(
    tmp_path: Path, merge: Merge | None, point: str
) -> None:
    """It would hold the batch's place for as long as it sleeps."""
    sink = database.sink_in(tmp_path, merge=merge, lock_seconds=1.0)
    write_stage(sink, 1, rows=3)
    write_stage(sink, 2, rows=4)

    def sleeping() -> None:
        at(point, signalled(signal.SIGSTOP))
        assert sink.publish(EXPECTED, 1).epoch == 2

    with process(sleeping) as pid:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert sink.publish(EXPECTED, 2).epoch == 2
        os.kill(pid, signal.SIGCONT)
        assert status(pid) == 0
    assert sink.stages(CHECKPOINT) == [(KEY, 1)]
    assert sink.drop_stage(batch_of(), 1)
    check(tmp_path, sink, epoch=2, count=4)


def test_a_replay_that_sleeps_cannot_put_older_output_back(tmp_path: Path, merge: Merge | None) -> None:
    sink = database.sink_in(tmp_path, merge=merge)
    for epoch in (1, 2, 3):
        write_stage(sink, epoch, rows=epoch)
    sink.publish(EXPECTED, 1)

    def sleeping() -> None:
        at("loaded", signalled(signal.SIGSTOP))
        with pytest.raises(PublishConflictError):
            sink.replace(EXPECTED, 2)

    with process(sleeping) as pid:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        assert sink.replace(EXPECTED, 3).epoch == 3
        os.kill(pid, signal.SIGCONT)
        assert status(pid) == 0
    assert sink.drop_stage(batch_of(), 2)
    check(tmp_path, sink, epoch=3, count=3)


def test_attempts_that_publish_at_once_are_one(tmp_path: Path, merge: Merge | None) -> None:
    sink = database.sink_in(tmp_path, merge=merge)
    for epoch in range(1, 6):
        write_stage(sink, epoch, rows=200)
    ready = tmp_path / "ready"

    def racing(epoch: int) -> Callable[[], None]:
        def run() -> None:
            at("loaded", lambda: wait_until(ready.exists))
            sink.publish(EXPECTED, epoch)

        return run

    opened_by = [process(racing(epoch)) for epoch in range(1, 6)]
    pids = [one.__enter__() for one in opened_by]
    ready.touch()
    assert [status(pid) for pid in pids] == [0] * 5
    found = sink.contains(EXPECTED)
    assert found is not None
    for epoch in range(1, 6):
        sink.drop_stage(batch_of(), epoch)
    check(tmp_path, sink, epoch=found.epoch, count=200)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ])
def test_a_reader_sees_all_of_a_batch_or_none_of_it(
    tmp_path: Path, merge: Merge | None, level: psycopg.IsolationLevel
) -> None:
    """Batches of 300 rows come, are replaced and go, in one statement or in two of one snapshot."""
    sink, table = database.sink_in(tmp_path, merge=merge, columns={"id": "bigint", "epoch": "int"}), None
    sink.make_ready(EXPECTED.tables, is_there=lambda: True)
    table = database.table_in(tmp_path)
    over, looks, wrong = threading.Event(), Counter[int](), list[object]()

    def read() -> None:
        with database.connect() as connection:
            connection.autocommit = False
            connection.isolation_level = level
            while not over.is_set():
                with connection.transaction():
                    statement = f"SELECT epoch, count(*) FROM {table} GROUP BY epoch".encode()
                    found = dict(connection.execute(statement).fetchall())
                    again = dict(connection.execute(statement).fetchall())
                if (found and set(found.values()) != {300}) or len(found) > 1:
                    wrong.append(found)
                if level is psycopg.IsolationLevel.REPEATABLE_READ and again != found:
                    wrong.append((found, again))
                looks[len(found)] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for epoch in range(1, 13):
            write_stage(sink, epoch, rows=300)
            (sink.publish if epoch % 4 == 1 else sink.replace)(EXPECTED, epoch)
            if epoch % 4 == 0:
                assert sink.withdraw(EXPECTED, epoch)
        wait_until(lambda: looks[0] > 0 and looks[1] > 0, 30)
    finally:
        over.set()
        reader.join()
    assert wrong == []


def test_batches_of_two_lanes_that_change_the_same_keys_at_once_end_as_if_one_came_after_the_other(
    tmp_path: Path,
) -> None:
    sink = database.sink_in(tmp_path, merge=CASES["merged"])
    keys = [BatchKey(lane, id) for id in range(4) for lane in ("live", "backfill")]
    for number, key in enumerate(keys):
        write_stage(sink, number + 1, batch=batch_of(key), rows=50)

    def run(number: int, key: BatchKey) -> Callable[[], None]:
        return lambda: print(sink.publish(expect(key), number + 1), end="")

    opened_by = [process(run(number, key)) for number, key in enumerate(keys)]
    pids = [one.__enter__() for one in opened_by]
    began = time.monotonic()
    assert [status(pid) for pid in pids] == [0] * len(keys)
    assert time.monotonic() - began < 60
    assert database.rows(database.table_in(tmp_path), "id, epoch") == [(id, len(keys)) for id in range(50)]
