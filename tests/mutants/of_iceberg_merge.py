"""Mutations of an Iceberg table into which changes are merged."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MERGE = "tests/sinks/test_iceberg_merge.py"

MUTATIONS = [
    Mutation(
        name="a rollback that is to stay counts as none of the newest changes",
        why="keys keep rows of before, and changes of them are dropped, in green",
        file="sinks/iceberg/merged/opened.py",
        old="        return None if look.merged is None else look.merged.last\n",
        new="        return look.last_on(look.branch)\n",
        tests=(MERGE,),
    ),
    Mutation(
        name="the way back from a rollback leads to the last batch alone",
        why="what others have changed behind it is gone",
        file="sinks/iceberg/look.py",
        old="                return entry.snapshot_id\n",
        new="                return id\n",
        tests=(MERGE,),
    ),
    Mutation(
        name="a column that was renamed is merged by its new name",
        why="files of before have it by the old one: what is written anew has null there",
        file="sinks/iceberg/protocol.py",
        old="if len(names[id]) > 1 or id in mapped}",
        new="if False}",
        tests=(MERGE,),
    ),
    Mutation(
        name="a file of another writer is read by the names in it",
        why="a compaction has written order_x2Did: a key has its old row beside the new one, and values become null",
        file="sinks/iceberg/merged/shown.py",
        old=" or not self._is_read_by_names(task.file):",
        new=":",
        tests=(MERGE,),
    ),
    Mutation(
        name="the names within a column of another writer's file count as the table's",
        why="where a publish writes the file anew, values within others become null",
        file="sinks/iceberg/merged/shown.py",
        old="            yield from _ids(kind, name)\n",
        new="            pass\n",
        tests=(MERGE,),
    ),
    Mutation(
        name="each file of another writer is read whole",
        why="behind a compaction each publish has the whole table in memory, a file at a time",
        file="sinks/iceberg/merged/shown.py",
        old=" or not self._is_read_by_names(task.file):",
        new=' or "/microbatch/merged/" not in path:',
        tests=(MERGE,),
    ),
    Mutation(
        name="a file without ids has all its values in itself, whatever partition it is of",
        why="a file of Hive's lacks the column of its folder: keys get two rows, and values become null",
        file="sinks/iceberg/merged/shown.py",
        old="return self._table.specs()[file.spec_id].is_unpartitioned()",
        new="return True",
        tests=(MERGE,),
    ),
]
