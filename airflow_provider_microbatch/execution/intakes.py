"""What the tables of a pipeline with dead letters take of a row, as they are when an attempt begins."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_microbatch.exceptions import DefinitionError, SinkError
from airflow_provider_microbatch.expectations import check_condition
from airflow_provider_microbatch.runtime.checks import Checks
from airflow_provider_microbatch.sinks import OpenSink


def with_intakes(checks: Checks | None, sink: OpenSink) -> Checks | None:
    """The checks of an attempt, with what each of its tables takes of a row.

    The tables are looked at once for each attempt: an attempt is published whole, tables and dead letters, or not at
    all, so a table that changes between two attempts is met by the later one as it is, and no row is in both or in
    neither.

    :param checks: the checks of the pipeline; unchanged if it has no dead letters.
    :raises SinkError: if a table cannot be looked at, or has a constraint that could not be held against each row.
    """
    if checks is None or checks.letters is None:
        return checks
    intakes = sink.intakes_by_name()
    for intake in intakes.values():
        for name, condition in intake.constraints.items():
            try:
                check_condition(condition, what=f"the constraint {name!r} ({condition}) of {sink.location()}")
            except DefinitionError as error:
                raise SinkError(f"{error} Or drop the constraint from the table.") from error
    return replace(checks, intakes=intakes)
