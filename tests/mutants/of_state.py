"""Mutations of batches that keep state."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

BATCHES = "tests/state/test_batches.py"
FILES = "tests/state/test_parse.py"

MUTATIONS = [
    Mutation(
        name="a batch goes on from the state that was committed first",
        why="after a replay of the batch before it goes on from the attempt whose output was replaced",
        file="execution/stateful.py",
        old="    if published is not None:\n        return published.result\n",
        new="",
        tests=(BATCHES,),
    ),
    Mutation(
        name="files of losers are kept, those of winners removed",
        why="the next batch does not find the state that it goes on from",
        file="execution/state_files.py",
        old="id in self.ids[batch_id])",
        new="id not in self.ids[batch_id])",
        tests=(FILES,),
    ),
    Mutation(
        name="an older batch that kept state is replayed",
        why="its output contradicts the batches that have gone on from it",
        file="execution/replay.py",
        old="        check_replay(checkpoint, key, commit.progress)\n",
        new="",
        tests=(BATCHES,),
    ),
    Mutation(
        name="the watermark does not go on",
        why="rows are never final, and late ones are counted twice",
        file="execution/stateful.py",
        old='    return planned.entry.watermark_ms if state is None else int(state["nextWatermarkMs"])\n',
        new="    return planned.entry.watermark_ms\n",
        tests=(BATCHES,),
    ),
]
