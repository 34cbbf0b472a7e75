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
        old="                    self._check_none_unrecorded(snapshot, asked)\n",
        new="                    pass\n",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="a batch of which there is no record is made again in an Iceberg table that has its rows",
        why="somebody has copied them there, and they are in it twice",
        file="sinks/iceberg/opened.py",
        old="                    self._check_none_unrecorded(look, asked)\n",
        new="                    pass\n",
        tests=(COPIED_ICEBERG,),
    ),
    Mutation(
        name="the first batch of a table looks for rows of its own number alone",
        why="a new checkpoint beside a copied table reads again what that has, and each batch comes beside its rows",
        file="sinks/placed/unrecorded.py",
        old="    if is_new():\n",
        new="    if False:\n",
        tests=(COPIED_DELTA, COPIED_ICEBERG),
    ),
    Mutation(
        name="a table has a batch though all were taken out",
        why="rows that were copied there are not looked for, and batches come in beside them",
        file="sinks/delta/log.py",
        old="any(self.number(key) is not None for key in likely)",
        new="any(self._told(key) is not None for key in likely)",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="whether a batch is in is asked at each try of a commit",
        why="others commit meanwhile, and the publish is outrun again and again",
        file="sinks/delta/table.py",
        old="asked if is_asked else self._asked(",
        new="asked or self._asked(",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="it looks for rows of its own lane alone",
        why="the first batch of each other lane comes beside its rows",
        file="sinks/placed/unrecorded.py",
        old="        return is_lane(key.lane) and batch.is_past(BatchKey(key.lane, 0)) and not batch.is_past(key)\n",
        new="        return False\n",
        tests=(COPIED_DELTA, COPIED_ICEBERG),
    ),
    Mutation(
        name="what a checkpoint has committed may come for the first time",
        why="a pipeline that goes on in a copy of its table stands still",
        file="execution/identity.py",
        old="        is_past=lambda key: key.id <= newest(key.lane),\n",
        new="",
        tests=(COPIED,),
    ),
    Mutation(
        name="the first try of a commit is on the clock",
        why="others commit while all files are gone through, and the publish is outrun for good",
        file="sinks/iceberg/log.py",
        old="                if is_first:\n",
        new="                if False:\n",
        tests=(COPIED_ICEBERG,),
    ),
    Mutation(
        name="rows of a batch of which a Delta table has a record are looked for",
        why="a rewind, or a clear, reads all that it is about to take out",
        file="sinks/delta/unrecorded.py",
        old="        if asked.only is not None and snapshot.has_had(asked.only):\n",
        new="        if False:\n",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="rows of a batch of which an Iceberg table has a record are looked for",
        why="a rewind, or a clear, reads all that it is about to take out",
        file="sinks/iceberg/opened.py",
        old="if look.head is None or (asked.only is not None and self._number(look, asked.only) is not None):",
        new="if look.head is None:",
        tests=(COPIED_ICEBERG,),
    ),
    Mutation(
        name="a file is opened again for each batch that is asked for",
        why="a rewind opens all files as often as it has batches",
        file="sinks/delta/unrecorded.py",
        old="        if path not in self._opened:\n",
        new="        if True:\n",
        tests=(COPIED_DELTA,),
    ),
    Mutation(
        name="a file of nobody's rows may have those of any batch",
        why="each replay opens all files of others",
        file="sinks/delta/removing.py",
        old="if _is_of_another(path, key) or has_none_of_ours(file):\n",
        new="if _is_of_another(path, key):\n",
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
        old="found = self._asked_of(asked, table, table.scan(row_filter=rows, snapshot_id=snapshot_id).plan_files())",
        new="found = {}",
        tests=(COPIED_ICEBERG,),
    ),
]
