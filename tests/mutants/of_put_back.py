"""Mutations of what is asked of a table that somebody has put back to an earlier state."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

OVER_A_REWIND = "tests/execution/test_restore_over_a_rewind.py"
DELTA = "tests/sinks/test_delta_put_back.py"

MUTATIONS = [
    Mutation(
        name="rows of a batch that was taken out stay beside those that come in",
        why="a RESTORE to before a rewind doubles them",
        file="sinks/delta/table.py",
        old="        elif snapshot is not None and ready is not None and self._back(snapshot, [batch.key]):\n",
        new="        elif False:\n",
        tests=(OVER_A_REWIND,),
    ),
    Mutation(
        name="rows of later batches that were taken out are in nobody's way",
        why="the next batch reads what they are of",
        file="sinks/delta/table.py",
        old="            if back:\n                raise",
        new="            if False:\n                raise",
        tests=(OVER_A_REWIND,),
    ),
    Mutation(
        name="a batch that was taken out is there by the statistics of a file that others share",
        why="no run plans, and nothing that a person could take out is there",
        file="sinks/delta/come_back.py",
        old="    return those_in(snapshot, home, [key for key in keys if present.may_have(key)])\n",
        new="    return [key for key in keys if present.may_have(key)]\n",
        tests=(DELTA,),
    ),
]
