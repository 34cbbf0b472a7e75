"""Mutations of a table of PostgreSQL as a source, by transactions; and of the lag that sources tell."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

JDBC = "tests/sources/test_jdbc.py"
BY_TIME = "tests/sources/test_jdbc_by_time.py"
LAG = "tests/execution/test_lag.py"

MUTATIONS = [
    Mutation(
        name="marks that are joined are waited for as long as the first of them",
        why="of many gaps a row whose transaction is slow is lost",
        file="sources/jdbc/sparse.py",
        old="seen_ms=pair[-1].seen_ms, xmax=pair[-1].xmax)",
        new="seen_ms=pair[0].seen_ms, xmax=pair[0].xmax)",
        tests=(JDBC,),
    ),
    Mutation(
        name="beyond the gaps that are listed nobody is waited for",
        why="of a column with many gaps, what is committed late is lost",
        file="sources/jdbc/open.py",
        old="        while marks and marks[0].xmax <= xmin and ",
        new="        while marks and ",
        tests=(JDBC,),
    ),
    Mutation(
        name="a range of a column with many gaps has what was committed after its plan",
        why="a replay has rows of a later batch too: they are doubled",
        file="sources/jdbc/offset.py",
        old='return [f"({one}) AND {self.sparse.seen}" if replayed else f"({one})" for one in found]',
        new="return found",
        tests=(JDBC,),
    ),
    Mutation(
        name="a source that does not tell its lag fails the batch",
        why="a batch that is in the table is not committed for want of a figure",
        file="execution/opened_sources.py",
        old='            except Exception as error:\n                log.info("source %s does not tell its lag',
        new='            except KeyError as error:\n                log.info("source %s does not tell its lag',
        tests=(LAG,),
    ),
    Mutation(
        name="a snapshot's own list tells which rows of a table could be seen",
        why="rows of subtransactions that were running are taken for read, and are lost",
        file="sources/jdbc/transactions.py",
        old="    asked = sorted({*before, *range(first_unknown, below)})\n",
        new="    asked = sorted(range(first_unknown, below))\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="what ended while a batch was planned is taken for running",
        why="its rows are in the batch and in the next one",
        file="sources/jdbc/transactions.py",
        old="    return [one for one in asked if one not in seen]\n",
        new="    return asked\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a transaction that runs longer than the window is not waited for",
        why="its rows are lost, although it was seen to run",
        file="sources/jdbc/timed_table.py",
        old="            begin = since if before is None else before.since\n",
        new="            begin = since\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="rows behind the latest timestamp are not looked for",
        why="what is committed late is lost",
        file="sources/jdbc/by_time.py",
        old="        late = table.count(ranges.late(begin, since))\n",
        new="        late = 0\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a sensor does not see rows that are late",
        why="a batch that has only such is never made",
        file="sources/jdbc/by_time.py",
        old=", ranges.late(place, self._since(table, place)))\n\n    def latest",
        new=', "false")\n\n    def latest',
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a range of time has what was committed after its plan",
        why="a replay has rows of a later batch too: they are doubled",
        file="sources/jdbc/ranges_by_time.py",
        old='        visible = f" AND {self.seen(end)}" if replayed else ""\n',
        new='        visible = ""\n',
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a row of the future is read when it comes",
        why="what is written until then lies behind it and is lost",
        file="sources/jdbc/ranges_by_time.py",
        old=' AND {self.time} <= {now}"\n',
        new='"\n',
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a table that was written anew has its old transactions",
        why="all rows of the window are read twice",
        file="sources/jdbc/by_time.py",
        old="        if table.any(ranges.late(place, since)) and not table.any(seen):\n",
        new="        if False:\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="a database that went back in time is read on",
        why="rows of its new transactions are taken for read, and are lost",
        file="sources/jdbc/by_time.py",
        old="        if table.below() < place.below:\n",
        new="        if False:\n",
        tests=(BY_TIME,),
    ),
    Mutation(
        name="what stands in a place of a table goes into a statement",
        why="who writes the checkpoint writes SQL",
        file="sources/jdbc/moment.py",
        old="    if not isinstance(value, str) or not _TIME.fullmatch(value):\n",
        new="    if not isinstance(value, str):\n",
        tests=(BY_TIME,),
    ),
]
