"""Mutations of what the janitor does."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

JANITOR = "tests/execution/test_janitor.py"
REPLAYS = "tests/execution/test_janitor_replays.py"

MUTATIONS = [
    Mutation(
        name="what is removed beside what cannot be is told to nobody",
        why="replaced output is gone, and no report of the janitor says so",
        file="upkeep/janitor.py",
        old="list(error.removed) if isinstance(error, PartlyRemovedError) else []",
        new="[]",
        tests=("tests/execution/test_hostile_links.py",),
    ),
    Mutation(
        name="what cannot be removed keeps what comes after it",
        why="one link that somebody put there keeps all replaced output for ever, and the disk fills",
        file="sinks/file/old.py",
        old="            failed.append(error)",
        new="            raise",
        tests=("tests/execution/test_hostile_links.py",),
    ),
    Mutation(
        name="the janitor cleans up after the living",
        why="a running batch loses its stage",
        file="upkeep/janitor.py",
        old="        if sign is not None:",
        new="        if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor does not fence",
        why="an attempt that was only slow publishes after it was given up",
        file="upkeep/janitor.py",
        old="            if not self._dry_run and not self._fence(attempt):",
        new="            if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor does not stop Spark",
        why="an orphaned driver writes the stage again that was dropped",
        file="upkeep/janitor.py",
        old="            if engine is not None and engine.cancel(attempt.handle):",
        new="            if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor gives up what is published",
        why="the hooks of a batch in the table hear that it failed",
        file="execution/identity.py",
        old="    return next(((sink, found) for sink, found in looked if",
        new="    return next(((sink, found) for sink, found in looked if False and",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor leaves a published replay to a next run",
        why="the run that asked for it was deleted: its attempt stays unfinished, and retention before it, for ever",
        file="upkeep/janitor.py",
        old="        if self._is_over(attempt.key) or self._published_in(",
        new="        if self._published_in(",
        tests=(REPLAYS,),
    ),
    Mutation(
        name="the janitor ends a published replay without its answer",
        why="the clear makes the batch once more, or holds retention for ever",
        file="execution/replay.py",
        old="    answer_replays(checkpoint, attempt.key, attempt, ",
        new="    dict(",
        tests=(REPLAYS,),
    ),
    Mutation(
        name="a replay answers one of two clears",
        why="killed between the two answers, the second holds retention for ever",
        file="execution/status.py",
        old="        checkpoint.replays.complete_rest(attempt)\n",
        new="        pass\n",
        tests=(REPLAYS,),
    ),
    Mutation(
        name="the janitor leaves stages",
        why="stages pile up",
        file="upkeep/janitor.py",
        old="        for sink in staged:\n",
        new="        for sink in []:\n",
        tests=(JANITOR,),
    ),
    Mutation(
        name="a command goes on where a backup of its middle was restored",
        why="the steps before it are not done there, and it says that all are: logs and table contradict each other",
        file="checkpoint/maintenance.py",
        old="        return self._leases.is_there(_lease(begun.number), 1, sign, token=token)\n",
        new="        return True\n",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
    Mutation(
        name="a command that comes late takes away the sign of one that has begun",
        why="that one stops half way, and no run begins before somebody has repaired",
        file="checkpoint/maintenance.py",
        old="        self.hold(number, leave_others=True)\n",
        new="        self.hold(number)\n",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
    Mutation(
        name="a command gives no sign of life after a step",
        why="a backup that was taken within the step looks like one of after it",
        file="upkeep/commands/apply.py",
        old="            if not held or not maintenance.hold(begun.number):\n",
        new="            if not held:\n",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
    Mutation(
        name="a sign of life follows any other",
        why="a command that slept before it goes on in a checkpoint that was restored from a backup of its middle",
        file="checkpoint/leases.py",
        old="        if after is not None and not self.is_there(",
        new="        if False and not self.is_there(",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
    Mutation(
        name="the end of a command stays where its last steps are gone",
        why="of a backup that is restored right before it: rows that were taken out are never read again",
        file="checkpoint/maintenance.py",
        old="        if is_new and applied is not None and not self.is_held(applied):\n",
        new="        if False:\n",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
    Mutation(
        name="files are moved once",
        why="of a backup that is restored within a rename some of the source's log stays under its old name, for good",
        file="upkeep/commands/apply.py",
        old="((step, step) if isinstance(step, Move) else (step,))",
        new="(step,)",
        tests=("tests/execution/test_restored_under_commands.py",),
    ),
]
