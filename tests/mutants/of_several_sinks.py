"""Mutations of batches that go to several tables."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SINKS, DEATHS = "tests/sinks/test_several.py", "tests/execution/test_several_sinks.py"

MUTATIONS = [
    Mutation(
        name="a batch is in when the first of several tables has it",
        why="it is committed, and the others never get its rows",
        file="sinks/several.py",
        old="        if len(parts) < len(found):\n            return None\n",
        new="        if not parts:\n            return None\n",
        tests=(SINKS, DEATHS),
    ),
    Mutation(
        name="a replay counts as done when the first table has it",
        why="the others keep the rows of before",
        file="sinks/several.py",
        old="        oldest = min(parts.values(), key=lambda one: one.epoch)\n",
        new="        oldest = max(parts.values(), key=lambda one: one.epoch)\n",
        tests=(SINKS, DEATHS),
    ),
    Mutation(
        name="the next attempt publishes beside what the first table holds",
        why="one batch is of two attempts: tables that were to agree do not",
        file="sinks/several.py",
        old="            return self.replace(batch, epoch)\n",
        new="            self._follow(batch, epoch)\n",
        tests=(SINKS, DEATHS),
    ),
    Mutation(
        name="an attempt that lacks a stage is published where it has one",
        why="the first table has rows that the others can never get",
        file="sinks/several.py",
        old="            self._check_complete(batch, epoch)\n        first = self._first.publish",
        new="            pass\n        first = self._first.publish",
        tests=(SINKS,),
    ),
    Mutation(
        name="what was cut off between two tables is not finished",
        why="Spark runs the batch again, and readers of the first table see it twice, one after the other",
        file="sinks/several.py",
        old="            self._follow(batch, first.epoch)\n        return self.contains(batch)\n",
        new="            pass\n        return self.contains(batch)\n",
        tests=(SINKS, DEATHS),
    ),
    Mutation(
        name="the stage of what is published to a part of the tables is dropped",
        why="nobody can finish it",
        file="execution/identity.py",
        old="    looked = ((sink, (latest_in if partly else found_in)(sink, batch)) for sink in sinks)\n",
        new="    looked = ((sink, found_in(sink, batch)) for sink in sinks)\n",
        tests=(DEATHS,),
    ),
    Mutation(
        name="a rewind takes a batch out of one of its tables",
        why="it is read again, and its place in the other is taken by the plan of before",
        file="upkeep/commands/site.py",
        old="            for table in sink.tables:\n                manifest = None if any",
        new="            for table in sink.tables[:1]:\n                manifest = None if any",
        tests=(DEATHS,),
    ),
    Mutation(
        name="a restored checkpoint gives out the number of what a part of the tables has",
        why="what another life has published passes for the new attempt's",
        file="execution/guard.py",
        old="    is_of_several = bool(planner.sink.definition.names)\n",
        new="    is_of_several = False\n",
        tests=(DEATHS,),
    ),
    Mutation(
        name="a late end is read once for each of several sinks",
        why="each read ends elsewhere: rows are in one table and not in the other",
        file="execution/plan.py",
        old="        if ranges.late and self.sink.definition.names:\n",
        new="        if False:\n",
        tests=(DEATHS,),
    ),
    Mutation(
        name="a table that is added may be another pipeline's, if the first is ours",
        why="rows of the batch are in the first table before anybody finds out",
        file="sinks/several.py",
        old="        return {name: sink.contains(batch) for name, sink in self._sinks.items()}\n",
        new="        return {name: sink.contains(batch) for name, sink in list(self._sinks.items())[:1]}\n",
        tests=(DEATHS,),
    ),
]
