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
COMPLETE = "tests/execution/test_complete.py"
PARALLELISM = "tests/execution/test_parallelism.py"
STATUS = "tests/graph/test_status.py"

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
        old="    is_one = 0 < left <= 2 * pause\n",
        new="    is_one = False\n",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="the pause is as long after each failure",
        why="a batch that cannot succeed is tried every minute for ever",
        file="graph/pause.py",
        old="2 * pause or first_seconds",
        new="first_seconds",
        tests=(UPKEEP,),
    ),
    Mutation(
        name="all failures that there were are counted at each look",
        why="a batch that has failed for days costs a request for each of its attempts, every few seconds",
        file="graph/pause.py",
        old="        if or_more := pause >= LONGEST_SECONDS:\n",
        new="        if or_more := False:\n",
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
        name="tables that cannot be asked take others' turns",
        why="as many of them as may run at once stop all others for good",
        file="graph/tables.py",
        old="*unasked[:at_most]]\n",
        new="][:at_most]\n",
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
    Mutation(
        name="a pipeline is complete with one source that ended",
        why="the DAG is paused while another source has data",
        file="execution/opened_sources.py",
        old="        return all(source.finished(committed.get(name)) for name, source in self._each())\n",
        new="        return any(source.finished(committed.get(name)) for name, source in self._each())\n",
        tests=(COMPLETE,),
    ),
    Mutation(
        name="a finished source is checked before each plan",
        why="a folder that was read and removed stops the sources beside it",
        file="execution/opened_sources.py",
        old="            if committed is None or not source.finished(committed.get(name)):\n",
        new="            if name:\n",
        tests=(COMPLETE,),
    ),
    Mutation(
        name="a job is complete with one of its pipelines",
        why="the DAG is paused while another pipeline waits for data",
        file="graph/watch.py",
        old="            complete &= decision.complete\n",
        new="            complete |= decision.complete\n",
        tests=(COMPLETE,),
    ),
    Mutation(
        name="a sensor of a continuous DAG ends at once",
        why="the scheduler makes runs as fast as it can, for ever",
        file="task_context/complete.py",
        old="    return min(REST_SECONDS, timeout / 2) if continuous and when_complete == SKIP else 0.0\n",
        new="    return 0.0 if continuous else 0.0\n",
        tests=("tests/airflow_face/test_complete.py",),
    ),
    Mutation(
        name="a retry divides as the code of now says",
        why="a replay is not what it was, and what an attempt had finished is of another job",
        file="execution/job_of.py",
        old="transform.divided(planned.entry.parallelism) if isinstance(transform, Flow) else transform",
        new="transform",
        tests=(PARALLELISM,),
    ),
    Mutation(
        name="the entry does not say how a batch is divided",
        why="a retry divides its rows in no way",
        file="execution/plan.py",
        old="            parallelism=flow.parallelism if isinstance(flow, PipelineFlow) else {},\n",
        new="",
        tests=(PARALLELISM,),
    ),
    Mutation(
        name="each pipeline tells that the run has begun",
        why="a hook opens as many tickets as there are pipelines",
        file="graph/status.py",
        old='            if self._store.put_if_absent(f"told/{life}/{index}.created", encode_record({})):\n',
        new='            if self._store.put_if_absent(f"told/{life}/{index}.created", encode_record({})) or 1:\n',
        tests=(STATUS,),
    ),
    Mutation(
        name="the newest end of a run is told",
        why="one hook has it as failed and the other one as finished",
        file="graph/status.py",
        old="        if said is None:\n            end = how()\n",
        new='        if said is None or self._store.delete(f"told/{life}/end"):\n            end = how()\n',
        tests=(STATUS,),
    ),
)
