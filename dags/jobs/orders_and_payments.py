"""Two tables of each batch of orders. Runs in Spark's driver, so it imports PySpark and nothing else."""

from __future__ import annotations

from typing import Any


def transform(batch: Any) -> dict[str, Any]:
    """The orders without what was paid for them, and the payments."""
    orders = batch.sources["orders"].dropDuplicates(["id"])
    return {"orders": orders.drop("amount"), "payments": orders.select("id", "customer", "amount")}
