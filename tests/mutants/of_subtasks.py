"""Mutations of split-wise batches: what a failed attempt had finished passes to the next one."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SUBTASKS = "tests/execution/test_subtasks.py"

MUTATIONS = [
    Mutation(
        name="what ran a split-wise job as a whole is published",
        why="it has read nothing: the rows of the batch are in no table",
        file="execution/subtasks.py",
        old='    if staged is not None and "subtasks" not in staged.result:\n',
        new='    if staged is not None and "subtasks" not in staged.result and not job.subtasks:\n',
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what was finished passes to other code",
        why="one batch has rows of two versions of the transform",
        file="execution/subtasks.py",
        old='            "code": attempt.code.get("code_hash"),\n',
        new="",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what was finished before a clear passes to it",
        why="who clears a batch, since a lookup was wrong, gets the old rows again",
        file="execution/subtasks.py",
        old='            "request": attempt.request,\n',
        new="",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what was finished passes to another format of the table",
        why="a batch has files that its readers cannot read together",
        file="execution/subtasks.py",
        old='            "sink": sink.definition.to_dict(),\n',
        new="",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="a split is known by its id alone",
        why="rows that were read with other options are taken for those that are to be read",
        file="execution/subtasks.py",
        old="    name = _digest([source, split.id, split.read.reader, split.read.arguments])[:32]\n",
        new="    name = _digest([source, split.id, split.read.reader])[:32]\n",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what a zombie finishes in a stage that was dropped is kept",
        why="it lacks what was dropped with the stage, and looks whole: rows are lost",
        file="execution/subtasks.py",
        old="        checkpoint.subtasks.close(attempt.key, attempt.epoch)\n",
        new="        pass\n",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what was finished is taken over unseen",
        why="files that were removed or cut off since are published",
        file="sinks/file/subtasks.py",
        old="        check_files(folder, manifest)\n",
        new="        pass\n",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="a stage is dropped with all that was finished in it",
        why="the next attempt reads all of it again",
        file="execution/subtasks.py",
        old="            _keep_finished(checkpoint, output, attempt)\n",
        new="            pass\n",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="what is kept is never removed",
        why="the staging folder grows for ever",
        file="sinks/file/subtasks.py",
        old="            remove(self._root, kept)\n",
        new="            pass\n",
        tests=(SUBTASKS,),
    ),
    Mutation(
        name="an attempt that is fenced takes over what the later one needs",
        why="the later attempt reads it again",
        file="execution/subtasks.py",
        old="    check_not_fenced(checkpoint, attempt)\n",
        new="",
        tests=(SUBTASKS,),
    ),
]
