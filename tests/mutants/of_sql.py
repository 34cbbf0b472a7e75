"""Mutations of the checkpoint in a database, and of the move to it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SQL, COPY = "tests/checkpoint/test_sql.py", "tests/execution/test_copy.py"
REFUSED = "tests/checkpoint/test_sql_refused.py"

MUTATIONS = [
    Mutation(
        name="a put whose answer was lost counts as another's",
        why="an attempt that has taken its epoch believes that it has not, and nobody runs the batch",
        file="stores/sql/__init__.py",
        old="found[0] == token:",
        new="found[0] == token and not done.was_lost:",
        tests=(SQL,),
    ),
    Mutation(
        name="what is there after a lost answer counts as our own",
        why="two attempts believe that they have put the same entry",
        file="stores/sql/__init__.py",
        old="found[0] == token:",
        new="found is not None:",
        tests=(SQL,),
    ),
    Mutation(
        name="a child of a fork uses its parent's sessions",
        why="answers to one go to the other",
        file="stores/sql/database.py",
        old="setdefault((os.getpid(), conn_id)",
        new="setdefault((0, conn_id)",
        tests=(SQL,),
    ),
    Mutation(
        name="a read replica is taken",
        why="what is read there may be old, and a batch be planned twice",
        file="stores/sql/postgres.py",
        old="        if in_recovery:\n",
        new="        if in_recovery is None:\n",
        tests=(REFUSED,),
    ),
    Mutation(
        name="tables of a newer version are used",
        why="an older process writes what the newer ones do not understand",
        file="stores/sql/migrations.py",
        old="    if version > today:\n",
        new="    if version > today + 99:\n",
        tests=(SQL,),
    ),
    Mutation(
        name="a checkpoint that has left goes on at its old place",
        why="two places plan the same batches",
        file="checkpoint/places.py",
        old="        if MOVED in names and ",
        new="        if MOVED in () and ",
        tests=(COPY,),
    ),
    Mutation(
        name="another connection is another place",
        why="a checkpoint is copied into itself: what is one of its folders is another checkpoint",
        file="upkeep/commands/copy.py",
        old="    if _is_within(place.place, open_store(here).place):\n",
        new="    if False:\n",
        tests=("tests/execution/test_copy_begun_there.py",),
    ),
    Mutation(
        name="attempts of before the move are not fenced",
        why="one that slept through it publishes beside what the new place runs",
        file="upkeep/commands/copy.py",
        old="        if attempts.all(key):\n",
        new="        if not attempts.all(key):\n",
        tests=(COPY,),
    ),
    Mutation(
        name="what was taken back while it was copied stays at the new place",
        why="the pipeline goes on from a plan that nobody made",
        file="upkeep/commands/moving.py",
        old="                target.delete_if(path, there)\n                is_same = False\n",
        new="                is_same = False\n",
        tests=(COPY,),
    ),
    Mutation(
        name="a place that is open is made like the old one again",
        why="the entries of what has run there are gone when a copy that was killed at its end is typed again",
        file="upkeep/commands/moving.py",
        old="            return is_over() or is_open(target)\n",
        new="            return is_over()\n",
        tests=(COPY,),
    ),
    Mutation(
        name="a checkpoint is begun in a SQLite file wherever that lies",
        why="on NFS two hosts that plan see each other's entries late, and both go on",
        file="stores/sql/sqlite.py",
        old="        return unfit(self._file)\n",
        new="        return None\n",
        tests=("tests/checkpoint/test_file_system.py",),
    ),
]
