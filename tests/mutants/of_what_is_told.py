"""Mutations of what people are told: summaries, findings, errors."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CLEARS = "tests/execution/test_clears.py"
WHOSE = "tests/execution/test_whose_batch.py"
INSIDE = "tests/execution/test_check_inside.py"
JOBS = "tests/runtime/test_run_job.py"
SUBMIT = "tests/engines/test_submit_error.py"
ASIDE = "tests/execution/test_check_aside.py"
REPAIR = "tests/execution/test_repair.py"
ONCE = "tests/execution/test_letters_once.py"

MUTATIONS = [
    Mutation(
        name="dead letters are looked for where the checkpoint was when they were run again",
        why="once it was moved, the rewind that a refused clear names is refused itself",
        file="execution/dead_letters.py",
        old="Checkpoint(open_store(context.checkpoint))",
        new="Checkpoint(open_store(source.checkpoint))",
        tests=("tests/execution/test_letters_restored.py",),
    ),
    Mutation(
        name="an export names the sources that the checkpoint began with",
        why="a source that came later is missing in the query, which does not start",
        file="upkeep/commands/exchange.py",
        old="sources of these names: {', '.join(position.latest.ends)}.",
        new="sources of these names: {', '.join(identity.sources)}.",
        tests=("tests/execution/test_exchange.py",),
    ),
    Mutation(
        name="what check prints has no place",
        why="pasted as it stands, the command is refused",
        file="checkpoint/verify.py",
        old='"dry_run": command(lane, "repair --dry-run")',
        new='"dry_run": "`microbatch repair --dry-run`"',
        tests=("tests/execution/test_broken_checkpoint.py",),
    ),
    Mutation(
        name="a summary names who planned the batch, whoever finished it",
        why="at night somebody reads the log of a run that has nothing of the failure",
        file="execution/summary.py",
        old="    finisher = shown.run if shown is not None and",
        new="    finisher = entry.run if",
        tests=(CLEARS,),
    ),
    Mutation(
        name="check is silent about a batch that was set aside",
        why="once its run is deleted nothing tells that its rows are in no table",
        file="cli/check.py",
        old="    findings += find_aside(checkpoint)\n",
        new="",
        tests=("tests/execution/test_check_aside.py",),
    ),
    Mutation(
        name="check counts a batch that was set aside as one that it has asked for",
        why="it says of all that they are there, and of one nobody has looked",
        file="upkeep/table_check.py",
        old="        return None if by_hand or is_aside(checkpoint, key, commit) else batch\n",
        new="        return batch\n",
        tests=("tests/execution/test_check_aside.py",),
    ),
    Mutation(
        name="a source whose path is written as a pattern counts as moved",
        why="each run warns that all of it is read again, and nothing is",
        file="sources/file/__init__.py",
        old="        if self.shares_with(before):\n",
        new="        if isinstance(before, FileSource) and self._address() == before._address():\n",
        tests=("tests/sources/test_file_definition.py",),
    ),
    Mutation(
        name="of the steps check names the first alone",
        why="its clear is green, the others stay as they are, and the batch is missing",
        file="upkeep/batch_back.py",
        old=" and commit.run.task_id != run.task_id:\n",
        new=" and False:\n",
        tests=("tests/airflow_face/test_steps.py",),
    ),
    Mutation(
        name="check asks the table for no batch",
        why="a batch that was removed by hand is nothing wrong",
        file="upkeep/table_check.py",
        old="    asked = committed if everything else sample(committed)\n",
        new="    asked = list[BatchKey]()\n",
        tests=(WHOSE,),
    ),
    Mutation(
        name="an error of the look behind the newest batch is left out",
        why="check is clean while a batch's rows are in the table twice",
        file="upkeep/next_place.py",
        old="                if sink.seems_away(checkpoint.tables) is not None:\n",
        new="                if True:\n",
        tests=(INSIDE,),
    ),
    Mutation(
        name="a frame of pandas is called a DataFrame",
        why="the error says that a DataFrame is no DataFrame",
        file="runtime/app.py",
        old='    if package in ("pandas", "pyarrow"):\n',
        new="    if False:\n",
        tests=(JOBS,),
    ),
    Mutation(
        name="a Spark that was killed has an exit code",
        why="nobody looks for what killed it, and the batch counts as failed by its code",
        file="engines/spark_submit/error.py",
        old="    if name is not None:\n        hint",
        new="    if False:\n        hint",
        tests=(SUBMIT,),
    ),
    Mutation(
        name="a torn request for a replay counts as answered once it is repaired",
        why="of a batch that is set aside nobody hears any more, and retention removes its range",
        file="upkeep/commands/repair_epochs.py",
        old="    return refused(_UNREADABLE)\n",
        new='    return {"attempt": 1, "completed_ms": drafting.at_ms}\n',
        tests=(ASIDE,),
    ),
    Mutation(
        name="an answer that names no attempt counts",
        why="a batch that is set aside passes for one in the table, since an older version has repaired a request",
        file="checkpoint/replays.py",
        old=' or end.get("attempt") == _NO_ATTEMPT:',
        new=":",
        tests=(ASIDE,),
    ),
    Mutation(
        name="a torn request that was repaired has been made, for a retry of its run",
        why="the retry is green, and the batch was not replayed",
        file="upkeep/commands/repair_epochs.py",
        old="    return refused(_UNREADABLE)\n",
        new="    return withdrawn(_UNREADABLE)\n",
        tests=(REPAIR,),
    ),
    Mutation(
        name="a torn request is never answered by what is in the table",
        why="a batch that was set aside and run since is said to be in no table, and a topic refuses its clear",
        file="upkeep/commands/repair_epochs.py",
        old="    if answer is not None:\n        return answer\n",
        new="",
        tests=(REPAIR,),
    ),
    Mutation(
        name="a table that is away lacks the batch whose request is torn",
        why="it is said of its rows for ever that they are in no table, and retention waits for a clear",
        file="upkeep/commands/repair_epochs.py",
        old="            return None\n\n    _mend(\n",
        new="            return refused(_UNREADABLE)\n\n    _mend(\n",
        tests=(ASIDE,),
    ),
    Mutation(
        name="repair answers a clear without the figures of its replay",
        why="dead letters that the replay alone has are never run again, and nobody counts them",
        file="upkeep/commands/repair_epochs.py",
        old='"completed_ms": drafting.at_ms, "progress": progress}',
        new='"completed_ms": drafting.at_ms, "progress": {}}',
        tests=(ONCE,),
    ),
    Mutation(
        name="an entry that repair has made tells nothing of what the batch has read",
        why="a batch of three files passes for one of none",
        file="upkeep/commands/progress_again.py",
        old="                    described[name] = source.in_words(starts.get(name), end)\n",
        new="                    pass\n",
        tests=(ONCE,),
    ),
]
