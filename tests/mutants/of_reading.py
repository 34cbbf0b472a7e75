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
        old='    with reading(arguments["name"]):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a slot raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/slot.py",
        old='    with reading(arguments["name"]):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a slot's snapshot raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/slot_snapshot.py",
        old='    with reading(arguments["name"]):\n',
        new="    if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
    Mutation(
        name="what a reader of a source of the user's raises is told as the transform's",
        why="its author is told to mend it, and looks for a fault that is not there",
        file="runtime/ranges.py",
        old='            with reading(self._range["arguments"]["name"]):\n',
        new="            if True:\n",
        tests=("tests/runtime/test_reading.py",),
    ),
]
