"""Names of columns in expressions of Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name of a column as an expression has it, whatever is in the name: a dot, too, is part of it."""
    return "`" + name.replace("`", "``") + "`"
