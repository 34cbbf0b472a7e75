"""Rows of a table of a real database that a command has read again or passes over: those that came late are among them,
and how many there are is told."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_provider_microbatch import connections
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.sources.jdbc import JdbcSource, numbered
from airflow_provider_microbatch.sources.jdbc import open as opened_module
from airflow_provider_microbatch.sources.jdbc.mariadb import timed_table
from airflow_provider_microbatch.sources.jdbc.table import Snapshot
from tests.execution.over_table import OverTable
from tests.execution.typed_commands import said
from tests.execution.world import World
from tests.sources.jdbc_world import timed_orders
from tests.support.orders_in_mariadb import OrdersInMariaDb, orders_in_mariadb
from tests.support.orders_table import OrdersTable

pytestmark = pytest.mark.slow


class Read(World):
    """A pipeline that reads the table."""

    def __init__(
        self, root: Path, orders: OrdersInMariaDb | OrdersTable, *, by_time: bool = True, on_missing: str = "fail"
    ) -> None:
        super().__init__(root)
        self._is_mariadb = isinstance(orders, OrdersInMariaDb)
        source = JdbcSource(
            "orders",
            orders.conn_id,
            database="mariadb" if self._is_mariadb else "postgres",
            timestamp="updated_at" if by_time else None,
            late_seconds=0.000001,
            on_missing=on_missing,
            driver=None,
        )
        self.sources = {"orders": source}  # type: ignore[dict-item]
        self.orders, self._runs = orders, 0

    def read(self, *, clear: int | None = None) -> None:
        """One more task run, or a clear of an earlier one."""
        number = self._runs if clear is None else clear
        self._runs += clear is None
        select = self.orders.execute if isinstance(self.orders, OrdersInMariaDb) else self.orders.rows
        self.run(number, OverTable(select, self.root), clear_number=int(clear is not None))

    def insert(self, *rows: tuple[int, str]) -> None:
        """Rows of these numbers, at these times of a day that is over."""
        for id, at in rows:
            time = f"2026-01-01 {at}" if self._is_mariadb else f"2026-01-01 {at}+00"
            self.orders.execute("INSERT INTO orders (id, updated_at) VALUES (%s, %s)", id, time)

    def typed(self, *words: str) -> str:
        """What a command prints, which succeeds."""
        status, text = said([words[0], self.pipeline.checkpoint, *words[1:]])
        assert status == 0, text
        return text

    def set_offset(self, offset: str, *flags: str) -> str:
        return self.typed("set-offset", "--source", "orders", "--offset", offset, *flags)

    def rows(self) -> Counter[int]:
        return Counter(id for found in self.table().values() for id in found)

    def read_three(self) -> Read:
        """Three batches, of 3, 2 and 1 rows."""
        for batch in ([(1, "01:00"), (2, "02:00"), (3, "03:00")], [(4, "04:00"), (5, "05:00")], [(6, "06:00")]):
            self.insert(*batch)
            self.read()
        return self


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], OrdersInMariaDb | OrdersTable]]:
    """Makes a table in a database of a system, that a command finds by the environment."""
    monkeypatch.setattr(connections, "_found_by", [*connections._found_by])  # a command sets its own
    with ExitStack() as stack:

        def connect(system: str) -> OrdersInMariaDb | OrdersTable:
            made = orders_in_mariadb() if system == "mariadb" else timed_orders()
            table: OrdersInMariaDb | OrdersTable = stack.enter_context(made)  # type: ignore[arg-type]
            to = table.connection
            kind = {"conn_type": to.conn_type, "host": to.host, "port": to.port, "schema": to.schema}
            monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps({**kind, "login": to.login}))
            return table

        yield connect


@pytest.fixture
def world(tmp_path: Path, connected: Callable[[str], OrdersInMariaDb]) -> Read:
    """Three batches of a table of MariaDB, by time, of 3, 2 and 1 rows."""
    return Read(tmp_path, connected("mariadb")).read_three()


def command_of(error: object) -> list[str]:
    (found,) = re.findall(r"`microbatch (set-offset [^`]+)`", str(error))
    return shlex.split(found)


@pytest.mark.parametrize(("at", "batch", "again"), [("05:30", 2, [6]), ("04:30", 1, [4, 5, 6]), ("00:30", 0, [])])
def test_the_command_that_a_late_row_of_mariadb_names_brings_it(
    world: Read, at: str, batch: int, again: list[int]
) -> None:
    world.insert((9, at))
    with pytest.raises(MicroBatchError, match="late_seconds") as refused:
        world.read(clear=batch)
    status, text = said(command_of(refused.value))
    assert status == 0, text
    world.read()
    assert world.rows() == Counter([1, 2, 3, 4, 5, 6, 9, *(again or range(1, 7))])


@pytest.mark.parametrize("to", [-1, 0])
@pytest.mark.parametrize("at", ["00:30", "03:30", "05:30"])
def test_a_rewind_over_a_late_row_of_mariadb_brings_it_and_doubles_nothing(world: Read, at: str, to: int) -> None:
    world.insert((9, at))
    world.typed("rewind", "--to", str(to), "--drop-output")
    world.read()
    is_behind = to == -1 or at != "00:30"
    assert world.rows() == Counter([1, 2, 3, 4, 5, 6, *([9] if is_behind else [])])


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_rewind_over_more_rows_of_mariadb_than_were_planned_tells_that_one_may_be_gone(
    tmp_path: Path, connected: Callable[[str], OrdersInMariaDb], on_missing: str, gone: bool
) -> None:
    """Nobody can tell whether one is."""
    world = Read(tmp_path, connected("mariadb"), on_missing=on_missing).read_three()
    world.insert((7, "03:30"), (8, "03:40"))
    if gone:
        world.orders.execute("DELETE FROM orders WHERE id = 4")
    rewind = ["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"]
    if on_missing == "skip":
        status, text = said(rewind)
        assert status != 0
        assert "go on without it: --allow-skip" in text
        rewind.append("--allow-skip")
    told = world.typed(rewind[0], *rewind[2:])
    assert f"{3 if gone else 4} rows of orders are there where 2 were planned: if one of these is gone" in told
    world.read()
    assert world.rows() == Counter([1, 2, 3, *([] if gone else [4]), 5, 6, 7, 8])


def test_a_rewind_that_would_lose_a_row_of_mariadb_is_refused(world: Read) -> None:
    world.orders.execute("DELETE FROM orders WHERE id = 4")
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status != 0
    assert "1 of 2 rows that were planned are gone" in text
    world.set_offset('{"t": "2026-01-01 03:30:00"}', "--allow-reread")
    world.read()
    assert world.rows() == Counter([1, 2, 3, 4, 5, 5, 6, 6])


def test_a_late_row_of_mariadb_does_not_make_up_for_one_that_a_rewind_would_lose(world: Read) -> None:
    world.orders.execute("DELETE FROM orders WHERE id = 4")
    world.insert((7, "03:30"))
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status != 0
    assert "as many rows of orders are there as were planned (2), and other ones" in text
    world.set_offset('{"t": "2026-01-01 03:20:00"}', "--allow-reread")
    world.read()
    assert world.rows() == Counter([1, 2, 3, 4, 5, 5, 6, 6, 7])


def test_a_row_of_mariadb_that_a_late_one_does_not_make_up_for_may_be_given_up_where_rows_are_skipped(
    tmp_path: Path, connected: Callable[[str], OrdersInMariaDb]
) -> None:
    world = Read(tmp_path, connected("mariadb"), on_missing="skip").read_three()
    world.orders.execute("DELETE FROM orders WHERE id = 4")
    world.insert((7, "03:30"))
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status != 0
    assert "as many rows of orders are there as were planned (2), and other ones" in text
    assert "as many rows" in world.typed("rewind", "--to", "0", "--drop-output", "--allow-skip")
    world.read()
    assert world.rows() == Counter([1, 2, 3, 5, 6, 7])


def test_the_command_that_a_clock_that_was_put_back_names_brings_what_was_written_then(
    world: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.insert((7, "07:00"))
    world.read()
    present = timed_table.now
    with monkeypatch.context() as put_back:
        put_back.setattr(timed_table, "now", lambda session: 1_767_247_200_000)  # 06:00 of that day
        with pytest.raises(MicroBatchError, match="put back") as refused:
            world.read()
        world.insert((8, "06:30"))
    assert timed_table.now is present
    status, text = said(command_of(refused.value))
    assert status == 0, text
    world.read()
    assert world.rows() == Counter([1, 2, 3, 4, 5, 6, 7, 7, 8])


@pytest.mark.parametrize("by_time", [True, False])
@pytest.mark.parametrize("system", ["mariadb", "postgres"])
def test_set_offset_tells_how_many_rows_it_goes_back_over_and_passes_over(
    tmp_path: Path, connected: Callable[[str], OrdersInMariaDb | OrdersTable], system: str, by_time: bool
) -> None:
    world = Read(tmp_path, connected(system), by_time=by_time).read_three()

    def at(number: int) -> str:
        return f'{{"t": "2026-01-01 0{number}:00:00+00"}}' if by_time else f'{{"n": {number}}}'

    for number, rows in ((0, 6), (3, 3), (4, 2), (5, 1)):
        assert f"({rows} rows)" in world.set_offset(at(number), "--allow-reread", "--dry-run"), number
    world.insert((7, "07:00"), (8, "08:00"), (9, "09:00"))
    assert "lost to the table" in (told := world.set_offset(at(8), "--allow-skip"))
    assert "(2 rows)" in told
    world.set_offset(at(1), "--allow-reread")
    world.read()
    assert world.rows() == Counter([*range(1, 10), *range(2, 7)])


def test_a_row_that_a_rewind_of_a_postgres_table_would_lose_is_not_made_up_for_by_a_late_one(
    tmp_path: Path, connected: Callable[[str], OrdersTable]
) -> None:
    world = Read(tmp_path, connected("postgres")).read_three()
    world.orders.execute("DELETE FROM orders WHERE id = 4")
    world.insert((9, "04:30"))
    status, text = said(["rewind", world.pipeline.checkpoint, "--to", "0", "--drop-output"])
    assert status != 0
    assert "1 of 2 rows that were planned are gone" in text


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many days later PostgreSQL's clock is."""
    moment, by = Snapshot.moment, [0]

    def later(self: Snapshot) -> tuple[int, int]:
        now_ms, xmin = moment(self)
        return now_ms + 86_400_000 * by[0], xmin

    monkeypatch.setattr(Snapshot, "moment", later)
    return by


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What plans of tables warn of; a command changes where logs go."""
    found: list[str] = []
    monkeypatch.setattr(opened_module.log, "warning", lambda text, *given: found.append(text % given))
    return found


def test_a_sequence_that_fills_the_column_no_more_is_told_by_the_plan_and_by_check(
    tmp_path: Path, connected: Callable[[str], OrdersTable], days: list[int], warned: list[str]
) -> None:
    """Each of its numbers is waited for. One row that is written ahead of it is nothing to tell."""
    orders = connected("postgres")
    world = Read(tmp_path, orders, by_time=False)
    for day, number in ((0, "nextval('orders_id_seq')"), (0, "1000"), (3, "nextval('orders_id_seq')")):
        days[0] = day
        orders.execute(f"INSERT INTO orders (id) VALUES ({number})")
        world.read()
    assert "nothing wrong" in world.typed("check")
    assert warned == []
    orders.execute("INSERT INTO orders (id) VALUES (2000)")
    world.read()

    told = "for 3 days rows have come ahead of the sequence of orders's column 'id', and each missing number from 3 on"
    assert [told in one for one in warned] == [True]
    status, text = said(["check", world.pipeline.checkpoint])
    assert (status, told in text) == (1, True)
    (setval,) = re.findall(r"SELECT setval\(.*, N\)", warned[0])
    orders.execute(setval.replace(", N)", ", 1000000)"))
    for number in (2001, 2002):
        orders.execute("INSERT INTO orders (id) VALUES (%s)", number)
        world.read()
    assert "nothing wrong" in world.typed("check")
    assert world.rows() == Counter({1: 1, 2: 1, 1000: 1, 2000: 1, 2001: 1, 2002: 1})


@pytest.mark.parametrize("most", [5000, 3], ids=["listed", "beyond"])
@pytest.mark.parametrize("is_identity", [False, True], ids=["serial", "identity"])
def test_the_way_on_from_a_sequence_that_counts_blocks_reads_each_row_once(
    tmp_path: Path,
    connected: Callable[[str], OrdersTable],
    days: list[int],
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_identity: bool,
    most: int,
) -> None:
    """Typed as it is told, in that order, while the pipeline runs on until the sequence is taken from the column."""
    for module in (numbered, opened_module):
        monkeypatch.setattr(module, "MOST_GAPS", most)
    orders = connected("postgres")
    if is_identity:
        orders.execute("ALTER TABLE orders ALTER COLUMN id DROP DEFAULT")
        orders.execute("DROP SEQUENCE orders_id_seq")
        orders.execute("ALTER TABLE orders ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY")
    world = Read(tmp_path, orders, by_time=False)

    def insert(*numbers: object) -> None:
        orders.execute(f"INSERT INTO orders (id) VALUES {', '.join(f'({one})' for one in numbers)}")

    for day, numbers in enumerate((["nextval('orders_id_seq')"], [900, 1000], [1800, 2000], [2001], [2002])):
        days[0] = 3 * day
        insert(*numbers)
        world.read()
    assert not re.findall("set-offset", "".join(warned)), "the pipeline goes on, and a command would be of before"
    before_it = len(warned)
    (plain, dropped) = re.findall(r"(ALTER SEQUENCE … OWNED BY NONE); of .*? (ALTER TABLE .*?),", warned[-1])[0]
    if is_identity:
        orders.execute(dropped)
    else:
        orders.execute(plain.replace("…", "orders_id_seq"))
    insert(1900)
    with pytest.raises(MicroBatchError, match=r"owns no sequence by now") as refused:
        world.read()
    begin, here = map(shlex.split, re.findall(r"`microbatch (set-offset [^`]+)`", str(refused.value)))
    before = here[: here.index("--offset") + 1]
    for again in ([one for one in begin if one != "--allow-reread"], [*before, '{"n": 2001}', "--allow-skip"]):
        status, text = said(again)
        assert (status, "would be in it twice" in text) == (2, True), text
    status, text = said(here)
    assert status == 0, text
    with orders.connect() as slow:
        slow.execute("INSERT INTO orders (id) VALUES (1700)")
        insert(2003)
        world.read()
    for number in (2004, 2005):
        insert(number)
        world.read()
    there = Counter(one for (one,) in orders.rows("SELECT id FROM orders"))
    passed_over = [1700, 1900] if "which passes over what came late from 2 on" in str(refused.value) else []
    assert world.rows() == there - Counter(passed_over)
    assert bool(passed_over) is (most == 3), "they are more than a position lists"
    assert "nothing wrong" in world.typed("check")
    assert len(warned) == before_it, "nothing is waited for without an end any more"
