"""Whether a continuous table of a catalog reads what its sink writes. The table keeps the columns and options that it
was made with, while a sink may be given others: readers then find none of a column, or the values of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Columns = Sequence[tuple[str, Any]]
"""Name and type (Spark's JSON) of each."""

_BY_POSITION = "csv"
_BY_SPELLING = "json"
"""Spark finds the columns of the other formats whether their names are in capitals or not."""
_AS_TEXT = ("csv", "json")
"""Formats whose files do not tell how they were written: their reader has to have the writer's options."""
_OF_WRITER = frozenset(
    {
        *("compression", "codec", "maxrecordsperfile", "quoteall", "escapequotes"),
        *("ignorenullfields", "writenonasciicharacterascodepoint"),
    }
)
"""Options by which files of text differ, and are read alike."""
_OF_READER = frozenset(
    {
        *("inferschema", "samplingratio", "prefersdecimal", "primitivesasstring", "dropfieldifallnull"),
        *("preferdate", "infertimestamp", "enabledatetimeparsingfallback", "enforceschema"),
        *("maxmalformedlogperpartition", "allowcomments", "allowunquotedfieldnames"),
        *("allowsinglequotes", "allownumericleadingzeros", "allowbackslashescapinganycharacter"),
        *("allowunquotedcontrolchars", "columnpruning", "inputbuffersize", "maxcolumns", "maxcharspercolumn"),
    }
)
"""Options that no row that Spark has written is read otherwise by: of what does not parse, of types that nobody has
told, of limits. Not ``mode``, by which rows that have fewer columns than a table of CSV are dropped, nor ``multiLine``,
by which a file of JSON has one row."""
_CORRUPT = "columnnameofcorruptrecord"
"""Of the reader alone too, but where it names a column that is written: Spark reads no value of the files for that one,
and takes it out of the positions of CSV, so that each column behind it has the values of the one before."""
_OTHER_NAMES = {"delimiter": "sep", "charset": "encoding"}
"""Options of two names, of which the second counts if both are given."""
_DEFAULTS = {
    **{"header": "false", "multiline": "false", "mode": "permissive", "encoding": "utf-8"},
    **{"sep": ",", "quote": '"', "escape": "\\", "nullvalue": "", _CORRUPT: "_corrupt_record"},
}
"""Options that writer and reader have one default of, which counts as much said as unsaid."""
_IN_ANY_CASE = frozenset(
    {"header", "multiline", "mode", "encoding", "ignoreleadingwhitespace", "ignoretrailingwhitespace", "pretty"}
)
"""Options whose values Spark takes in capitals too."""
_NOT_IN_FILES = frozenset({"nullable", "element_nullable", "value_nullable", "comment", "default", "collation"})
"""What a type tells beside how values are written."""


def missing(written: Columns, read: Columns, *, format: str) -> list[str]:
    """Columns that are written and that the table lacks. It can be given them behind its own."""
    if format == _BY_POSITION:
        return [name for name, _ in written[len(read) :]]
    known = {name.casefold() for name, _ in read}
    return [name for name, _ in written if name.casefold() not in known]


def misread(written: Columns, read: Columns, *, format: str) -> list[str]:
    """Columns that are written and that the table reads as another column, or as of another type."""
    same = str if format == _BY_SPELLING else str.casefold
    if format == _BY_POSITION:
        pairs = zip(written, read, strict=False)
        return [own[0] for own, there in pairs if not _is_read([own], [there], same)]
    there_is = {name.casefold() for name, _ in read}
    return [one[0] for one in written if one[0].casefold() in there_is and not _is_read([one], read, same)]


def other_options(
    written: Mapping[str, str], read: Mapping[str, str], *, format: str, columns: tuple[Columns, Columns] = ((), ())
) -> list[str]:
    """Options that the table reads by otherwise than they are written by.

    :param columns: those that are written, and those of the table.
    """
    if format not in _AS_TEXT:
        return []
    own, there = _as_spark_takes(written), _as_spark_takes(read)
    told = {*own, *there} - _OF_WRITER - _OF_READER
    names = {name.casefold() for name, _ in columns[0]}
    if not any(name == there[_CORRUPT] and name.casefold() in names for name, _ in columns[1]):
        told.remove(_CORRUPT)
    return sorted(key for key in told if own.get(key) != there.get(key))


def _as_spark_takes(options: Mapping[str, str]) -> Mapping[str, str]:
    given = {key.casefold(): value for key, value in options.items()}
    second_last = sorted(given.items(), key=lambda one: one[0] not in _OTHER_NAMES)
    named = {_OTHER_NAMES.get(key, key): value for key, value in second_last}
    return _DEFAULTS | {key: value.casefold() if key in _IN_ANY_CASE else value for key, value in named.items()}


def _is_read(written: Columns, read: Columns, same: Callable[[str], str]) -> bool:
    """Whether each column that is written is read as what it is. Columns that are only read are null."""
    there = {same(name): kind for name, kind in read}
    return all(same(name) in there and _is_same(kind, there[same(name)], same) for name, kind in written)


def _is_same(written: Any, read: Any, same: Callable[[str], str]) -> bool:
    if not isinstance(written, Mapping) or not isinstance(read, Mapping):
        return bool(written == read)
    if "fields" in written and "fields" in read:
        return _is_read(_fields(written), _fields(read), same)
    told = (written.keys() | read.keys()) - _NOT_IN_FILES
    return all(_is_same(written.get(key), read.get(key), same) for key in told)


def _fields(kind: Mapping[str, Any]) -> Columns:
    return [(field["name"], field["type"]) for field in kind["fields"]]
