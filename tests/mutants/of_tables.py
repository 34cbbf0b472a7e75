"""Mutations of where a table is looked for, and what is concluded from it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PLACE = "tests/execution/test_table_place.py"

NEWEST = "tests/execution/test_newest.py"

MUTATIONS = [
    Mutation(
        name="what was set aside and run since is not in the table",
        why="the next batch is written in another form, or into the place of a table that is away",
        file="execution/newest.py",
        old="        if found is not None:\n            return found\n",
        new="",
        tests=(NEWEST,),
    ),
    Mutation(
        name="of batches in a row that were set aside only the newest may have been run since",
        why="the next batch is written in another form, or into the place of a table that is away",
        file="execution/newest.py",
        old="        found = _replayed(checkpoint, lane, first, number)\n",
        new="        found = _replayed(checkpoint, lane, number, number)\n",
        tests=(NEWEST,),
    ),
    Mutation(
        name="the way to the newest batch is walked entry by entry",
        why="each plan with nothing new reads ten thousand entries that start-behind has written",
        file="execution/newest.py",
        old="        number = first - 1\n",
        new="        number -= 1\n",
        tests=(NEWEST,),
    ),
    Mutation(
        name="a row of batches begins where an entry says, whatever that is",
        why="what somebody wrote into an entry keeps each plan busy, or hides the table's form",
        file="execution/newest.py",
        old=" if type(since) is int and 0 <= since <= number else number",
        new=" if type(since) is int else number",
        tests=(NEWEST,),
    ),
    Mutation(
        name="a table that is away is planned for",
        why="what is written in its place is hidden as soon as it is back",
        file="execution/plan.py",
        old="        check_there(self._checkpoint, self._pipeline.sink)\n",
        new="",
        tests=(PLACE,),
    ),
    Mutation(
        name="a table that is away is asked and written all the same",
        why="what is written in its place is hidden as soon as it is back, and what is not there is taken for gone",
        file="sinks/file/__init__.py",
        old="            if not self.folder.is_here(batch.tables) or not os.path.lexists(target):\n",
        new="            if not os.path.lexists(target):\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="a table of a catalog that is away is asked and written all the same",
        why="what is written in its place is hidden as soon as it is back",
        file="sinks/table/__init__.py",
        old="        return self._folder.is_here(tables)\n",
        new="        return True\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="the table of a checkpoint of before ids is known without having shown a batch",
        why="the place where it is to be mounted is taken for it, for good",
        file="sinks/table_folder.py",
        old="        if not is_said and not is_there():\n",
        new="        if False:\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="a table that was moved is taken for one that is away",
        why="no batch is ever rewound or repaired again",
        file="sinks/table_folder.py",
        old="        if any(other._shows(table_id) for other in others):\n",
        new="        if any(other._shows(table_id) for other in others[:0]):\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="a table that is known at two addresses is taken for moved while one is away",
        why="what is written in its place is hidden as soon as it is back",
        file="checkpoint/known_tables.py",
        old="        if not self._follows_moves:\n",
        new="        if False:\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="an attempt is begun before anybody looks for a table of before ids",
        why="its Spark writes into the place where the table is to be mounted",
        file="execution/table_place.py",
        old="    check_there(checkpoint, sink)\n    check_not_elsewhere",
        new="    check_not_elsewhere",
        tests=(PLACE,),
    ),
    Mutation(
        name="a fence is put where a table is to be mounted",
        why="the place is not empty any more, and taken for the table",
        file="sinks/file/__init__.py",
        old="        if self.folder.is_empty():\n            return",
        new="        if False:\n            return",
        tests=(PLACE,),
    ),
    Mutation(
        name="a batch is replayed into another table than it is in",
        why="its rows are in both",
        file="execution/replay.py",
        old=("        check_not_elsewhere(checkpoint, sink, key)\n        ask_again("),
        new="        ask_again(",
        tests=(PLACE,),
    ),
    Mutation(
        name="an attempt that has ended passes for one that published nothing",
        why="its batch is made a second time, in another table, while its own is away",
        file="execution/table_place.py",
        old='    return end is None or end.state != "failed" or end.cause != JOB\n',
        new="    return end is None\n",
        tests=(PLACE,),
    ),
    Mutation(
        name="a batch is replayed while the table that it may be in is away",
        why="its rows are in both as soon as that one is back",
        file="execution/table_place.py",
        old="            if sink.is_table_of(other, checkpoint.tables) or",
        new="            if True or",
        tests=(PLACE,),
    ),
    Mutation(
        name="a batch is made again that an attempt of before published to another table",
        why="it died before its commit, and the rows are in both",
        file="execution/table_place.py",
        old="    check_not_elsewhere(checkpoint, sink, key)\n",
        new="",
        tests=(PLACE,),
    ),
]
