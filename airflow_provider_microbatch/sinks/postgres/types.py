"""The PostgreSQL type for a column of Spark, and the types that it may be written to: none that is narrower."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MADE = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "char": "text",
    "varchar": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "array": "jsonb",
    "struct": "jsonb",
    "map": "jsonb",
    "variant": "jsonb",
}
_NUMBERS = ("smallint", "integer", "bigint", "numeric")
_TAKEN_BY = {
    "boolean": ("boolean",),
    "tinyint": (*_NUMBERS, "real", "double precision"),
    "smallint": (*_NUMBERS, "real", "double precision"),
    "int": (*_NUMBERS[1:], "double precision"),
    "bigint": _NUMBERS[2:],
    "float": ("real", "double precision"),
    "double": ("double precision",),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
    "array": ("jsonb", "json"),
    "struct": ("jsonb", "json"),
    "map": ("jsonb", "json"),
    "variant": ("jsonb", "json"),
}
_NOT_OF_TEXT = {name for types in _TAKEN_BY.values() for name in types} - {"jsonb", "json"}
"""A text that is no number would fail the load at some row, some day: the transform has to cast it."""
_CUTS_TEXT = re.compile(
    r'(name|"char"|(interval|time)\([0-5]\).*|interval (?!.*second)[a-z ]+|interval .*second\([0-5]\))(\[\])*'
)
"""PostgreSQL cuts a text to their length, or rounds it, without a word."""
_SIZED = re.compile(r"(\w+)\((\d+)(?:,\s*(-?\d+))?\)")
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True, kw_only=True)
class StagedColumn:
    """A column of a stage.

    :param name: as Spark has it.
    :param type: as Spark writes it (``decimal(18,4)``).
    """

    name: str
    type: str

    @property
    def kind(self) -> str:
        """The name of the type, without its parameters."""
        return re.split(r"[<( ]", self.type, maxsplit=1)[0]

    @property
    def made_as(self) -> str:
        """The PostgreSQL type of a new column for it."""
        return f"numeric({self._digits},{self._scale})" if self.kind == "decimal" else _MADE[self.kind]

    def fits(self, type: str, *, is_judged: bool = False) -> bool:
        """Whether a column of that type, as PostgreSQL writes it (``numeric(18,4)``), can hold every value.

        :param is_judged: whether the values are known to have no more digits of a second than the column keeps.
        """
        base = type.partition("(")[0].strip() + (" with time zone" if type.endswith(") with time zone") else "")
        base += " without time zone" if type.endswith(") without time zone") else ""
        sized = _SIZED.match(type)
        if base == "numeric" and sized is not None and (self.kind == "decimal" or self.kind in _DIGITS):
            scale = int(sized[3] or 0)
            return int(sized[2]) - scale >= self._digits - self._scale and scale >= self._scale
        if self.kind == "decimal":
            return base == "numeric"
        if self.kind in ("string", "char", "varchar"):
            return base not in _NOT_OF_TEXT and _CUTS_TEXT.fullmatch(type) is None
        if base.startswith("timestamp") and sized is not None and int(sized[2]) < 6 and not is_judged:
            return False  # PostgreSQL would round microseconds away
        return base in _TAKEN_BY.get(self.kind, ())

    @property
    def is_json(self) -> bool:
        """Whether the column holds JSON text."""
        return self.kind in ("array", "struct", "map", "variant")

    @property
    def _digits(self) -> int:
        sized = _SIZED.match(self.type)
        return int(sized[2]) if sized is not None else _DIGITS.get(self.kind, 0)

    @property
    def _scale(self) -> int:
        sized = _SIZED.match(self.type)
        return int(sized[3] or 0) if sized is not None else 0
