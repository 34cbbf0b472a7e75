"""Mutations of what is known of a file that ``clean_source`` has taken, or left."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CLEAN = "tests/sources/test_file_clean.py"
OBJECTS = "tests/sources/test_file_objects.py"

MUTATIONS = [
    Mutation(
        name="a file that clean_source has left counts as taken",
        why="its batch cannot be cleared, and who lands it anew, as check says, has its rows twice",
        file="sources/file/cleaning.py",
        old="        return begun and self.gives_up(number, path)\n",
        new="        return begun and number in self.done\n",
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
        name="of an entry that was cleaned in part no file counts as taken",
        why="another file is read in the place of the one that was deleted, once clean_source is switched off",
        file="sources/file/cleaning.py",
        old="number in self.deleting or number in self.left\n",
        new="number in self.deleting\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="of an entry that was cleaned in part all files count as taken",
        why="check says of the file that is still there that no batch has read it: who lands it anew has it twice",
        file="sources/file/cleaning.py",
        old=" and number not in self.due and number not in self.left\n",
        new=" and number not in self.due\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="a file that clean_source has left is looked for in the archive first",
        why="its batch reads a file of somebody else",
        file="sources/file/open.py",
        old="cleaned.gives_up(file.log_id, file.path)\n",
        new="file.log_id in cleaned.done\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="an object that was deleted is to have the time that it had",
        why="nobody can set an object's time: where its ETag is another one its batch can never be read again",
        file="sources/file/objects.py",
        old='"Put them below a folder of the bucket, each as it lay below the source\'s, and name that one: "\n',
        new='"Put them back where they were. "\n',
        tests=(OBJECTS,),
    ),
    Mutation(
        name="what was put below an archive is known by its time",
        why="an object that clean_source has deleted can be put back nowhere",
        file="sources/file/present.py",
        old="        if _is_copy(file, found, look) if root != base else _is_planned(file, found):\n",
        new="        if _is_planned(file, found):\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="what a restored record takes for left is left",
        why="another file is read in the place of one that was deleted after the backup",
        file="sources/file/cleaning.py",
        old="ours & theirs if by_both else",
        new="",
        tests=(CLEAN,),
    ),
    Mutation(
        name="an entry is begun while its folder is not mounted",
        why="a file that had changed before it was read counts as taken for ever, although it lies there",
        file="sources/file/clean.py",
        old="                    unseen += self._away(file)\n",
        new="                    pass\n",
        tests=(CLEAN,),
    ),
    Mutation(
        name="an entry is begun though a file of it cannot be looked at",
        why="a file that had changed before it was read counts as taken for ever, although it lies there",
        file="sources/file/clean.py",
        old='            unseen.append(str(error).rstrip("."))\n',
        new='            log.warning("%s", error)\n',
        tests=(CLEAN,),
    ),
    Mutation(
        name="of an entry that an older version has cleaned in part no file counts as taken",
        why="after an upgrade another file is read in the place of the one that was deleted",
        file="sources/file/cleaning.py",
        old="{number: () for number in due if number in done}",
        new="{}",
        tests=(CLEAN,),
    ),
]
