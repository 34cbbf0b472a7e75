"""Mutations of attempts: open, run, publish, commit."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

RUN = "tests/execution/test_run.py"
CRASH = "tests/simulator/test_simulator.py"
PROTOCOL = "tests/execution/test_mutants_protocol.py"
ZOMBIES = "tests/execution/test_zombies.py"
ALIVE = "tests/execution/test_alive.py"
SET_ASIDE = "tests/execution/test_set_aside.py"
JANITOR = "tests/execution/test_janitor.py"
HOOKS = "tests/execution/test_hooks.py"
STOP = "tests/airflow_face/test_stop.py"
LATE_COMMITS = "tests/execution/test_late_commits.py"

MUTATIONS = [
    Mutation(
        name="an attempt has ended before its stage is dropped",
        why="who dies between the two leaves a stage that no lease names",
        file="execution/ending.py",
        old="            dropped = drop_stage(self._checkpoint, sink or self._sink, attempt)\n",
        new="            self.end(attempt, AttemptEnd(state=state, error=str(error), ended_ms=self._clock_ms()))\n"
        "            dropped = drop_stage(self._checkpoint, sink or self._sink, attempt)\n",
        tests=(CRASH,),
    ),
    Mutation(
        name="a stop waits for an answer as long as the engine does",
        why="Airflow kills the task first, and nothing of the stop is on record",
        file="task_context/stoppable.py",
        old="self._asked.wait(CANCEL_SECONDS)",
        new="self._asked.wait(30.0)",
        tests=(STOP,),
    ),
    Mutation(
        name="a stop that had no answer is not on record",
        why="the attempt counts as one that died, and its Spark, which nobody can ask, writes on",
        file="execution/ending.py",
        old='            if state == "canceled":\n                self._note_stop',
        new="            if False:\n                self._note_stop",
        tests=(STOP,),
    ),
    Mutation(
        name="two tries of one clear ask twice",
        why="the one that is slower dies, and its request holds retention until somebody withdraws it",
        file="checkpoint/replays.py",
        old=" run.relation_to(one.run) is Relation.SAME:\n                    return one\n",
        new=" False:\n                    return one\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="output whose number a fence has since counts as the fence's",
        why="after a restored backup a clear is answered by output of before it, in green",
        file="checkpoint/attempts.py",
        old="        return None if found is None or found.is_fence else found\n",
        new="        return found\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a process that fails at its end fails the attempt whose stage is whole",
        why="a JVM that is aborted while it ends has the batch made once more, and counts towards setting it aside",
        file="execution/explain.py",
        old="sink.manifest(attempt.batch, attempt.epoch) is not None:\n",
        new="False:\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a failed engine is believed to have staged all",
        why="the reason why there is no stage is lost, and the error speaks of publishing",
        file="execution/explain.py",
        old="sink.manifest(attempt.batch, attempt.epoch) is not None:\n",
        new="True:\n",
        tests=(RUN,),
    ),
    Mutation(
        name="the steps name no batch that their clear leaves as it is",
        why="a run that has made several is green, and only the last of them was replayed",
        file="operators/steps.py",
        old="        if before and planned is not None:\n",
        new="        if False:\n",
        tests=("tests/airflow_face/test_steps.py",),
    ),
    Mutation(
        name="show takes a late commit entry for the batch's",
        why="a batch that is yet to be run is said to be committed, by an attempt whose rows are in no table",
        file="cli/show.py",
        old="    commit = checkpoint.lane(key.lane).commit_of(key.id)\n",
        new="    commit = checkpoint.lane(key.lane).commit_log.get(key.id)\n",
        tests=("tests/execution/test_late_commits.py",),
    ),
    Mutation(
        name="the janitor forgets an epoch that is taken at that moment",
        why="the attempt is found by nobody: its hooks are not called again, its stage stays",
        file="upkeep/janitor.py",
        old="            if epoch in self._checkpoint.attempts.epochs.all(key):\n",
        new="            if False:\n",
        tests=("tests/execution/test_janitor.py",),
    ),
    Mutation(
        name="publish skips the fence",
        why="a zombie publishes beside the attempt that has replaced it",
        file="execution/guard.py",
        old="    if newest != attempt.epoch:",
        new="    if newest < attempt.epoch:",
        tests=(RUN,),
    ),
    Mutation(
        name="commit before publish",
        why="a crash between the two leaves a committed batch that is in no table",
        file="execution/execution.py",
        old="            if planned.committed and not (planned.set_aside and published is None):\n",
        new=(
            "            self.commit(key=key, manifest=staged, run=attempt.run)\n"
            "            if planned.committed and not (planned.set_aside and published is None):\n"
        ),
        tests=(CRASH, PROTOCOL),
    ),
    Mutation(
        name="a retry does not stop the attempt before it",
        why="an orphaned driver goes on for hours",
        file="execution/ending.py",
        old="            engine.cancel(attempt.handle)\n",
        new="            pass\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a retry leaves the attempt before it alone",
        why="its driver and its stage stay for ever",
        file="execution/ending.py",
        old="                why = self._supersede(earlier, by=attempt, engine=engine)\n",
        new="                continue\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a failed attempt's stage stays",
        why="stages pile up",
        file="execution/dropping.py",
        old="any=sink.drop_stage(attempt.batch, attempt.epoch) or any(dropped)",
        new="any=any(dropped)",
        tests=(RUN,),
    ),
    Mutation(
        name="an adopted attempt's stage stays",
        why="stages pile up",
        file="execution/ending.py",
        old="        drop_stage(self._checkpoint, self._sink, attempt)\n        error =",
        new="        error =",
        tests=(RUN,),
    ),
    Mutation(
        name="the attempt is recorded after the launch",
        why="a driver that nobody can find goes on",
        file="execution/execution.py",
        old="            return self.open_attempt(key=key, run=run, code=code, engine=engine, look=look)\n",
        new=(
            "            epoch = self.checkpoint.attempts.latest_epoch(key) + 1\n"
            "            handle = engine.handle(pipeline=self.pipeline.name, key=key, epoch=epoch)\n"
            "            attempt = Attempt(key=key, epoch=epoch, handle=handle, run=run, code={}, started_ms=0)\n"
            "            engine.start(attempt.handle, self.job(attempt, None), code)\n"
            "            return self.open_attempt(key=key, run=run, code=code, engine=engine, look=look)\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="the handle is not the one that was recorded",
        why="no other process can cancel the driver",
        file="execution/execution.py",
        old=("            engine.start(attempt.handle, job, code)\n            engine.result(attempt.handle)\n"),
        new=(
            "            handle = engine.handle(pipeline=job.pipeline, key=attempt.key, epoch=attempt.epoch)\n"
            "            engine.start(handle, job, code)\n"
            "            engine.result(handle)\n"
        ),
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="source.commit before the commit entry",
        why="the source forgets rows of a batch that is not committed",
        file="execution/execution.py",
        old="        entry = add_commit(",
        new=("        self.planner.sources.commit(planned.entry.ends)\n        entry = add_commit("),
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="a replay is never answered",
        why="every later retry replays again",
        file="execution/replay.py",
        old="    for request in checkpoint.replays.pending(key):\n        if attempt is None",
        new="    for request in checkpoint.replays.pending(key)[:0]:\n        if attempt is None",
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="any late attempt may replace",
        why="a zombie with the newest epoch puts the output of old code over a replay's",
        file="execution/replay.py",
        old="    return any(answers(attempt, request) for request in pending)\n\n\ndef committer",
        new="    return planned.committed\n\n\ndef committer",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="any commit answers a replay",
        why="a zombie's commit takes the request away, and the clear's retry says that all is done",
        file="execution/replay.py",
        old="        if attempt is None or answers(attempt, request):",
        new="        if True:",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="nobody finishes the replace of a dead winner",
        why="the replaced output lies in staging for ever",
        file="execution/execution.py",
        old="                published = complete_replace(self.checkpoint, sink, planned.identity, published)\n",
        new="                pass\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a run takes whatever epoch is next",
        why="two runs that both found the batch free run it, and one of them fails",
        file="execution/execution.py",
        old="        epoch = (self.checkpoint.attempts.latest_epoch(key) if look is None else look.newest) + 1\n",
        new="        epoch = self.checkpoint.attempts.latest_epoch(key) + 1\n",
        tests=(ALIVE,),
    ),
    Mutation(
        name="who is beaten to an epoch renews its winner's lease",
        why="a stage that waits for its audits is dropped a minute later",
        file="execution/execution.py",
        old="        self.checkpoint.leases.begin(key, epoch",
        new="        self.checkpoint.leases.renew(key, epoch",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a run ends well with an output that does not answer its replay",
        why="the square is green, and the code that the user cleared for was not run",
        file="execution/replay.py",
        old="for request in checkpoint.replays.pending(attempt.key)):\n        return (",
        new="for request in checkpoint.replays.pending(attempt.key)[:0]):\n        return (",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a replay takes the epoch of a published attempt that a restored backup does not know",
        why="the output of before is taken for the replay's, and the square is green",
        file="execution/guard.py",
        old="    if published is None or published.epoch <= newest:",
        new="    if published is None or True:",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a clear that slept through a later one of another run replays with the code of its day",
        why="what the user cleared for last is replaced by what was before",
        file="execution/guard.py",
        old="        if newest is not None and _is_overtaken(",
        new="        if False and _is_overtaken(",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a clear that was asked for late answers a later try that waits with other code",
        why="what the user cleared for last is never made, and its square is green",
        file="execution/guard.py",
        old="            if _is_overtaken(",
        new="            if False and _is_overtaken(",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="what an attempt has made that no record knows passes for a clear's",
        why="after the restore of a backup a cleared run is green, and its code was not run",
        file="execution/replay.py",
        old="    if run is None or (attempt is not None and made_by is None):",
        new="    if run is None or made_by is None:",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a committed attempt is superseded",
        why="a batch that is in the table and committed is told to its hooks as failed",
        file="execution/ending.py",
        old="        if is_committed(self._checkpoint, earlier):",
        new="        if False:",
        tests=(HOOKS,),
    ),
    Mutation(
        name="an attempt has no lease before it has an epoch",
        why="killed in between, it is on nobody's list, and its hooks are never called",
        file="execution/execution.py",
        old="        self.checkpoint.leases.begin(key, epoch, seconds=self._lease_seconds)\n",
        new="",
        tests=("tests/execution/test_retention.py", ALIVE, HOOKS),
    ),
    Mutation(
        name="what was read is released after the commit entry",
        why="of a batch whose process dies in between nobody knows that its files may go, and they pile up",
        file="execution/execution.py",
        old="        if not planned.committed or planned.set_aside:\n",
        new="        if planned.committed:\n",
        tests=("tests/execution/test_clean_source.py",),
    ),
    Mutation(
        name="who was overtaken has failed",
        why="a batch is set aside that never failed",
        file="execution/execution.py",
        old=' "superseded" if outrun else "failed"',
        new=' "failed"',
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="any attempt publishes a batch that was set aside",
        why="a zombie publishes what the log says is in no table",
        file="execution/execution.py",
        old="        if published is None and planned.set_aside and not asked:\n",
        new="        if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="a source gives up what the commit of a plan of before names",
        why="files are deleted that no batch has read",
        file="execution/committed.py",
        old="        if number == newest and commit is not None and logs.commits_another(number, commit):\n",
        new="        if False:\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a batch passes for committed by the entry of a plan of before",
        why="a green square, and nobody comes back for the interval: its rows are in no table",
        file="checkpoint/lane.py",
        old="            return None if self.commits_another(batch_id, commit) else commit\n",
        new="            return commit\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="what is left of an attempt waits for its torn plan",
        why="the janitor never ends it, and its stage stays",
        file="checkpoint/lane.py",
        old="            return commit  # of a torn plan nobody can tell; that it is torn is another finding\n",
        new="            raise\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a commit takes another plan's entry back as it would write it",
        why="of another version's it removes nothing, and tries for ever",
        file="execution/commit_entry.py",
        old="        if not lane.commit_log.remove(id, other[1]) and lane.commit_log.read(id) == other:\n",
        new="        lane.commit_log.take_back(id, other[0])\n        if False:\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a commit tries for ever to take back what it cannot",
        why="its task stands still without a word",
        file="execution/commit_entry.py",
        old=" and lane.commit_log.read(id) == other:\n",
        new=" and False:\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a plan takes a late commit entry back as it would write it",
        why="the sensor fires, and each run that it starts fails",
        file="execution/position.py",
        old="    lane.commit_log.remove(*late)\n",
        new="    lane.commit_log.take_back(late[0], lane.commit_log.get(late[0]))\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a commit entry whose epoch is no number is looked at for when it came",
        why="sensor and run fail of themselves, and nobody names repair",
        file="execution/position.py",
        old="    if type(epoch) is not int:\n",
        new="    if epoch is None:\n",
        tests=(LATE_COMMITS,),
    ),
    Mutation(
        name="a request of before a later clear is waited for",
        why="its try is over and nobody answers it: it holds retention for ever",
        file="checkpoint/replays.py",
        old="        return [one for one in waiting if not any(_is_of_later_clear(other, one) for other in asked)]\n",
        new="        return waiting\n",
        tests=("tests/execution/test_late_processes.py",),
    ),
    Mutation(
        name="a request that is withdrawn leaves those that came behind it late",
        why="nobody answers them: they are waited for from then on, and hold retention for ever",
        file="checkpoint/replays.py",
        old="            self.epochs.end(key, other.epoch, end)\n",
        new="            pass\n",
        tests=("tests/execution/test_clears.py",),
    ),
    Mutation(
        name="withdraw-clear leaves the requests that came behind late",
        why="it has to be typed once more, and check says that a clear waits which nobody has made since",
        file="upkeep/commands/withdraw_clear.py",
        old="    for request in [*behind.values(), *waiting]:\n",
        new="    for request in waiting:\n",
        tests=("tests/execution/test_clears.py",),
    ),
]
