"""Mutations of ``rewind``."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LATE = "tests/execution/test_late_processes.py"
LATE_COMMANDS = "tests/execution/test_late_commands.py"
CLEAN_LATE = "tests/execution/test_clean_late.py"
NAMED = "tests/execution/test_rewinds_named.py"
IN_FORCE = "tests/execution/test_sinks_in_force.py"

MUTATIONS = [
    Mutation(
        name="an attempt has the number of one of after the backup whose output was taken out",
        why="in a bucket its files lie where the other's stayed, and Spark refuses each attempt once",
        file="upkeep/commands/rewind.py",
        old="        for number, made in self._lost.items():\n",
        new="        for number, made in ():\n",
        tests=("tests/execution/test_unknown_batches.py",),
    ),
    Mutation(
        name="a rewind does not say what it loses for good",
        why="who allows it for one source loses rows of another, and nobody is told",
        file="upkeep/commands/rewind.py",
        old="        if cleaning:\n            self._drafting.note(",
        new="        if False:\n            self._drafting.note(",
        tests=("tests/execution/test_whose_batch.py",),
    ),
    Mutation(
        name="a rewind does not fence the attempts of its batches",
        why="a replay that wakes up behind it publishes what no log knows",
        file="upkeep/commands/rewind.py",
        old=(
            "            fence_attempts(self._drafting, BatchKey(self._name, number), "
            'why="its batch was rewound", also_ended=True)\n'
        ),
        new="",
        tests=(LATE, LATE_COMMANDS, "tests/execution/test_rewind.py"),
    ),
    Mutation(
        name="a rewind looks for what is later than a backup before it looks at its own log",
        why="what retention took is said to be of after a backup, and the advice doubles it",
        file="upkeep/commands/rewind.py",
        old=(
            "        self._check_position(offset_ids, commit_ids)\n"
            "        self._lost = self._of_another_life(is_alone=not known)\n"
        ),
        new=(
            "        self._lost = self._of_another_life(is_alone=not known)\n"
            "        self._check_position(offset_ids, commit_ids)\n"
        ),
        tests=("tests/execution/test_rewind.py",),
    ),
    Mutation(
        name="a rewind leaves what it takes back due",
        why="what is planned again, and passed over then, is deleted once its batch is out of the logs",
        file="upkeep/commands/rewind.py",
        old="        self._keep(later)\n",
        new="",
        tests=(CLEAN_LATE,),
    ),
    Mutation(
        name="a rewind begins over a table that was put back as a whole",
        why="it is refused in the middle, and nothing runs until somebody has finished it",
        file="upkeep/commands/rewind.py",
        old="            table.check_whole()  #",
        new="            pass  #",
        tests=("tests/sinks/test_delta_merge_restored.py",),
    ),
    Mutation(
        name="a rewind leaves the stages of the attempts that it fences",
        why="one that is published late takes the batch's place for good",
        file="upkeep/commands/rewind.py",
        old="            drop_stages(self._drafting, self._recorded, unfinished[number])\n",
        new="",
        tests=(LATE, LATE_COMMANDS),
    ),
    Mutation(
        name="what came before the first step of a rewind stays",
        why="a commit entry without offsets stops the pipeline for good",
        file="upkeep/commands/rewind.py",
        old='            self._drafting.put_away_late(f"{self._folder}commits/{number}", why)\n',
        new="            pass\n",
        tests=(LATE, LATE_COMMANDS),
    ),
    Mutation(
        name="a lane that only the table knows is none",
        why="the rewind that the error names is refused, and the pipeline stands for ever",
        file="upkeep/commands/rewind.py",
        old="        if not any(self._unknown(",
        new="        if True or not any(self._unknown(",
        tests=("tests/execution/test_unknown_batches.py",),
    ),
    Mutation(
        name="a lane that another checkpoint has made counts as one of this",
        why="whoever mistypes a lane is told that there is nothing to do",
        file="upkeep/commands/rewind.py",
        old="        if not any(self._unknown(",
        new="        if not told.holders and not any(self._unknown(",
        tests=("tests/execution/test_unknown_batches.py",),
    ),
    Mutation(
        name="a rewind of a lane that is gone by now is refused when it is typed again",
        why="it was killed behind that, and is to be typed as it was",
        file="cli/rewind.py",
        old="once=True",
        new="once=False",
        tests=("tests/cli/test_maintenance.py", "tests/execution/test_commands_killed.py"),
    ),
    Mutation(
        name="a table that cannot be asked hides what the others hold",
        why="the rewind that the error names does nothing, and the pipeline stands for ever",
        file="upkeep/commands/told.py",
        old="            # A sink that never lists its batches has nothing to be mended.\n",
        new="            return Told(holders={}, silent=(str(error),))\n",
        tests=("tests/execution/test_unknown_batches.py",),
    ),
    Mutation(
        name="a rewind ends well although it could not look in a table",
        why="who was told to type it believes that nothing is there",
        file="upkeep/commands/rewind.py",
        old="        if self._silent:\n",
        new="        if False:\n",
        tests=("tests/execution/test_unknown_batches.py",),
    ),
    Mutation(
        name="commands ask a branch that was dropped",
        why="once a merged branch is dropped, none of them is carried out",
        file="upkeep/commands/site.py",
        old="        return [sink for sink in found if not self.is_gone(sink)] or found\n",
        new="        return found\n",
        tests=("tests/execution/test_branches.py",),
    ),
    Mutation(
        name="a rewind to the newest batch is named as a way on",
        why="who types it is told that there is nothing to do, and has no way on",
        file="upkeep/commands/rewind.py",
        old="        if first < kept[-1]:\n",
        new="        if first <= kept[-1]:\n",
        tests=("tests/execution/test_rewind.py",),
    ),
    Mutation(
        name="a rewind takes out of one of several tables what its run puts back into the others alone",
        why="the pipeline names that table no more: the rows are gone there for good, and nobody misses them",
        file="upkeep/commands/for_good.py",
        old="        if away and (",
        new="        if False and (",
        tests=(NAMED,),
    ),
    Mutation(
        name="a rewind goes by the attempts of an older version alone for what the pipeline writes to",
        why="one that was refused has left none: what is taken out is promised to come back, and does not",
        file="upkeep/commands/for_good.py",
        old="names.append(recorded.ran_last(one) if refused is None else refused.definition)",
        new="names.append(recorded.ran_last(one))",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="what comes back is asked of the plan of an interval that ran long ago",
        why="the pipeline has left a table out since: what is taken out there is promised to come back, and does not",
        file="upkeep/commands/for_good.py",
        old="(lane, LIVE, lane if newest is None else newest.key.lane)",
        new="(lane,)",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="one of the sinks in force is enough for a batch to come back",
        why="it is the other one that runs: what is taken out is promised to come back, and does not",
        file="upkeep/commands/for_good.py",
        old="= all(self._is_in(form, table) for form in self._forms)",
        new="= any(self._is_in(form, table) for form in self._forms)",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="a table that was moved since counts as left out",
        why="a rewind is refused that would lose nothing, and no later run changes what the interval's own has named",
        file="upkeep/commands/for_good.py",
        old="any(table.is_written_by(place, self._checkpoint.tables) for place in places)",
        new="any(table.definition.is_same_place(place) for place in places)",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="where one table of the pipeline cannot be used from here, no other one can",
        why="a rewind is refused, and none is named, though all of its tables that have the batch are asked",
        file="upkeep/commands/for_good.py",
        old="                usable[name] = Sink.from_dict(one)\n",
        new="                continue\n",
        tests=(NAMED,),
    ),
    Mutation(
        name="a run that makes no batch does not tell to which tables the pipeline writes",
        why="a rewind goes by the run before: what it takes out does not come back, or it is refused for good",
        file="execution/plan.py",
        old="        self.say_sink(plans=not run.was_cleared)\n",
        new="",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="a command that runs letters again tells to which tables the pipeline writes",
        why="it has the pipeline on record, which may be the one before: what a rewind takes out does not come back",
        file="execution/plan.py",
        old="        if self.lane.name == LETTERS:\n",
        new="        if False:\n",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="a run tells to which tables the pipeline writes once the table has been asked",
        why="where the table refuses that, the run before tells it: what a rewind takes out does not come back",
        file="execution/execution.py",
        old="        planned = self.planner.plan(run)\n",
        new="        self.sink.check()\n        planned = self.planner.plan(run)\n",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="a clear tells to which tables the pipeline writes by now",
        why="its code may be that of long ago: what a rewind takes out does not come back",
        file="checkpoint/sinks_in_force.py",
        old="if beside and one != own)",
        new="if False)",
        tests=(IN_FORCE,),
    ),
    Mutation(
        name="a rewind is named that takes a batch out of a table that each batch replaces",
        why="it is refused, since no batch can be taken out there, and who pastes it has no way on",
        file="execution/rewind_named.py",
        old=" if not one.can_withdraw)",
        new=" if one.keeps_for_good)",
        tests=(NAMED,),
    ),
    Mutation(
        name="a table in another form names a rewind without a look at the tables beside it",
        why="who pastes it takes out of a table that is named no more what nothing puts back there",
        file="execution/table_shape.py",
        old="else rewind_named(checkpoint, beside, name, -1)\n",
        new='else f"`microbatch rewind {checkpoint.location} --to -1 --drop-output`"\n',
        tests=(NAMED,),
    ),
    Mutation(
        name="a table that was left out for many intervals is not missed",
        why="it was put back to an older backup meanwhile, and the next batch hides what it has lost",
        file="execution/table_place.py",
        old="islice(published, LEFT_OUT)",
        new="islice(published, 20)",
        tests=("tests/execution/test_lost_since_a_change.py",),
    ),
    Mutation(
        name="a table that was named by mistake once has to be asked for each batch",
        why="it cannot be: a rewind or a repair is refused for good, though the mistake is mended",
        file="upkeep/commands/site.py",
        old="            if not self._is_in_vain(of, batch.key):\n",
        new="            if True:\n",
        tests=(NAMED,),
    ),
    Mutation(
        name="a table that the plan to come names is passed over while it cannot be asked",
        why="the old one may have been moved there: what it has is not taken out, and is there twice",
        file="upkeep/commands/site.py",
        old="            if is_known and not any(",
        new="            if is_known or any(",
        tests=(NAMED,),
    ),
    Mutation(
        name="a plan that a table has refused leaves no pipeline on record",
        why="a rewind takes out of a table what the pipeline, as it is now, does not put back there",
        file="execution/plan.py",
        old="        except (SourceError, SinkError):\n",
        new="        except (SourceError, ForeignBatchError):\n",
        tests=(NAMED,),
    ),
    Mutation(
        name="check names a rewind over a batch that is in a table that is named no more",
        why="it is refused, where the run's error has named another way",
        file="upkeep/table_check.py",
        old="        if in_force.is_beside(key):\n",
        new="        if False:\n",
        tests=(NAMED,),
    ),
]
