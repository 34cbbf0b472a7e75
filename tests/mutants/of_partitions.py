"""Mutations of batches that have partitions of their own in a metastore."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PARTITIONS = "tests/tables/test_partition_steps.py"

MUTATIONS = [
    Mutation(
        name="a batch of partitions is in as soon as its folder is",
        why="it is committed by who finds it there, and no reader finds it: the metastore names none of its partitions",
        file="sinks/table/table_of_folders.py",
        old="        return folder if not inside or inside.keys() <= self._named(key) else None\n",
        new="        return folder\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="a batch is in as soon as any of its partitions is",
        why="a process that dies where a name is refused leaves a batch that counts as in, and the rest is lost",
        file="sinks/table/table_of_folders.py",
        old="inside.keys() <= self._named(key)",
        new="inside.keys() & self._named(key)",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="what was named of a batch before its publisher died stays named",
        why="readers find a part of a batch that is not in",
        file="sinks/table/table_of_folders.py",
        old="now - named if self.folder(key) is not None else now",
        new="now - named",
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
        old="        if found is None or goes_on:\n            self._tell(key)\n",
        new="        if goes_on:\n            self._tell(key)\n        elif found is None:\n            pass\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="unseen output is the batch's, whichever attempt publishes",
        why="rows come in that were forgotten since, and values that the metastore refuses are in the way for good",
        file="sinks/table/table_of_folders.py",
        old="        if found is None or goes_on:\n",
        new="        if True:\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="what an attempt has left unseen is no stage",
        why="it cannot follow its own output in a topic, and no other attempt can",
        file="sinks/table/spark_catalog.py",
        old="            return super().manifest(stage) or self._left_unseen(stage, self._store(stage.table))\n",
        new="            return super().manifest(stage)\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="what an attempt has left unseen goes on without its stage table",
        why="the attempt was given up, and who comes late brings its rows in",
        file="sinks/table/spark_catalog.py",
        old="        return found if is_own and self._made(stage, store) is not None else None\n",
        new="        return found if is_own else None\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="a value is read as a variable of Spark",
        why="a stranger's rows are in no partition, and the metastore is told of the server's environment",
        file="sinks/table/statements.py",
        old='.replace("$", "\\\\u0024")\n',
        new="\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="what the metastore spells otherwise is taken for named",
        why="the batch is in, and readers do not find all of its rows",
        file="sinks/table/table_of_folders.py",
        old="        if otherwise:\n",
        new="        if False:\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="what a replay that died has replaced stays in its stage",
        why="nothing finds it there any more: rows that were to be erased stay for good",
        file="sinks/table/spark_catalog.py",
        old="                    kind.files.drop_stage(stage.batch, stage.epoch)\n",
        new="                    pass\n",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="a batch of partitions is in before its folder is on disk",
        why="a power cut takes it out again, and the log says that it is in",
        file="sinks/table/table_of_folders.py",
        old="        sync(folder.parent)\n",
        new="",
        tests=(PARTITIONS,),
    ),
    Mutation(
        name="a table whose partitions the metastore names is replaced in one call",
        why="they stay at the replaced files: other engines read old rows, and after an hour none",
        file="sinks/table/whole_table.py",
        old="        is_fit = is_own and not before.names_partitions\n",
        new="        is_fit = is_own\n",
        tests=("tests/tables/test_spark_replace.py",),
    ),
    Mutation(
        name="the port of a metastore is looked at when it is called",
        why="the job has run for an hour by then, and each replace fails with no word of the address",
        file="sinks/table/hive_metastore.py",
        old="        host, _ = address.hostname, address.port\n",
        new="        host = address.hostname\n",
        tests=("tests/tables/test_spark_replace.py",),
    ),
]
