"""Mutations of what is asked of a table that somebody has put back to an earlier state."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

OVER_A_REWIND = "tests/execution/test_restore_over_a_rewind.py"
DELTA = "tests/sinks/test_delta_put_back.py"
OLDER_ROWS = "tests/execution/test_letters_beside_older_rows.py"
COLUMNS = "tests/execution/test_columns_of_batches.py"

MUTATIONS = [
    Mutation(
        name="a table whose rows tell no batch any more takes a replay",
        why="it finds no rows to replace, and doubles them",
        file="sinks/placed/logged.py",
        old="    key = next(iter(batches), None) if gone else None\n",
        new="    key = None\n",
        tests=(COLUMNS,),
    ),
    Mutation(
        name="rows of a batch that was taken out stay beside those that come in",
        why="a RESTORE to before a rewind doubles them",
        file="sinks/delta/table.py",
        old="(back := self._back(snapshot, self._from(batch.key))):\n",
        new="(back := self._back(snapshot, [])):\n",
        tests=(OVER_A_REWIND,),
    ),
    Mutation(
        name="an attempt of before a RESTORE is published beside rows of later batches that it brought back",
        why="the attempt may be made of what they are of, and the table has that twice",
        file="sinks/delta/table.py",
        old="back if back != [batch.key] else [])",
        new="[])",
        tests=(DELTA,),
    ),
    Mutation(
        name="rows of later batches that were taken out are in nobody's way",
        why="the next batch reads what they are of",
        file="sinks/delta/table.py",
        old="        elif doubled:\n",
        new="        elif False:\n",
        tests=(OVER_A_REWIND,),
    ),
    Mutation(
        name="rows of a batch that was taken out are never the only ones",
        why="the batch that was made of the same ranges went with the RESTORE, and they are lost in green",
        file="sinks/delta/table.py",
        old="        return gone_since(self._present_in(snapshot), snapshot, self._records, back)\n",
        new="        return []\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="rows are never the only ones where the log has lost when others were published",
        why="what was made of the same ranges went with a RESTORE that the log has lost, and they are lost in green",
        file="sinks/delta/present.py",
        old="        if since is None and history.first_out(back) is None:\n",
        new="        if False:\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a RESTORE to a moment takes nothing away",
        why="it does not tell how far it went back, and the only rows are lost in green",
        file="sinks/delta/present.py",
        old="        return history.to_a_moment(floor) if away is None else away.by\n",
        new="        return None if away is None else away.by\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a batch of before a rewind may be made of what that took out",
        why="one that was put away on purpose, long before, stops the pipeline, and no way on is told",
        file="sinks/delta/present.py",
        old="and version < first\n",
        new="and False\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="a publish asks the log of each batch that was taken out",
        why="others commit first, again and again, and the batch fails after a minute",
        file="sinks/delta/come_back.py",
        old="    there = (key for key in keys if present.may_have(key))\n",
        new="    there = keys\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="the command that takes rows out is for whatever the table has then",
        why="typed after a batch has come in under that number it takes out the good rows, and all is green",
        file="sinks/delta/come_back.py",
        old="{home.in_python(snapshot.version)}",
        new="{home.in_python()}",
        tests=(DELTA,),
    ),
    Mutation(
        name="the commit that takes rows out as it was told counts as another's",
        why="nobody tells any more of the rows that went with the RESTORE before",
        file="sinks/delta/come_back.py",
        old='    told = {"microbatch": ',
        new='    told = {"other": ',
        tests=(OVER_A_REWIND,),
    ),
    Mutation(
        name="rows go as a batch comes in though a number before theirs was passed over",
        why="no batch reads what they are of, and they are lost in green",
        file="sinks/delta/come_back.py",
        old="if snapshot.is_taken_out(key) and present.away_by(",
        new="if False and present.away_by(",
        tests=(DELTA,),
    ),
    Mutation(
        name="a batch whose rows nobody has counted had none",
        why="rows of before are taken out as if others were there, and they are lost in green",
        file="sinks/delta/come_back.py",
        old="            if rows_written(manifest) != 0 and",
        new="            if rows_written(manifest) and",
        tests=(DELTA,),
    ),
    Mutation(
        name="a batch that was taken out is there by the statistics of a file that others share",
        why="no run plans, and nothing that a person could take out is there",
        file="sinks/delta/come_back.py",
        old="    return those_in(snapshot, home, [key for key in there if snapshot.is_taken_out(key)])\n",
        new="    return [key for key in there if snapshot.is_taken_out(key)]\n",
        tests=(DELTA,),
    ),
    Mutation(
        name="dead letters are run again beside rows of an attempt before theirs",
        why="a table that was put back has some of them as rows, and gets them twice",
        file="execution/dead_letters.py",
        old="            is_older = found.epoch < epoch\n",
        new="            is_older = False\n",
        tests=(OLDER_ROWS,),
    ),
    Mutation(
        name="a Delta table that a RESTORE has put back has the rows that its log names",
        why="dead letters are rows there, and run again they are there twice",
        file="sinks/delta/table.py",
        old="            return None if snapshot is None else self._put_back(snapshot, batch.key, found)\n",
        new="            return None\n",
        tests=(OLDER_ROWS,),
    ),
    Mutation(
        name="a rows' table that was moved is not asked beside its letters",
        why="a backup of it, at its new place, gets letters twice that are rows there",
        file="execution/dead_letters.py",
        old="                    if self._open(table).is_table_of(wrote, self._checkpoint.tables):\n",
        new="                    if False:\n",
        tests=(OLDER_ROWS,),
    ),
    Mutation(
        name="a rows' table that was rolled back counts as away",
        why="dead letters are rows there, and run again they are there twice",
        file="execution/dead_letters.py",
        old="            except RolledBackError:\n                raise\n",
        new="            except RolledBackError:\n                continue\n",
        tests=(OLDER_ROWS,),
    ),
]
