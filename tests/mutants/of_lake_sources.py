"""Mutations of sources of tables with versions: Delta and Iceberg."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

DELTA = "tests/sources/test_delta_source.py"
ICEBERG = "tests/sources/test_iceberg_source.py"

MUTATIONS = [
    Mutation(
        name="a version that takes rows out is read as an append",
        why="rows that an upstream replay has written again come twice",
        file="sources/delta/history.py",
        old="        if not commit.removed:\n",
        new="        if True:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a version that has expired is taken for one without rows",
        why="rows are lost in silence",
        file="sources/delta/history.py",
        old="            return Stretch(version=version, refused=self._expired(version))\n",
        new="            return Stretch(version=version)\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a table that was made anew goes on",
        why="its rows up to the position count as read",
        file="sources/delta/history.py",
        old="        if place.table is not None and place.table != now.id:\n",
        new="        if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="another history under the same versions goes on",
        why="rows of a restored table that were written since count as read",
        file="sources/delta/history.py",
        old="        if digest is not None and digest != place.commit:\n",
        new="        if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a change feed that was turned off goes on",
        why="Spark cannot read a batch that is planned, and changes are lost",
        file="sources/delta/history.py",
        old="            if commit.properties is not None and not has_change_feed(commit.properties):\n",
        new="            if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="what a VACUUM took is not looked for",
        why="an attempt fails in Spark, on each retry, without a word of why",
        file="sources/delta/reading.py",
        old="            except FileNotFoundError:\n",
        new="            except NotADirectoryError:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="the first snapshot is that of each plan",
        why="what a compaction has merged meanwhile is read twice, or never",
        file="sources/versions.py",
        old="            begin = self._start(None)\n            assert",
        new="            begin = replace(first, version=first.version + 1, in_snapshot=False)\n            assert",
        tests=(DELTA,),
    ),
    Mutation(
        name="versions that are passed over are not told",
        why="a gap in the rows that nobody hears of",
        file="sources/stretch.py",
        old="    return {str(one.version): one.passed_over for one in stretches if one.passed_over is not None}\n",
        new="    return {}\n",
        tests=(DELTA, ICEBERG),
    ),
    Mutation(
        name="a range has two schemas",
        why="rows of before get columns of after, and a replay others than the first read",
        file="sources/stretch.py",
        old="        if taken and stretch.is_other:\n",
        new="        if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a range goes past its limit",
        why="a first snapshot is one batch, whatever it has",
        file="sources/stretch.py",
        old="            if taken and not limits.allow([*taken, *files]):\n",
        new="            if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a file at the end of a range is in the next one too",
        why="its rows are read twice",
        file="sources/stretch.py",
        old="    first = start.index + 1 if is_within else 0\n",
        new="    first = max(start.index, 0) if is_within else 0\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="an overwrite is read as an append",
        why="Spark's reader passes over it, and its rows are lost in silence",
        file="sources/iceberg/history.py",
        old='        if commit.operation == "append":\n',
        new='        if commit.operation in ("append", "overwrite"):\n',
        tests=(ICEBERG,),
    ),
    Mutation(
        name="a branch that was rolled back goes on",
        why="what is appended after the rollback is read beside what was taken back",
        file="sources/iceberg/history.py",
        old="        if branch.has(place.snapshot) or newest is None or newest.sequence <= place.sequence:\n",
        new="        if False:\n",
        tests=(ICEBERG,),
    ),
    Mutation(
        name="snapshots that have expired unread are passed over",
        why="rows are lost in silence",
        file="sources/iceberg/history.py",
        old="        if first.parent == start.snapshot or (first.is_first and start.snapshot == NO_SNAPSHOT):\n",
        new="        if True:\n",
        tests=(ICEBERG,),
    ),
    Mutation(
        name="a snapshot without a parent is taken for the first",
        why="who begins at it reads all that the table had before it",
        file="sources/iceberg/history.py",
        old="        if chain[0].parent is None and not chain[0].is_first:\n",
        new="        if False:\n",
        tests=(ICEBERG,),
    ),
    Mutation(
        name="an Iceberg table that was made anew goes on",
        why="its rows up to the position count as read",
        file="sources/iceberg/history.py",
        old="        if place.table is not None and place.table != branch.uuid:\n",
        new="        if False:\n",
        tests=(ICEBERG,),
    ),
]
