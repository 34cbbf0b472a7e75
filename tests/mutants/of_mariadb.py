"""Mutations of a table of MariaDB as a source, of whose rows nobody tells which transaction wrote them."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MARIADB = "tests/sources/test_mariadb.py"
TRANSACTIONS = "tests/sources/test_mariadb_transactions.py"
READ_AGAIN = "tests/execution/test_database_read_again.py"

MUTATIONS = [
    Mutation(
        name="an old list of MariaDB's transactions is believed",
        why="who has begun since is not waited for: its rows are lost",
        file="sources/jdbc/mariadb/running.py",
        old="        if any(is_own for is_own, _, _ in listed):\n",
        new="        if True:\n",
        tests=(MARIADB,),
    ),
    Mutation(
        name="a statement of MariaDB that has written nothing yet is not waited for",
        why="what it reads for minutes and then adds has the time of its start: its rows are in no batch",
        file="sources/jdbc/mariadb/timed_table.py",
        old="        ms = min(statements_ms, running_since(self._session))",
        new="        ms = min(running_since(self._session), running_since(self._session))",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="a transaction of MariaDB that began by a clock that was ahead began just now",
        why="its number is given up while it runs",
        file="sources/jdbc/mariadb/running.py",
        old="since_ms if since_ms <= listed_ms else 0 for",
        new="since_ms for",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="nobody's transaction is waited for in MariaDB",
        why="a row whose transaction was open for long is lost",
        file="sources/jdbc/mariadb/running.py",
        old="for is_own, wrote, since in listed if wrote and not is_own]",
        new="for is_own, wrote, since in listed if is_own]",
        tests=(MARIADB,),
    ),
    Mutation(
        name="a prepared transaction of MariaDB is as young as the server",
        why="after a restart its rows are passed over, and XA COMMIT adds them to no batch",
        file="sources/jdbc/mariadb/running.py",
        old="if(trx_mysql_thread_id = 0, 0, ",
        new="if(trx_mysql_thread_id < 0, 0, ",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="a program's query of MariaDB that begins by WITH only reads",
        why="the row of a statement whose trigger reads for long by one is in no batch",
        file="sources/jdbc/mariadb/running.py",
        old="((SELECT|WITH\\b(?!.*\\b(INSERT|REPLACE|UPDATE|DELETE)\\b))\\b(?!",
        new="(WITH\\b(?!.*\\b(INSERT|REPLACE|UPDATE|DELETE)\\b)|SELECT\\b(?!",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="a temporary table of MariaDB is made of nothing that is read for long",
        why="the row of a statement whose trigger makes one is in no batch",
        file="sources/jdbc/mariadb/running.py",
        old="CREATE\\b(?!.*\\bTEMPORARY\\b)",
        new="CREATE",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="what begins in the millisecond of a plan is not waited for in MariaDB",
        why="its row is in no batch",
        file="sources/jdbc/mariadb/table.py",
        old="        return now_ms, self._running_since_ms, now_ms + 1\n",
        new="        return now_ms, self._running_since_ms, now_ms\n",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="of more gaps than can be listed in MariaDB the last ones are forgotten",
        why="their rows are in no batch",
        file="sources/jdbc/mariadb/open.py",
        old="replace(end, number=new[room].first - 1, gaps=",
        new="replace(end, gaps=",
        tests=(MARIADB,),
    ),
    Mutation(
        name="rows of MariaDB that nobody waited for are read by a batch that was planned without them",
        why="a retry has other rows than its plan, and no batch says so",
        file="sources/jdbc/mariadb/by_time.py",
        old="        if there < place.rows or (there, digest)",
        new="        if True or (there, digest)",
        tests=(MARIADB,),
    ),
    Mutation(
        name="a span of numbers ends before its last one in MariaDB",
        why="a row before each gap is lost",
        file="sources/jdbc/mariadb/spans.py",
        old='f"{first}, {last + 1}"',
        new='f"{first}, {last}"',
        tests=(MARIADB,),
    ),
    Mutation(
        name="a local time in MariaDB is read as if no clock were put back",
        why="in the hour that an autumn has twice rows are lost",
        file="sources/jdbc/mariadb/times.py",
        old="    offset = min(",
        new="    offset = max(",
        tests=(MARIADB,),
    ),
    Mutation(
        name="what clocks showed before they were put back hides that MariaDB's was put back",
        why="what is written until it is there again counts as read",
        file="sources/jdbc/mariadb/timed_table.py",
        old=" if place.by_hand and place.time > present else present\n",
        new=" if place.time > present else present\n",
        tests=(TRANSACTIONS,),
    ),
    Mutation(
        name="a late row of MariaDB makes up for one that a rewind loses",
        why="the only copy of a row that was deleted at its source is taken out, without a word",
        file="sources/jdbc/mariadb/by_time.py",
        old="            if there == self._planned_rows(end) and self._source",
        new="            if False and self._source",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="nobody says that a rewind may lose a row of MariaDB beside more late ones",
        why="the only copy of a row that was deleted at its source is taken out, without a word",
        file="sources/jdbc/mariadb/by_time.py",
        old="        if isinstance(there, str) or there < planned or ",
        new="        if isinstance(there, str) or there != planned or ",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a rewind wants the very rows of MariaDB that were planned",
        why="a row that came late gets into no batch, by whatever command",
        file="sources/jdbc/mariadb/by_time.py",
        old="            return self._lacks(there, end)\n",
        new="            return self.why_not_again(start, end)\n",
        tests=(READ_AGAIN,),
    ),
    Mutation(
        name="a position of a table is refused by what its newest batch had",
        why="the command that an error names is refused",
        file="sources/jdbc/opened.py",
        old="            self.has_new(position)\n",
        new="            return self.why_not_again(position, end)\n",
        tests=(READ_AGAIN,),
    ),
]
