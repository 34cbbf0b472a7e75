"""Check the expectations that a user writes down for the rows of a pipeline, and translate them for a Spark job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_provider_microbatch.exceptions import DefinitionError
from airflow_provider_microbatch.runtime.checks import ACTIONS, DEAD_LETTER, Checks, Expectation, Forgotten

Expect = Mapping[str, str | Mapping[str, str]]
"""``expect`` of a pipeline: by the condition, the action for the rows that do not meet the condition. A pipeline with
several sinks has one such mapping for each sink, by the sink's name."""

_QUOTED = re.compile(
    r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`""", re.DOTALL
)
"""Texts and names, as Spark's own parser divides them: in ``r'…'`` a backslash is a plain character; in any other text
``\'`` does not end the text."""
_CHANGING = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|now|curdate|"
    r"unix_timestamp|current_timestamp|current_date|current_time|localtimestamp)\s*\(|"
    r"\b(current_timestamp|current_date|current_time|localtimestamp)\b",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"--|/\*|;")
_PROGRAM = re.compile(
    r"\b(?:java_method|reflect|try_reflect|identifier)\s*\(|\b(?:select|using)\b|''\s*\(|``\s*\(|\$|"
    r"\(\s*(?:with|from)\b|\(\s*(?:table|values)\b(?!\s*(?:[\])=<>,\[+*/%|&]|!=|\.\D))",
    re.IGNORECASE,
)
"""Parts of a condition that call Java by a name, read another table, or begin a program. A function's name in quotes
is among them, since it could be the name of any function."""


def check_condition(condition: object, *, what: str) -> str:
    """Check a condition as far as possible without Spark. Spark checks whether its columns exist, before anything is
    written.

    :param what: a description of the condition, for messages, which must not repeat the condition.
    :return: the condition, without blanks around the text.
    :raises DefinitionError: if the condition is empty, holds a comment, is cut off, answers differently each time, or
        asks for more than the row: a condition out of a checkpoint may have been written by others.
    """
    if not isinstance(condition, str) or not condition.strip():
        raise DefinitionError(
            f"{what} is no SQL condition: it must be a text that is not empty, such as 'amount >= 0'."
        )
    rest = _QUOTED.sub(lambda found: "``" if found[0].startswith("`") else "''", condition)
    if _COMMENT.search(rest):
        raise DefinitionError(f"{what} holds a comment or a semicolon. Give the condition alone.")
    if rest.count("(") != rest.count(")") or any(mark in rest.replace("''", "").replace("``", "") for mark in "'\"`"):
        raise DefinitionError(f"{what} is cut off: a bracket or a quote is not closed.")
    if _PROGRAM.search(rest):
        raise DefinitionError(
            f"{what} asks more than the columns of a row: it calls Java, looks into a table (SELECT, FROM, TABLE, "
            "VALUES, USING), or calls a function by a name in quotes. Have the transform add a column, and compare "
            "with that; a column of such a name is written in backticks."
        )
    changing = _CHANGING.search(rest)
    if changing is not None:
        name = changing.group(1) or changing.group(2)
        raise DefinitionError(
            f"{what} asks {name}, which answers otherwise each time: of a row that is computed twice nobody could say "
            "where it is. Have the transform add a column (batch.timestamp is the batch's time), and compare with that."
        )
    return condition.strip()


def checked_expect(expect: object, *, sinks: Sequence[str], has_letters: bool, where: str) -> dict[str, dict[str, str]]:
    """Actions by condition, by the name of the sink; a single sink has the empty name.

    :param sinks: names of several sinks; empty for a single sink.
    :raises DefinitionError: if ``expect`` is of another form, naming the condition.
    """
    if not isinstance(expect, Mapping):
        raise DefinitionError(f"{where}: expect must be a dict of conditions and actions, not {expect!r}.")
    form = "{'amount >= 0': 'drop'}" if not sinks else f"{{{sinks[0]!r}: {{'amount >= 0': 'drop'}}}}"
    by_sink = {"": expect} if not sinks and expect else dict(expect)
    found: dict[str, dict[str, str]] = {}
    for sink, conditions in by_sink.items():
        if sinks and sink not in sinks:
            raise DefinitionError(f"{where}: expect names {sink!r}, which is no sink; it is by sink, as in {form}.")
        if not isinstance(conditions, Mapping):
            raise DefinitionError(f"{where}: expect of sink {sink!r} must be a dict, as in {form}.")
        found[str(sink)] = {}
        for condition, action in conditions.items():
            what = f"{where}: the expectation {condition!r}"
            if action not in ACTIONS:
                raise DefinitionError(f"{what} has {action!r}, which is none of {', '.join(map(repr, ACTIONS))}.")
            if action == DEAD_LETTER and not has_letters:
                raise DefinitionError(f"{what} sends rows to dead letters. Give the pipeline dead_letters=FileSink(…).")
            found[str(sink)][check_condition(condition, what=what)] = str(action)
    return found


def check_most(most: object, *, has_letters: bool, where: str) -> None:
    """:raises DefinitionError: if ``max_dead_letters`` is neither a count nor a share, or there are no dead letters."""
    if most is None:
        return
    is_count = isinstance(most, int) and not isinstance(most, bool) and most >= 0
    if not is_count and not (isinstance(most, float) and 0 < most < 1):
        raise DefinitionError(
            f"{where}: max_dead_letters must be a count (a whole number from 0 on) or a share (between 0.0 and 1.0), "
            f"not {most!r}."
        )
    if not has_letters:
        raise DefinitionError(f"{where}: max_dead_letters goes with dead_letters=…, the sink that they go to.")


def checks_of(
    expect: Mapping[str, Mapping[str, str]],
    *,
    letters: str | None,
    most: float | None,
    forgotten: Sequence[Forgotten] = (),
) -> Checks | None:
    """The checks in the form that a Spark job takes; None if there is nothing to check.

    :param expect: actions by condition, as :func:`checked_expect` returns them.
    :param letters: name of the stage of the dead letters; None if there is no such stage.
    :param most: ``max_dead_letters``.
    :param forgotten: the rows that are left out of all tables.
    """
    expectations = tuple(
        Expectation(condition=condition, action=action, stage=stage)
        for stage, conditions in expect.items()
        for condition, action in conditions.items()
    )
    if not expectations and letters is None and not forgotten:
        return None
    return Checks(
        expectations=expectations,
        letters=letters,
        max_rows=most if isinstance(most, int) else None,
        max_share=most if isinstance(most, float) else None,
        forgotten=tuple(forgotten),
    )
