"""A table whose changes a slot would tell in part, or as those of another table, is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_microbatch.exceptions import SourceError
from tests.support.slot_table import PUBLICATION, SlotTable, slot_table

pytestmark = pytest.mark.slow
PUBLISHED = f'ALTER PUBLICATION "{PUBLICATION}"'
FULL = "ALTER TABLE orders REPLICA IDENTITY FULL"
BY_NO = (
    "ALTER TABLE orders ADD no int NOT NULL UNIQUE",
    "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_no_key",
)


@pytest.fixture
def table() -> Iterator[SlotTable]:
    with slot_table() as found:
        yield found


def partitioned(*statements: str) -> tuple[str, ...]:
    return (
        "DROP TABLE orders",
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        *statements,
        FULL,
        f"{PUBLISHED} ADD TABLE orders",
        f"{PUBLISHED} SET (publish_via_partition_root)",
    )


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "its changes are those of other tables": (
        ("CREATE TABLE late () INHERITS (orders)", "CREATE TABLE later () INHERITS (late)"),
        "orders has children by INHERITS: late, later",
    ),
    "a delete does not tell the key": (
        ("ALTER TABLE orders DROP note", *BY_NO),
        r"identity of orders is \(no\), without the whole key.*ALTER TABLE orders REPLICA IDENTITY FULL",
    ),
    "a delete tells nothing": (("ALTER TABLE orders REPLICA IDENTITY NOTHING",), "identity of orders is nothing"),
    "rows swap keys": (
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE",),
        "primary key of orders is DEFERRABLE",
    ),
    "no deletes": (
        (f"{PUBLISHED} SET (publish = 'insert, update')",),
        r"does not publish delete, truncate.*SET \(publish = 'insert, update, delete, truncate'\)",
    ),
    "no truncates": ((f"{PUBLISHED} SET (publish = 'insert, update, delete')",), "does not publish truncate"),
    "some rows": ((f"{PUBLISHED} SET TABLE orders WHERE (note <> 'x')",), r"only the rows of orders WHERE .*'x'"),
    "some columns": ((f"{PUBLISHED} SET TABLE orders (id)",), "leaves out note"),
    "a partition tells keys alone": (
        partitioned("CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)"),
        r"low may have large values in note.*ALTER TABLE low REPLICA IDENTITY FULL",
    ),
    "the log has no partition": (
        partitioned("CREATE UNLOGGED TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)"),
        "low is foreign or unlogged",
    ),
}


@pytest.mark.parametrize(("statements", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_a_table_is_refused_of_which_a_slot_tells_less_than_its_copy_needs(
    table: SlotTable, tmp_path: Path, statements: tuple[str, ...], match: str
) -> None:
    table.execute(*statements)
    source = table.opener(tmp_path)(
        schema="id long, no int" if "no int" in " ".join(statements) else "id long, note string"
    )
    with pytest.raises(SourceError, match=match):
        source.check()


READ: dict[str, tuple[str, ...]] = {
    "an index that has the key": (
        "ALTER TABLE orders DROP note, ADD no int NOT NULL, ADD UNIQUE (no, id)",
        "ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_no_id_key",
    ),
    "a key that includes others": (
        "ALTER TABLE orders DROP note, ADD no int",
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) INCLUDE (no)",
    ),
    "the key alone": ("ALTER TABLE orders DROP note, ADD no int, REPLICA IDENTITY DEFAULT",),
}


@pytest.mark.parametrize("statements", READ.values(), ids=READ.keys())
def test_what_tells_the_key_of_each_old_row_is_read(
    table: SlotTable, tmp_path: Path, statements: tuple[str, ...]
) -> None:
    table.execute(*statements)
    source = table.opener(tmp_path)(schema="id long, no int")
    source.check()
    table.execute("INSERT INTO orders VALUES (1, 1)", "UPDATE orders SET id = 2", "DELETE FROM orders")
    found = [(row["_op"], row["id"]) for row in source.rows(None, source.latest_offset(None))]
    assert found == [("insert", 1), ("delete", 1), ("insert", 2), ("delete", 2)]
