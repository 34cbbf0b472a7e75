"""Parses columns written as Spark's DDL (``id long, name string NOT NULL``) without a JVM, which PySpark's own parser
needs.

Syntax: https://spark.apache.org/docs/latest/sql-ref-datatypes.html. The result is the JSON that ``StructType.fromJson``
takes.
"""

from __future__ import annotations

import re
from typing import Any

_NAMES = {
    **dict.fromkeys(("boolean",), "boolean"),
    **dict.fromkeys(("tinyint", "byte"), "byte"),
    **dict.fromkeys(("smallint", "short"), "short"),
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("bigint", "long"), "long"),
    **dict.fromkeys(("float", "real"), "float"),
    **dict.fromkeys(("double",), "double"),
    **dict.fromkeys(("string",), "string"),
    **dict.fromkeys(("binary",), "binary"),
    **dict.fromkeys(("date",), "date"),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "timestamp"),
    **dict.fromkeys(("timestamp_ntz",), "timestamp_ntz"),
    **dict.fromkeys(("void",), "void"),
    **dict.fromkeys(("variant",), "variant"),
}
_DECIMALS = ("decimal", "dec", "numeric")
_LENGTHS = {"char": "char", "character": "char", "varchar": "varchar"}
_INTERVAL_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")


def parse_columns(text: str) -> dict[str, Any]:
    """The columns as JSON values.

    :raises ValueError: if the text cannot be parsed; the message names the place.
    """
    parser = _Parser(text)
    fields = parser.fields(end=None)
    return {"type": "struct", "fields": fields}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._error(text[place:].strip())
            self._tokens.append(found[0].strip())
            place = found.end()
        self._next = 0

    def fields(self, *, end: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while end is None or self._peek() != end:
            name = self._take()
            self._skip(":")
            field: dict[str, Any] = {"name": _unquoted(name), "type": self.type(), "nullable": True, "metadata": {}}
            if self._skip("not"):
                self._expect("null")
                field["nullable"] = False
            if self._skip("comment"):
                field["metadata"] = {"comment": self._take()[1:-1]}
            found.append(field)
            if not self._skip(","):
                break
        if end is not None:
            self._expect(end)
        elif self._next < len(self._tokens):
            raise self._error(self._peek())
        return found

    def type(self) -> Any:
        name = self._take().lower()
        if name in _NAMES:
            return _NAMES[name]
        if name in _DECIMALS:
            precision, scale = [*self._numbers(), "10", "0"][:2] if self._peek() == "(" else ("10", "0")
            return f"decimal({precision},{scale if scale.isdecimal() else 0})"
        if name in _LENGTHS:
            return f"{_LENGTHS[name]}({self._numbers()[0]})"
        if name == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        if name == "map":
            self._expect("<")
            key = self.type()
            self._expect(",")
            value = self.type()
            self._expect(">")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if name == "struct":
            self._expect("<")
            return {"type": "struct", "fields": self.fields(end=">")}
        if name == "interval":
            return self._interval()
        raise self._error(name)

    def _interval(self) -> str:
        parts = [self._take().lower()]
        if self._skip("to"):
            parts.append(self._take().lower())
        if not set(parts) <= set(_INTERVAL_FIELDS):
            raise self._error(" to ".join(parts))
        return f"interval {' to '.join(parts)}"

    def _numbers(self) -> list[str]:
        self._expect("(")
        found = [self._take()]
        while self._skip(","):
            found.append(self._take())
        self._expect(")")
        if not all(one.isdecimal() for one in found):
            raise self._error(", ".join(found))
        return found if len(found) > 1 else [found[0], "0"]

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        if self._next == len(self._tokens):
            raise self._error("its end")
        self._next += 1
        return self._tokens[self._next - 1]

    def _skip(self, token: str) -> bool:
        if self._peek().lower() != token:
            return False
        self._next += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise self._error(self._peek() or "its end")

    def _error(self, at: str) -> ValueError:
        return ValueError(
            f"the schema {self._text!r} cannot be understood at {at!r} without a JVM. Have schema() return a "
            "StructType."
        )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
