"""Mutations of batches that have partitions of their own in a metastore."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PARTITIONS = "tests/tables/test_partition_steps.py"

MUTATIONS = [
    Mutation(
        name="a batch of partitions is in as soon as its folder is",
        why="it is committed by who finds it there, and no reader finds it: the metastore names none of its partitions",
        file="sinks/table/table_of_folders.py",
        old="        return folder if not inside or inside.keys() & self._named(key) else None\n",
        new="        return folder\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="the partitions of a replay are named behind its exchange",
        why="readers find the partitions that the old output had too, and none of the others",
        file="sinks/table/table_of_folders.py",
        old="            self._add(batch.key, self._inside(batch.key, read_manifest(folder, batch.key)))\n",
        new="            pass\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="partitions that a withdrawal has left are there when the batch comes again",
        why="readers find those of its partitions that it had before, and none of the others",
        file="sinks/table/table_of_folders.py",
        old="            self.files.withdraw(hidden, found.epoch)\n        self._tell(key)\n",
        new="            self.files.withdraw(hidden, found.epoch)\n",
        tests=(PARTITIONS,),
    ),
]
