"""Mutations of what is known of a file that ``clean_source`` has taken, or left."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CLEAN = "tests/sources/test_file_clean.py"

MUTATIONS = [
    Mutation(
        name="a file that clean_source has left counts as taken",
        why="its batch cannot be cleared, and who lands it anew, as check says, has its rows twice",
        file="sources/file/cleaning.py",
        old=" and begun and not self.has_left(number, path)",
        new=" and begun",
        tests=(CLEAN,),
    ),
    Mutation(
        name="what has changed since a cleaner has begun counts as left",
        why="another file is read in the place of one that was deleted before the cleaner died",
        file="sources/file/cleaning.py",
        old="            if number in self.done:\n",
        new="            if False:\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="a file that clean_source has left is looked for in the archive first",
        why="its batch reads a file of somebody else",
        file="sources/file/open.py",
        old=" and not cleaned.has_left(file.log_id, file.path)\n",
        new="\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="what a restored record takes for left is left",
        why="another file is read in the place of one that was deleted after the backup",
        file="sources/file/cleaning.py",
        old="ours & theirs if by_both else",
        new="",
        tests=(CLEAN,),
    ),
]
