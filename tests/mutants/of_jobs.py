"""Job graphs: how they split, and what keeps one pipeline's trouble its own."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SPLIT = "tests/graph/test_split.py"
UPKEEP = "tests/graph/test_upkeep_of_jobs.py"
TABLES = "tests/graph/test_tables.py"
CODE = "tests/engines/test_code.py"

MUTATIONS = (
    Mutation(
        name="a node joins its first input alone",
        why="two pipelines plan one source, and the rows of a union are made twice or not at all",
        file="graph/split.py",
        old="        for other in node.inputs:\n            joined",
        new="        for other in node.inputs[:1]:\n            joined",
        tests=(SPLIT,),
    ),
    Mutation(
        name="what flows into no sink is passed over",
        why="a sink that was forgotten is missed when its rows are wanted",
        file="graph/split.py",
        old="    if loose:\n",
        new="    if loose and not written:\n",
        tests=(SPLIT,),
    ),
    Mutation(
        name="two pipelines of a job may write one table",
        why="each finds the other's batches there, and stops",
        file="graph/__init__.py",
        old="            self._check_tables()\n",
        new="",
        tests=(SPLIT,),
    ),
    Mutation(
        name="a table goes on under another pipeline",
        why="its sources are read into it again",
        file="graph/sinks_on_record.py",
        old="        if owner != pipeline:\n",
        new="        if owner is None:\n",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="a pipeline that fails has no pause",
        why="run after run begins for it, and each starts Spark",
        file="graph/pause.py",
        old="    return Pause(key=key, failures=failures, seconds=left) if left > 0 else None\n",
        new="    return None\n",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="the pause is as long after each failure",
        why="a batch that cannot succeed is tried every minute for ever",
        file="graph/pause.py",
        old="first_seconds * 2.0 ** min(failures - 1, 30)",
        new="first_seconds",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="a pipeline in its pause begins runs",
        why="the loop spins on red runs",
        file="graph/watch.py",
        old="            if pause is not None:\n",
        new="            if pause is not None and pause.failures > 99:\n",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="the tables have their turn by name",
        why="with more tables than may run at once the last ones never have theirs",
        file="graph/tables.py",
        old="(waits, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
        new="(waits, 0.0, pipeline.name, pipeline)",
        tests=(TABLES,),
    ),
    Mutation(
        name="a table in its pause has its turn before others",
        why="tables that fail take the places of those with work",
        file="graph/tables.py",
        old="(waits, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
        new="(False, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
        tests=(TABLES,),
    ),
    Mutation(
        name="rows of a source are not divided as it says",
        why="one task reads what four should",
        file="engines/code.py",
        old="partitions=dict(flow.partitions)",
        new="partitions={}",
        tests=(CODE,),
    ),
    Mutation(
        name="a flow that hangs together otherwise is the same code",
        why="a clear after a union became a join is taken for done",
        file="engines/code.py",
        old="    if flow is not None:\n",
        new="    if flow is not None and not flow:\n",
        tests=(CODE,),
    ),
)
