"""Mutations of data intervals of a table of a database: what one lane took no other lane reads."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

LANES = "tests/sources/test_jdbc_intervals.py"
KEPT = "tests/sources/test_jdbc_lanes.py"
RUNS = "tests/execution/test_intervals_of_tables.py"
INTERVALS = "tests/execution/test_interval_mode.py"

MUTATIONS = [
    Mutation(
        name="the live lane claims nothing of a table that it plans",
        why="an interval that looks at the same time has its rows too",
        file="sources/jdbc/timed.py",
        old="            if self._taken.claim(found, begin, end, log=() if found.live else self._log()):\n",
        new="            if True:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="an interval of a table is planned whatever others have taken meanwhile",
        why="both have the rows that they saw at the same time",
        file="sources/jdbc/taken.py",
        old="version=found.version) is not None\n",
        new='version=found.version) != ""\n',
        tests=(LANES,),
    ),
    Mutation(
        name="an interval of a table has what the live lane has",
        why="a backfill doubles what live batches have read",
        file="sources/jdbc/intervals.py",
        old="    had += [Had(after=one.after, end=_bare(one.end)) for one in live]\n",
        new="",
        tests=(LANES,),
    ),
    Mutation(
        name="an interval of a table has what another interval has",
        why="what is late is read by each interval that looks back",
        file="sources/jdbc/intervals.py",
        old="        part = common(left, one.spans)\n",
        new="        part = ()\n",
        tests=(LANES,),
    ),
    Mutation(
        name="of a time the first interval tells what is taken of it",
        why="what is late is read by each later interval that looks back",
        file="sources/jdbc/intervals.py",
        old="in reversed(found.intervals):\n",
        new="in found.intervals:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a live range of a table has what intervals took before",
        why="a backfill is doubled by the live batches that come",
        file="sources/jdbc/ranges_by_time.py",
        old="        return ahead + self._but(self.intervals, start.time, None)\n",
        new="        return ahead\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a live range of MariaDB has what intervals took before",
        why="a backfill is doubled by the live batches that come",
        file="sources/jdbc/mariadb/timed_table.py",
        old="self._but(planned_before(end, self.intervals), start.time, end.time)\n",
        new='""\n',
        tests=(LANES,),
    ),
    Mutation(
        name="an interval of MariaDB has rows behind which others may be committed",
        why="those are in no batch",
        file="sources/jdbc/timed.py",
        old="        readable = wanted if until is None else common(wanted, [(wanted[0][0], until)])\n",
        new="        readable = wanted\n",
        tests=(LANES,),
    ),
    Mutation(
        name="an interval is planned while its source waits",
        why="what is committed next is in no batch",
        file="execution/backfill.py",
        old="        return next((survey.waits for survey in surveys if survey.waits is not None), None)\n",
        new="        return None\n",
        tests=(INTERVALS,),
    ),
    Mutation(
        name="an interval that was settled is cut to what may be read when it is planned",
        why="a transaction that wrote behind the survey has its rows in no batch, and the run is green",
        file="sources/jdbc/timed.py",
        old="        waits = self._waits(table, interval, until) if interval.whole else None\n",
        new="        waits = None\n",
        tests=(KEPT,),
    ),
    Mutation(
        name="a source is not told that no live lane reads what comes behind an interval",
        why="it takes a part of the interval, and the rest is nobody's",
        file="execution/backfill.py",
        old="late=late, whole=self._pipeline.plan == INTERVAL)\n",
        new="late=late)\n",
        tests=(INTERVALS,),
    ),
    Mutation(
        name="of an interval in which clocks are put back the times are those of its ends",
        why="rows of the hour that an autumn has twice are in no interval",
        file="sources/jdbc/timed_table.py",
        old="least(a + moved, b - tick)",
        new="least(a, b - tick)",
        tests=(LANES,),
    ),
    Mutation(
        name="of an interval of MariaDB in which clocks are put back the times are those of its ends",
        why="rows of the hour that an autumn has twice are in no interval",
        file="sources/jdbc/mariadb/times.py",
        old="    return min(firsts), max(lasts)\n",
        new="    return firsts[0], lasts[0]\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a table that was made again has what lanes took of the one before",
        why="which of its rows were read nobody knows, and they are lost or doubled",
        file="sources/jdbc/timed.py",
        old="            if other is not None and other.made is not None:\n",
        new="            if other is not None and other.made is None:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="a table that was written anew has its old transactions for intervals",
        why="all rows that a later interval looks back at are read twice",
        file="sources/jdbc/by_time.py",
        old='            if table.any(f"{unseen} AND {asked}") and not table.any(seen):\n',
        new="            if False:\n",
        tests=(LANES,),
    ),
    Mutation(
        name="what lies before a position by hand is the live lane's",
        why="a live pipeline that begins today can never be backfilled",
        file="sources/jdbc/taken.py",
        old="Had(after=begin if begin.by_hand else after, end=end)",
        new="Had(after=after, end=end)",
        tests=(LANES,),
    ),
    Mutation(
        name="nobody tells of rows of a table that are late for their interval",
        why="every run is green, and they are in no table",
        file="sources/jdbc/intervals.py",
        old="    passed = table.unread(left_of(before)) if before else None\n",
        new="    passed = None\n",
        tests=(RUNS,),
    ),
    Mutation(
        name="a table that is read by numbers may be planned by intervals",
        why="each run fails, where the pipeline is not refused",
        file="sources/jdbc/__init__.py",
        old="        if self.timestamp is not None:\n            return None\n        return (\n",
        new="        return None\n        return (\n",
        tests=("tests/sources/test_jdbc_taken.py",),
    ),
]
