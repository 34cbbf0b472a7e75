"""Mutations of what is done about numbers that a sequence has yet to give, of a table that is read by them."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

JDBC = "tests/sources/test_jdbc.py"
GAPS = "tests/sources/test_jdbc_gaps.py"
AGAIN = "tests/execution/test_database_read_again.py"

MUTATIONS = [
    Mutation(
        name="what a sequence says that setval has put back is unknown",
        why="a row ahead of it gives up the numbers that it gives from now on",
        file="sources/jdbc/table.py",
        old="            return None if is_called or following == start else int(following) - 1\n",
        new="            return None\n",
        tests=(JDBC,),
    ),
    Mutation(
        name="a number that was not taken is, once its sequence cannot be asked",
        why="it is given up before the sequence gives it",
        file="sources/jdbc/offset.py",
        old="        if given is None and gap.xmax == NOT_TAKEN and not is_new:\n",
        new="        if False:\n",
        tests=(JDBC,),
    ),
    Mutation(
        name="a way on gives up what no transaction of another database has taken",
        why="once the sequence gives it, its row is lost while its transaction is at work",
        file="sources/jdbc/numbered.py",
        old="            is_past = gap.xmax != NOT_TAKEN and then is not None",
        new="            is_past = then is not None",
        tests=(GAPS,),
    ),
    Mutation(
        name="a way on has no gap that ends behind it",
        why="what no transaction had taken is lost once it is given",
        file="sources/jdbc/numbered.py",
        old="            if gap.first <= number:\n",
        new="            if gap.last <= number:\n",
        tests=(GAPS,),
    ),
    Mutation(
        name="a way on in a column with many gaps waits for nothing",
        why="what the sequence has yet to give is lost",
        file="sources/jdbc/open.py",
        old="        if not is_all:\n",
        new="        if False:\n",
        tests=(GAPS,),
    ),
    Mutation(
        name="a way on in a column with many gaps takes each row that is there for one that was read",
        why="what the sequence gave between the last batch and the error is lost",
        file="sources/jdbc/open.py",
        old='        seen = sparse.seen if is_told else "true"\n',
        new='        seen = "true"\n',
        tests=(GAPS,),
    ),
    Mutation(
        name="a way on names some of the gaps that a position cannot list",
        why="what the sequence gives of the others is lost",
        file="sources/jdbc/open.py",
        old="        if len(gaps) > MOST_GAPS:\n            return (\n",
        new="        if False:\n            return (\n",
        tests=(GAPS,),
    ),
    Mutation(
        name="a plan does not tell that a sequence fills its column no more",
        why="each look asks for more rows, and updated ones are doubled, in green",
        file="sources/jdbc/open.py",
        old="        if end != start and (why := ",
        new="        if False and (why := ",
        tests=(AGAIN,),
    ),
    Mutation(
        name="check does not tell that a sequence fills its column no more",
        why="nobody who reads no task's log learns why plans become slow",
        file="upkeep/source_check.py",
        old="    return [*found, *_waits(checkpoint, source, name)]\n",
        new="    return found\n",
        tests=(AGAIN,),
    ),
    Mutation(
        name="one row ahead of the sequence is told as a sequence that fills its column no more",
        why="a check that is red for nothing is not looked at",
        file="sources/jdbc/open.py",
        old="if not missed or max(missed) - min(missed) < AHEAD_MS:",
        new="if not missed:",
        tests=(AGAIN,),
    ),
    Mutation(
        name="a table whose sequence was taken from its column counts as one that nothing was read of",
        why="a position before the one that was read doubles rows without leave",
        file="sources/jdbc/numbered.py",
        old="then.sequence == now.sequence or None in (then.sequence, now.sequence)",
        new="then.sequence == now.sequence",
        tests=(AGAIN,),
    ),
    Mutation(
        name="without a sequence a number that it was yet to give is waited for without an end",
        why="no step that is told ends the wait",
        file="sources/jdbc/numbered.py",
        old="    return last if given is None and table.identity().sequence is None else given\n",
        new="    return given\n",
        tests=(AGAIN,),
    ),
    Mutation(
        name="without a sequence a way on in a column with many gaps is not named",
        why="what is told for a sequence that counts blocks leads to no command",
        file="sources/jdbc/open.py",
        old="            yet = [] if table.identity().sequence is None else [",
        new="            yet = [",
        tests=(AGAIN,),
    ),
    Mutation(
        name="of two positions of the same number nobody knows which lies after the other",
        why="who gives up to wait for a number is asked to have rows come twice",
        file="sources/jdbc/offset.py",
        old="        return not more\n",
        new="        return None\n",
        tests=(GAPS,),
    ),
    Mutation(
        name="a position that waits for other numbers lies after the one of the same number",
        why="rows come twice without leave",
        file="sources/jdbc/offset.py",
        old="        if (more and less) or self.sparse",
        new="        if self.sparse",
        tests=(GAPS,),
    ),
    Mutation(
        name="the setval that is told has the table's name as it was written",
        why="PostgreSQL takes its upper case for lower case",
        file="sources/jdbc/open.py",
        old='            f"{literal(quoted(name))}, {literal(column)}), N), ',
        new='            f"{literal(name)}, {literal(column)}), N), ',
        tests=(GAPS,),
    ),
]
