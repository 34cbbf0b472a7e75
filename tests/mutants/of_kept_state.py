"""Mutations of how long state is kept, and of what is said where it is gone."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

KEPT = "tests/state/test_kept_state.py"
LOST = "tests/state/test_lost_state.py"

MUTATIONS = [
    Mutation(
        name="state is removed of batches that the logs keep",
        why="a rewind to one of them leads to batches that find no state",
        file="execution/stateful.py",
        old="        oldest = min([oldest, *commits.ids()[:1]])\n",
        new="        pass\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="a batch whose state is gone gets Spark's error alone",
        why="each run fails with a stack trace, and nobody says from where the pipeline can go on",
        file="execution/explain.py",
        old="    lost = _lost_state(checkpoint, sink, attempt.key, failure) if pipeline.stateful else None\n",
        new="    lost = None\n",
        tests=(LOST,),
    ),
    Mutation(
        name="a look for state that fails hides why the batch has failed",
        why="nobody knows what to mend, and the batch is never set aside",
        file="execution/explain.py",
        old="    except (MicroBatchError, OSError) as unknown:\n",
        new="    except ZeroDivisionError as unknown:\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="a stopped task looks for state before its stop is on record",
        why="Airflow kills it meanwhile, and the attempt counts as one that died",
        file="execution/explain.py",
        old="        raise error from None\n",
        new="        raise lost_state(checkpoint, sink, attempt.key) or error from None\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="state that was restored with gaps passes for whole",
        why="the rewind that the error names leads to a batch that finds no state either",
        file="execution/kept_states.py",
        old="                if (batch_id + 1, id) not in self._files:\n",
        new="                if batch_id == number and (batch_id + 1, id) not in self._files:\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="behind lost state a rewind is named that leaves batches where nobody takes them out",
        why="it is refused, and the error names no other way on",
        file="execution/rewind_named.py",
        old="    rewind = rewind_named(kept.checkpoint, sink, LIVE, to, lost=lost)\n",
        new='    rewind = rewind_named(kept.checkpoint, sink, LIVE, to, lost=lost) or "a rewind"\n',
        tests=(KEPT,),
    ),
    Mutation(
        name="the oldest batch that retention keeps is named to go back to",
        why="no rewind goes back to it, and the error names no other way on",
        file="execution/kept_states.py",
        old="not lane.can_be_rewound_to(number), kept)",
        new="False, kept)",
        tests=(LOST,),
    ),
    Mutation(
        name="a batch of a query whose files were converted behind a later one alone is named to go back to",
        why="the rewind puts away what tells the state, and no batch goes on from there",
        file="execution/kept_states.py",
        old="self._ids(number) is not None and not",
        new="not",
        tests=("tests/spark_exchange/test_state_converted.py",),
    ),
    Mutation(
        name="each batch of the log is looked for in the table where state is gone",
        why="of a long log each try takes minutes, though no file is there",
        file="execution/kept_states.py",
        old="        kept = (number for number in lane.commit_log.ids() if number in there)\n",
        new="        kept = lane.commit_log.ids()\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="a rewind does not ask for state",
        why="it takes batches out of the table, and nothing goes on from there",
        file="upkeep/commands/rewind.py",
        old="            check_state_behind(self._checkpoint, self._recorded, lane=self._name, to=self._to)\n",
        new="",
        tests=(KEPT,),
    ),
    Mutation(
        name="a rewind to before the first batch leaves the state",
        why="behind it the first batch is refused unless its operators are those of before",
        file="upkeep/commands/rewind.py",
        old="        put_state_away(self._drafting, lane=self._name, to=self._to)\n",
        new="",
        tests=(KEPT,),
    ),
    Mutation(
        name="a record says where state is put, wherever that is",
        why="whoever can write into the checkpoint moves it over other programs' folders",
        file="upkeep/commands/state_away.py",
        old="not _TARGET.fullmatch(self.target)",
        new="False",
        tests=(KEPT,),
    ),
    Mutation(
        name="a rewind begins although its user may not move the state",
        why="all output is taken out before its last step fails, and no run begins",
        file="upkeep/commands/state_behind.py",
        old="        check_can_be_moved(folder)\n",
        new="",
        tests=(KEPT,),
    ),
    Mutation(
        name="a clear that is refused names the batch before, whether or not its state is kept",
        why="the rewind that it names is refused, and nobody says how far back there is state",
        file="execution/stateful.py",
        old="    if way is not None and way.to == key.id - 1:\n",
        new="    if True:\n",
        tests=(KEPT,),
    ),
]
