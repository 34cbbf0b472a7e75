"""Mutations of the parts that the state machine stands on, and of what stands on it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

PROTOCOL = "tests/execution/test_mutants_protocol.py"
SET_ASIDE = "tests/execution/test_set_aside.py"
STEPS = "tests/airflow_face/test_steps.py"
POSIX = "tests/checkpoint/test_posix.py"
STORE = "tests/contract/test_store.py"
SINK = "tests/contract/test_sink.py"
FILE_SINK = "tests/sinks/test_file_sink.py"
PLANNING = "tests/sources/test_file_planning.py"
HOOKS = "tests/execution/test_hooks.py"
BACKFILL = "tests/execution/test_backfill.py"
PATH_TABLES = "tests/staging/test_path_tables.py"
INDEX = "tests/sources/test_file_index.py"
HINTS = "tests/checkpoint/test_log_hints.py"
SEGMENTS = "tests/checkpoint/test_segments.py"

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
        name="a replay drops the old output first",
        why="readers find the batch missing",
        file="sinks/file.py",
        old="            if not exchange(stage, target):",
        new="            if target.rename(target.with_name('.old')) and not rename_new(stage, target):",
        tests=(FILE_SINK,),
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
        name="a plan that died after its source log is made anew",
        why="files that were planned are skipped",
        file="sources/file_open.py",
        old="        while True:\n            ahead = ",
        new="        begin = self._seen.latest\n        while True:\n            ahead = ",
        tests=(PLANNING, "tests/contract/test_source.py"),
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
        name="a streaming query gets the lanes' files",
        why="Spark reads again what a backfill has read",
        file="checkpoint/handover.py",
        old="        if lane is not None:",
        new="        if False:",
        tests=(BACKFILL,),
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
        old="        if self.is_compacted(batch_id):\n",
        new="        if False:\n",
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
