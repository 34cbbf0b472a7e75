"""Divides the rows of a batch into rows for its tables, dead letters, and dropped rows.

A column that is computed once for a write divides the rows; the dead letters are a second write. So each row is in
exactly one of the writes as long as both compute the row alike; if counts show a difference, the batch fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_microbatch.runtime import letters
from airflow_provider_microbatch.runtime.changes import DELETED, FORGOTTEN, Changes
from airflow_provider_microbatch.runtime.checks import ACTIONS, DEAD_LETTER, DROP, FAIL, Checks, Expectation
from airflow_provider_microbatch.runtime.counting import RowCount
from airflow_provider_microbatch.runtime.failure import BatchFailure, failing_as
from airflow_provider_microbatch.runtime.fitting import MET, Fitting, fitting_of
from airflow_provider_microbatch.runtime.job import Job
from airflow_provider_microbatch.runtime.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VERDICT = "_microbatch_verdict"
"""A column with the number of the rule that refuses the row; null if none does. No table gets the column."""

UNPARSED_ROWS = "unparsed"
"""Name, in the counts of a source's rows, of the rows that do not parse."""

EXAMPLES = 3
"""Number of rows whose form an error shows."""

log = logging.getLogger("microbatch")


@dataclass(frozen=True, kw_only=True)
class _Unparsed:
    """All rows of one source, with a column that has the text of rows that do not parse."""

    frame: DataFrame
    column: str
    place: str
    counts: RowCount


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """Something that refuses rows of a stage: an expectation, or a column of the table.

    :param what: the condition that a row does not meet, or why the table cannot take the row.
    :param action: what becomes of the row.
    :param kind: the kind of dead letter that the row becomes.
    :param refuses: whether a row is refused; never null.
    """

    what: str
    action: str
    kind: str
    refuses: Column

    def __str__(self) -> str:
        return repr(self.what) if self.kind == letters.REFUSED else self.what


@dataclass(kw_only=True)
class _Judged:
    """The rows of one stage with their verdicts.

    :param frame: the rows, with the verdict of each.
    :param counts: counts of the rows by verdict, taken during the write.
    :param rows: number of rows by verdict, once known; the empty name stands for all rows.
    """

    frame: DataFrame
    columns: list[str]
    rules: list[_Rule]
    counts: RowCount
    counted: DataFrame
    rows: dict[str, int] = field(default_factory=dict)

    def among(self, action: str) -> int:
        """How many rows the action was applied to."""
        return sum(self.rows[str(number)] for number, one in enumerate(self.rules) if one.action == action)


