"""Mutations of late ends: planned, resolved, committed."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LATE = "tests/execution/test_late_ends.py"

MUTATIONS = [
    Mutation(
        name="an attempt that came to another end publishes",
        why="the next batch begins where another attempt ended: rows are lost or doubled",
        file="execution/late_ends.py",
        old="    if planned.entry.unresolved or chosen != ends:\n",
        new="    if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="the last attempt to say where a batch ends decides",
        why="the one that has published may have ended elsewhere",
        file="checkpoint/resolutions.py",
        old="        self._store.put_if_absent(_path(key, digest), data)\n",
        new="        self._store.delete(_path(key, digest))\n"
        "        self._store.put_if_absent(_path(key, digest), data)\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a batch of another plan is resolved by what the rewound one came to",
        why="a batch that was planned anew ends where another one did",
        file="checkpoint/resolutions.py",
        old='    return f"{key.lane}/{key.id}/{digest}"\n',
        new='    return f"{key.lane}/{key.id}/resolution"\n',
        tests=(LATE,),
    ),
    Mutation(
        name="a committed batch without its end is gone on from",
        why="the next batch reads its rows again",
        file="checkpoint/lane.py",
        old="            if plan is not None and plan.unresolved:\n",
        new="            if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a batch whose end nobody knows is set aside",
        why="the next batch begins where it began, and its clear doubles the rows",
        file="execution/set_aside.py",
        old="    if planned.entry.unresolved:\n",
        new="    if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a batch whose end nobody knows is adopted",
        why="the next batch reads the adopted rows again",
        file="upkeep/commands/adopt.py",
        old="    if entry.unresolved:\n",
        new="    if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="a checkpoint whose entries lack an end is handed to Spark",
        why="Spark begins where the batch began",
        file="checkpoint/handover.py",
        old="    if late:\n",
        new="    if False:\n",
        tests=(LATE,),
    ),
    Mutation(
        name="resolutions are kept for ever",
        why="one file more for each batch",
        file="execution/retention.py",
        old="            checkpoint.resolutions.purge(key)\n",
        new="",
        tests=(LATE,),
    ),
    Mutation(
        name="an end is told before the stage is written",
        why="a source that counts what was read would tell nothing",
        file="runtime/app.py",
        old="                told[name] = {**told.get(name, {}), **tell()}\n",
        new="                told[name] = told.get(name, {})\n",
        tests=("tests/runtime/test_late_end.py",),
    ),
]
