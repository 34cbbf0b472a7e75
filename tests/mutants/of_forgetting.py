"""Mutations of what was asked to be forgotten."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

DIVIDED, FORGOTTEN = "tests/runtime/test_refusing.py", "tests/execution/test_forgetting.py"
UNFIT = "tests/postgres/test_unfit_values.py"

MUTATIONS = [
    Mutation(
        name="what is to be forgotten is written",
        why="what was deleted on request is there again",
        file="runtime/refusing.py",
        old="            frame = frame.where(~forgotten)\n",
        new="            pass\n",
        tests=(DIVIDED,),
    ),
    Mutation(
        name="a change that is to be forgotten is left out",
        why="the row of a person stays whose deletion is to be forgotten, and an older state of another comes back",
        file="runtime/changes.py",
        old="            marked = marked.where(~is_forgotten | has_value)\n",
        new="            marked = marked.where(~is_forgotten)\n",
        tests=("tests/sinks/test_delta_merge_spark.py",),
    ),
    Mutation(
        name="a change that is to be forgotten keeps its values",
        why="what was to be erased lies beside the table for good",
        file="runtime/changes.py",
        old="                column = F.when(~is_forgotten, column).alias(name)\n",
        new="                column = column.alias(name)\n",
        tests=(UNFIT,),
    ),
    Mutation(
        name="a change that is to be forgotten is a dead letter where its key does not fit",
        why="what was to be erased is in a table again",
        file="runtime/refusing.py",
        old='            judged = judged.where(f"{VERDICT} IS NULL OR NOT {FORGOTTEN}")\n',
        new="            pass\n",
        tests=(UNFIT,),
    ),
    Mutation(
        name="an attempt publishes that does not know what was to be forgotten",
        why="what was asked for while it ran is published after that",
        file="execution/forgetting.py",
        old="    if missing:\n",
        new="    if missing and not staged.key.lane:\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="finished splits of before are taken over whatever is to be forgotten",
        why="their rows come back",
        file="execution/subtasks.py",
        old="**({} if job.checks is None else",
        new="**({} if job.lane else",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="what cannot be forgotten is told with whom it names",
        why="the request is personal data, and errors are stored and logged",
        file="runtime/refusing.py",
        old='                f"({_condition_of(error)}): its columns',
        new='                f"({error}): its columns',
        tests=(DIVIDED,),
    ),
    Mutation(
        name="a lifted entry counts",
        why="nobody gets past a condition that no table can compute",
        file="checkpoint/forgotten.py",
        old="if one.lifts is None and one.number not in lifted]\n",
        new="if one.lifts is None and lifted is not None]\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a batch counts as made without the rows as soon as somebody asks",
        why="nobody is told which batches to replay",
        file="execution/forgetting.py",
        old='if batch.state == "committed" and not set(marks) <= set(batch.forgotten):\n',
        new='if batch.state == "committed" and not numbers:\n',
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="what is to be forgotten of a sink that has another name by now is of no table",
        why="its rows are written there, and the batch says that they are left out",
        file="execution/forgetting.py",
        old="        if gone:\n",
        new="        if gone and not one.sinks:\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a sink that a refused clear names is none that can be forgotten of",
        why="the error names a command that is refused, until a new run makes a batch that nobody may make",
        file="cli/forget.py",
        old="checkpoint.sinks_in_force.get() or filter(",
        new="filter(",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a clear by a restored checkpoint brings back what the table says is left out",
        why="what was asked to be erased is there again, in green, and nobody is told",
        file="execution/read_again.py",
        old="    if before is not None:\n        check_entries_known(",
        new="    if before is None:\n        check_entries_known(",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a rewind by a restored checkpoint has what the table says is left out made again",
        why="what was asked to be erased is there again, in green, and nobody is told",
        file="upkeep/commands/rewind.py",
        old='            check_entries_known(self._checkpoint, found.manifest, what="nothing was done")\n',
        new="",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="check says nothing of entries that the checkpoint has lost",
        why="new batches have rows that were asked to be erased, and all seems well",
        file="upkeep/table_check.py",
        old="    findings += _erased_elsewhere(checkpoint, marks)\n",
        new="",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a mark that was lifted counts as lost",
        why="nobody gets past it: its batches are never made again",
        file="checkpoint/forgotten.py",
        old="for mark in (one.mark, one.lifts)}",
        new="for mark in (one.mark,)}",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="whatever a table has for a mark is named in a command to type",
        why="it may be the shell of whoever types it that runs it",
        file="checkpoint/forgotten.py",
        old="borne = set(filter(is_mark, marks))",
        new="borne = set(marks)",
        tests=(FORGOTTEN,),
    ),
]
