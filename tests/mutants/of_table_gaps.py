"""Mutations of what is told of batches that a table has lost and that no log knows any more."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LIVES = "tests/execution/test_two_lives.py"
LOST = "tests/execution/test_lost_in_table.py"
SINCE = "tests/execution/test_lost_since_a_change.py"

MUTATIONS = [
    Mutation(
        name="the oldest batch that is kept comes back on top of what no log knows any more",
        why="the table knows the newest batch then, and nobody ever misses what retention had removed",
        file="execution/table_place.py",
        old="            _check_no_gap(checkpoint, table, newest, beside=sink)\n",
        new="            pass\n",
        tests=(LOST,),
    ),
    Mutation(
        name="what no log knows any more is not told from what a clear brings back",
        why="the clears and the rewind that the error names bring back a part of it, in green",
        file="execution/table_place.py",
        old="    if gap is not None and gap.were_here:\n        raise",
        new="    if False:\n        raise",
        tests=(LOST,),
    ),
    Mutation(
        name="what another table had is a gap of this one",
        why="clears of all that it has lost are refused for good, and the pipeline stands still",
        file="execution/table_gap.py",
        old="were_here=had)",
        new="were_here=True)",
        tests=(SINCE,),
    ),
    Mutation(
        name="a table that a clear has filled passes for one that had those before",
        why="once it is made anew each clear of all that it ever had is refused, and the pipeline stands still",
        file="execution/published_to.py",
        old="    first = published_epochs(checkpoint, key)[-1:]\n",
        new="    first = published_epochs(checkpoint, key)[:1]\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="nobody misses in a table what it has lost while the pipeline left it out",
        why="the newest batch is in another table alone, and the next one hides that those before are gone",
        file="execution/table_place.py",
        old="        return earlier is not None and _check_knows(checkpoint, table, earlier, beside=beside)\n",
        new="        return False\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="nobody misses in a table what it has lost of adopted output",
        why="no attempt tells that it was there: the next batch hides that it is gone, or has its rows once more",
        file="execution/published_to.py",
        old="else tables_in(adoption.sink, beside=beside)\n",
        new="else tables_in(None, beside=beside)\n",
        tests=(LIVES,),
    ),
    Mutation(
        name="nor is that told where the oldest batch was set aside before the clear",
        why="its only publication is the clear's, which filled a table that had none before",
        file="execution/table_gap.py",
        old="            if commit is None or commit.set_aside is not by_clears:\n",
        new="            if commit is None:\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="a table that has the oldest batch of the log has a gap before it",
        why="what it never had is said to be lost for good, and nothing but a new checkpoint to be left",
        file="execution/table_gap.py",
        old="    below = None if table.definition.remembers_batches else oldest\n",
        new="    below = oldest\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="files that somebody has removed are looked for behind the newest that is there",
        why="check does not name those that retention has forgotten",
        file="execution/table_gap.py",
        old="    below = None if table.definition.remembers_batches else oldest\n",
        new="    below = None\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="what a streaming query had published is a gap of the pipeline's table",
        why="clears of all that the table has lost are refused for good, and the pipeline stands still",
        file="execution/table_gap.py",
        old="                return None\n",
        new="                continue\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="check does not look behind what retention has kept",
        why="it names the batches that a clear brings back, and nobody hears of the others",
        file="upkeep/table_check.py",
        old="        if gap is None:\n            return\n        tidied",
        new="        if True:\n            return\n        tidied",
        tests=(LOST,),
    ),
    Mutation(
        name="a run does not say that nobody can tell what was before another table's batches",
        why="the clears that it names bring back the rest, and nobody hears of what the table had before",
        file="execution/table_place.py",
        old='    untold = "" if gap is None else',
        new='    untold = "" if True else',
        tests=(SINCE,),
    ),
    Mutation(
        name="check looks behind what retention has kept at the lane's oldest batch alone",
        why="that went to another table, and nobody hears of what this one had before",
        file="upkeep/table_check.py",
        old="        if not had(key=key) or any(had(key=one) for one in before):\n",
        new="        if any(before):\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="the oldest that is kept fills a gap in a table that the newest batch was not published to",
        why="the pipeline left it out when it was put back: nobody misses what lies before",
        file="execution/table_place.py",
        old="            had = newest_published_to(checkpoint, key, table, beside=beside)\n",
        new="            had = None\n",
        tests=(SINCE,),
    ),
    Mutation(
        name="a table that was left out for an interval is asked for nothing before that",
        why="what it had lost of the intervals before stays lost, in green",
        file="execution/table_place.py",
        old="            if _check_knows(checkpoint, table, found, beside=sink):\n",
        new="            if _check_knows(checkpoint, table, found, beside=sink) or True:\n",
        tests=(SINCE,),
    ),
]
