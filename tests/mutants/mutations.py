"""Mutations of the code, each of which at least one test must catch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = "airflow_provider_microbatch"
RUN = "tests/execution/test_run.py"
CRASH = "tests/execution/test_crash_anywhere.py"
PROTOCOL = "tests/execution/test_mutants_protocol.py"
ZOMBIES = "tests/execution/test_zombies.py"
ALIVE = "tests/execution/test_alive.py"
SET_ASIDE = "tests/execution/test_set_aside.py"
STEPS = "tests/airflow_face/test_steps.py"
POSIX = "tests/checkpoint/test_posix.py"
STORE = "tests/contract/test_store.py"
SINK = "tests/contract/test_sink.py"
FILE_SINK = "tests/sinks/test_file_sink.py"
PLANNING = "tests/sources/test_file_planning.py"
JANITOR = "tests/execution/test_janitor.py"
HOOKS = "tests/execution/test_hooks.py"
ALIVE = "tests/execution/test_alive.py"
SETTLE = "tests/execution/test_settle.py"
BACKFILL = "tests/execution/test_backfill.py"
INTERVALS = "tests/execution/test_interval_mode.py"
PATH_TABLES = "tests/staging/test_path_tables.py"
INDEX = "tests/sources/test_file_index.py"
HINTS = "tests/checkpoint/test_log_hints.py"
SEGMENTS = "tests/checkpoint/test_segments.py"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change that would break a promise.

    :param name: what the mutant does.
    :param why: what a user would lose.
    :param file: below the package.
    :param old: text that is in the file exactly once.
    :param new: what stands there instead.
    :param tests: files of which one must fail.
    """

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Change the copy below ``root``.

        :raises ValueError: if the text is not there once, or what comes out is no Python: the list is old.
        """
        path = root / PACKAGE / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutation {self.name!r}: its text is {text.count(self.old)} times in {self.file}")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            # It would not be caught by a test, but by every import.
            raise ValueError(f"mutation {self.name!r} makes no Python of {self.file}: {error}") from None
        path.write_text(changed)


MUTATIONS = [
    Mutation(
        name="an entry is not fsynced",
        why="a power cut leaves a log entry that is named and empty",
        file="checkpoint/posix.py",
        old="            file.flush()\n            os.fsync(file.fileno())\n",
        new="            file.flush()\n",
        tests=(POSIX,),
    ),
    Mutation(
        name="an entry's folder is not fsynced",
        why="a power cut takes the entry's name away, and the next plan takes its number",
        file="checkpoint/posix.py",
        old="            raise\n        self._sync_folder(target.parent)\n        return True\n",
        new="            raise\n        return True\n",
        tests=(POSIX,),
    ),
    Mutation(
        name="put-if-absent overwrites",
        why="two planners both believe that the batch is theirs",
        file="checkpoint/posix.py",
        old="            os.link(temporary, target)",
        new="            os.replace(temporary, target)",
        tests=(STORE,),
    ),
    Mutation(
        name="an entry is written in place",
        why="a reader, or the next try after a kill, finds half an entry",
        file="checkpoint/posix.py",
        old="                self._write(temporary, data)",
        new="                self._write(target, data)\n                return True",
        tests=(POSIX, STORE),
    ),
    Mutation(
        name="an epoch is shared",
        why="two attempts write one stage",
        file="checkpoint/epochs.py",
        old="            epoch += 1\n        return epoch",
        new="            break\n        return epoch",
        tests=("tests/checkpoint/test_attempts.py",),
    ),
    Mutation(
        name="publish skips the fence",
        why="a zombie publishes beside the attempt that has replaced it",
        file="execution/execution.py",
        old="            if newest != attempt.epoch:",
        new="            if newest < attempt.epoch:",
        tests=(RUN,),
    ),
    Mutation(
        name="a retry asks the source again",
        why="the retry's batch is not what was planned: rows are lost or doubled",
        file="execution/plan.py",
        old="            return self._resume(position.batch_id, position.planned)\n",
        new=(
            "            position.planned.ends.update(\n"
            "                {\n"
            "                    name: self.open_source(name).latest_offset(end)\n"
            "                    for name, end in position.planned.ends.items()\n"
            "                }\n"
            "            )\n"
            "            self._lane.offset_log._store.delete(str(position.batch_id))\n"
            "            self._lane.offset_log.add(position.batch_id, position.planned)\n"
            "            return self._resume(position.batch_id, position.planned)\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="commit before publish",
        why="a crash between the two leaves a committed batch that is in no table",
        file="execution/execution.py",
        old="            published = self._replace(attempt) if replay else",
        new=(
            "            self.commit(key=key, manifest=staged, run=attempt.run)\n"
            "            published = self._replace(attempt) if replay else"
        ),
        tests=(CRASH, PROTOCOL),
    ),
    Mutation(
        name="a rename that overwrites",
        why="the second of two attempts that pass the fence replaces the first",
        file="sinks/file_posix.py",
        old="        _rename_with(_RENAME_NOREPLACE, source, target)",
        new="        _rename_with(_RENAME_EXCHANGE if target.exists() else 0, source, target)",
        tests=(FILE_SINK,),
    ),
    Mutation(
        name="publish does not ask whether the batch is in",
        why="a retry after a crash between publish and commit fails for ever or replaces",
        file="sinks/file.py",
        old="        found = self.contains(key)\n        if found is not None:\n            return found\n",
        new="",
        tests=(SINK,),
    ),
    Mutation(
        name="the stage is published without fsync",
        why="a power cut after the commit leaves a batch of empty files",
        file="sinks/file.py",
        old="        sync_tree(stage)\n",
        new="",
        tests=(PROTOCOL, FILE_SINK),
    ),
    Mutation(
        name="the publish itself is not fsynced",
        why="a power cut undoes the rename of a batch that is committed",
        file="sinks/file.py",
        old="            if published:\n                sync(target.parent)\n",
        new="            if published:\n",
        tests=(PROTOCOL, FILE_SINK),
    ),
    Mutation(
        name="contains does not make the rename durable",
        why="the publisher died after its rename; the commit of the next try rests on a rename that a power cut undoes",
        file="sinks/file.py",
        old="            sync(target.parent)\n        return found\n",
        new="        return found\n",
        tests=(PROTOCOL, FILE_SINK),
    ),
    Mutation(
        name="an unfinished stage is published",
        why="readers see half of a batch",
        file="sinks/file.py",
        old="        check_files(stage, own)\n",
        new="",
        tests=(FILE_SINK,),
    ),
    Mutation(
        name="a retry does not stop the attempt before it",
        why="an orphaned driver goes on for hours",
        file="execution/execution.py",
        old="            engine.cancel(attempt.handle)\n",
        new="            pass\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a retry leaves the attempt before it alone",
        why="its driver and its stage stay for ever",
        file="execution/execution.py",
        old="                self._supersede(earlier, by=attempt, engine=engine)\n",
        new="                continue\n",
        tests=(RUN,),
    ),
    Mutation(
        name="a failed attempt's stage stays",
        why="stages pile up",
        file="execution/execution.py",
        old="            if self.pipeline.sink.drop_stage(attempt.key, attempt.epoch):\n",
        new="            if False:\n",
        tests=(RUN,),
    ),
    Mutation(
        name="an adopted attempt's stage stays",
        why="stages pile up",
        file="execution/execution.py",
        old="            sink.drop_stage(key, attempt.epoch)\n            winner =",
        new="            winner =",
        tests=(RUN,),
    ),
    Mutation(
        name="the attempt is recorded after the launch",
        why="a driver that nobody can find goes on",
        file="execution/execution.py",
        old="                attempt = self.open_attempt(key=key, run=run, code=code, engine=engine, look=found)\n",
        new=(
            "                epoch = self.checkpoint.attempts.latest_epoch(key) + 1\n"
            "                handle = engine.handle(pipeline=self.pipeline.name, key=key, epoch=epoch)\n"
            "                attempt = Attempt(key=key, epoch=epoch, handle=handle, run=run, code={}, started_ms=0)\n"
            "                engine.start(attempt.handle, self.job(attempt, transform), code)\n"
            "                attempt = self.open_attempt(key=key, run=run, code=code, engine=engine, look=found)\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="the handle is not the one that was recorded",
        why="no other process can cancel the driver",
        file="execution/execution.py",
        old="            engine.start(attempt.handle, job, code)\n            engine.result(attempt.handle)\n",
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
        old="        if not self._lane.commit_log.add(key.id, entry):",
        new=(
            "        self._planner.commit_sources(planned.entry.ends)\n"
            "        if not self._lane.commit_log.add(key.id, entry):"
        ),
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="source.commit is not said again",
        why="a crash after the commit entry strands the source's clean-up",
        file="execution/plan.py",
        old="        self.say_commit_again(position)\n",
        new="",
        tests=(RUN,),
    ),
    Mutation(
        name="a replay is appended as a new batch",
        why="a clear doubles the rows",
        file="execution/plan.py",
        old="        if assigned is not None:\n            return self.load(assigned)\n",
        new=(
            "        if assigned is not None:\n"
            "            old = self.load(assigned)\n"
            "            if run.clear_number and old.committed:\n"
            "                self._lane.offset_log.add(position.batch_id, old.entry)\n"
            "                return self.load(position.batch_id)\n"
            "            return old\n"
        ),
        tests=(RUN,),
    ),
    Mutation(
        name="a replay drops the old output first",
        why="readers find the batch missing",
        file="sinks/file.py",
        old="            if not exchange(stage, target):",
        new="            if target.rename(target.with_name('.old')) and not rename_new(stage, target):",
        tests=(FILE_SINK,),
    ),
    Mutation(
        name="a replay's request is not written down",
        why="the retry of a replay that died says that all is done",
        file="execution/replay.py",
        old="    replays.request(key, run=run, requested_ms=now_ms)\n",
        new="",
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="a replay is never answered",
        why="every later retry replays again",
        file="execution/execution.py",
        old="replays.pending(key):\n            if attempt is None or answers",
        new="replays.pending(key)[:0]:\n            if attempt is None or answers",
        tests=(PROTOCOL,),
    ),
    Mutation(
        name="a retry replays",
        why="each retry of a run that is done runs the batch again",
        file="execution/replay.py",
        old="    if run.clear_number > seen:",
        new="    if run.clear_number >= seen:",
        tests=(RUN,),
    ),
    Mutation(
        name="a lag of two is passed over",
        why="the middle batch is lost, as in Spark",
        file="checkpoint/lane.py",
        old="    if commit_id < offset_id - 1:",
        new="    if commit_id < offset_id - 2:",
        tests=("tests/execution/test_broken_checkpoint.py",),
    ),
    Mutation(
        name="a plan that lost its put goes on",
        why="two runs read two ranges under one batch id",
        file="execution/plan.py",
        old="        if not self._lane.offset_log.add(position.batch_id, entry):",
        new="        if self._lane.offset_log.add(position.batch_id, entry) is None:",
        tests=(RUN,),
    ),
    Mutation(
        name="a plan that died after its source log is made anew",
        why="files that were planned are skipped",
        file="sources/file_open.py",
        old="        while True:\n            ahead = ",
        new="        begin = self._seen.latest\n        while True:\n            ahead = ",
        tests=(PLANNING, "tests/contract/test_source.py"),
    ),
    Mutation(
        name="any late attempt may replace",
        why="a zombie with the newest epoch puts the output of old code over a replay's",
        file="execution/execution.py",
        old="        return any(answers(attempt, request) for request in pending)",
        new="        return planned.committed",
        tests=(ZOMBIES,),
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
        name="any commit answers a replay",
        why="a zombie's commit takes the request away, and the clear's retry says that all is done",
        file="execution/execution.py",
        old="            if attempt is None or answers(attempt, replay):",
        new="            if True:",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="nobody finishes the replace of a dead winner",
        why="the replaced output lies in staging for ever",
        file="execution/execution.py",
        old="                published = sink.replace(key, published.epoch)\n",
        new="                pass\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="submit runs a batch that is done",
        why="a run that comes late runs Spark for a batch that another one has committed",
        file="operators/steps.py",
        old="            if look.is_done:\n",
        new="            if False:\n",
        tests=(STEPS,),
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
        name="a try of before a clear counts as a retry",
        why="a zombie stops the attempt of the clear",
        file="execution/guard.py",
        old=" and other.clear_number <= run.clear_number",
        new="",
        tests=(ALIVE,),
    ),
    Mutation(
        name="a second clear while a replay waits is no request",
        why="the attempt of the first clear passes for the second, whose code is never run",
        file="execution/replay.py",
        old="    if run.clear_number > seen:",
        new="    if run.clear_number > seen and not replays.pending(key):",
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
        name="a run ends well with an output that does not answer its replay",
        why="the square is green, and the code that the user cleared for was not run",
        file="execution/execution.py",
        old="            if not unanswered(self.checkpoint, attempt):\n",
        new="            if True:\n",
        tests=(ZOMBIES,),
    ),
    Mutation(
        name="a committed attempt is superseded",
        why="a batch that is in the table and committed is told to its hooks as failed",
        file="execution/execution.py",
        old="        if is_committed(self.checkpoint, earlier):",
        new="        if False:",
        tests=(HOOKS,),
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
        name="an attempt has no lease before it has an epoch",
        why="killed in between, it is on nobody's list, and its hooks are never called",
        file="execution/execution.py",
        old="        self.checkpoint.leases.begin(key, epoch, seconds=self._lease_seconds)\n",
        new="",
        tests=(JANITOR, ALIVE, HOOKS),
    ),
    Mutation(
        name="the engine is not asked whether an attempt lives",
        why="the stage of a Spark that goes on without its task is dropped under it",
        file="execution/liveness.py",
        old="    if engine is not None and engine.poll(attempt.handle) is EngineState.RUNNING:",
        new="    if False:",
        tests=(ALIVE, JANITOR),
    ),
    Mutation(
        name="the janitor cleans up after the living",
        why="a running batch loses its stage",
        file="execution/janitor.py",
        old="        if sign is not None:",
        new="        if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor does not fence",
        why="an attempt that was only slow publishes after it was given up",
        file="execution/janitor.py",
        old="                if not self._fence(attempt):",
        new="                if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor does not stop Spark",
        why="an orphaned driver writes the stage again that was dropped",
        file="execution/janitor.py",
        old="            if engine is not None and engine.cancel(attempt.handle):",
        new="            if False:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor gives up what is published",
        why="the hooks of a batch in the table hear that it failed",
        file="execution/status.py",
        old="    return any((found := sink.contains(attempt.key)) is not None",
        new="    return False and any((found := sink.contains(attempt.key)) is not None",
        tests=(JANITOR,),
    ),
    Mutation(
        name="the janitor leaves stages",
        why="stages pile up",
        file="execution/janitor.py",
        old="        for sink in staged:\n",
        new="        for sink in []:\n",
        tests=(JANITOR,),
    ),
    Mutation(
        name="on_created is not written down before it is called",
        why="a hook makes its resource twice",
        file="staging/hooks.py",
        old="        if deliveries.record(context.key, context.epoch, index, CREATED):",
        new="        if True:",
        tests=(HOOKS,),
    ),
    Mutation(
        name="a hook's end is not written down",
        why="every janitor tells all hooks of all attempts again",
        file="staging/hooks.py",
        old="            deliveries.record(context.key, context.epoch, index, status)\n",
        new="",
        tests=(HOOKS,),
    ),
    Mutation(
        name="an attempt is forgotten before its hooks are told",
        why="a hook that failed once is never called again",
        file="execution/status.py",
        old="        return False\n    checkpoint.leases.forget(key, epoch)",
        new="        pass\n    checkpoint.leases.forget(key, epoch)",
        tests=(HOOKS,),
    ),
    Mutation(
        name="retention forgets the unfinished",
        why="the janitor finds a stage that no log knows",
        file="execution/retention.py",
        old="    before = min([newest - kept + 1, *(key.id for key, _ in checkpoint.leases.unfinished(lane))])",
        new="    before = newest - kept + 1",
        tests=(JANITOR, RUN),
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
        old=" or is_published(attempt, [sink]):",
        new=":",
        tests=(SETTLE,),
    ),
    Mutation(
        name="the janitor drops without fencing",
        why="an attempt that only seemed dead publishes what is dropped under it",
        file="execution/janitor.py",
        old="                if not self._fence(attempt):",
        new="                if not attempt:",
        tests=(JANITOR,),
    ),
    Mutation(
        name="a definition goes while a run begins",
        why="the attempt names a pipeline that is gone, and nobody can call its hooks",
        file="execution/retention.py",
        old="                definitions.put(definition)\n",
        new="",
        tests=(JANITOR,),
    ),
    Mutation(
        name="a backfill's files are not marked as its lane's",
        why="the live lane reads what a backfill has read",
        file="sources/file_log.py",
        old='    tag = {} if lane == LIVE else {"lane": lane}\n',
        new="    tag: dict[str, str] = {}\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a range has the files of all lanes",
        why="a live range across a backfill reads the backfill's files again",
        file="sources/file_open.py",
        old=" if file.lane == self._lane]",
        new="]",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a live commit cleans up after all lanes",
        why="files are archived or deleted before the lane that planned them has read them",
        file="sources/file_clean.py",
        old="            if file.lane != lane:\n                continue\n",
        new="",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a lane does not look for what its dead plan took",
        why="files of a plan that died are read by nobody",
        file="sources/file_open.py",
        old="            own = window.own\n",
        new="            own = None\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="runs of one partition do not know each other",
        why="reprocessing a partition replays nothing",
        file="execution/backfill.py",
        old="    if run.partition_date is None or by.partition_date != run.partition_date:",
        new="    if True:",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="each try asks for the replays of an overlap",
        why="a retry replays what is done",
        file="execution/backfill.py",
        old="        asked = [request.run for request in self._checkpoint.replays.all(key)]\n",
        new="        asked: list[RunIdentity] = []\n",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="an interval is planned before it is over",
        why="what lands in its rest is read by no run",
        file="execution/backfill.py",
        old="        if early is not None:\n            raise",
        new="        if False:\n            raise",
        tests=(INTERVALS,),
    ),
    Mutation(
        name="a streaming query gets the lanes' files",
        why="Spark reads again what a backfill has read",
        file="checkpoint/handover.py",
        old="        if lane is not None:",
        new="        if False:",
        tests=(BACKFILL,),
    ),
    Mutation(
        name="a batch is set aside under no epoch",
        why="an attempt that was taken for dead, or one that has just begun, publishes a batch that is set aside",
        file="execution/set_aside.py",
        old="    if not attempts.take_exactly(fence):\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="a batch that is published is set aside",
        why="the log says that rows are missing which readers see",
        file="execution/set_aside.py",
        old="    if sink.contains(key) is not None:\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="the range of a batch that is set aside is not kept",
        why="the next commit deletes files whose rows are in no table",
        file="execution/set_aside.py",
        old="    planner.keep_sources(planned)\n",
        new="",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="clean_source takes kept files too",
        why="the next commit deletes files whose rows are in no table",
        file="sources/file_clean.py",
        old="            if not self._kept.holds(number):\n",
        new="            if True:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="what was kept is never released",
        why="files of a batch that is in the table by now pile up",
        file="execution/execution.py",
        old="        self._planner.release_sources(planned)\n",
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
        old="            found += [FOUND_DEAD] if is_dead(checkpoint, attempt, engine_of) else []\n",
        new="            pass\n",
        tests=(SET_ASIDE,),
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
        name="retention takes what is set aside",
        why="rows that are in no table can never be run again",
        file="execution/retention.py",
        old="    if aside is not None:\n",
        new="    if False:\n",
        tests=(SET_ASIDE,),
    ),
    Mutation(
        name="the listener is where DAG files are parsed",
        why="Airflow refuses every DAG with a task that ends in the triggerer, whosever it is",
        file="listeners/registration.py",
        old="    if component not in MARKING_COMPONENTS:",
        new="    if not MARKING_COMPONENTS:",
        tests=("tests/airflow_face/test_listener.py",),
    ),
    Mutation(
        name="a stage table is dropped whoever made it",
        why="the hook of one pipeline takes away what another, or a person, has made under that name",
        file="staging/path_catalog.py",
        old="            if not self._is_own(stage):\n                return False\n",
        new="",
        tests=(PATH_TABLES,),
    ),
    Mutation(
        name="an older batch may replace the table",
        why="an attempt that slept puts last week's table in place of today's",
        file="staging/statement.py",
        old="    check_order(table, key, owner)\n",
        new="",
        tests=(PATH_TABLES,),
    ),
    Mutation(
        name="a replaced table is dropped with the stage",
        why="a crash right after the exchange takes away the table that somebody still reads",
        file="staging/whole_folder.py",
        old="            self._keep_displaced(stage)\n            self.files.drop_stage(",
        new="            self.files.drop_stage(",
        tests=(PATH_TABLES,),
    ),
    Mutation(
        name="the statement is looked at only at publish",
        why="CREATE of a table that exists runs for hours before it fails",
        file="execution/plan.py",
        old="            if not self._pipeline.sink.admits(key):",
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
        name="an index of another log is used",
        why="after a restore from a backup, files that no batch read count as planned and are lost",
        file="sources/file_seen.py",
        old="self._log.seal(self._segments[-1].span.last) != self._segments[-1].span.seal",
        new="False",
        tests=(INDEX,),
    ),
    Mutation(
        name="a hint is not checked",
        why="a log that was restored from a backup goes on behind a gap",
        file="checkpoint/log.py",
        old="if begin is None or not self.has(begin):",
        new="if begin is None:",
        tests=(HINTS,),
    ),
    Mutation(
        name="a lost entry is taken for the end of the log",
        why="batches that are in the sink are planned again under their old numbers",
        file="checkpoint/log.py",
        old="return None if self.has(number + 2) else number",
        new="return number",
        tests=(HINTS,),
    ),
    Mutation(
        name="a sleeping writer gets a number that was compacted",
        why="two runs believe that a batch is theirs",
        file="checkpoint/log.py",
        old="if self._segments is not None and self._segments.first_of(batch_id, fresh=True) is not None:",
        new="if False:",
        tests=(SEGMENTS,),
    ),
    Mutation(
        name="entries go before their segment is there",
        why="a crash in between loses a thousand log entries",
        file="checkpoint/log.py",
        old="                self._segments.put(entries)\n",
        new="                self._store.delete_many(map(str, inside))\n                self._segments.put(entries)\n",
        tests=(SEGMENTS,),
    ),
]
