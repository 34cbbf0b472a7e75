"""Mutations of what is asked of a table that has rows of batches and no record of them: somebody has copied them."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

COPIED = "tests/execution/test_copied_table.py"
COPIED_DELTA = "tests/sinks/test_delta_copied.py"
COPIED_ICEBERG = "tests/sinks/test_iceberg_copied.py"

MUTATIONS = [
    Mutation(
        name="a batch of which there is no record is made again in a Delta table that has its rows",
        why="somebody has copied them there, and they are in it twice",
        file="sinks/delta/table.py",
        old="                    self._check_none_unrecorded(snapshot, key, epoch, replaces=replaces)\n",
        new="                    pass\n",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="a batch of which there is no record is made again in an Iceberg table that has its rows",
        why="somebody has copied them there, and they are in it twice",
        file="sinks/iceberg/opened.py",
        old="                    self._check_none_unrecorded(look, key, epoch, replaces=replaces)\n",
        new="                    pass\n",
        tests=(COPIED_ICEBERG,),
    ),
    Mutation(
        name="the first batch of a lane looks for rows of its own number alone",
        why="a new checkpoint beside a copied table reads again what that has, and each batch comes beside its rows",
        file="sinks/delta/unrecorded.py",
        old="        is_first = not replaces and not",
        new="        is_first = False and not",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="the first batch of a lane of an Iceberg table looks for rows of its own number alone",
        why="a new checkpoint beside a copied table reads again what that has, and each batch comes beside its rows",
        file="sinks/iceberg/opened.py",
        old="        is_first = not replaces and not",
        new="        is_first = False and not",
        tests=(COPIED_ICEBERG,),
    ),
    Mutation(
        name="a file is opened at each try of a commit",
        why="others commit meanwhile, and the publish is outrun for good",
        file="sinks/delta/unrecorded.py",
        old="        if path not in self._opened:\n",
        new="        if True:\n",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="a file of nobody's rows may have those of any batch",
        why="each replay opens all files of others",
        file="sinks/delta/removing.py",
        old="    if has_none_of_ours(file):\n        return False\n",
        new="",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="a rewind asks just the tables that a batch went to for rows without a record",
        why="a copy that the sink was led to keeps them, and what they are of is read again in other batches",
        file="upkeep/commands/staying.py",
        old="(stays or in_force.has(table))",
        new="(stays or (sink in wrote and in_force.has(table)))",
        tests=(COPIED,),
    ),
    Mutation(
        name="a table of which somebody deletes rows by their values counts as one without copied rows",
        why="batches are made again beside them",
        file="sinks/iceberg/unrecorded.py",
        old="                if rows(_undeleted(table, snapshot_id, of_batches)):\n                    raise\n",
        new="                return 0\n",
        tests=(COPIED_ICEBERG,),
    ),
]
