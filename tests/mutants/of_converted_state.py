"""Mutations of state that an import converts."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

CONVERTED = "tests/spark_exchange/test_state_converted.py"
PLANNED = "tests/execution/test_exchange.py"

MUTATIONS = [
    Mutation(
        name="rows of sessions are converted as if they were looked up by whole keys",
        why="the pipeline's first batch fails for ever",
        file="runtime/converted_state.py",
        old="        if store.prefix\n",
        new="        if False\n",
        tests=(CONVERTED,),
    ),
    Mutation(
        name="of operators that nobody knows one store is converted",
        why="what they keep elsewhere is lost, and their next batch counts from nothing",
        file="upkeep/commands/convert_state.py",
        old="        if {name for name, _, _ in found} != set(_STORES.get(kind, ())):\n",
        new="        if False:\n",
        tests=(PLANNED,),
    ),
    Mutation(
        name="the state of any provider is converted",
        why="a class of a stranger's is loaded by the command",
        file="upkeep/commands/exchange_state.py",
        old="    if provider not in PROVIDERS:\n",
        new="    if False:\n",
        tests=(PLANNED,),
    ),
    Mutation(
        name="settings of state that is converted are not looked at",
        why="each run after the import fails",
        file="upkeep/commands/convert_state.py",
        old="    check_state_conf(pinned.conf, where=origin.location)\n",
        new="",
        tests=(PLANNED,),
    ),
    Mutation(
        name="state is to be converted where only the client of Spark is installed",
        why="the command ends in a stack trace, which does not say where to type it",
        file="upkeep/commands/exchange_state.py",
        old="    except PackageNotFoundError:\n",
        new="    except KeyError:\n",
        tests=("tests/execution/test_exchange.py",),
    ),
]
