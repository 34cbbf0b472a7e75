"""Mutations of maintenance commands, and of what meets one: repair, rewind, and a process that slept through it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

WHOSE = "tests/execution/test_whose_batch.py"
DAMAGED = "tests/execution/test_damaged_sources.py"
LATE = "tests/execution/test_late_processes.py"

MUTATIONS = [
    Mutation(
        name="a rewind takes out only the attempt's output that its plan saw",
        why="a replay that wakes up meanwhile stops it half way, for good",
        file="execution/maintenance/steps.py",
        old="        found = sink.contains(taken)\n",
        new="        found = seen\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a rewind does not fence the attempts of its batches",
        why="a replay that wakes up behind it publishes what no log knows",
        file="execution/maintenance/rewind.py",
        old=(
            "            fence_attempts(self._drafting, BatchKey(self._name, number), "
            'why="its batch was rewound", also_ended=True)\n'
        ),
        new="",
        tests=(LATE, "tests/execution/test_rewind.py"),
    ),
    Mutation(
        name="requests of a batch that is rewound count as answered",
        why="what is set aside in its new life counts as replayed, and retention removes it",
        file="execution/maintenance/repair_epochs.py",
        old="        if epoch in ended:\n",
        new="        if False:\n",
        tests=("tests/execution/test_rewind.py",),
    ),
    Mutation(
        name="a plan that slept through a rename stays",
        why="its offsets are of a log that is another source's by now, and its rows are lost",
        file="execution/position.py",
        old="        if checkpoint.maintenance.check_none() != newest:\n",
        new="        if checkpoint.maintenance.check_none() < 0:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="an interval whose plan was taken back is skipped",
        why="a skip is green, and nobody comes back for the interval",
        file="execution/backfill.py",
        old="            if self._lane.offset_log.get(self.key.id) is None:\n",
        new="            if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a missing entry of the source log is passed over",
        why="its files are planned again",
        file="sources/file_seen.py",
        old="                raise self._log.lost(number)\n",
        new="                continue\n",
        tests=(DAMAGED,),
    ),
    Mutation(
        name="check does not look at the sources' logs",
        why="it says that nothing is wrong with a checkpoint that no run goes on from",
        file="cli/check.py",
        old=" + check_sources(checkpoint)",
        new="",
        tests=(DAMAGED,),
    ),
    Mutation(
        name="what was cleaned may be forgotten",
        why="new entries under its numbers pass for cleaned ones, and their rows are lost",
        file="sources/file_open.py",
        old="        if any(number > last for number in self._cleaning.read().done):\n",
        new="        if False:\n",
        tests=(DAMAGED,),
    ),
    Mutation(
        name="output that the restored logs do not know is this batch",
        why="the rewind that the error names has nothing to do, for ever",
        file="execution/maintenance/site.py",
        old="return None if is_planned and self.published(key)",
        new="return None if self.published(key)",
        tests=(WHOSE,),
    ),
    Mutation(
        name="check says nothing of a clear that holds retention",
        why="the log grows for ever, and nobody knows why",
        file="cli/check.py",
        old="find_held(checkpoint) + ",
        new="",
        tests=("tests/execution/test_retention.py",),
    ),
    Mutation(
        name="a commit that others have built on is taken back",
        why="the log has a gap, and no run begins before somebody repairs it",
        file="execution/commit_entry.py",
        old="        if added and not lane.offset_log.has(id + 1):\n",
        new="        if added:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a commit that slept through a rewind keeps its entry",
        why="a commit entry without offsets stops the pipeline",
        file="execution/commit_entry.py",
        old="            lane.commit_log.take_back(id, entry)\n",
        new="            pass\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a commit that slept through a rewind leaves its range due",
        why="a source gives up what is to be read again",
        file="execution/commit_entry.py",
        old="        sources.keep(planned.ranges)\n",
        new="",
        tests=(LATE,),
    ),
    Mutation(
        name="a rewind leaves what it takes back due",
        why="the commit of another lane has a source give up what is to be read again",
        file="execution/maintenance/rewind.py",
        old="        self._keep(later)\n",
        new="",
        tests=(LATE,),
    ),
    Mutation(
        name="a command stops where somebody ends the attempt that it was about to end",
        why="it can never be finished, and no run begins before it is",
        file="execution/maintenance/steps.py",
        old="        store.put_if_absent(self.path, self.text.encode())\n",
        new=(
            "        if not store.put_if_absent(self.path, self.text.encode()):\n"
            '            raise MaintenanceError("it has an end")\n'
        ),
        tests=("tests/execution/test_rewind.py",),
    ),
    Mutation(
        name="a rewind leaves the stages of the attempts that it fences",
        why="one that is published late takes the batch's place for good",
        file="execution/maintenance/rewind.py",
        old="            self._drop_stages(unfinished[number])\n",
        new="",
        tests=(LATE,),
    ),
    Mutation(
        name="a plan that a command overtook stays",
        why="rows are in the table twice, or the log has a gap",
        file="execution/plan.py",
        old="        take_back_if_late(self._checkpoint, self._lane, position.batch_id, entry, "
        "newest=self._newest_command)\n",
        new="",
        tests=(LATE,),
    ),
    Mutation(
        name="a command that has done nothing stops half way for good",
        why="a plan that came between keeps every run from beginning",
        file="execution/maintenance/apply.py",
        old="            if not done and isinstance(error, MaintenanceError) and isinstance(step, Write):\n",
        new="            if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a commit that comes while a command is at the checkpoint stays",
        why="the command has planned without it: a committed batch is in no plan, and the pipeline stands still",
        file="execution/commit_entry.py",
        old="            checkpoint.maintenance.check_none()\n",
        new="            pass\n",
        tests=(LATE, "tests/execution/test_rewind.py"),
    ),
    Mutation(
        name="what came before the first step of a rewind stays",
        why="a commit entry without offsets stops the pipeline for good",
        file="execution/maintenance/rewind.py",
        old='            self._drafting.set_aside_late(f"{self._folder}commits/{number}", why)\n',
        new="            pass\n",
        tests=(LATE,),
    ),
    Mutation(
        name="an epoch that was taken meanwhile stops a rewind half way",
        why="no run begins any more, and no command can finish it",
        file="execution/maintenance/steps.py",
        old="            epoch += 1\n",
        new='            raise MaintenanceError("it is taken")\n',
        tests=(LATE,),
    ),
    Mutation(
        name="a command that was refused is finished by the next",
        why="what it planned is done to a log that went on since: a committed batch is in no plan",
        file="execution/maintenance/apply.py",
        old="        if not self._checkpoint.maintenance.allow(left.number, steps=False):\n",
        new="        if False:\n",
        tests=("tests/execution/test_rewind.py",),
    ),
    Mutation(
        name="a repaired entry is another batch",
        why="what the table has of it is nobody's: it is never replayed, and check finds it foreign",
        file="execution/maintenance/repair_lane.py",
        old="            stands_for=ran.digest if ran else None,\n",
        new="            stands_for=None,\n",
        tests=(WHOSE,),
    ),
    Mutation(
        name="a rewind after a restore takes out what nobody can read again",
        why="with clean_source the only copy of the rows goes",
        file="execution/maintenance/rewind.py",
        old="            self._check_given_up(sorted(lost))\n",
        new="",
        tests=(WHOSE,),
    ),
]
