"""Entries that are ours alone: a version line, then one JSON object, as in Spark's logs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from types import UnionType
from typing import Any, NoReturn, get_args, get_type_hints

from airflow_provider_microbatch.checkpoint.entries import RunIdentity
from airflow_provider_microbatch.checkpoint.key import is_whole
from airflow_provider_microbatch.exceptions import CorruptEntryError, UnknownVersionError
from airflow_provider_microbatch.runtime.masking import mask

VERSION = "v1"
_OF_A_RUN = frozenset(field.name for field in fields(RunIdentity))
_TOLD = ("error", "reason", "outcome")
"""Fields of our entries that hold error texts, in the words of other systems."""
_FIGURES = {
    "numInputRows": 1,
    "numEmptyRows": 1,
    "durationMs": 1,
    "sources": 2,
    "lag": 2,
    "lagBySplit": 2,
    "numOutputRows": 0,
    "numOutputFiles": 0,
    "numOutputBytes": 0,
    "numDeadLetters": 0,
    "numDroppedRows": 0,
}
"""Figures of the runtime's result that labels and sums use: one (0), one for each name (1), several for each (2)."""
_PLAIN = frozenset({str, int, float, bool, type(None)})


def to_json(value: Any) -> str:
    """JSON as Spark writes it: on one line, without blanks, other alphabets as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_bytes(text: str) -> bytes:
    """UTF-8. A lone surrogate (a file name that is no UTF-8, quoted in an error) becomes its JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def corrupt(where: str, what: str) -> NoReturn:
    """Raise the error of an entry that cannot be read.

    :param where: address of the entry.
    :param what: what is wrong with the entry; follows "is" in the message.
    """
    raise CorruptEntryError(
        f"{where} is {what}. `microbatch check` lists all that is wrong, `microbatch repair --dry-run` says what "
        "can be repaired without losing or doubling a row; the rest has to be restored from a backup."
    )


def split_entry(data: bytes, *, where: str, versions: tuple[str, ...]) -> tuple[str, list[str]]:
    """The version and the lines after it.

    :raises CorruptEntryError: if the entry is empty, no text, or of a version that is not in ``versions``.
    """
    if not data:
        corrupt(where, "empty (zero bytes): an incomplete log file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        corrupt(where, f"no UTF-8 text ({error.reason} at byte {error.start})")
    version, *lines = text.removesuffix("\n").split("\n")
    if version not in versions:
        if not lines and any(known.startswith(version) for known in versions):
            corrupt(where, f"torn after {text!r}")
        raise UnknownVersionError(
            f"{where} is of version {version[:40]!r}; this package reads {' and '.join(versions)}. It was written by a "
            "newer version or by something else: upgrade, or point the pipeline at another checkpoint."
        )
    if not lines:
        corrupt(where, f"torn after {text!r}")
    return version, lines


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """The JSON object in ``text``.

    :raises CorruptEntryError: if the text is anything else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        corrupt(where, f"torn or no JSON ({error})")
    if not isinstance(value, dict):
        corrupt(where, f"not what it should be: no JSON object but {text[:40]!r}")
    return value


def encode_record(values: Mapping[str, Any]) -> bytes:
    """One of our own entries as bytes. Texts of errors are masked here, so that none is stored as it came."""
    return to_bytes(f"{VERSION}\n{to_json(masked(values))}")


def masked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with secrets in their error texts masked."""
    return {name: mask(value) if name in _TOLD and isinstance(value, str) else value for name, value in values.items()}


def decode_record(data: bytes, *, where: str) -> dict[str, Any]:
    """The values that :func:`encode_record` wrote.

    :raises CorruptEntryError: if the bytes are something else, or only half of an entry.
    """
    _, lines = split_entry(data, where=where, versions=(VERSION,))
    if len(lines) != 1:
        corrupt(where, f"not what it should be: {len(lines)} lines after the version, not one")
    return parse_object(lines[0], where=where)


def run_to_dict(run: RunIdentity | None) -> dict[str, Any] | None:
    """A run as JSON values."""
    return None if run is None else asdict(run)


def run_from_dict(values: Any, *, where: str) -> RunIdentity | None:
    """The run that :func:`run_to_dict` wrote. Fields that this version does not know are left out.

    :raises CorruptEntryError: if the values are no run.
    """
    if values is None:
        return None
    try:
        run = RunIdentity(**{name: value for name, value in values.items() if name in _OF_A_RUN})
    except (AttributeError, TypeError) as error:
        corrupt(where, f"not what it should be: its run is no run ({error})")
    check_types(RunIdentity, values, where=where, what="run.")
    return run


def check_types(kind: type, values: Mapping[str, Any], *, where: str, what: str = "") -> None:
    """Check that an entry's values are of the types that a dataclass gives its fields. Otherwise a writer of a
    checkpoint could end runs, and the janitor of all checkpoints, by errors of Python that name no file.

    :param kind: the dataclass. Fields of other types than text, numbers, true and false are not looked at.
    :param values: from JSON. Names that are no fields are not looked at.
    :param where: address of the entry.
    :param what: prefix of the values' names in the message.
    :raises CorruptEntryError: names the first value of another type.
    """
    for name, wanted in _plain_types(kind).items():
        if name in values and not _is_of(values[name], wanted):
            corrupt(where, f"not what it should be: its {what}{name} is {values[name]!r:.40}")


def check_progress(progress: Mapping[str, Any], *, where: str) -> None:
    """Check that the runtime's result, in a commit entry or an answer, holds figures where labels, sums and the pace of
    the next batch take figures from.

    :raises CorruptEntryError: names the first value that is no figure.
    """
    for name, depth in _FIGURES.items():
        if name in progress and not _are_figures(progress[name], depth):
            corrupt(where, f"not what it should be: its progress.{name} is {progress[name]!r:.40}")


def _are_figures(value: Any, depth: int) -> bool:
    if value is None:
        return True
    if depth:
        return isinstance(value, dict) and all(_are_figures(inner, depth - 1) for inner in value.values())
    # A count, not a moment: a count in a source's unit may be larger than any moment in milliseconds.
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _is_of(value: Any, wanted: frozenset[type]) -> bool:
    return type(value) in wanted and (type(value) is not int or is_whole(value))


@cache
def _plain_types(kind: type) -> Mapping[str, frozenset[type]]:
    # Only a union is taken apart: a mapping has type arguments as well, and is no plain type.
    found = get_type_hints(kind).items()
    hints = {name: frozenset(get_args(hint) if isinstance(hint, UnionType) else (hint,)) for name, hint in found}
    return {name: wanted for name, wanted in hints.items() if wanted <= _PLAIN}
