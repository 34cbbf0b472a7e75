"""Mutations of the file source where its files are objects."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

OBJECTS = "tests/sources/test_file_objects.py"

MUTATIONS = [
    Mutation(
        name="an object is known by its size and second alone",
        why="one that was written again within the second is read in place of what was planned",
        file="sources/file/log.py",
        old="            return self.etag == etag\n",
        new="            pass\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a bucket that lists in no order is listed",
        why="what sorts before the end of a page and was not on it is never seen",
        file="stores/object_store/bucket.py",
        old="if keys != sorted(keys) or (",
        new="if False and (",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a folder mark is taken for data",
        why="Hadoop takes its key for a folder, and reads all below it a second time",
        file="sources/file/objects.py",
        old="is_taken and size and",
        new="is_taken and",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a log of another bucket is read",
        why="who writes the checkpoint has objects read that these credentials reach elsewhere",
        file="sources/file/log.py",
        old="            if not file.path.startswith(self._top):\n",
        new="            if False:\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="what was written again is deleted by clean_source",
        why="rows that no batch has read are gone",
        file="sources/file/objects.py",
        old="        if not file.is_as_planned(found.size, found.mtime_ns, found.etag):\n",
        new="        if False:\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="a connection's keys are part of the plan",
        why="secrets lie in job files",
        file="sources/file/reads.py",
        old="        return sorted(self._place.secrets())\n",
        new="        return dict(self._place.secrets())\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="hidden folders of a bucket are entered",
        why="what somebody is still writing is read",
        file="sources/file/listing.py",
        old="any(is_hidden(one) or not (",
        new="any(not (",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="what is taken of a bucket is noted where a listing shows it",
        why="the note is planned as data",
        file="sources/file/place.py",
        old='NOTES = ".microbatch_cleaned"\n',
        new='NOTES = "microbatch_cleaned"\n',
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object that changed while it was read is known by size and second",
        why="what was written within the second is in no batch",
        file="sources/file/present.py",
        old="*([] if one.etag is None else [one.etag])]",
        new="]",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="objects of a range are known by size and second",
        why="a batch of other objects is taken for this one",
        file="sources/file/log.py",
        old="*(() if file.etag is None else (file.etag,)))",
        new=")",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="any object of the size in the archive is the planned one",
        why="another pipeline's object is read by a replay, in green, while the planned one lies in its place",
        file="sources/file/present.py",
        old="    return there is None or not _is_planned(file, there)\n",
        new="    return True\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object in the archive is a copy by its ETag alone",
        why="the original stays for ever once a cleaner was killed, where copies have ETags of their own",
        file="sources/file/objects.py",
        old="            return all(\n",
        new="            return False and all(\n",
        tests=(OBJECTS,),
    ),
    Mutation(
        name="an object of the size in the archive is a copy",
        why="the planned object is deleted, and another one kept in its place",
        file="sources/file/objects.py",
        old="            return all(\n",
        new="            return True or all(\n",
        tests=(OBJECTS,),
    ),
]
