"""Mutations of what proves, or tells, what a batch was made of and what no batch has read."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MUTATIONS = [
    Mutation(
        name="rows of which nothing is left become the batch, though it was planned to be read otherwise",
        why="a schema that was changed before a planned batch was run makes all its rows null, in green",
        file="execution/read_again.py",
        old="    if emptied:\n        key = planned.key\n",
        new="    if False:\n        key = planned.key\n",
        tests=("tests/execution/test_read_again.py",),
    ),
    Mutation(
        name="what was made of as much of other data is adopted",
        why="the range that is planned is read by no batch",
        file="upkeep/commands/adopt.py",
        old="        elif told[name] != planned:\n",
        new="        elif False:\n",
        tests=("tests/execution/test_start_behind.py",),
    ),
]
