"""Mutations of whose fault it is that executors cannot read."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MUTATIONS = [
    Mutation(
        name="rows that executors cannot read are the transform's fault",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/failure.py",
        old="    if _read_failure(error) is not None:\n",
        new="    if False:\n",
        tests=("tests/runtime/test_read_failures.py",),
    ),
    Mutation(
        name="the error of a batch that could not be read begins with Spark's words",
        why="what is gone, and the way on, come last",
        file="runtime/failure.py",
        old="_read_failure(error) or (",
        new="(",
        tests=("tests/runtime/test_read_failures.py",),
    ),
    Mutation(
        name="an error that the transform makes of a failed read is its own",
        why="what is gone, and the way on, come last",
        file="runtime/failure.py",
        old="for link in _chain(error) for text in (str",
        new="for link in [error] for text in (str",
        tests=("tests/runtime/test_read_failures.py",),
    ),
    Mutation(
        name="what a reader of channels raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/channels.py",
        old='    with reading(arguments["name"], token):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a slot raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/slot.py",
        old='    with reading(arguments["name"], token):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a slot's snapshot raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/slot_snapshot.py",
        old='    with reading(arguments["name"], token):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a source of the user's raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/ranges.py",
        old='            with reading(self._range["arguments"]["name"], self._range["token"]):\n',
        new="            if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="a row's value that an error quotes passes for what a reader says",
        why="who writes rows writes the message, and the transform's failure, or a full disk, is the source's fault",
        file="runtime/reading.py",
        old="Error.__name__}: {own_token()} (",
        new="Error.__name__}: (?:[0-9a-f]{{32}} )?(",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="an error shows the token of readers",
        why="who reads it can write a row whose value passes for what a reader says",
        file="runtime/failure.py",
        old="mask(without_token(traceback))",
        new="mask(traceback)",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="attempts by Spark Connect have one token for their readers",
        why="what one attempt has shown anywhere is good for a row of the next",
        file="runtime/reading.py",
        old="    return token_hex(16)\n",
        new="    return _MADE\n\n\n_MADE = token_hex(16)\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="a range's reader takes no token of the driver's along",
        why="that rows cannot be read is told as the transform's fault",
        file="runtime/ranges.py",
        old='"token": own_token()}',
        new='"token": ""}',
        tests=("tests/runtime/test_read_failures.py",),
    ),
]
