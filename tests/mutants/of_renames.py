"""Mutations of renaming a source, and of what one that was given up half way leaves."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LATE = "tests/execution/test_late_processes.py"
LATE_COMMANDS = "tests/execution/test_late_commands.py"
LATE_COPIES = "tests/execution/test_late_copies.py"
RENAME_GIVEN_UP = "tests/execution/test_rename_given_up.py"
RESTORED = "tests/execution/test_restored_under_commands.py"

MUTATIONS = [
    Mutation(
        name="a source gets a name that another one had",
        why="older entries mean the other one by it: every run is refused, for good",
        file="upkeep/commands/rename_source.py",
        old="    if new in names.former() and names.of(new) != old:",
        new="    if False:",
        tests=("tests/execution/test_source_names.py",),
    ),
    Mutation(
        name="what says more than an entry of the logs is not taken back",
        why="a source that a command said to be new, and that was given up, is never asked for: all is read twice",
        file="checkpoint/by_hand.py",
        old='    return to_bytes(to_json({"command": command, "by": by})[1:-1]) in data\n',
        new="    return b'\"by_hand\"' in data\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="repair says nothing of a torn rename that it cannot tell from a new source",
        why="every run stops and names repair, which does nothing",
        file="upkeep/commands/rename_source.py",
        old="    if not found:\n        drafting.put_away(path,",
        new="    if not found or True:\n        drafting.put_away(path,",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a move goes on once its command is over",
        why="a source's log is torn in two, and every run stops",
        file="upkeep/commands/steps.py",
        old='{path.removeprefix(self.path)}", is_over)\n',
        new='{path.removeprefix(self.path)}", _not_over)\n',
        tests=(RENAME_GIVEN_UP, RESTORED),
    ),
    Mutation(
        name="a copy that came late stays",
        why="the file lies under two names, and counts for a source of the other one",
        file="upkeep/commands/steps.py",
        old="        if is_new and is_over() and store.get(path) == data:\n",
        new="        if False:\n",
        tests=(
            RENAME_GIVEN_UP,
            RESTORED,
        ),
    ),
    Mutation(
        name="a copy of another source's log counts for a log of its own",
        why="what a rename has left that died when it came late has all be read a second time under that name",
        file="execution/source_names.py",
        old=" if name not in logs or name in copies]\n",
        new=" if name not in logs]\n",
        tests=(LATE_COPIES,),
    ),
    Mutation(
        name="a late copy that was made without an answer stays",
        why="the source can never be renamed to that name, and under it all is read a second time",
        file="upkeep/commands/steps.py",
        old="            _leave_one(store, path, target, data)\n",
        new="            pass\n",
        tests=(LATE_COPIES,),
    ),
    Mutation(
        name="a file that is gone from both places is not put back",
        why="a restored log lacks an entry, or a source's log, and no run goes on",
        file="upkeep/commands/steps.py",
        old=" and store.get(target) != data:\n        store.put_if_absent(path if is_over() else target, data)\n",
        new=":\n        pass\n",
        tests=(
            RENAME_GIVEN_UP,
            RESTORED,
        ),
    ),
    Mutation(
        name="of two that move a file to and fro only the late one looks for it",
        why="a source's log lacks an entry that nobody has any more",
        file="upkeep/commands/steps.py",
        old="store.delete_if(path, data) and store.get(target) != data:\n",
        new="store.delete_if(path, data) and is_over() and store.get(target) != data:\n",
        tests=(LATE_COPIES,),
    ),
    Mutation(
        name="a rename that was given up half way stops no plan",
        why="what it has moved counts for a source of the new name: all of it is read a second time",
        file="execution/source_names.py",
        old="    if half is not None:\n",
        new="    if False:\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a rename that an older version began is given up without a word",
        why="its files lie under two names, and repair knows of nothing to take back",
        file="upkeep/commands/apply.py",
        old="            say_begun(self._store, left)\n",
        new="            pass\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a torn entry keeps repair from taking a rename back",
        why="repair mends nothing at all",
        file="checkpoint/checkpoint.py",
        old="        with suppress(CorruptEntryError):\n            newest = log.latest()\n",
        new="        with suppress():\n            newest = log.latest()\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="repair does not look in the record for what a torn word has said",
        why="no run begins, and every message leads in a circle to repair",
        file="upkeep/commands/rename_source.py",
        old="    said = {} if text is None else decode_record(text.encode(), where=path)\n",
        new="    said = {}\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="an attempt begins at a rename that was given up half way",
        why="its job reads without what its source has noted: it infers another schema, which then contradicts that",
        file="execution/plan.py",
        old="        check_no_half_rename(self.checkpoint, again=newest != self._newest_command)\n",
        new="        _ = newest\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a publish that slept through a rename knows of none",
        why="what its job has learned is noted beside what lies under the other name: repair finds two that differ",
        file="execution/execution.py",
        old="        check_no_half_rename(self.checkpoint, again=True)\n",
        new="        check_no_half_rename(self.checkpoint)\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a commit goes on at a rename that was given up half way",
        why="the source is told of a batch whose files lie under another name",
        file="execution/execution.py",
        old="        check_no_half_rename(self.checkpoint)\n        planned = self.load(key)\n",
        new="        planned = self.load(key)\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="repair says of a half rename that it is over before its files are back",
        why="killed in between, nobody knows of it any more, and the next run reads all a second time",
        file="upkeep/commands/rename_source.py",
        old="    for folder in folders:\n        _move(drafting, ",
        new="    drafting.put_away(half.path, half.new)\n    for folder in folders:\n        _move(drafting, ",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="repair takes the log of a source for what a rename has left",
        why="two sources are made one by a rename that was begun late, and never done",
        file="upkeep/commands/rename_source.py",
        old=" = [] if _has_read(drafting.checkpoint, half.new) else [",
        new=" = [",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="a command counts on the log of a source that is renamed half",
        why="what lies under the other name is taken for lost: a rewind reads all of it again",
        file="upkeep/commands/rename_source.py",
        old="    half = checkpoint.names.half()\n    if half is not None:\n",
        new="    half = checkpoint.names.half()\n    if False:\n",
        tests=(RENAME_GIVEN_UP,),
    ),
    Mutation(
        name="start-behind counts up to any number",
        why="a folder that somebody has renamed has it fill memory and disk",
        file="upkeep/commands/count_over.py",
        old="    if missing > _MOST_MISSING:\n",
        new="    if missing > 10**9:\n",
        tests=("tests/execution/test_start_behind.py",),
    ),
    Mutation(
        name="a plan that slept through a rename stays",
        why="its offsets are of a log that is another source's by now, and its rows are lost",
        file="execution/position.py",
        old="        changed = checkpoint.maintenance.check_none() != newest\n",
        new="        changed = checkpoint.maintenance.check_none() < 0\n",
        tests=(LATE, LATE_COMMANDS),
    ),
]
