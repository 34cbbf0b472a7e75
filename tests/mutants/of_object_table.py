"""Mutations of the table of files in a bucket."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

TABLE = "tests/sinks/test_object_table.py"
CONTRACT = "tests/contract/test_sink.py"

MUTATIONS = [
    Mutation(
        name="a bucket's manifest is put over whatever is there",
        why="of two replays that meet the older one is in the table at the end",
        file="sinks/file/objects/published.py",
        old="self._store.compare_and_put(path, data, version=before.version) is not None",
        new="self._store.delete(path) and self._store.put_if_absent(path, data)",
        tests=(TABLE,),
    ),
    Mutation(
        name="a stage that somebody publishes is removed without changing the batch's manifest",
        why="who sleeps before his put names files that are gone",
        file="sinks/file/objects/__init__.py",
        old="if not had_begun or self._manifests.touch(before):",
        new="if True:",
        tests=(TABLE,),
    ),
    Mutation(
        name="who drops a stage does not look whether it has been published meanwhile",
        why="a committed batch's files are gone",
        file="sinks/file/objects/__init__.py",
        old="            if before.written == written:\n                return False\n            if not had",
        new="            if not had",
        tests=(TABLE,),
    ),
    Mutation(
        name="a stage that is being dropped may be published",
        why="a manifest names files that are about to go",
        file="sinks/file/objects/stages.py",
        old="        return mark in (Mark.OPEN, Mark.PUBLISHING)\n",
        new="        return mark is not None\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="nobody says that he publishes a stage of a bucket",
        why="who drops it does not know that somebody may be about to put",
        file="sinks/file/objects/stages.py",
        old="if mark is Mark.PUBLISHING or self._put(written, found, Mark.PUBLISHING):",
        new="if True:",
        tests=(TABLE,),
    ),
    Mutation(
        name="replaced output in a bucket is a stage",
        why="it goes while readers that listed before the replay still read it",
        file="sinks/file/objects/__init__.py",
        old=" or self._was_replaced(written):",
        new=":",
        tests=(TABLE,),
    ),
    Mutation(
        name="a mark of a replay is enough to remove what it was to replace",
        why="a replay that died before its put takes the batch's files with it",
        file="sinks/file/objects/__init__.py",
        old="        if published.written == written:\n            return False\n        return bool",
        new="        return bool",
        tests=(TABLE,),
    ),
    Mutation(
        name="files beside those of a bucket's manifest are published",
        why="a stage that two drivers wrote is in the table",
        file="sinks/file/objects/staged.py",
        old="        told = differing(self._data(written, own), own)\n",
        new="        told = None\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="a batch without rows has an empty manifest in a bucket",
        why="readers of symlinks fail at it, and two such are alike by their ETag",
        file="sinks/file/objects/__init__.py",
        old='    return sorted(manifest.files) or [f"{nothing.NAME}.{format}"]\n',
        new="    return sorted(manifest.files)\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="a manifest may name files of any place",
        why="who can write it has readers and the janitor look at, or remove, what is another batch's",
        file="sinks/file/objects/published.py",
        old='            if written is None or written.key != key or ".." in below:\n',
        new="            if written is None:\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="what a fenced driver writes after its stage was dropped in a bucket is never found",
        why="orphaned files stay for ever",
        file="sinks/file/objects/stages.py",
        old="            if fenced not in marked and self.is_any(fenced):\n",
        new="            if False:\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="a source reads a table in a bucket",
        why="rows of a batch that is replayed are read twice",
        file="sources/file/tables.py",
        old="    if name in (TABLE_ID, TABLE_MARK, TABLE_BATCHES):\n",
        new="    if name in (TABLE_ID, TABLE_MARK):\n",
        tests=(TABLE,),
    ),
    Mutation(
        name="the keys of a table's connection are an argument of its stage",
        why="secrets lie in job files",
        file="sinks/file/objects/staged.py",
        old="return self._secret if self._address.conn_id is not None else None",
        new="return str(self.secrets()) if self._address.conn_id is not None else None",
        tests=(TABLE,),
    ),
    Mutation(
        name="output of another identity is replaced in a bucket",
        why="two pipelines on one table overwrite each other's batches",
        file="sinks/file/objects/__init__.py",
        old="        return batch.check(found, where=self.location())\n",
        new="        return found\n",
        tests=(CONTRACT,),
    ),
]
