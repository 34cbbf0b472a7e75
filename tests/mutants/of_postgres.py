"""Mutations of the sink of PostgreSQL."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

FAULTS, PROCESSES, MERGE = (f"tests/postgres/test_{name}.py" for name in ("faults", "processes", "merge"))

MUTATIONS = [
    Mutation(
        name="a stage that was dropped is published all the same",
        why="a publisher that slept brings back what was given up",
        file="sinks/postgres/records.py",
        old="WHERE stage = %s AND NOT dropped FOR UPDATE",
        new="WHERE stage = %s FOR UPDATE",
        tests=(FAULTS,),
    ),
    Mutation(
        name="a batch that was taken out comes back by a late publisher",
        why="rewind --drop-output has to take it out again, and nobody knows",
        file="sinks/postgres/open.py",
        old="if records.was_withdrawn(batch.identity, own.epoch):",
        new="if False:",
        tests=(FAULTS,),
    ),
    Mutation(
        name="a lost answer of COMMIT is an error",
        why="the batch is in, and its task fails",
        file="sinks/postgres/database.py",
        old="        return isinstance(error, psycopg.OperationalError) and not _is_refused(error)\n",
        new="        return False\n",
        tests=(FAULTS,),
    ),
    Mutation(
        name="an older replay takes the place of a newer one",
        why="rows of older code come back",
        file="sinks/postgres/open.py",
        old="if not replay or known.epoch >= own.epoch:",
        new="if not replay:",
        tests=(PROCESSES,),
    ),
    Mutation(
        name="a late change of a deleted key brings it back",
        why="rows that were deleted are there again",
        file="sinks/postgres/rows.py",
        old="""f"{of}.{quoted(column)} DESC" for column in self.merge.sequence_by""",
        new="""f"{of}.{quoted(column)}" for column in self.merge.sequence_by""",
        tests=(MERGE,),
    ),
    Mutation(
        name="a stage that the server has emptied is published",
        why="a crash between load and publish loses the batch's rows, and the batch counts as in",
        file="sinks/postgres/open.py",
        old="if loaded.rows and not records.has_row(loaded.table):",
        new="if False:",
        tests=(FAULTS,),
    ),
    Mutation(
        name="a commit is answered before it is on disk, where the database's default says so",
        why="a crash of the server brings back what rewind has taken out",
        file="sinks/postgres/database.py",
        old="            connection.execute(_DURABLE)\n",
        new="",
        tests=(FAULTS,),
    ),
    Mutation(
        name="a file of a stage is loaded through a link",
        why="user code of Spark sees what only the orchestrator can read",
        file="sinks/postgres/load.py",
        old="return open_regular(path)",
        new='return path.open("rb")',
        tests=(FAULTS,),
    ),
    Mutation(
        name="changes of another order are held against those of before",
        why="no later change of an old key ever wins",
        file="sinks/postgres/rows.py",
        old="        if lacking:",
        new="        if False:",
        tests=(MERGE,),
    ),
    Mutation(
        name="a change is rounded by the type that its column once had",
        why="the table has another value than the change",
        file="sinks/postgres/rows.py",
        old="        if problems:\n",
        new="        if False:\n",
        tests=(MERGE,),
    ),
    Mutation(
        name="a type out of a definition may be a statement",
        why="who can write a checkpoint runs functions of the database",
        file="sinks/postgres/columns.py",
        old="    _check_type(connection, type)\n",
        new="",
        tests=("tests/postgres/test_columns.py",),
    ),
    Mutation(
        name="a table of PostgreSQL that is gone is made anew",
        why="all rows of before are missing, and nothing says so",
        file="sinks/postgres/open.py",
        old="if records.are_there() and records.have_rows():",
        new="if False:",
        tests=("tests/postgres/test_columns.py",),
    ),
    Mutation(
        name="rows that a policy hides are left behind by a replay",
        why="they are in the table twice",
        file="sinks/postgres/database.py",
        old="            connection.execute(_ALL_ROWS)\n",
        new="",
        tests=(FAULTS,),
    ),
    Mutation(
        name="rows that a trigger keeps are doubled by a replay",
        why="the old ones are in beside the new ones",
        file="sinks/postgres/rows.py",
        old="        if execute(self.connection, left, key.lane, key.id).fetchone() is not None:",
        new="        if False:",
        tests=(FAULTS,),
    ),
]