class Refusing:
    """The rows of one attempt that must not get into its tables.

    :param job: if :attr:`Job.checks` is None, the tables get all rows.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._checks = job.checks or Checks()
        self._unparsed: dict[str, _Unparsed] = {}
        self._places: dict[str, str] = {}
        self._judged: dict[str, _Judged] = {}
        self._taken: dict[str, int] = {}
        self._letters = RowCount(conditions={name: _is_of(name) for name in job.sources})
        self._rows = 0
        self._rows_of: dict[str, int] = {}

    def take_unparsed(self, source: str, frame: DataFrame, *, column: str, place: str, counts: RowCount) -> DataFrame:
        """Withhold from the transform those rows of a source that do not parse.

        :param frame: all rows of the source, which are counted.
        :param column: the column with the text of rows that do not parse; empty if there are no such rows, or if they
            fail the batch.
        :param place: a SQL expression for the place of a row.
        :param counts: counts of the rows, by :func:`counts_of`.
        :return: the other rows.
        """
        if place:
            self._places[source] = place
        if not column or self._checks.letters is None:
            return frame
        self._unparsed[source] = _Unparsed(frame=frame, column=column, place=place, counts=counts)
        return frame.where(f"{quoted(column)} IS NULL").drop(column)

    def divide(self, stage: str, frame: DataFrame) -> DataFrame:
        """The rows of a stage that its table gets. The caller divides all stages before it writes the first.

        :return: the rows with the types of the table's columns, as far as the job knows these.
        :raises BatchFailure: naming the expectation, or the forget request, whose condition Spark cannot compute or is
            not boolean; or if the table can take no row of the result.
        """
        from pyspark.sql import functions as F

        columns, changes = frame.columns, Changes.of(self._job.stages[stage].arguments)
        _check_free(columns, {FORGOTTEN}, stage)
        forgotten = self._forgotten(stage, frame)
        if changes is not None:
            with failing_as("transform", where=f"delete_when of the merge{_for(stage)}"):
                frame = changes.marked(frame, forgotten=forgotten)
                frame.schema  # noqa: B018
        elif forgotten is not None:
            frame = frame.where(~forgotten)
        fitting = Fitting(rows=frame)
        if (intake := self._checks.intakes.get(stage)) is not None:
            fitting = fitting_of(frame, intake, where=_for(stage))
        rules = self._rules(stage, frame, fitting, are_changes=changes is not None)
        if not rules:
            return _with(frame, fitting).drop(FORGOTTEN)
        _check_free(columns, {VERDICT, MET}, stage)
        verdict: Any = F
        for number, rule in enumerate(rules):
            verdict = verdict.when(rule.refuses, F.lit(number))
        judged = fitting.rows.withColumn(VERDICT, verdict)
        if FORGOTTEN in frame.columns:
            # One whose key the table cannot take is in no table and, since it is to be forgotten, no dead letter.
            judged = judged.where(f"{VERDICT} IS NULL OR NOT {FORGOTTEN}")
        counts = RowCount(conditions={str(number): f"{VERDICT} = {number}" for number in range(len(rules))})
        counted = counts.on(judged)
        self._judged[stage] = _Judged(frame=judged, columns=columns, rules=rules, counts=counts, counted=counted)
        return _with(counted.where(f"{VERDICT} IS NULL").drop(VERDICT, MET, FORGOTTEN), fitting)

    def _forgotten(self, stage: str, frame: DataFrame) -> Column | None:
        """Whether a row of the result is to be forgotten, never null; None if no such row may be there."""
        from pyspark.sql import functions as F

        found: Column | None = None
        for one in self._checks.forgotten_of(stage):
            with self._naming_forgotten(one.number, stage), quiet():
                _check(frame, one.condition)
            is_meant = F.coalesce(F.expr(one.condition), F.lit(False))
            found = is_meant if found is None else found | is_meant
        return found

    def _rules(self, stage: str, frame: DataFrame, fitting: Fitting, *, are_changes: bool) -> list[_Rule]:
        """The rules for the rows of a stage, the strongest action first. What the table cannot take comes before what
        is to be dropped: nothing is dropped that another rule would have kept."""
        from pyspark.sql import functions as F

        rules = list[_Rule]()
        for one in self._checks.of(stage):
            with failing_as("transform", where=f"the expectation {one.condition!r}{_for(stage)}"):
                _check(frame, one.condition)
            refuses = _fails(one)
            if are_changes:  # one that deletes may have nothing but its key and its place, and left out deletes nothing
                refuses &= ~F.col(DELETED)
            rules.append(_Rule(what=one.condition, action=one.action, kind=letters.REFUSED, refuses=refuses))
        for misfit in fitting.misfits:
            rules.append(_Rule(what=misfit.reason, action=DEAD_LETTER, kind=letters.UNFIT, refuses=misfit.is_met))
        return sorted(rules, key=lambda rule: ACTIONS.index(rule.action))

    def held_to(self, stage: str) -> tuple[str, ...]:
        """The table's rules that the rows of a stage were held against; see
        :attr:`~airflow_provider_microbatch.runtime.intake.Intake.rules`."""
        intake = self._checks.intakes.get(stage)
        return () if intake is None else intake.rules

    @contextmanager
    def _naming_forgotten(self, number: int, stage: str) -> Iterator[None]:
        """Name the forget request by its number: its condition, and Spark's error, which quotes it, would name the
        person."""
        try:
            yield
        except Exception as error:
            raise BatchFailure(
                "transform",
                f"what was asked to be forgotten by entry {number} cannot be found in the result{_for(stage)} "
                f"({_condition_of(error)}): its columns are others, or it is no condition. Nothing was written. Lift "
                f"it (`microbatch forget … --lift {number}`) and say it anew, for the tables that have these columns "
                "(--sink)",
            ) from None

    def written(self, stage: str, frames: Sequence[DataFrame], *, rows: int | None) -> None:
        """Count the rows of a stage after its write.

        :param frames: those of :func:`~airflow_provider_microbatch.runtime.counting.writing`.
        :param rows: how many the table gets; None if Spark has not told.
        :raises BatchFailure: if an expectation with the action ``fail`` refuses a row.
        """
        judged = self._judged.get(stage)
        if judged is None:
            if rows is None and self._checks.max_share is not None:
                rows = frames[0].count()
            self._taken[stage] = rows or 0
            return
        judged.counts.written(frames)
        names = [str(number) for number in range(len(judged.rules))]
        found: dict[str, int | None] = {"": judged.counts.get(), **{name: judged.counts.of(name) for name in names}}
        if None in found.values():
            found = _counted_again(judged.frame, names)
        judged.rows = {name: rows for name, rows in found.items() if rows is not None}
        failing = {str(n): one for n, one in enumerate(judged.rules) if one.action == FAIL and judged.rows[str(n)]}
        if failing:
            raise self._failure(judged, failing, stage)

    def letters(self, *, all_read: bool) -> DataFrame | None:
        """The dead letters, once all tables are written; None if there are certainly none.

        :param all_read: whether the tables' queries have read every row of the sources, and so counted all rows that do
            not parse. A transform may leave rows unread, and some of these may not parse.
        """
        if self._checks.letters is None:
            return None
        found = [
            letters.unparsed(one.frame, self._job, source=name, column=one.column, place=one.place)
            for name, one in self._unparsed.items()
            if not all_read or one.counts.get() is None or one.counts.of(UNPARSED_ROWS) != 0
        ]
        for stage, judged in self._judged.items():
            if judged.among(DEAD_LETTER):
                found.append(self._refused(stage, judged))
        frame: DataFrame | None = None
        for part in found:
            frame = part if frame is None else frame.unionByName(part)
        return None if frame is None else self._letters.on(frame)

    def letters_written(self, frame: DataFrame, frames: Sequence[DataFrame]) -> None:
        """Count the dead letters after their write.

        :param frame: the dead letters.
        :param frames: those of :func:`~airflow_provider_microbatch.runtime.counting.writing`.
        :raises BatchFailure: if there are more dead letters than a batch may have, or if they are not the rows that the
            tables did not get.
        """
        self._letters.written(frames)
        names = list(self._job.sources)
        found: dict[str, int | None] = {"": self._letters.get(), **{name: self._letters.of(name) for name in names}}
        if None in found.values():
            from pyspark.sql import functions as F

            row = frame.select(
                F.count(F.lit(1)), *(F.count(F.when(F.expr(_is_of(name)), 1)) for name in names)
            ).collect()[0]
            found = dict(zip(["", *names], row, strict=True))
        self._rows = found.pop("") or 0
        self._rows_of = {name: rows for name, rows in found.items() if rows}
        self._check_whole()
        self._check_number(frame)

    @property
    def rows(self) -> int:
        """Number of dead letters."""
        return self._rows

    def figures(self) -> dict[str, Any]:
        """Figures for the result: how many rows were refused, and by what; empty if the job checks nothing."""
        if self._job.checks is None or not (self._judged or self._checks.letters):
            return {}
        refused = [
            {"sink": stage, "expectation": one.what, "action": one.action, "rows": rows}
            for stage, judged in self._judged.items()
            for number, one in enumerate(judged.rules)
            if (rows := judged.rows[str(number)])
        ]
        return {
            "numDeadLetters": self._rows,
            "numDroppedRows": sum(judged.among(DROP) for judged in self._judged.values()),
            "numUnparsedRows": self._rows_of,
            "refused": refused,
        }

    def _refused(self, stage: str, judged: _Judged) -> DataFrame:
        from pyspark.sql import functions as F

        numbers = [number for number, one in enumerate(judged.rules) if one.action == DEAD_LETTER]
        reasons = (F.when(judged.rules[number].refuses, F.lit(judged.rules[number].what)) for number in numbers)
        unfit = [number for number in numbers if judged.rules[number].kind == letters.UNFIT]
        kind = F.when(F.col(VERDICT).isin(unfit), F.lit(letters.UNFIT)).otherwise(F.lit(letters.REFUSED))
        frame = judged.frame.where(F.col(VERDICT).isin(numbers))
        return letters.refused(
            frame,
            self._job,
            stage=stage,
            columns=judged.columns,
            kind=kind,
            reason=F.concat_ws("; ", *reasons),
            place=self._place_in(frame),
        )

    def _place_in(self, frame: DataFrame) -> str:
        """The SQL expression for the place of a result's row, if Spark can still compute it: only while each row is
        made of one row of the only source."""
        place = next(iter(self._places.values()), "") if len(self._job.sources) == 1 else ""
        if place:
            from pyspark.sql import functions as F

            try:
                with quiet():
                    frame.select(F.expr(place)).schema  # noqa: B018
            except Exception:  # any of Spark's errors about a missing column
                return ""
        return place

    def _check_whole(self) -> None:
        refused = self._rows - sum(self._rows_of.values())
        told = sum(judged.among(DEAD_LETTER) for judged in self._judged.values())
        if refused != told:
            raise BatchFailure(
                "transform",
                f"{told:,} rows of the result were refused when the tables were written, and {refused:,} when the dead "
                "letters were: the transform, or an expectation, answers otherwise each time (rand(), the clock, rows "
                "in no order), so that rows would be lost, or be in both. Let it depend on the rows and on "
                "batch.timestamp alone",
            )

    def _check_number(self, frame: DataFrame) -> None:
        seen = sum(judged.rows[""] for judged in self._judged.values()) + sum(self._taken.values())
        seen += sum(self._rows_of.values())
        most, share = self._checks.max_rows, self._checks.max_share
        if not ((most is not None and self._rows > most) or (share is not None and self._rows > share * seen)):
            return
        by = {f"source {name!r} does not parse": rows for name, rows in self._rows_of.items()}
        for stage, judged in self._judged.items():
            for number, one in enumerate(judged.rules):
                if one.action == DEAD_LETTER and judged.rows[str(number)]:
                    by[f"{one}{_for(stage)}"] = judged.rows[str(number)]
        told = ", ".join(f"{what}: {rows:,}" for what, rows in by.items())
        limit = f"{most:,}" if share is None else f"{share:g} of them"
        raise BatchFailure(
            "data",
            f"{self._rows:,} of {seen:,} rows would be dead letters, and max_dead_letters allows {limit} ({told}). "
            f"{_examples(frame, 'raw')}Nothing was published",
        )

    def _failure(self, judged: _Judged, failing: Mapping[str, _Rule], stage: str) -> BatchFailure:
        from pyspark.sql import functions as F

        told = ", ".join(f"{one}: {judged.rows[number]:,}" for number, one in failing.items())
        rows = judged.frame.where(F.col(VERDICT).isin([int(number) for number in failing]))
        raw = rows.select(F.to_json(F.struct(*map(quoted, judged.columns)), {"ignoreNullFields": "false"}).alias("raw"))
        return BatchFailure(
            "data",
            f"rows{_for(stage)} do not meet what is expected with 'fail' ({told} of {judged.rows['']:,}). "
            f"{_examples(raw, 'raw')}Nothing was published",
        )


def counts_of(columns: Sequence[str], refused: str) -> RowCount:
    """Counts of the rows of a source.

    :param columns: rows in which all of these are null are counted separately.
    :param refused: the column with the text of rows that do not parse, which are counted too; may be empty.
    """
    if not refused:
        return RowCount(columns)
    # Include the text column: a row that does not parse is not an empty row.
    return RowCount((*columns, refused), {UNPARSED_ROWS: f"{quoted(refused)} IS NOT NULL"})


def _check_free(columns: Sequence[str], names: set[str], stage: str) -> None:
    """Check that no column of the result has one of our names."""
    for ours in names & {column.casefold() for column in columns}:
        raise BatchFailure("transform", f"the result{_for(stage)} has the column {ours}, which this package adds")


def _with(frame: DataFrame, fitting: Fitting) -> DataFrame:
    return frame.withColumns(dict(fitting.values)) if fitting.values else frame


def _fails(rule: Expectation) -> Column:
    """Whether the expectation refuses a row. A null condition counts as not met, as in Delta Live Tables."""
    from pyspark.sql import functions as F

    return ~F.coalesce(F.expr(rule.condition), F.lit(False))


def _check(frame: DataFrame, condition: str) -> None:
    """Check that the condition can be a filter: boolean, without aggregates, and over columns that exist."""
    from pyspark.sql import functions as F

    frame.where(F.expr(condition)).schema  # noqa: B018


def _counted_again(frame: DataFrame, names: list[str]) -> dict[str, int | None]:
    """Count the rows by a query where Spark has not delivered the counts of the write."""
    from pyspark.sql import functions as F

    log.warning("Spark told no counts of the rows that were refused: they are counted by a query of its own")
    found: dict[str, int | None] = dict.fromkeys(["", *names], 0)
    for row in frame.groupBy(VERDICT).agg(F.count(F.lit(1)).alias("rows")).collect():
        found[""] = (found[""] or 0) + row["rows"]
        if row[VERDICT] is not None:
            found[str(row[VERDICT])] = row["rows"]
    return found


def _examples(frame: DataFrame, column: str) -> str:
    found = [letters.shape(row[0]) for row in frame.select(column).limit(EXAMPLES).collect()]
    return f"Of this form (x a letter, 9 a digit): {' | '.join(found)}. " if found else ""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PySpark's log of query errors: PySpark logs Spark's error, which quotes the query, before a caller can
    catch the error. The quoted condition may be personal, or the query may be a probe that is allowed to fail."""
    from pyspark.logger import PySparkLogger

    # Get them by PySpark's own call: PySpark would use a plain logger of that name from then on, and pass it arguments
    # that it does not take.
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _condition_of(error: Exception) -> str:
    """Spark's name for the error: its text would quote the condition."""
    ask = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return str((ask() if callable(ask) else None) or type(error).__name__)


def _is_of(source: str) -> str:
    literal = source.replace("\\", "\\\\").replace("'", "\\'")
    return f"kind = '{letters.UNPARSED}' AND source = '{literal}'"


def _for(stage: str) -> str:
    return f" for sink {stage!r}" if stage else ""
