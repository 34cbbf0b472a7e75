"""Mutations of the logs: who a run is, races at the tail, retention, rewind."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CLEARS = "tests/execution/test_clears.py"
AT_ONCE = "tests/execution/test_at_once.py"
BROKEN = "tests/execution/test_broken_checkpoint.py"
RACES = "tests/checkpoint/test_log_races.py"
REWIND = "tests/execution/test_rewind.py"
RETENTION = "tests/execution/test_retention.py"
RELATION = "tests/checkpoint/test_relation.py"

MUTATIONS = [
    Mutation(
        name="retention does not look whether a command came before its word",
        why="what it has looked at was rewound, and it empties the log: the position is lost",
        file="execution/retention.py",
        old="    goes_on = _newest_command(checkpoint) == command\n",
        new="    goes_on = True\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="a rewind does not look what retention is removing",
        why="the log is emptied behind it: the position is lost",
        file="execution/maintenance/rewind.py",
        old="            self._check_kept()\n",
        new="",
        tests=(RETENTION,),
    ),
    Mutation(
        name="retention goes by the commits alone",
        why="where offsets are gone the last ones, the position, go too",
        file="execution/retention.py",
        old="    newest = min(-1 if end is None else end for end in ends)\n",
        new="    newest = ends[1] or 0\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="a folder that went while it was open is not opened again",
        why="of runs that begin at once one fails: its folder is the other maker's by now",
        file="checkpoint/posix.py",
        old="_FOLDER_TRIES = 10\n",
        new="_FOLDER_TRIES = 0\n",
        tests=("tests/checkpoint/test_posix.py",),
    ),
    Mutation(
        name="a cleared try of before another run's clear answers for it",
        why="the other run finds its request answered by code that it was cleared to replace",
        file="execution/replay.py",
        old="    return run.was_cleared and run.was_made_after(request.requested_ms)",
        new="    return run.was_cleared",
        tests=(CLEARS,),
    ),
    Mutation(
        name="a clear that leaves the clear number is a retry",
        why="a green square, and the code that the user cleared for was not run",
        file="checkpoint/entries.py",
        old="        if None not in (self.first_try, other.first_try) and self.first_try != other.first_try:\n",
        new="        if False:\n",
        tests=(RELATION, CLEARS),
    ),
    Mutation(
        name="a run that is made again passes for the one that was deleted",
        why="a green square, the old label, and nothing done",
        file="checkpoint/entries.py",
        old="        if is_newer is not None and _is_of_a_remade_run(newer, older):\n",
        new="        if False:\n",
        tests=(RELATION, CLEARS),
    ),
    Mutation(
        name="a clear replays the newest batch of its run only",
        why="the rows of the other one stay those of the old code",
        file="execution/plan.py",
        old="        return [batch_id for batch_id in self.own(run, position) if batch_id != assigned]\n",
        new="        return []\n",
        tests=(CLEARS,),
    ),
    Mutation(
        name="who loses the put of a plan fails",
        why="two of six runs at once are red, and nothing is wrong",
        file="exceptions.py",
        old="class ConcurrentPlanError(BatchInProgressError, CheckpointError):",
        new="class ConcurrentPlanError(CheckpointError):",
        tests=(AT_ONCE, "tests/airflow_face/test_micro_batch.py"),
    ),
    Mutation(
        name="the tail is read once",
        why="a run is red with a broken log, and the log is whole: another run went on between two reads",
        file="checkpoint/lane.py",
        old="            again = self._read_tail()\n",
        new="            again = tail\n",
        tests=(RACES,),
    ),
    Mutation(
        name="a planner that slept makes a purged number again",
        why="a batch of the past is run a second time, and the log has a gap",
        file="checkpoint/log.py",
        old="        if not follows and self._is_stray(batch_id):\n",
        new="        if False:\n",
        tests=(RACES,),
    ),
    Mutation(
        name="a log may end before what this process has seen",
        why="on a store that lists late, a batch is planned twice",
        file="checkpoint/log.py",
        old="        if (newest is None or newest < self._seen) and self._seen >= 0:\n",
        new="        if False:\n",
        tests=(RACES,),
    ),
    Mutation(
        name="no plan looks for a gap",
        why="a batch that is in no log any more is noticed when somebody wants it again",
        file="execution/plan.py",
        old="        self._lane.check_gaps()\n",
        new="",
        tests=(BROKEN,),
    ),
    Mutation(
        name="the same part of a log is looked at each time",
        why="a gap elsewhere is never noticed",
        file="checkpoint/log.py",
        old="        begin = low + part * LOOKED_AT\n",
        new="        begin = low\n",
        tests=(RACES,),
    ),
    Mutation(
        name="what was published before a clear passes for its replay",
        why="a green square, and the table keeps the rows of the code that the user cleared",
        file="execution/execution.py",
        old="            run=committer(attempt, run, planned),\n",
        new="            run=run,\n",
        tests=(CLEARS, "tests/simulator/test_simulator.py"),
    ),
    Mutation(
        name="retention removes a batch that a clear waits for",
        why="the clear's retry is green, and the batch was not run again",
        file="execution/retention.py",
        old="    if waiting is not None:\n",
        new="    if False:\n",
        tests=(CLEARS,),
    ),
    Mutation(
        name="a clear of a purged batch takes what is new",
        why="the square of the past shows another batch, and nobody says that the range is gone",
        file="execution/plan.py",
        old="        self._check_kept(run)\n",
        new="",
        tests=(CLEARS,),
    ),
    Mutation(
        name="failures of before a rewind count",
        why="a batch is set aside at its first failure, its rows in no table",
        file="execution/set_aside.py",
        old="        if is_fence_by(attempt, FencedBy.REWOUND):\n",
        new="        if False:\n",
        tests=(REWIND,),
    ),
    Mutation(
        name="a rewind to the oldest entry is accepted",
        why="every run after it is red with a broken log",
        file="execution/maintenance/rewind.py",
        old="        if self._to == offset_ids[0] and self._to > 0 and offset_ids[-1] > self._to:\n",
        new="        if False:\n",
        tests=(REWIND,),
    ),
    Mutation(
        name="an export passes batches that are set aside over in silence",
        why="their rows end in no table",
        file="execution/maintenance/exchange.py",
        old="    _check_aside(drafting, allow_skip=allow_skip)\n",
        new="",
        tests=("tests/execution/test_exchange.py",),
    ),
    Mutation(
        name="a position is set back over a batch that is set aside",
        why="a clear of that batch brings its rows a second time",
        file="execution/maintenance/set_offset.py",
        old="    _check_aside(checkpoint, lane, opened, source, offset)\n",
        new="",
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="a dead attempt is running",
        why="nobody looks after a batch that seems to be at work",
        file="execution/summary.py",
        old="        dead = shown is not None and end is None and not is_held(checkpoint, key, shown.epoch)\n",
        new="        dead = False\n",
        tests=(CLEARS,),
    ),
]
