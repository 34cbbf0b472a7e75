"""What a job says of rows that are not to be in its tables: what is expected of them, where those go that are refused,
and what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAIL, DEAD_LETTER, DROP = "fail", "dead_letter", "drop"
ACTIONS = (FAIL, DEAD_LETTER, DROP)
"""What becomes of a row that is refused. The first one stands of what several expectations say of one row: a row is
not dropped, and no batch goes on, because of an expectation that would have let it."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A condition that each row of a table has to meet.

    :param condition: SQL of Spark's over the columns of what the transform returned. A row of which it is false, or
        null, is refused.
    :param action: one of :data:`ACTIONS`.
    :param stage: name of the stage whose rows it is about.
    """

    condition: str
    action: str
    stage: str = ""


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """Rows that were asked to be erased: whoever computes them again leaves them out.

    :param condition: SQL of Spark's; a row of which it is true is left out.
    :param number: of the entry that says so, for messages: the condition itself is personal.
    :param mark: by which the output says that it has left them out.
    :param stages: names of the stages whose rows it is about; empty for all of the batch's tables.
    """

    condition: str
    number: int
    mark: str
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Checks:
    """All of it, of one job.

    :param expectations: of all stages.
    :param letters: name of the stage to which refused rows go; None if there is none.
    :param max_rows: so many dead letters a batch may have; None for any number.
    :param max_share: likewise, of all the rows that were looked at, from 0 to 1.
    :param forgotten: what is left out, before anything is expected of it.
    """

    expectations: tuple[Expectation, ...] = ()
    letters: str | None = None
    max_rows: int | None = None
    max_share: float | None = None
    forgotten: tuple[Forgotten, ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Checks:
        """Of what ``dataclasses.asdict`` made of it, by way of JSON."""
        expectations = tuple(Expectation(**one) for one in values["expectations"])
        forgotten = tuple(Forgotten(**{**one, "stages": tuple(one["stages"])}) for one in values["forgotten"])
        return cls(**{**values, "expectations": expectations, "forgotten": forgotten})

    def of(self, stage: str) -> list[Expectation]:
        """What is expected of the rows of a stage; what counts first comes first."""
        own = [one for one in self.expectations if one.stage == stage]
        return sorted(own, key=lambda one: ACTIONS.index(one.action))

    def forgotten_of(self, stage: str) -> list[Forgotten]:
        """What is left out of a stage."""
        return [one for one in self.forgotten if not one.stages or stage in one.stages]
