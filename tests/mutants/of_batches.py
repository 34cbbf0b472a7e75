"""Mutations of what is decided about batches: plans, guards, replays, ends, what the janitor does."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

RUN = "tests/execution/test_run.py"
PROTOCOL = "tests/execution/test_mutants_protocol.py"
ZOMBIES = "tests/execution/test_zombies.py"
ALIVE = "tests/execution/test_alive.py"
SET_ASIDE = "tests/execution/test_set_aside.py"
JANITOR = "tests/execution/test_janitor.py"
RETENTION = "tests/execution/test_retention.py"
HOOKS = "tests/execution/test_hooks.py"
SETTLE = "tests/execution/test_settle.py"
NAMES = "tests/execution/test_source_names.py"
PATH_TABLES = "tests/tables/test_path_tables.py"
WHOSE = "tests/execution/test_whose_batch.py"
UNKNOWN = "tests/execution/test_unknown_batches.py"
BEHIND = "tests/execution/test_start_behind.py"
LATE = "tests/execution/test_late_processes.py"
READ_AGAIN = "tests/execution/test_read_again.py"

MUTATIONS = [
    Mutation(
        name="a batch is planned before its table is looked at",
        why="a table that cannot be made is found once Spark has read the batch",
        file="execution/plan.py",
        old="        self.sink.check()\n        position",
        new="        position",
        tests=(RUN,),
    ),
    Mutation(
        name="dead letters of what is counted over are passed over in silence",
        why="no command runs them again, and nobody knows of them",
        file="upkeep/commands/start_behind.py",
        old="    if letters:\n",
        new="    if False:\n",
        tests=("tests/kafka/test_restored.py",),
    ),
    Mutation(
        name="what a topic that is away keeps is taken out of the table beside it",
        why="the lane counts over it once the topic is back, and the table lacks it for good",
        file="upkeep/commands/staying.py",
        old="    if lost and keeping and ",
        new="    if False and ",
        tests=("tests/kafka/test_restored.py",),
    ),
    Mutation(
        name="a new checkpoint at the place of one that was moved counts on unasked",
        why="all that its sources have is in the table a second time",
        file="upkeep/commands/start_behind.py",
        old="    _check_reread_of_another(drafting, recorded, keys, allow_reread=allow_reread)\n",
        new="",
        tests=("tests/execution/test_start_behind.py",),
    ),
    Mutation(
        name="a replay that reads otherwise says nothing",
        why="an option that was changed for new files puts wrong rows in the place of good ones, in green",
        file="execution/read_again.py",
        old="    if found and epoch is not None:\n",
        new="    if False:\n",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a replay replaces rows by nothing",
        why="the rows of a batch are gone, and its square is green",
        file="execution/read_again.py",
        old="    emptied = [] if before is None else",
        new="    emptied = [] if True else",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a replay of rows that never fitted is refused",
        why="a batch whose rows nobody misses fails for ever",
        file="execution/read_again.py",
        old="if was.get(name) != 0 and (",
        new="if True or (",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a changed option is said with its value, whatever it is",
        why="a password of an older definition is in the task's log",
        file="execution/opened_sources.py",
        old="        setting: value if value is None or refusal(setting, value) is None else HIDDEN\n",
        new="        setting: value\n",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="what Spark's side warns of is no warning of the task",
        why="rows of NULL are published, and the line that says so is one of a thousand",
        file="execution/read_again.py",
        old="    for text in found if isinstance(found, list) else ():\n",
        new="    for text in ():\n",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a value of the data passes for a lost cluster",
        why="its batch fails for ever, and is never set aside",
        file="runtime/failure.py",
        old="str(error).startswith(_GONE_CLASS)",
        new="_GONE_CLASS in str(error)",
        tests=("tests/runtime/test_failure.py",),
    ),
    Mutation(
        name="what Spark's analysis says of the result is not the batch's fault",
        why="a batch whose columns cannot be written stands still, whatever on_failure says",
        file="runtime/failure.py",
        old='        (r"42\\w{3}|0A\\w{3}|KD005", "result"),\n',
        new="",
        tests=("tests/runtime/test_failure.py",),
    ),
    Mutation(
        name="what the place lacks is the batch's fault",
        why="batches are set aside because of a right or a jar that is missing",
        file="runtime/failure.py",
        old='        ("42501|42K02|42K03|42K04|42616|42P08", "write"),\n',
        new="",
        tests=("tests/runtime/test_failure.py",),
    ),
    Mutation(
        name="a result that cannot be written counts for nothing",
        why="a batch whose columns cannot be written stands still, whatever on_failure says",
        file="execution/explain.py",
        old='    if failure.get("origin") == "result":\n',
        new="    if False:\n",
        tests=("tests/execution/test_set_aside.py",),
    ),
    Mutation(
        name="a clear that nobody can answer is waited for",
        why="it holds retention for ever",
        file="execution/replay.py",
        old="        for request in own:\n            checkpoint.replays.refuse(",
        new="        for request in own[:0]:\n            checkpoint.replays.refuse(",
        tests=("tests/execution/test_replay_of_cleaned.py",),
    ),
    Mutation(
        name="a planned batch that does not follow the one before is run",
        why="what a late plan of an older version reads is read twice",
        file="checkpoint/lane.py",
        old='            if problem is not None:\n                return (\n                    f"{problem} It',
        new='            if False:\n                return (\n                    f"{problem} It',
        tests=(LATE,),
    ),
    Mutation(
        name="whatever has a batch's number is the batch",
        why="a new checkpoint on a kept table commits batches whose rows nobody has read",
        file="sinks/manifest.py",
        old="        if found.identity is not None and found.identity == self.identity:\n",
        new="        if True:\n",
        tests=(WHOSE, BEHIND),
    ),
    Mutation(
        name="the place of the next batch is not looked at before it is planned",
        why="a range is planned, and Spark runs it, for a batch that cannot be published",
        file="execution/plan.py",
        old="            self.check_place(BatchKey(self.lane.name, position.batch_id))\n",
        new="",
        tests=(WHOSE, BEHIND),
    ),
    Mutation(
        name="what the table holds behind a free place is not looked at",
        why="a restored backup, or a new checkpoint, reads again what is in the table under later numbers",
        file="execution/unknown_batches.py",
        old="        _check_behind(checkpoint, sink, table, key.lane, key.id, newest=key.id - 1, only_own=only_own)\n",
        new="",
        tests=(UNKNOWN,),
    ),
    Mutation(
        name="lanes of this checkpoint that it does not know are taken for another's",
        why="after a restored backup the next run reads what a backfill has read",
        file="execution/identity.py",
        old="        return asked.recognise(found) if is_ours else found\n",
        new="        return found\n",
        tests=(UNKNOWN,),
    ),
    Mutation(
        name="check does not look at the place of a batch that is planned",
        why="every run is refused, and check finds nothing wrong",
        file="upkeep/next_place.py",
        old="for key in _uncommitted(checkpoint)\n",
        new="for key in list[BatchKey]()\n",
        tests=(WHOSE,),
    ),
    Mutation(
        name="an attempt of before publishes a batch that was planned anew",
        why="the rows of one plan are committed as those of another",
        file="execution/execution.py",
        old="        check_plan(attempt, planned.identity)\n        batch = expected(",
        new="        batch = expected(",
        tests=(WHOSE, BEHIND),
    ),
    Mutation(
        name="output without an identity counts for any attempt of its number",
        why="a new attempt passes off an old table's batch as its own",
        file="execution/identity.py",
        old="    if attempt is None or attempt.identity is not None:\n",
        new="    if attempt is None:\n",
        tests=(WHOSE, BEHIND),
    ),
    Mutation(
        name="a retry asks the source again",
        why="the retry's batch is not what was planned: rows are lost or doubled",
        file="execution/plan.py",
        old="            return replace(self._resume(position.batch_id), committed=False, set_aside=False)\n",
        new=(
            "            position.planned.ends.update(\n"
            "                {\n"
            "                    name: self.sources.open(name).latest_offset(end)\n"
            "                    for name, end in position.planned.ends.items()\n"
            "                }\n"
            "            )\n"
            "            self.lane.offset_log._store.delete(str(position.batch_id))\n"
            "            self.lane.offset_log.add(position.batch_id, position.planned)\n"
            "            return replace(self._resume(position.batch_id), committed=False, set_aside=False)\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="source.commit is not said again",
        why="a crash after the commit entry strands the source's clean-up",
        file="execution/plan.py",
        old="            self.say_commit_again(position)\n",
        new="",
        tests=(RUN,),
    ),
    Mutation(
        name="what a source's library raises from commit fails the batch",
        why="a committed batch is red, and so is every plan after it",
        file="execution/opened_sources.py",
        old='            except Exception:\n                log.exception("source %s failed in commit',
        new='            except OSError:\n                log.exception("source %s failed in commit',
        tests=(RUN,),
    ),
    Mutation(
        name="a source that cannot have a frame is asked to read",
        why="the sensor fires and the plan raises, for ever",
        file="execution/opened_sources.py",
        old="            why = source.absent(*ranges.of(name))\n",
        new="            why = None\n",
        tests=("tests/execution/test_never_had_data.py",),
    ),
    Mutation(
        name="a rename is taken for a new source",
        why="everything is read and published a second time, silently",
        file="execution/source_names.py",
        old="    if appeared and vanished:\n        where, ",
        new="    if False:\n        where, ",
        tests=(NAMES,),
    ),
    Mutation(
        name="an entry of before a rename keeps its name",
        why="the renamed source begins at its beginning",
        file="checkpoint/checkpoint.py",
        old="        return self.names.entry(entry)\n",
        new="        return entry\n",
        tests=(NAMES,),
    ),
    Mutation(
        name="a replay is appended as a new batch",
        why="a clear doubles the rows",
        file="execution/plan.py",
        old="            self._say_what_is_kept(run)\n            return self.load(assigned)\n",
        new=(
            "            old = self.load(assigned)\n"
            "            if run.clear_number and old.committed:\n"
            "                self.lane.offset_log.add(position.batch_id, old.entry)\n"
            "                return self.load(position.batch_id)\n"
            "            return old\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="a replay's request is not written down",
        why="the retry of a replay that died says that all is done",
        file="execution/replay.py",
        old="        ask_again(checkpoint",
        new="        dict(checkpoint",
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="a retry replays",
        why="each retry of a run that is done runs the batch again",
        file="execution/replay.py",
        old="        return run.clear_number > seen\n",
        new="        return run.clear_number > seen\n    return bool(own)\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a plan that lost its put goes on",
        why="two runs read two ranges under one batch id",
        file="execution/plan.py",
        old="        if not self.lane.offset_log.add(position.batch_id, entry):",
        new="        if self.lane.offset_log.add(position.batch_id, entry) is None:",
        tests=(RUN,),
    ),
    Mutation(
        name="a request for a replay outlives the batch that it was made for",
        why="it waits for an answer that nobody gives, and retention with it",
        file="execution/replay.py",
        old="    if not is_still_planned(checkpoint, planned.identity):\n",
        new="    if False:\n",
        tests=("tests/execution/test_late_processes.py",),
    ),
    Mutation(
        name="an older replay passes for a newer one",
        why="the code that the user cleared for is never run",
        file="execution/replay.py",
        old="    return attempt.request is not None and attempt.request >= request.epoch",
        new="    return True",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a try of before a clear counts as a retry",
        why="a zombie stops the attempt of the clear",
        file="execution/guard.py",
        old="in (Relation.SAME, Relation.LATER)",
        new="is not Relation.OTHER",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a second clear while a replay waits is no request",
        why="the attempt of the first clear passes for the second, whose code is never run",
        file="execution/replay.py",
        old="    is_new_clear = _is_new_clear(run, ",
        new="    is_new_clear = not replays.pending(key) and _is_new_clear(run, ",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a try of before a later clear replays",
        why="it ends well with code that the user has cleared away",
        file="execution/replay.py",
        old="    if later:\n",
        new="    if False:\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="the lease is not renewed",
        why="a batch that takes longer than its lease is taken from the task that runs it",
        file="execution/liveness.py",
        old="                leases.renew(key, epoch, seconds=self._seconds)\n",
        new="",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a run takes over a batch that another is alive at",
        why="two runs stop each other's Spark for ever",
        file="execution/guard.py",
        old="    if held is not None:",
        new="    if False:",
        tests=(ALIVE,),
    ),
    Mutation(
        name="the engine is not asked whether an attempt lives",
        why="the stage of a Spark that goes on without its task is dropped under it",
        file="execution/liveness.py",
        old="        runs = engine is not None and engine.poll(attempt.handle) is EngineState.RUNNING\n",
        new="        runs = False\n",
        tests=(ALIVE, JANITOR),
    ),
    Mutation(
        name="an attempt is forgotten before its hooks are told",
        why="a hook that failed once is never called again",
        file="execution/status.py",
        old="    if told is Telling.DONE:\n        checkpoint.leases.forget(key, epoch)",
        new="    if True:\n        checkpoint.leases.forget(key, epoch)",
        tests=(HOOKS,),
    ),
    Mutation(
        name="retention forgets the unfinished",
        why="the janitor finds a stage that no log knows",
        file="execution/retention.py",
        old="    before = min([newest - kept + 1, *(key.id for key, _ in checkpoint.leases.unfinished(lane))])",
        new="    before = newest - kept + 1",
        tests=(RETENTION, RUN),
    ),
    Mutation(
        name="the listener ignores the commit log",
        why="a committed attempt is told FAILED, and its hooks take down what it made",
        file="execution/settle.py",
        old="        if is_committed(checkpoint, attempt):",
        new="        if not attempt:",
        tests=(SETTLE,),
    ),
    Mutation(
        name="the listener ignores the fence",
        why="a dying try cleans up while the next one does, and the hooks are told in any order",
        file="execution/settle.py",
        old="        if newest != epoch:",
        new="        if newest < epoch:",
        tests=(SETTLE,),
    ),
    Mutation(
        name="the listener ends what is published",
        why="a batch that readers see is told FAILED",
        file="execution/settle.py",
        old="            or published_in(checkpoint, attempt, [sink], tables=checkpoint.tables, partly=True) "
        "is not None\n",
        new="",
        tests=(SETTLE,),
    ),
    Mutation(
        name="a definition goes while a run begins",
        why="the attempt names a pipeline that is gone, and nobody can call its hooks",
        file="execution/retention.py",
        old="                definitions.put(definition)\n",
        new="",
        tests=(RETENTION,),
    ),
    Mutation(
        name="a batch is set aside under no epoch",
        why="an attempt that was taken for dead, or one that has just begun, publishes a batch that is set aside",
        file="execution/set_aside.py",
        old="    if not attempts.take_exactly(fencing):\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="a batch that is published is set aside",
        why="the log says that rows are missing which readers see",
        file="execution/set_aside.py",
        old="    if (sink.contains(batch) or latest_in(sink, batch)) is not None:\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="the range of a batch that is set aside is not kept",
        why="the next commit deletes files whose rows are in no table",
        file="execution/set_aside.py",
        old="    sources.keep(planned.ranges)\n",
        new="",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="a retry of a batch that was set aside ends well",
        why="the square is green, and the rows are in no table",
        file="execution/guard.py",
        old="        if commit is not None and is_aside(checkpoint, key, commit):\n",
        new="        if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="found dead is no failure",
        why="a batch that kills its worker each time stops the pipeline for ever",
        file="execution/set_aside.py",
        old="            found[DEAD] += [FOUND_DEAD] if died else []\n",
        new="            pass\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="retention takes what is set aside",
        why="rows that are in no table can never be run again",
        file="execution/retention.py",
        old="    if aside is not None:\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="the statement is looked at only at publish",
        why="CREATE of a table that exists runs for hours before it fails",
        file="execution/plan.py",
        old="            if not self.admits(key):",
        new="            if False:",
        tests=(PATH_TABLES,),
    ),
    Mutation(
        name="a clear skips where another run is at its batch",
        why="the replay is on record, and nobody makes it",
        file="execution/guard.py",
        old="    if held is not None and request is not None:\n",
        new="    if False:\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a backfill that cannot replay yet skips with its lane planned",
        why="a green square, and the interval's unread data is in no table and in no other lane's reach",
        file="execution/backfill.py",
        old="            if keys == [lane_batch] and self._is_committed(keys[0]):\n",
        new="            if lane_batch in keys:\n",
        tests=("tests/execution/test_backfill.py", "tests/simulator/test_simulator.py"),
    ),
    Mutation(
        name="a repaired entry is another batch",
        why="what the table has of it is nobody's: it is never replayed, and check finds it foreign",
        file="upkeep/commands/repair_lane.py",
        old="            stands_for=ran.digest if ran else None,\n",
        new="            stands_for=None,\n",
        tests=(WHOSE, BEHIND),
    ),
    Mutation(
        name="a rewind after a restore takes out what nobody can read again",
        why="with clean_source the only copy of the rows goes",
        file="upkeep/commands/given_up.py",
        old="    if not problems:\n",
        new="    if True:\n",
        tests=(WHOSE, BEHIND),
    ),
]
