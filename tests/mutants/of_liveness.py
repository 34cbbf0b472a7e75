"""Mutations of who is alive, who has failed, and what stands in whose way."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

ALIVE = "tests/execution/test_alive.py"
FILE_SYSTEM = "tests/checkpoint/test_file_system.py"
STOP = "tests/airflow_face/test_stop.py"
FENCE_LOOK = "tests/runtime/test_fence_look.py"
SUBMIT_ERROR = "tests/engines/test_submit_error.py"
CLEARED = "tests/airflow_face/test_cleared_runs.py"
JANITOR = "tests/execution/test_janitor.py"
NEW_DATA = "tests/airflow_face/test_new_data.py"
SET_ASIDE = "tests/execution/test_set_aside.py"
SILENCE = "tests/runtime/test_silence.py"
CONNECT_SILENCE = "tests/engines/test_connect_silence.py"
JANITOR_TASK = "tests/airflow_face/test_janitor.py"

MUTATIONS = [
    Mutation(
        name="a process whose first thread has ended is gone",
        why="a JVM that was killed still holds its ports, and may be in a write, when its stage is dropped",
        file="engines/processes.py",
        old="        return process.status() != psutil.STATUS_ZOMBIE or _has_threads(process.pid)\n",
        new="        return bool(process.status() != psutil.STATUS_ZOMBIE)\n",
        tests=("tests/engines/test_processes.py",),
    ),
    Mutation(
        name="a process whose first thread has ended has no tag",
        why="the next try, which looks by the tag, begins beside a JVM that still writes",
        file="engines/processes.py",
        old="        return any(tag in text for text in _shown_by_threads(process.pid))\n",
        new="        return False\n",
        tests=("tests/engines/test_processes.py",),
    ),
    Mutation(
        name="a Spark Connect server may be silent for ever",
        why="a frozen server holds the task, its lease and the table's lock until somebody kills it",
        file="runtime/silence.py",
        old="            if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not self._over.is_set():\n",
        new="            if False:\n",
        tests=(CONNECT_SILENCE, SILENCE),
    ),
    Mutation(
        name="a statement outlasts its silent server",
        why="it is known that the server is gone, and the task waits for it all the same",
        file="runtime/silence.py",
        old="            running = list(self._running)\n",
        new="            running: list[Any] = []\n",
        tests=(SILENCE,),
    ),
    Mutation(
        name="a session's end is waited for without a deadline",
        why="Airflow's execution_timeout is raised, and the task stands in what was to tidy up",
        file="runtime/silence.py",
        old="metadata=self._metadata, timeout=CLOSE_SECONDS)",
        new="metadata=self._metadata)",
        tests=(CONNECT_SILENCE,),
    ),
    Mutation(
        name="PySpark's threads wait for the server without a deadline",
        why="the close of the client joins them, and so does Python's end",
        file="runtime/silence.py",
        old="        return continuation(details._replace(timeout=timeout), request)\n",
        new="        return continuation(details, request)\n",
        tests=(SILENCE,),
    ),
    Mutation(
        name="a checkpoint is begun on any file system",
        why="hosts see each other's entries and leases seconds late: two plan, and the living are taken for dead",
        file="checkpoint/checkpoint.py",
        old="            if unfit is not None:\n",
        new="            if False:\n",
        tests=(FILE_SYSTEM,),
    ),
    Mutation(
        name="the pipeline's lease_seconds are not used",
        why="a slow store takes live attempts for dead, whatever the user writes",
        file="execution/execution.py",
        old="pipeline.lease_seconds if lease_seconds is None else lease_seconds",
        new="60.0 if lease_seconds is None else lease_seconds",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a stopped task waits ten seconds for its Spark",
        why="Airflow kills it after five, and stage and Spark stay until the janitor comes",
        file="engines/processes.py",
        old="STOP_SECONDS = 1.5\n",
        new="STOP_SECONDS = 10.0\n",
        tests=(STOP,),
    ),
    Mutation(
        name="Spark is asked for the fence mark where there is no stage yet",
        why="a stack trace every five seconds in the log of a healthy task",
        file="runtime/fence.py",
        old="            if here is not None:\n",
        new="            if here is not None and here.parent.is_dir():\n",
        tests=(FENCE_LOOK,),
    ),
    Mutation(
        name="a JVM that was killed is like any that failed",
        why="a batch that kills its driver each time is never set aside, and nobody reads why",
        file="engines/submit_error.py",
        old="    if name is not None:\n",
        new="    if False:\n",
        tests=(SUBMIT_ERROR,),
    ),
    Mutation(
        name="a sensor waits for data while a cleared run waits for it",
        why="a cleared batch stays queued until new data comes, or for ever",
        file="operators/cleared_runs.py",
        old="            if _count(run.dag_id, asked):\n",
        new="            if False:\n",
        tests=(CLEARED,),
    ),
    Mutation(
        name="who waits for a data interval gives way",
        why="the interval is skipped, and no later run reads it",
        file="operators/cleared_runs.py",
        old="        if self._pipeline.plan != LIVE:\n",
        new="        if False:\n",
        tests=(CLEARED,),
    ),
    Mutation(
        name="a hook that keeps failing is called for ever",
        why="its attempt stays unfinished, and retention removes nothing any more",
        file="staging/hooks.py",
        old="        is_last = tries > len(PAUSES)\n",
        new="        is_last = False\n",
        tests=(JANITOR,),
    ),
    Mutation(
        name="a hook that failed is called again by every janitor",
        why="its nine calls are over within a minute of an outage",
        file="staging/hooks.py",
        old="    if tries and ago < PAUSES[tries - 1]:\n",
        new="    if False:\n",
        tests=(JANITOR,),
    ),
    Mutation(
        name="a hook is given up in silence",
        why="nobody does what the hook was to do",
        file="staging/hooks.py",
        old="                deliveries.give_up(key, epoch, delivery, hook=hook, tries=tries, error=text)\n",
        new="                pass\n",
        tests=(JANITOR,),
    ),
    Mutation(
        name="nobody renews the lease while an attempt is opened",
        why="an attempt that stops a slow one before it is taken for dead itself",
        file="execution/execution.py",
        old="            self._ending.end_earlier(attempt, engine)\n        log.info",
        new="        self._ending.end_earlier(attempt, engine)\n        log.info",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a sensor fails where the engine cannot be asked",
        why="no run gets to the operator that would recover the batch",
        file="execution/guard.py",
        old="    except EngineError as unknown:\n",
        new="    except NotImplementedError as unknown:\n",
        tests=(NEW_DATA,),
    ),
    Mutation(
        name="a cleared sensor searches the log at each poll",
        why="half a second of CPU every ten seconds, growing with the log",
        file="execution/plan.py",
        old="        if newest_only or not run.was_cleared:\n",
        new="        if not run.was_cleared:\n",
        tests=(NEW_DATA,),
    ),
    Mutation(
        name="what a command has changed is not searched again",
        why="a cleared run whose sensor began during a command never finds its batch",
        file="execution/plan.py",
        old="        return searched_ms is not None and (changed_ms is None or changed_ms < searched_ms - SKEW_MS)",
        new="        return searched_ms is not None",
        tests=(NEW_DATA,),
    ),
    Mutation(
        name="an outage sets batches aside",
        why="good batches are passed over because the cluster was down",
        file="execution/set_aside.py",
        old="    return DEAD if isinstance(error, SparkKilledError) else None\n",
        new="    return DEAD if isinstance(error, SparkKilledError) else JOB\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="deaths and failures are one count",
        why="a power failure and a failed attempt set a good batch aside",
        file="execution/set_aside.py",
        old="        if len(self.job) >= after:\n",
        new="        if len(self.job) + len(self.dead) >= after:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="a definition of another version is no error of its own",
        why="one checkpoint takes the janitor down for all",
        file="definition.py",
        old="    if unknown:\n",
        new="    if False:\n",
        tests=(JANITOR_TASK,),
    ),
    Mutation(
        name="what a sink raises ends the janitor for all checkpoints",
        why="stages of other pipelines stay for as long as one is broken",
        file="operators/janitor.py",
        old="            except Exception as error:\n",
        new="            except (MicroBatchError, OSError) as error:\n",
        tests=(JANITOR_TASK,),
    ),
]
