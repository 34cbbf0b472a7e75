"""Mutations of sinks of a user's own."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

FOREACH = "tests/sinks/test_foreach_sink.py"

MUTATIONS = [
    Mutation(
        name="no mark tells that the function is called for a batch",
        why="what an attempt has brought that died before its record is known to nobody, and comes again beside itself",
        file="sinks/foreach/opened.py",
        old="            is_first = note_call(self._files.root, batch.identity, epoch)\n",
        new="            is_first = True\n",
        tests=(FOREACH,),
    ),
    Mutation(
        name="what a dead attempt's function has brought stays with its stage dropped",
        why="the rows are in the target twice, once they come in batches of other numbers",
        file="sinks/foreach/opened.py",
        old="            if is_left and self._sink.can_withdraw:\n",
        new="            if False:\n",
        tests=(FOREACH,),
    ),
    Mutation(
        name="what a dead replay's function has brought is taken out of a batch that is in",
        why="a committed batch has no row, and its record says that all is well",
        file="sinks/foreach/opened.py",
        old="            is_left = is_called(self._files.root, batch) and not self._is_recorded(batch)\n",
        new="            is_left = is_called(self._files.root, batch)\n",
        tests=(FOREACH,),
    ),
    Mutation(
        name="a rewind goes over what a function may have brought",
        why="a class that takes nothing out has the rows twice",
        file="sinks/foreach/opened.py",
        old="            return called_for(self._files.root, batch)\n",
        new="            return None\n",
        tests=(FOREACH,),
    ),
    Mutation(
        name="a call that raises leaves its mark",
        why="each rewind behind a batch that the target refuses is refused, for nothing",
        file="sinks/foreach/opened.py",
        old="            if is_first and not self._sink.can_withdraw:\n",
        new="            if False:\n",
        tests=(FOREACH,),
    ),
    Mutation(
        name="a call that raises has changed nothing, also where it could be taken out",
        why="a connection is lost behind the target's commit, and the rows come twice once their numbers are others",
        file="sinks/foreach/opened.py",
        old="            if is_first and not self._sink.can_withdraw:\n",
        new="            if is_first:\n",
        tests=(FOREACH,),
    ),
]
