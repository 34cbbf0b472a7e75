"""A job's checks of rows: the expectations on the rows of its tables, the stage that refused rows go to, and the rows
that are forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_microbatch.runtime.intake import Intake

FAIL, DEAD_LETTER, DROP = "fail", "dead_letter", "drop"
ACTIONS = (FAIL, DEAD_LETTER, DROP)
"""The actions for a row that is refused, the strongest first. If several expectations refuse one row, the strongest of
their actions applies: an expectation that would drop the row, or let the batch go on, never overrides another one."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A condition that each row of a table has to meet.

    :param condition: a Spark SQL expression over the columns that the transform returned. A row is refused if the
        condition is false or null for the row.
    :param action: one of :data:`ACTIONS`.
    :param stage: name of the stage whose rows the condition applies to.
    """

    condition: str
    action: str
    stage: str = ""


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """Rows that a user asked to erase: every batch or replay that computes them again leaves them out.

    :param condition: a Spark SQL expression; rows for which it is true are left out.
    :param number: number of the entry that records the request, for messages: the condition itself is personal data.
    :param mark: the mark by which the output records that the rows were left out.
    :param stages: names of the stages that the request applies to; empty for all of the batch's tables.
    """

    condition: str
    number: int
    mark: str
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All checks of one job.

    :param expectations: the expectations of all stages.
    :param letters: name of the stage to which refused rows go; None if the job has none.
    :param max_rows: how many dead letters a batch may have; None for any number.
    :param max_share: the largest share of dead letters among all checked rows, from 0 to 1; None for any share.
    :param forgotten: the rows to leave out, before any expectation is checked.
    :param intakes: what a table takes of a row, by the name of its stage; other rows are dead letters. A table that is
        not among them takes all rows, or fails the batch.
    """

    expectations: tuple[Expectation, ...] = ()
    letters: str | None = None
    max_rows: int | None = None
    max_share: float | None = None
    forgotten: tuple[Forgotten, ...] = ()
    intakes: Mapping[str, Intake] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Checks:
        """Restore checks from the values that ``dataclasses.asdict`` made, by way of JSON."""
        expectations = tuple(Expectation(**one) for one in values["expectations"])
        forgotten = tuple(Forgotten(**{**one, "stages": tuple(one["stages"])}) for one in values["forgotten"])
        intakes = {name: Intake.from_values(one) for name, one in values.get("intakes", {}).items()}
        return cls(**{**values, "expectations": expectations, "forgotten": forgotten, "intakes": intakes})

    def of(self, stage: str) -> list[Expectation]:
        """The expectations on the rows of a stage, the strongest action first."""
        own = [one for one in self.expectations if one.stage == stage]
        return sorted(own, key=lambda one: ACTIONS.index(one.action))

    def forgotten_of(self, stage: str) -> list[Forgotten]:
        """The requests whose rows are left out of a stage."""
        return [one for one in self.forgotten if not one.stages or stage in one.stages]
