"""Mutations of what keeps secrets out of records and logs, and strangers out of what is a user's own."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MASKING = "tests/runtime/test_masking.py"
REFUSALS = "tests/engines/test_connect_refusals.py"

MUTATIONS = [
    Mutation(
        name="a pipeline pins any setting of Spark",
        why="a password that the user writes there is stored, and shown to whoever reads the checkpoint",
        file="pipeline.py",
        old="            if not key.startswith(SQL):\n",
        new="            if False:\n",
        tests=(MASKING,),
    ),
    Mutation(
        name="an option may be a password",
        why="it is stored in the checkpoint, and shown in logs and in the triggerer",
        file="runtime/masking.py",
        old="    if _NAME.search(name):\n",
        new="    if False:\n",
        tests=(MASKING,),
    ),
    Mutation(
        name="a setting that Spark refuses is logged with its value",
        why="settings may hold secrets, and more people read a task's log",
        file="runtime/session.py",
        old="                error.getCondition() or type(error).__name__,\n",
        new="                value,\n",
        tests=("tests/runtime/test_pin.py",),
    ),
    Mutation(
        name="whoever connects to the runner is answered",
        why="another user of the machine has it read what the pipelines may read",
        file="engines/spark_connect/wire.py",
        old="    return bool(uid == os.getuid())\n",
        new="    return True\n",
        tests=(REFUSALS,),
    ),
    Mutation(
        name="the runner does not look at who connects",
        why="another user of the machine has it read what the pipelines may read",
        file="engines/spark_connect/runner.py",
        old="        if not is_own(connection):\n",
        new="        if False:\n",
        tests=(REFUSALS,),
    ),
    Mutation(
        name="a link to a private folder is a private folder",
        why="its maker leads a client that tells a token wherever the maker likes",
        file="settings.py",
        old="        found = folder.lstat()",
        new="        found = folder.stat()",
        tests=(REFUSALS,),
    ),
    Mutation(
        name="a warm server listens to the network",
        why="whoever reaches the machine talks to its driver and block manager",
        file="engines/server.py",
        old='    "spark.driver.bindAddress": "127.0.0.1",\n',
        new='    "spark.driver.bindAddress": "0.0.0.0",\n',
        tests=("tests/engines/test_connect.py",),
    ),
    Mutation(
        name="clean_source takes what does not lie below the source",
        why="a log that somebody has written to has any file removed",
        file="sources/file/clean.py",
        old="        if not is_below(file.path, self._base):\n",
        new="        if False:\n",
        tests=("tests/sources/test_file_clean.py",),
    ),
]
