"""Mutations of how long state is kept."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

KEPT = "tests/state/test_kept_state.py"

MUTATIONS = [
    Mutation(
        name="state is removed of batches that the logs keep",
        why="a rewind to one of them leads to batches that find no state",
        file="execution/stateful.py",
        old="        oldest = min([oldest, *commits.ids()[:1]])\n",
        new="        pass\n",
        tests=(KEPT,),
    ),
]
