"""Tells of each row whether its table can take it, and gives the values the types of the table's columns.

A value fits if the column's type has just that value: nothing is rounded, cut off or wrapped around. Numbers may change
their type on the way; a text never becomes a number, nor a time another kind of time: these are changes of meaning,
which the transform has to make.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_microbatch.runtime.failure import BatchFailure, failing_as
from airflow_provider_microbatch.runtime.intake import VALUE, Intake, TableColumn
from airflow_provider_microbatch.runtime.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Whole numbers, with how many digits their longest values have."""
_BITS = {"float": 24, "double": 53}
"""Floating-point numbers, which have each whole number of so many bits."""
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")

MET = "_microbatch_met"
"""The column that may tell which constraints a row meets."""


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """What keeps rows out of a table.

    :param reason: for people: the column, the value's problem and the column's type. Never a value.
    :param is_met: whether it keeps a row out; never null.
    """

    reason: str
    is_met: Column


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How the rows of a result go into a table.

    :param rows: the rows of the result, with :data:`MET` where a constraint is about values that get another type.
    :param misfits: what may keep a row out, as conditions over ``rows``.
    :param values: by column, the values of the rows that go in, where they get another type.
    """

    rows: DataFrame
    misfits: tuple[Misfit, ...] = ()
    values: Mapping[str, Column] = field(default_factory=dict)


def fitting_of(frame: DataFrame, intake: Intake, *, where: str) -> Fitting:
    """How the rows of a result go into a table.

    A column whose type has nothing in common with that of the table's column is passed over: it is the whole batch that
    does not fit, and whoever publishes the batch says so.

    :param where: which table it is, for messages; may be empty.
    :raises BatchFailure: if the result lacks a column that takes no null, or if Spark cannot compute a constraint.
    """
    from pyspark.sql import functions as F

    types = {one.name: one.dataType.simpleString() for one in frame.schema.fields}
    lacking = [column.name for column in intake.columns if column.is_needed and column.name not in types]
    if lacking and intake.is_exact:
        raise BatchFailure(
            "result",
            f"the table{where} takes no null in {', '.join(map(repr, lacking))}, and the result does not have it: its "
            f"columns are {', '.join(types)}",
        )
    once = Counter(name.casefold() for name in frame.columns)
    misfits: list[Misfit] = []
    values: dict[str, Column] = {}
    unfit = F.lit(False)
    for column in intake.columns:
        if once[column.name.casefold()] == 1 and column.name in types:
            source = types[column.name]
            converted = _converted(column, source, is_exact=intake.is_exact)
            found = list(_misfits(column, source, converted))
            misfits += found
            if converted is not None:
                values[column.name] = converted
                for misfit in found:
                    unfit |= misfit.is_met
    for name, condition in intake.constraints.items():
        with failing_as("result", where=f"the constraint {name!r} ({condition}) of the table{where}"):
            frame.withColumns(values).where(F.expr(condition)).schema  # noqa: B018
    met = [_holds(condition) for condition in intake.constraints.values()]
    if met and values:
        # The table has the values that go in: a text, a length or a quotient of 7.0 is not that of 7. Of values that do
        # not go in no constraint is asked: one that divides by what was rounded to 0 would fail the batch.
        frame = _with_met(frame, {name: F.when(~unfit, value) for name, value in values.items()}, met)
        met = [unfit | F.col(MET)[number] for number in range(len(met))]
    for (name, condition), is_met in zip(intake.constraints.items(), met, strict=True):
        misfits.append(Misfit(reason=f"constraint {name!r} is not met: {condition}", is_met=~is_met))
    return Fitting(rows=frame, misfits=tuple(misfits), values=values)


def _with_met(frame: DataFrame, values: Mapping[str, Column], met: Sequence[Column]) -> DataFrame:
    """The rows as they are, with :data:`MET`: which conditions they meet with these values."""
    from pyspark.sql import functions as F

    kept = frame.withColumn(MET, F.struct(*(F.col(quoted(name)) for name in values)))
    back = {name: F.col(MET).getField(name) for name in values}
    return kept.withColumns(dict(values)).withColumns({**back, MET: F.array(*met)})


def _misfits(column: TableColumn, source: str, converted: Column | None) -> Iterator[Misfit]:
    """:param source: the type that the column has in the result.
    :param converted: the values with the type of the table's column, if they get it.
    """
    from pyspark.sql import functions as F

    value = F.col(quoted(column.name))
    if column.is_needed:
        excused = F.lit(False) if column.needed_unless is None else _holds(column.needed_unless)
        yield _misfit(column, f"null, which the table does not take ({column.told})", value.isNull() & ~excused)
    if converted is not None and column.type is not None and not _has_all(column.type, source):
        yield _misfit(column, f"{source} out of the range of {column.told}", value.isNotNull() & converted.isNull())
        if source in _DIGITS and column.type in _BITS:
            # Not by the way back, which ends at the largest number of the type.
            same = value.between(-(1 << _BITS[column.type]), 1 << _BITS[column.type])
        else:
            same = converted.try_cast(source).eqNullSafe(value)
        yield _misfit(column, f"{source} that {column.told} would round or cut", converted.isNotNull() & ~same)
    for limit in column.limits:
        if re.split(r"[<( ]", source, maxsplit=1)[0] in limit.kinds:
            met = _holds(limit.condition.replace(VALUE, quoted(column.name)))
            yield _misfit(column, limit.problem, value.isNotNull() & ~met)


def _misfit(column: TableColumn, problem: str, is_met: Column) -> Misfit:
    return Misfit(reason=f"column {column.name!r}: {problem}", is_met=is_met)


def _holds(condition: str) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))


def _converted(column: TableColumn, source: str, *, is_exact: bool) -> Column | None:
    """The values with the type of the table's column, null where that has none; None if they stay as they are."""
    from pyspark.sql import functions as F

    target = column.type
    if target is None or source == target:
        return None
    if _is_number(source) and _is_number(target):
        # A double is hardly ever just a float.
        passed = (source, target) == ("double", "float") or (not is_exact and _has_all(target, source))
    else:
        passed = {source, target} != {"date", "timestamp_ntz"}
    return None if passed else F.col(quoted(column.name)).try_cast(target)


def _has_all(target: str, source: str) -> bool:
    """Whether each value of one type of numbers is one of another."""
    if target in _BITS:
        return source == "float" or source in ("tinyint", "smallint") or (source, target) == ("int", "double")
    had, has = _size(source), _size(target)
    if had is None or has is None:
        return False
    # Of numbers with as many digits as its largest one a whole number's type has some and lacks others.
    fewer = source not in _DIGITS and target in _DIGITS
    return had[0] + fewer <= has[0] and had[1] <= has[1]


def _size(type: str) -> tuple[int, int] | None:
    """How many digits before and behind the point the numbers of a type have; None for other types."""
    if type in _DIGITS:
        return _DIGITS[type], 0
    found = _DECIMAL.fullmatch(type)
    return None if found is None else (int(found[1]) - int(found[2]), int(found[2]))


def _is_number(type: str) -> bool:
    return type in _BITS or _size(type) is not None
