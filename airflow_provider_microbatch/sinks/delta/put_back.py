"""Tells whether somebody has put the whole table into another state than the one that its log's newest commits of this
package speak of.

RESTORE and an overwrite bring files back, or take them out, and leave the application transactions as they are. The
rows of a batch that was replayed since are those of before, and the log names the replay. Where changes are merged, the
newest changes stay those of after: a key whose row went back would keep it for ever, since its newest change has been
there; a later change of it that is older than that one would do nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from airflow_provider_microbatch.sinks.delta.home import Home
from airflow_provider_microbatch.sinks.delta.log import in_words

_DIGITS = 19
"""Versions are numbers of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class PutBack:
    """:param by: the commits that did so, newest first, in words.
    :param good: the newest version of before, whose rows are those of the newest changes.
    :param last: the version as of which the table is so: of the newest of them, or of a RESTORE to what they made.
    :param beside: what others have committed since, in words; empty if nothing.
    """

    by: str
    good: int
    last: int
    beside: str


def put_back(
    infos: Sequence[Mapping[str, Any]],
    *,
    at: int,
    since: int,
    led_to: Callable[[Mapping[str, Any]], int | None],
) -> PutBack | None:
    """What has put the table into another state; None if nothing has, or another RESTORE has brought it back.

    :param infos: of the commits after ``since``, newest first.
    :param at: the table's version.
    :param since: the version that has what is asked for.
    :param led_to: tells where a commit has put the table, as :func:`target_of` does.
    """
    whole = {info["version"]: info for info in infos if is_of_whole(info)}

    @cache  # a RESTORE that another has undone is not asked: it may take an opening of each version
    def back_to(version: int) -> int | None:
        """None: into a state of its own, or one that nobody can tell."""
        target = led_to(whole[version])
        # Anybody may write an info: one that leads no further back than its own version would be followed for ever.
        return None if target is None or not since <= target < version else target

    newest = max(whole, default=at)
    while (last := max((version for version in whole if version <= at), default=None)) is not None:
        target = back_to(last)
        if target is None:
            return _told(infos, {one for one in whole if back_to(one) is None}, last=newest)
        at = target
    return None


def restoring(home: Home, version: int, *, at: int | None = None) -> str:
    """The command that brings a version of the table back.

    :param at: do nothing if the table has another version by then: what was committed meanwhile would go.
    """
    code = f"from deltalake import DeltaTable; {home.in_python()}.restore({version})"
    if at is not None:
        code = (
            f"from deltalake import DeltaTable; table = {home.in_python()}; assert table.version() == {at}, 'somebody "
            f"has committed since then: look again'; table.restore({version})"
        )
    return f"python -c {shlex.quote(code)}"


def _told(infos: Sequence[Mapping[str, Any]], away: Collection[int], *, last: int) -> PutBack:
    good = min(away) - 1
    beside = (info for info in infos if info["version"] > good and info["version"] not in away)
    return PutBack(
        by="; ".join(in_words(info) for info in infos if info["version"] in away),
        good=good,
        last=last,
        beside="; ".join(map(in_words, beside)),
    )


def is_of_whole(info: Mapping[str, Any]) -> bool:
    """Whether a commit has put all of the table into another state. What others append, change or delete stays until
    a change of its key wins; OPTIMIZE changes no row."""
    operation, parameters = str(info.get("operation")), _parameters(info)
    overwrites = str(parameters.get("mode")).casefold() == "overwrite" and not parameters.get("predicate")
    return is_restore(info) or "REPLACE TABLE" in operation or overwrites


def is_restore(info: Mapping[str, Any]) -> bool:
    """Whether a commit has gone back to a version."""
    return info.get("operation") == "RESTORE"


def target_of(info: Mapping[str, Any]) -> int | None:
    """The version that a RESTORE has gone back to; None for another commit, for one to a moment, and for one that names
    no version that a table can have: whoever may commit to the table writes the info."""
    version = str(_parameters(info).get("version"))
    is_version = version.isdecimal() and len(version) <= _DIGITS  # Python refuses to read a number of thousands
    return int(version) if is_restore(info) and is_version else None


def _parameters(info: Mapping[str, Any]) -> Mapping[str, Any]:
    found = info.get("operationParameters")
    return found if isinstance(found, Mapping) else {}
