"""Job graphs: how they split, and what keeps one pipeline's trouble its own."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SPLIT = "tests/graph/test_split.py"
UPKEEP = "tests/graph/test_upkeep_of_jobs.py"
TABLES = "tests/graph/test_tables.py"
CODE = "tests/engines/test_code.py"
OF_TABLES = "tests/airflow_face/test_tables.py"
SENSOR = "tests/airflow_face/test_job_data.py"
KEPT_BACK = "tests/airflow_face/test_not_shown.py"

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
        old="    if owner != pipeline:\n",
        new="    if owner is None:\n",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="a pipeline that fails has no pause",
        why="run after run begins for it, and each starts Spark",
        file="graph/pause.py",
        old="    return Pause(key=key, failures=failures, seconds=left) if 0 < left <= 2 * pause else None\n",
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
        old="(not decision.own, waits, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
        new="(not decision.own, waits, 0.0, pipeline.name, pipeline)",
        tests=(TABLES,),
    ),
    Mutation(
        name="a table in its pause has its turn before others",
        why="tables that fail take the places of those with work",
        file="graph/tables.py",
        old="(not decision.own, waits, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
        new="(not decision.own, False, -_idle_seconds(checkpoint), pipeline.name, pipeline)",
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
    Mutation(
        name="a table is known by its place in a list",
        why="a clear of its run makes another batch, and not its own again",
        file="task_context/run_context.py",
        old="ti.map_index is None or is_table",
        new="ti.map_index is None",
        tests=(OF_TABLES,),
    ),
    Mutation(
        name="a cleared run's own tables wait for their turn",
        why="who cleared it gets others made, and these never again",
        file="graph/tables.py",
        old="(not decision.own, waits, -_idle",
        new="(False, waits, -_idle",
        tests=(OF_TABLES,),
    ),
    Mutation(
        name="a sensor forgets when its wait began",
        why="a pipeline that cannot be asked is never heard of",
        file="sensors/job_data.py",
        old="waits_since_ms=rescheduled_since_ms(context)",
        new="waits_since_ms=None",
        tests=(SENSOR,),
    ),
    Mutation(
        name="settings of a mapped task stand in Airflow's database",
        why="they may hold secrets",
        file="operators/not_shown.py",
        old="NotShown(value) if name in",
        new="value if name in",
        tests=(KEPT_BACK,),
    ),
)
