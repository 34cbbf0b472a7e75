"""Mutations of state that processors of a user's own keep."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

COLUMNS = "tests/state/test_state_columns.py"
EXCHANGE = "tests/spark_exchange/test_state_exchange.py"
KILLS = "tests/state/test_kills.py"
PROCESSORS = "tests/state/test_processors.py"

MUTATIONS = [
    Mutation(
        name="state names the folder of the attempt that made it",
        why="batch 0 is in the table, and batch 1 fails for ever",
        file="runtime/streaming_folder.py",
        old="    elif streaming.before is None:\n",
        new="    elif False:\n",
        tests=(PROCESSORS,),
    ),
    Mutation(
        name="an attempt at the first batch is published beside another transform's records",
        why="the batch is in the table, and the next one fails for ever, or reads its state as what it is not",
        file="runtime/operator_schemas.py",
        old="        _check_same_operators(shared, own)\n",
        new="        pass\n",
        tests=(PROCESSORS,),
    ),
    Mutation(
        name="state of a first attempt is told apart by the names and delays of its columns",
        why="behind an attempt at the first batch no other delay of a watermark is accepted",
        file="runtime/state_columns.py",
        old="        pairs = zip(_columns_in(mine), _columns_in(there), strict=True)\n",
        new="        return False\n",
        tests=(COLUMNS,),
    ),
    Mutation(
        name="an import tells the columns of the newest batch alone",
        why="behind a rewind to an earlier one each attempt fails in Spark, for ever",
        file="upkeep/commands/exchange_state.py",
        old='changed={f"commits/{number}": entry.decode(), **earlier})',
        new='changed={f"commits/{number}": entry.decode()})',
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="a rewind goes back to state whose columns nobody knows",
        why="behind it each attempt fails in Spark, for ever",
        file="execution/kept_states.py",
        old="            if operator not in schemas and ",
        new="            if False and ",
        tests=(EXCHANGE,),
    ),
    Mutation(
        name="an attempt tells the names of the copies that it was shown",
        why="the batch after the next fails for ever, as its columns are in no file of that name",
        file="runtime/operator_schemas.py",
        old="{name: lent.get(name, name) for name in names_in(told)}",
        new="{name: name for name in names_in(told)}",
        tests=(PROCESSORS,),
    ),
    Mutation(
        name="a processor's module is not found beside the driver",
        why="each processor of a file that travels with the job fails at batch 0",
        file="runtime/streaming.py",
        old='    spark.sparkContext.environment.setdefault("PYTHONPATH", os.environ.get("PYTHONPATH", ""))\n',
        new="",
        tests=(KILLS,),
    ),
    Mutation(
        name="an interval waits for a time of day",
        why="what a timer was to tell is in no table, and nobody is told",
        file="runtime/streaming.py",
        old="    if streaming.bounded:\n        check_clock(planned.nodes)\n",
        new="",
        tests=(PROCESSORS,),
    ),
    Mutation(
        name="a query's processor comes without what it has written down",
        why="the pipeline's first batch fails for ever",
        file="upkeep/commands/exchange_state.py",
        old="        schemas = _schemas_of_query(store, batch_id=number)\n        told",
        new="        schemas = {}\n        told",
        tests=(EXCHANGE,),
    ),
]
