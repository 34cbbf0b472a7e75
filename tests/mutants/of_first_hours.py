"""Mutations of what a new user meets: what is refused before anything is planned, and a warm engine."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CONNECT = "tests/engines/test_connect.py"
MASTERS = "tests/engines/test_masters.py"
REFUSALS = "tests/engines/test_connect_refusals.py"

MUTATIONS = [
    Mutation(
        name="a table is begun on any file system",
        why="what another host has published is absent there for seconds, and a replay is refused for good",
        file="sinks/table_folder.py",
        old="    if TableFolder(root).is_empty():\n        raise",
        new="    if False:\n        raise",
        tests=("tests/checkpoint/test_file_system.py",),
    ),
    Mutation(
        name="a checkpoint may be relative",
        why="each worker has another one, in the folder that it happens to run in",
        file="stores/posix/__init__.py",
        old='        if not path.startswith("/"):\n',
        new="        if False:\n",
        tests=("tests/execution/test_pipeline.py",),
    ),
    Mutation(
        name="a connection of any type is one of spark-submit",
        why="Spark is told a master such as http://example.com, once the attempt is on record",
        file="engines/masters.py",
        old="    if connection.conn_type not in _TYPES:\n",
        new="    if False:\n",
        tests=(MASTERS,),
    ),
    Mutation(
        name="YARN is asked by the command yarn alone",
        why="where only the PyPI package of Spark is, no application in cluster mode is found again, or ended",
        file="engines/yarn.py",
        old="        submit = shutil.which(self.binary, path=path)\n",
        new="        submit = None\n",
        tests=(MASTERS,),
    ),
    Mutation(
        name="whatever is called yarn is asked for applications",
        why="where that is Node's package manager, no attempt is ever known to have ended",
        file="engines/yarn.py",
        old="        if spark_class is not None and self._is_configured():\n",
        new='        if shutil.which("yarn", path=path) is None and spark_class is not None:\n',
        tests=(MASTERS,),
    ),
    Mutation(
        name="a stop looks for the application whose id it knows",
        why="Airflow kills the task before the application is: it runs on until its next attempt",
        file="engines/spark_submit/__init__.py",
        old="known = launch.application_on_yarn if launch is not None and stopped else None",
        new="known = None",
        tests=(MASTERS,),
    ),
    Mutation(
        name="spark-submit may leave an application that it has submitted",
        why="a job that has only been submitted counts as one that has ended well",
        file="engines/spark_submit/__init__.py",
        old='            settings["spark.yarn.submit.waitAppCompletion"] = "true"\n',
        new="",
        tests=(MASTERS,),
    ),
    Mutation(
        name="an application that YARN has ended is one that failed",
        why="a batch whose driver is killed for its memory each time is never set aside",
        file="engines/spark_submit/error.py",
        old="any(code in _FROM_OUTSIDE or _signal_of(code) for code in codes)",
        new="False",
        tests=("tests/engines/test_submit_error.py",),
    ),
    Mutation(
        name="a token goes to whoever listens at the runner's socket",
        why="a process of another user that was there first is told the server's token",
        file="engines/spark_connect/wire.py",
        old="    if not is_own(end):\n",
        new="    if False:\n",
        tests=(REFUSALS,),
    ),
    Mutation(
        name="each start has a new port and token",
        why="no task runs until somebody imports the connection once more",
        file="engines/server.py",
        old="    if before is not None and _is_free(before[0]):\n",
        new="    if False:\n",
        tests=(REFUSALS,),
    ),
    Mutation(
        name="a cached frame answers any attempt",
        why="two pipelines publish yesterday's rows of a dimension that one of them has cached",
        file="engines/spark_connect/session.py",
        old="                frame._plan = frame.where(F.lit(mark) == F.lit(mark))._plan\n",
        new="",
        tests=(CONNECT,),
    ),
    Mutation(
        name="what an attempt has cached stays in the server",
        why="its memory grows with each batch, until it ends by itself",
        file="engines/spark_connect/session.py",
        old="            frame.unpersist()\n",
        new="            pass\n",
        tests=(CONNECT,),
    ),
]
