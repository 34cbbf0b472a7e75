"""Refuses a transform that keeps other state than the batches before have left, with the way on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from textwrap import shorten
from typing import Any, NoReturn

from airflow_provider_microbatch.runtime.failure import BatchFailure
from airflow_provider_microbatch.runtime.query_plan import (
    IN_ORDER,
    digest_of,
    is_processor,
    keeps_state,
    without_numbers,
)

_CODES = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
)
# Behind what differs Spark names a setting that reads the state all the same, as what it is not.
_TOLD = re.compile(rf"\[(?:{'|'.join(_CODES)})[A-Z_.]*\] (.+?)\s*(?:If you want to force|SQLSTATE|$)", re.DOTALL)

_LAID_BY: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": ("true", lambda node: _keys_of(node) > IN_ORDER),
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": ("2", is_processor),  # its lists
    "spark.sql.streaming.stateStore.rowChecksum.enabled": ("true", lambda node: True),
}
"""Settings of newer versions of Spark, with the value by which rows of state lie otherwise, and of which operators."""

_CODE = 5
"""Where a part tells a processor's own code, behind its sources and the four digests of how its rows are made; any
other part tells the first digest there once more."""


def _keys_of(node: Any) -> int:
    return int(node.keys().size()) if node.getClass().getSimpleName().startswith("Deduplicate") else 0


def refuse_other_state(error: str) -> None:
    """Refuse the transform, if this is what Spark's error says.

    :raises BatchFailure: naming what differs, and the way on.
    """
    found = _TOLD.search(error)
    if found is not None:
        told = " ".join(found[1].split()).rstrip(".")
        raise _refusal(f"the transform keeps other state than the batches before have left: {told}")


def refuse_first_operator(nodes: Iterable[Any]) -> None:
    """Refuse a transform that keeps state, behind batches that had no operator that did. Spark would look for state
    that is not there, and leave a record of the operator behind, for which it would refuse the transform of before.

    :param nodes: the nodes of Spark's plan, in its JVM.
    :raises BatchFailure: naming the operator, and the way on.
    """
    for node in filter(keeps_state, nodes):
        raise _refusal(
            "the batches before have kept none, and the transform has an operator that keeps it "
            f"({node.getClass().getSimpleName()}) now: it would not know their rows"
        )


def refuse_moved_state(before: Sequence[Any], now: Sequence[Any]) -> None:
    """Refuse a transform whose operators, or the sides of a join, have changed places. Spark knows the rows of each by
    its place, and compares nothing but types: those of one would be taken for those of the other.

    :param before: as :meth:`.query_plan.Query.places` told them of the batch before, with the sources' names of now.
    :raises BatchFailure: naming the sources, and the way on.
    """
    both = _all_sources(before) & _all_sources(now)
    moved = [
        (was, is_now)
        for was, is_now in zip(before, now, strict=False)
        if any(_reads_another(one, other, both) for one, other in zip(was, is_now, strict=False))
    ]
    # By the sources, and by how rows are made of them: what was moved was there before, elsewhere. What is new has been
    # changed, not moved.
    for level in range(min((len(part) for place in [*before, *now] for part in place), default=0)):
        at = _first_moved(_by(before, level), _by(now, level))
        if at is not None:
            moved.append((before[at[0]], now[at[1]]))
    was_at, is_at = map(_processors_by_code, (before, now))
    if len(before) == len(now):
        moved += [(before[was_at[code]], now[at]) for code, at in is_at.items() if was_at.get(code, at) != at]
    if moved:
        was, is_now = moved[0]
        raise _refusal(
            f"the transform {_told(is_now)} where the batches before had one that {_told(was)}, and what is kept of "
            "one would be taken for the other's: operators that keep state, or the sides of a join, have changed places"
        )


def refuse_moved_columns(before: Sequence[Any], now: Sequence[Sequence[Sequence[str]]]) -> None:
    """Refuse a transform whose operators keep their state by the same columns in another order, or by each other's:
    what is kept of one would be taken for the other's, where both are of one type. In a chain of operators nothing else
    tells that they have changed places: each is made of those below it, and of others then.

    :param before: as :func:`columns_told` told them of the batch before.
    :param now: as :func:`.kept_columns.kept_columns` has them.
    :raises BatchFailure: naming two of the columns, and the way on.
    """
    for was, is_now in zip(before, now, strict=False):
        for told, names in zip(was, is_now, strict=False):
            moved = _moved(told, list(map(_digests_of, names)))
            if moved is not None:
                here, there = (_shown([names[at]]) for at in moved)
                raise _refusal(
                    f"the transform keeps state by {here!r} where the batches before had {there!r}, and what is kept "
                    "of one would be taken for the other's: grouping columns, aggregates, keys, or columns of a join's "
                    "side have changed their order, aggregates also by the order in which a select behind shows them"
                )
    for which in range(max(map(len, now), default=0)):
        moved = _moved(_wholes(before, which), _wholes(columns_told(now), which))
        if moved is not None:
            lists = [place[which] for place in now if any(place[which : which + 1])]
            here, there = (_shown(lists[at]) for at in moved)
            raise _refusal(
                f"the transform keeps state by {here!r} where the batches before had an operator that kept it by "
                f"{there!r}, and what is kept of one would be taken for the other's: operators have changed places"
            )


def columns_told(columns: Sequence[Sequence[Sequence[str]]]) -> list[list[list[list[str]]]]:
    """The columns of a query's operators, as a batch tells them to the next one: there may be many. Of each: digests of
    all of it, and of what is there without its numbers, of which some may be the batch's own."""
    return [[list(map(_digests_of, names)) for names in place] for place in columns]


