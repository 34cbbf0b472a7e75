"""A real Spark reads a slot: every type as it is, and each change is in the tables once, whoever dies meanwhile."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
from airflow_provider_microbatch.pipeline import Pipeline
from airflow_provider_microbatch.runtime import secrets, slot_snapshot
from airflow_provider_microbatch.runtime.slot import read
from airflow_provider_microbatch.runtime.slot_rows import ADDED
from airflow_provider_microbatch.sinks.file import FileSink
from airflow_provider_microbatch.sinks.merge import Merge
from airflow_provider_microbatch.sinks.postgres import PostgresSink
from airflow_provider_microbatch.sources.slot.open import OpenSlot
from airflow_provider_microbatch.sources.slot.server import Server
from tests.airflow_face.support import context
from tests.postgres.test_processes import process, status
from tests.support.local_spark import local_spark
from tests.support.slot_table import SlotTable, slot_table

pytestmark = pytest.mark.spark
PASSWORD = "not-to-be-told"
BOTH = "def transform(batch):\n    orders = batch.sources['orders']\n    return {'history': orders, 'orders': orders}\n"
CHANGES = Merge(
    keys=("id",),
    sequence_by=("_lsn", "_number"),
    delete_when="_op = 'delete'",
    leave_out=("_op", "_committed_at"),
)


@pytest.fixture
def table() -> Iterator[SlotTable]:
    with slot_table() as found:
        yield found


LATE = datetime(2026, 10, 25, 0, 30, 0, 500_000, tzinfo=UTC)  # of two moments that are half past two in Amsterdam
TYPES = {
    "b": ("boolean", "boolean", "true", True),
    "i2": ("smallint", "smallint", "-32768", -32768),
    "i4": ("int", "int", "2147483647", 2**31 - 1),
    "f4": ("real", "float", "1.5", 1.5),
    "f8": ("double precision", "double", "'-Infinity'", -math.inf),
    "n": ("numeric(38,18)", "decimal(38,18)", "-0.000000000000000001", Decimal("-1e-18")),
    "d": ("date", "date", "'2026-02-28'", date(2026, 2, 28)),
    "t": ("timestamptz", "timestamp", "'2026-10-25 02:30:00.5+02'", LATE),
    "nt": ("timestamp", "timestamp_ntz", "'2026-03-29 02:30:00.5'", datetime(2026, 3, 29, 2, 30, 0, 500_000)),
    "y": ("bytea", "binary", "'\\x00ff5c'", b"\0\xff\\"),
    "s": ("text", "string", "E'ü\\n\"\\\\N'", 'ü\n"\\N'),
    "j": ("jsonb", "string", "'{\"a\": [1]}'", '{"a": [1]}'),
    "a": ("int[]", "string", "'{1,NULL}'", "{1,NULL}"),
}  # fmt: skip


def test_every_type_comes_as_it_is_and_as_null(table: SlotTable, tmp_path: Path) -> None:
    for name, (sql, _, _, _) in TYPES.items():
        table.execute(f"ALTER TABLE orders ADD {name} {sql}")
    values = ", ".join(value for _, _, value, _ in TYPES.values())
    table.execute(f"INSERT INTO orders (id, {', '.join(TYPES)}) VALUES (1, {values})", "INSERT INTO orders VALUES (2)")
    schema = ", ".join(["id long", "note string", *(f"{name} {spark}" for name, (_, spark, _, _) in TYPES.items())])
    source = table.opener(tmp_path)(schema=schema)
    source.check()
    end = source.latest_offset(None)
    secrets.give({"orders/password": ""})
    with local_spark(conf={"spark.sql.session.timeZone": "Europe/Amsterdam"}) as spark:
        found = read(spark, json.loads(json.dumps(source.read(None, end).arguments)))
        rows = found.frame.selectExpr("*", "unix_micros(t) AS at").collect()
        empty = read(spark, source.read(end, end).arguments)
        assert empty.frame.schema == found.frame.schema
        assert empty.frame.count() == 0
        table.drop_slot()  # a source with a snapshot makes its own
        before = table.opener(tmp_path)(schema=schema, snapshot=str(tmp_path / "snapshots"))
        taken = before.read(None, before.latest_offset(None))
        assert taken.reader == f"{slot_snapshot.__name__}:read"
        copy = slot_snapshot.read(spark, json.loads(json.dumps(taken.arguments))).frame
        assert copy.schema == found.frame.schema
        copied = copy.orderBy("id").collect()
    secrets.give({})
    assert [row[: -len(ADDED)] for row in copied] == [row[: -len(ADDED) - 1] for row in rows]
    assert {(row["_op"], row["_number"]) for row in copied} == {("snapshot", -1)}
    full, bare = (row.asDict() for row in rows)
    wanted: dict[str, Any] = {name: value for name, (_, _, _, value) in TYPES.items() if name != "t"}
    assert {name: bytes(full[name]) if name == "y" else full[name] for name in wanted} == wanted
    assert full["at"] == round(TYPES["t"][3].timestamp() * 1_000_000)
    assert {bare[name] for name in TYPES} == {None}
    assert [row["_op"] for row in rows] == ["insert", "insert"]


def dying(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """This process dies where it would call the method."""
    monkeypatch.setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


def history(folder: Path) -> list[tuple[str, int, str | None]]:
    """All changes that a reader of the table of files finds."""
    files = [path for path in folder.rglob("part-*.json") if "_staging" not in path.parts]
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    found.sort(key=lambda row: (row["_lsn"], row["_number"]))
    return [(row["_op"], row["id"], row.get("note")) for row in found]


def test_each_change_is_in_the_tables_once_whoever_dies(
    table: SlotTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = table.orders.connection
    database = {"conn_type": "postgres", "host": to.host, "port": to.port, "schema": to.schema, "login": to.login}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps({**database, "password": PASSWORD}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "orders.py").write_text(BOTH)
    pipeline = Pipeline(
        "orders",
        checkpoint=str(tmp_path / "checkpoints" / "orders"),
        sources={"orders": table.source()},
        sinks={
            "history": FileSink(str(tmp_path / "history"), format="json"),
            "orders": PostgresSink("orders_db", "copy", stages=str(tmp_path / "stages"), merge=CHANGES),
        },
        transform="orders.py:transform",
    )

    def run(number: int, try_number: int = 1) -> Any:
        operator = MicroBatchOperator(
            task_id="micro_batch", pipeline=pipeline, conn_id="spark_default", conf={"spark.ui.enabled": "false"}
        )
        return operator.execute(context(bundle, number=number, try_number=try_number))

    def killed(owner: type, name: str, work: Callable[[], object]) -> None:
        def within() -> None:
            dying(monkeypatch, owner, name)
            work()

        with process(within) as pid:
            assert status(pid) == -signal.SIGKILL

    table.execute("INSERT INTO orders (note) VALUES ('a'), ('b'), ('c')")
    table.execute("UPDATE orders SET note = 'A' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    stood = table.moved_to()
    killed(OpenSlot, "verify", lambda: run(1))
    table.execute("UPDATE orders SET id = 9 WHERE id = 3")
    assert table.moved_to() == stood
    assert history(tmp_path / "history") == []
    summary = run(1, try_number=2)
    first = [("insert", 1, "a"), ("insert", 2, "b"), ("insert", 3, "c"), ("update", 1, "A"), ("delete", 2, "b")]
    assert history(tmp_path / "history") == first, "the range of the plan, although there was more"
    assert summary["lag"]["orders"]["bytes"] > 0
    assert table.moved_to() != stood

    stood = table.moved_to()
    killed(Server, "move_on", lambda: run(2))
    assert table.moved_to() == stood
    assert history(tmp_path / "history") == [*first, ("delete", 3, "c"), ("insert", 9, "c")]
    with pytest.raises(AirflowSkipException):
        run(3)
    assert table.moved_to() != stood, "who comes next says the commit again"
    with table.orders.connect() as session:
        copied = session.execute("SELECT id, note FROM copy ORDER BY id").fetchall()
        assert copied == session.execute("SELECT id, note FROM orders ORDER BY id").fetchall()
    assert PASSWORD not in caplog.text
    assert PASSWORD.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
