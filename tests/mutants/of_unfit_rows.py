"""Mutations of what keeps rows out of a table that cannot take them."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

FITTING, ROWS, VALUES = (
    "tests/runtime/test_fitting.py",
    "tests/execution/test_unfit_rows.py",
    "tests/postgres/test_unfit_values.py",
)

DIVIDED, WRITTEN = "tests/runtime/test_refusing.py", "tests/runtime/test_times_as_text.py"

MUTATIONS = [
    Mutation(
        name="a number that the table would round goes in",
        why="the table has another number than the source, and nobody is told",
        file="runtime/fitting.py",
        old="converted.isNotNull() & ~same)",
        new="converted.isNotNull() & ~same & value.isNull())",
        tests=(FITTING,),
    ),
    Mutation(
        name="the largest whole numbers go into a double by the way back",
        why="9223372036854775807 is 9223372036854775808 in the table",
        file="runtime/fitting.py",
        old="        if source in _DIGITS and column.type in _BITS:\n",
        new="        if source in _DIGITS and column.type in _DIGITS:\n",
        tests=(FITTING,),
    ),
    Mutation(
        name="a constraint is held against the values of before the conversion",
        why="the table has a row that breaks its constraint, or a row that meets it is a dead letter",
        file="runtime/fitting.py",
        old="    if met and values:\n",
        new="    if False:\n",
        tests=(FITTING,),
    ),
    Mutation(
        name="a row whose values do not go in does not meet the constraints about them",
        why="who looks into its dead letter mends what was not wrong",
        file="runtime/fitting.py",
        old="unfit | F.col(MET)[number]",
        new="F.col(MET)[number]",
        tests=(FITTING,),
    ),
    Mutation(
        name="an attempt does not ask the table what it takes",
        why="one row out of range fails the batch, although the pipeline has dead letters",
        file="execution/job_of.py",
        old="        checks=with_intakes(pipeline.checks(forgotten), sink),\n",
        new="        checks=pipeline.checks(forgotten),\n",
        tests=(ROWS,),
    ),
    Mutation(
        name="rows go into a table whose rules came while they were made",
        why="a table has rows that its constraint excludes, and each reader that relies on it is wrong",
        file="sinks/delta/table.py",
        old="self._check_fits(snapshot, held=ready.manifest.held_to)\n",
        new="self._check_fits(snapshot, held=rules_of(snapshot))\n",
        tests=(ROWS,),
    ),
    Mutation(
        name="what is to be dropped is dropped though it is a dead letter of its column",
        why="a row is gone that a wider table, or mended code, would have taken",
        file="runtime/refusing.py",
        old="        return sorted(rules, key=lambda rule: ACTIONS.index(rule.action))\n",
        new="        return rules\n",
        tests=(FITTING,),
    ),
    Mutation(
        name="PostgreSQL rounds times that nobody has judged",
        why="the table has other times than the source",
        file="sinks/postgres/columns.py",
        old="is_judged=narrows(one.name, target.type) in held)",
        new="is_judged=True)",
        tests=(VALUES,),
    ),
    Mutation(
        name="times of a dead letter are cut to milliseconds",
        why="a replay puts other rows into the table than those that were refused",
        file="runtime/letters.py",
        old="{**_WHOLE, **times_of(frame.sparkSession)}",
        new="_WHOLE",
        tests=(DIVIDED,),
    ),
    Mutation(
        name="times of a dead letter are told by the session's zone",
        why="of those before standard time the offset's seconds are lost",
        file="runtime/letters.py",
        old='_WHOLE = {"ignoreNullFields": "false", "timeZone": "UTC"}',
        new='_WHOLE = {"ignoreNullFields": "false"}',
        tests=(DIVIDED,),
    ),
    Mutation(
        name="times are written to the microsecond for whom these are milliseconds",
        why="they are read up to a quarter of an hour late, in green",
        file="runtime/write.py",
        old='    return {} if policy.upper() == "LEGACY" else TIMES\n',
        new='    return {} if policy.upper() == "" else TIMES\n',
        tests=(WRITTEN,),
    ),
]