def _moved(before: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """Where they first differ in their order: the place of what is there now, and the one that what was there before
    has now; None for nowhere."""
    for level in range(min((len(one) for one in [*before, *now]), default=0)):
        then, here = ([[one[level]] for one in told] for told in (before, now))
        at = _first_moved(then, here)
        if at is not None:
            return at[1], here.index(then[at[0]])
    return None


def _wholes(told: Sequence[Sequence[Sequence[Sequence[str]]]], which: int) -> list[list[str]]:
    """Of each operator that tells one of its lists, the digests of all in it, as if it were one column."""
    lists = (place[which] for place in told if any(place[which : which + 1]))
    return [list(map(str, zip(*names, strict=False))) for names in lists]


def _shown(names: Sequence[str]) -> str:
    return shorten(", ".join(names).replace("~", " of "), 300, placeholder=" …")


def _digests_of(column: str) -> list[str]:
    return [digest_of(column), digest_of(without_numbers(column))]


def _all_sources(places: Sequence[Any]) -> frozenset[str]:
    return frozenset(source for place in places for sources, *_ in place for source in sources)


def _reads_another(was: Sequence[Any], is_now: Sequence[Any], both: frozenset[str]) -> bool:
    """Whether a part reads one source in the place of another, of those that the plans have in common: it may lose one
    that is removed, or gain one."""
    then, here = both & frozenset(was[0]), both & frozenset(is_now[0])
    return not (then <= here or here <= then)


def _by(places: Sequence[Any], level: int) -> list[list[str]]:
    """By place, the parts by their sources, and from the first level on by one of their digests."""
    return [[str(part[0] if level == 0 else [part[0], part[level]]) for part in place] for place in places]


def _processors_by_code(places: Sequence[Any]) -> dict[str, int]:
    """The places of processors that are there once, by their code. In a chain one may go in front and another come
    behind: those that stay keep their order, and would take over the state of the place where they are then. Other
    operators, and what an earlier version has told, have no code."""
    codes = ["".join(code for part in place for code in part[_CODE:] if code != part[1]) for place in places]
    return {code: at for at, code in enumerate(codes) if code and codes.count(code) == 1}


def _first_moved(then: Sequence[Sequence[str]], here: Sequence[Sequence[str]]) -> tuple[int, int] | None:
    """The places of before and of now of the first parts that differ in their order; None for none. Where all are there
    that were, each counts; else those that are there once, as others have been changed: so is an operator that is made
    of what moved."""
    before, now = list(chain(*then)), list(chain(*here))
    all_there = sorted(before) == sorted(now)
    known = {part for part in before if all_there or before.count(part) == 1 == now.count(part)}
    was, is_now = (
        [(at, part) for at, place in enumerate(places) for part in place if part in known] for places in (then, here)
    )
    return next(((one[0], other[0]) for one, other in zip(was, is_now, strict=True) if one[1] != other[1]), None)


def _told(place: Sequence[Any]) -> str:
    sides = ["+".join(part[0]) for part in place]
    return f"joins {sides[0]} with {sides[1]}" if len(sides) == 2 else f"keeps state of {sides[0]}"


def refuse_other_first_attempt(what: str) -> NoReturn:
    """Refuse a transform that keeps other state than an attempt at the same first batch has left before.

    :param what: what differs in the folder of state.
    :raises BatchFailure: naming the way on.
    """
    raise _refusal(
        "the transform keeps other state than an attempt at this batch has left before, with other operators, or "
        f"another spark.sql.shuffle.partitions ({what})",
        "; or put away what was left, by the command `rewind --to -1 --drop-output`, which has all read again",
    )


def refuse_other_spark(kept_by: str, version: str) -> None:
    """Refuse state that was kept by a Spark whose files this one does not read. Spark says that a file is not there.

    :param kept_by: version of the Spark of the batch before.
    :param version: version of this one.
    :raises BatchFailure: naming both, and the way on.
    """
    if _is_4_0(kept_by) != _is_4_0(version):
        raise BatchFailure(
            "runtime",
            f"the state that the batch goes on from was kept by Spark {kept_by}, and this is Spark {version}: 4.0 and "
            "later versions do not read each other's state. Nothing was read. Run the batches by the version of "
            "before; or begin a checkpoint and a table of their own with the other one, which read from the beginning",
        )


def newer_settings(conf: Mapping[str, str]) -> list[str]:
    """The settings by which rows of state lie as older versions of Spark do not have them.

    :param conf: the settings that the state was made with.
    """
    return [key for key, (value, _) in _LAID_BY.items() if conf.get(key) == value]


def refuse_passed_over(conf: Mapping[str, str], known: Collection[str], nodes: Iterable[Any], *, kept_by: str) -> None:
    """Refuse state whose rows lie as a newer Spark's setting has them, by a Spark that does not know the setting: it
    passes over what it does not know, and reads the rows as what they are not, without an error.

    :param conf: the settings that the state was made with.
    :param known: the settings that this Spark pins.
    :param nodes: the nodes of Spark's plan, in its JVM.
    :param kept_by: version of the Spark of the batch before.
    :raises BatchFailure: naming the setting, and the way on.
    """
    passed = [key for key in newer_settings(conf) if key not in known]
    for node in nodes if passed else ():
        for key in passed:
            if keeps_state(node) and _LAID_BY[key][1](node):
                raise BatchFailure(
                    "runtime",
                    f"the state that the batch goes on from was kept by Spark {kept_by} with {key}={conf[key]}, which "
                    f"this older Spark does not know: it would take what {node.getClass().getSimpleName()} has kept "
                    "for something else. Nothing was read. Run the batches by the version of before; or begin a "
                    "checkpoint and a table of their own with the other one, which read from the beginning",
                )


def _is_4_0(version: str) -> bool:
    return version.startswith("4.0.")


def _refusal(what: str, more: str = "") -> BatchFailure:
    return BatchFailure(
        "transform",
        f"{what}. State is read by the operators that have written it: the same ones in the same order, with grouping "
        "columns, aggregates and variables of the same types. Put them back as they were, or begin a checkpoint and a "
        f"table of their own with the new transform, which read from the beginning{more}",
    )
