"""Mutations of sinks on record, as a run reads them back that has the pipeline at hand."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

RECORDED = "tests/execution/test_recorded_sinks.py"
BEHIND = "tests/execution/test_lost_behind_a_class.py"
BRANCHES = "tests/execution/test_branches.py"

MUTATIONS = [
    Mutation(
        name="a run knows classes of sinks on record by the settings alone",
        why="of a pipeline with a sink of its own, rows that are in one table come into another one too",
        file="execution/recorded_sinks.py",
        old=" known=now.classes(),",
        new="",
        tests=(RECORDED,),
    ),
    Mutation(
        name="a run reads sinks on record back by the servers that the settings name",
        why="a table that has lost its batches goes on, where it is reached by a server that the pipeline names",
        file="execution/recorded_sinks.py",
        old=" live=[now, *now.tables], known=now.classes(), any_server=True)",
        new=" known=now.classes())",
        tests=(RECORDED,),
    ),
    Mutation(
        name="a class that cannot be loaded hides the tables beside it",
        why="the pipeline still writes to one, which was put back to before: the next batch comes on top, in green",
        file="execution/recorded_sinks.py",
        old='    forms = several if isinstance(several, Mapping) else {"": recorded}\n',
        new='    forms = {"": recorded}\n',
        tests=(BEHIND,),
    ),
    Mutation(
        name="a table whose class has changed is none of the pipeline's",
        why="it was put back to before what is committed, and the next batch comes on top, in green",
        file="execution/recorded_sinks.py",
        old="            place = next((one for one in read if one is not None), None)\n",
        new="            pass\n",
        tests=(BEHIND,),
    ),
    Mutation(
        name="what another class wrote is read as the pipeline's table",
        why="a table that is named in the place of another one is said to have lost what it never had",
        file="definition.py",
        old='        if data.get("class") != class_path(cls) or not isinstance(arguments, Mapping):\n',
        new="        if not isinstance(arguments, Mapping):\n",
        tests=(BEHIND,),
    ),
    Mutation(
        name="a server of before is asked whoever trusts it",
        why="whoever can write into a checkpoint has a run speak to a server of theirs",
        file="execution/table_place.py",
        old="        check_may_be_asked(before, beside=sink)\n",
        new="",
        tests=(RECORDED,),
    ),
    Mutation(
        name="a class that nobody trusts stops a batch that an attempt on record was to write with",
        why="whoever can write into a checkpoint has the pipeline stand still, by an attempt with a class of theirs",
        file="execution/table_place.py",
        old="    may_be_there = name in _definitions(checkpoint, key, where=is_in_the_way) and not",
        new="    may_be_there = not",
        tests=(RECORDED,),
    ),
    Mutation(
        name="what an attempt may have published by a class that cannot be loaded is made in another table",
        why="its rows are in both",
        file="execution/table_place.py",
        old="return is_of_plan and _may_have_published(checkpoint, attempt, planned)",
        new="return False",
        tests=(RECORDED,),
    ),
    Mutation(
        name="what a table has lost does not come back beside a class that cannot be loaded",
        why="the clear that the run has named is refused",
        file="execution/table_place.py",
        old="(table is None or not has_lost_alone(checkpoint, sink, key, table))",
        new="True",
        tests=(BEHIND,),
    ),
    Mutation(
        name="what another version of its class wrote of the pipeline's table is of another one",
        why="the clear of what it has lost is refused, as if it were in both",
        file="execution/table_place.py",
        old="            if other.place is not None and any(",
        new="            if other.unread is None and any(",
        tests=(BEHIND,),
    ),
    Mutation(
        name="a definition is to be removed by which it is known what a table has lost",
        why="whoever does so has the next batch come on top of that, in green",
        file="execution/table_place.py",
        old="    if table is None or not ours or name not in published_as(checkpoint, key):\n",
        new="    if True:\n",
        tests=(BEHIND,),
    ),
    Mutation(
        name="a definition stays in the way of another table that the pipeline writes to by now",
        why="no batch of before gets in there any more, where the class of before is gone",
        file="execution/table_place.py",
        old="    if table is None or not ours or name",
        new="    if table is None or name",
        tests=(BEHIND,),
    ),
    Mutation(
        name="a table is to be named without the dead letters of a class that cannot be loaded",
        why="who does so is refused again",
        file="execution/table_place.py",
        old="    if table.is_of_letters:\n        return",
        new="    if False:\n        return",
        tests=(BEHIND,),
    ),
    Mutation(
        name="an attempt of before is ended in the sink of now",
        why="its publisher wakes up and publishes to the table of before, or files that a branch has are removed",
        file="execution/ending.py",
        old="        sink = self._sink_of(earlier)\n",
        new="        sink = self._sink\n",
        tests=(BRANCHES, RECORDED),
    ),
    Mutation(
        name="a stage that one branch does not have is no other one's",
        why="files that another branch has are removed, and it cannot be read any more",
        file="sinks/iceberg/opened.py",
        old="                return {*others.values(), *(",
        new="                return {*(",
        tests=(BRANCHES,),
    ),
    Mutation(
        name="what an attempt has published to one branch it publishes to another one too",
        why="two branches have the batch, and neither can be fast-forwarded to the other one any more",
        file="sinks/iceberg/opened.py",
        old="                    self._check_in_no_other(look, batch, placed)\n",
        new="                    pass\n",
        tests=(BRANCHES,),
    ),
]
