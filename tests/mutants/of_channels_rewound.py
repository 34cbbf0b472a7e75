"""Mutations of what a rewind, or a clear, finds of what batches have read of channels."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

RETENTION = "tests/sources/test_kinesis_retention.py"
REWOUND = "tests/sources/test_channels_rewound.py"

MUTATIONS = [
    Mutation(
        name="a rewind looks for the last row of what it takes out",
        why="rows of the batch that retention has taken are in no table any more, and nobody knows",
        file="sources/channels/gone.py",
        old="        if isinstance(firsts, Mapping):\n",
        new="        if False:\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="of a batch that was read exactly a rewind looks for the last row alone",
        why="rows of the batch that retention has taken are in no table any more, and nobody knows",
        file="sources/channels/gone.py",
        old='before.get(channel, NEW).get("after", end[channel]["after"])',
        new='end[channel]["after"]',
        tests=(RETENTION,),
    ),
    Mutation(
        name="what a replay by an older version did not tell of its first rows is told by nobody",
        why="rows of the batch that retention has taken are in no table any more, and nobody knows",
        file="execution/committed.py",
        old="[commit.progress] if answer is None else [commit.progress, answer",
        new="[commit.progress] if answer is None else [answer",
        tests=(RETENTION,),
    ),
    Mutation(
        name="a replay looks for the row before a range",
        why="rows of a batch that is whole are said to be gone",
        file="sources/channels/open.py",
        old="told or {}, or_before=False)\n",
        new="told or {}, or_before=True)\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="whether a clear makes letters anew is told by what a source would leave out",
        why="rows of letters are taken out, and the clear that is to make them anew finds a part of what they are of",
        file="upkeep/commands/letters_out.py",
        old="lost_of(checkpoint, key, name, source, start, end) is not None):\n",
        new="source.left_out(start, end) is not None):\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="of rows that came back a rewind does not know which their first ones were",
        why="they are the only copy, are taken out, and are lost without a word",
        file="upkeep/commands/back_again.py",
        old="else lost_of_put_away(checkpoint, commit, name, source, start, end)\n",
        new="else source.left_out(start, end)\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="the commit entry that was put away does not tell what was read",
        why="rows that came back pass for the only copy where a record of a batch before is gone",
        file="upkeep/commands/lost_rows.py",
        old="entry = None if commit is None else checkpoint.put_away_commit(commit)\n",
        new="entry = None\n",
        tests=(RETENTION,),
    ),
    Mutation(
        name="a rewind does not ask channels whether the next read stops",
        why="it takes batches out of the table, and nothing comes in their place until somebody looks why",
        file="sources/channels/open.py",
        old="        if gone is None or self._source.on_data_loss == RECORD_GAP:\n",
        new="        if True:\n",
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind asks where a batch began whether the next read stops, and not where the kept one ended",
        why="it is refused, or is not, by what the next run does not ask",
        file="upkeep/commands/lost_rows.py",
        old="source.why_not_from(position(name))",
        new="source.why_not_from(None)",
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind behind which the next run stops may not skip",
        why="whoever wants to go on without what is gone has no way to",
        file="upkeep/commands/lost_rows.py",
        old="        if not allow_skip:\n",
        new="        if True:\n",
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind over rows of channels that are gone names a position behind them",
        why="it is refused, since the batch that stopped is planned; and what came after the last row may be gone, too",
        file="upkeep/commands/readable.py",
        old='stops = "" if name in entry.late else ',
        new='stops = "" if is_unknown else ',
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind over the only copy of rows does not say how far it can go",
        why="it is refused with --allow-skip, too, and nobody knows why",
        file="upkeep/commands/readable.py",
        old=" if may_be_lost else only_copy(number)\n",
        new=' if may_be_lost else ""\n',
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind goes by what the first attempt told though a replay is in the table",
        why="it is refused though all rows of the batch are there, or takes out rows that nobody can read again",
        file="upkeep/commands/lost_rows.py",
        old="else told_of(checkpoint, key, commit, name)\n",
        new="else told_of(checkpoint, key, commit, name)[:1]\n",
        tests=(REWOUND,),
    ),
    Mutation(
        name="a rewind goes by what the oldest replay told",
        why="it is refused though all rows of the batch are there, or takes out rows that nobody can read again",
        file="checkpoint/replays.py",
        old="        return max(self.answers(key), ",
        new="        return min(self.answers(key), ",
        tests=(REWOUND,),
    ),
]
