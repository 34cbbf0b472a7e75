"""Mutations of what proves, or tells, what a batch was made of and what no batch has read."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

FORGOTTEN = "tests/execution/test_forgotten_files.py"

KNOWN = "tests/sources/test_file_known_names.py"

MUTATIONS = [
    Mutation(
        name="a batch's folder without a manifest is no stray",
        why="readers of the table have rows that no batch has made, and check --table finds nothing wrong",
        file="sinks/file/strays.py",
        old="        elif not (path / MANIFEST).exists():\n",
        new="        elif False:\n",
        tests=("tests/execution/test_whose_batch.py",),
    ),
    Mutation(
        name="an orphan that hangs counts as alive for ever",
        why="every run of the pipeline skips in green, and nothing is ever read again",
        file="execution/liveness.py",
        old="    if idle >= orphan_seconds:\n",
        new="    if False:\n",
        tests=("tests/execution/test_alive.py",),
    ),
    Mutation(
        name="a file that changed while it was read is the batch's",
        why="what is appended while Spark reads is in no batch: a name is read once",
        file="sources/file/present.py",
        old='    if (read := told.get("as_found", now)) != now:\n',
        new='    if (read := told.get("as_found", now)) is None:\n',
        tests=(KNOWN,),
    ),
    Mutation(
        name="what lands under the name of a file that was archived is passed over in silence",
        why="a daily export.csv is read on its first day alone, in green",
        file="sources/file/known_names.py",
        old="    return found if was_taken or not file",
        new="    return found if not file",
        tests=(KNOWN,),
    ),
    Mutation(
        name="a sensor to which nothing is new does not look at known names",
        why="where all that comes has a name of before no plan comes, and nobody says so",
        file="sources/file/open.py",
        old="            self._known_names().warn(self._name)  # no",
        new="            pass  # no",
        tests=(KNOWN,),
    ),
    Mutation(
        name="what clean_source takes is noted in the checkpoint alone",
        why="restored together with its table, a checkpoint goes on without the files of the batches in between",
        file="sources/file/clean.py",
        old="            self._taken.note(begun)\n",
        new="            pass\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="what is taken is noted under today's name alone",
        why="rolled back to before a rename, a pipeline goes on without the files of the batches in between",
        file="sources/file/taken.py",
        old="        for where, before in notes.items():\n",
        new="        for where, before in [*notes.items()][:1]:\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a note is looked for under today's name alone",
        why="a source that is renamed after the restore goes on without the files that were taken before",
        file="sources/file/taken.py",
        old="        names = [self._name, *self._names_before()]\n",
        new="        names = [self._name]\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a former name may be a path",
        why="user code that can write the checkpoint has the orchestrator read and write a file elsewhere",
        file="sources/file/taken.py",
        old="            if not is_name(name):\n",
        new="            if False:\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="a checkpoint that has forgotten batches plans",
        why="the files of these are in an archive, or deleted, and in no table",
        file="sources/file/open.py",
        old="        if (why := self.forgotten()) is not None:\n            raise self._error(why)\n",
        new="        self.forgotten()\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="an archive that only the note knows is not looked into",
        why="a batch that was planned when the backup was made goes without its files, where on_missing says skip",
        file="sources/file/open.py",
        old="        return with_noted(self._cleaning.read(), self._taken.read())\n",
        new="        return self._cleaning.read()\n",
        tests=(FORGOTTEN,),
    ),
    Mutation(
        name="what is taken is noted on the disk below a folder that is not mounted",
        why="the folder looks as if it were mounted, and its files as if somebody had removed them",
        file="sources/file/clean.py",
        old="        if not self._place.is_away(self._base):  #",
        new="        if True:  #",
        tests=("tests/execution/test_clean_source.py",),
    ),
    Mutation(
        name="rows of which nothing is left become the batch, though it was planned to be read otherwise",
        why="a schema that was changed before a planned batch was run makes all its rows null, in green",
        file="execution/read_again.py",
        old="    if emptied:\n        key = planned.key\n",
        new="    if False:\n        key = planned.key\n",
        tests=("tests/execution/test_read_again.py",),
    ),
    Mutation(
        name="what was made of as much of other data is adopted",
        why="the range that is planned is read by no batch",
        file="upkeep/commands/adopt.py",
        old="        elif told[name] != planned:\n",
        new="        elif False:\n",
        tests=("tests/execution/test_start_behind.py",),
    ),
    Mutation(
        name="of batches that a restored table lacks, the newest comes back alone",
        why="the table knows the newest batch then, and no run misses the others",
        file="execution/table_place.py",
        old="    check_none_lost(checkpoint, sink, attempt.key.lane, below=attempt.key.id)\n",
        new="",
        tests=("tests/execution/test_lost_in_table.py",),
    ),
    Mutation(
        name="files are written into a table that has a log of its own",
        why="its readers see none of them, and the log's folders pass for strays",
        file="sinks/file/strays.py",
        old="        if next(root.glob(log), None) is not None:\n",
        new="        if False:\n",
        tests=("tests/sinks/test_file_sink.py",),
    ),
]
