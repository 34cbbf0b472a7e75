"""Mutations of the sink of Iceberg."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SINK = "tests/sinks/test_iceberg_sink.py"

MUTATIONS = [
    Mutation(
        name="a commit is tried again on top of what others have committed",
        why="two attempts at one batch both append",
        file="sinks/iceberg/log.py",
        old='{**table.metadata.properties, _NO_RETRY: "0"}',
        new="{**table.metadata.properties}",
        tests=(SINK,),
    ),
    Mutation(
        name="files are removed that a commit on its way may name",
        why="the table names files that are gone",
        file="sinks/iceberg/opened.py",
        old="if look is None or self._log.pass_by(look):",
        new="if True:",
        tests=(SINK,),
    ),
    Mutation(
        name="an expired snapshot counts as a rollback",
        why="a table whose snapshots expire stands still",
        file="sinks/iceberg/log.py",
        old="        return None if is_expired else",
        new="        return None if False else",
        tests=(SINK,),
    ),
    Mutation(
        name="a table that is gone is made anew",
        why="all rows of before are missing, and nothing says so",
        file="sinks/iceberg/log.py",
        old="            if known is not None:\n",
        new="            if False:\n",
        tests=(SINK,),
    ),
    Mutation(
        name="a replay adds its rows beside the old ones",
        why="rows are there twice",
        file="sinks/iceberg/opened.py",
        old="                if found is not None:\n                    self._settle(found)\n",
        new="                if False:\n                    self._settle(found)\n",
        tests=(SINK,),
    ),
    Mutation(
        name="rows that others took away while a batch is replaced go unsaid",
        why="an overwrite is undone without a word",
        file="sinks/iceberg/opened.py",
        old="if before is not None and removal.rows < before[1]:",
        new="if False:",
        tests=(SINK,),
    ),
    Mutation(
        name="a page of the ledger is taken as it is",
        why="whoever writes in the table's folder says what is in",
        file="sinks/iceberg/ledger.py",
        old="if hashlib.sha256(data).hexdigest() != page:",
        new="if False:",
        tests=(SINK,),
    ),
    Mutation(
        name="a lost answer of the catalog is an error",
        why="the batch is in, and its task fails",
        file="sinks/iceberg/opened.py",
        old='            log.warning("%s. It is looked for in the table.", error)\n            return False',
        new="            raise",
        tests=(SINK,),
    ),
    Mutation(
        name="messages have the catalog's password",
        why="it stands in a task's log",
        file="iceberg_catalog.py",
        old='            text = text.replace(secret, "***")',
        new="            pass",
        tests=(SINK,),
    ),
    Mutation(
        name="a snapshot that is no batch's hides a rollback of before",
        why="batches count as in whose rows are gone",
        file="sinks/iceberg/log.py",
        old='{metadata.next_sequence_number()}"} if told else {}',
        new='{metadata.next_sequence_number()}"}',
        tests=(SINK,),
    ),
    Mutation(
        name="a rollback is not noticed",
        why="batches count as in whose rows are gone",
        file="sinks/iceberg/log.py",
        old="            if (snapshot.sequence_number or 0) < sequence:",
        new="            if False:",
        tests=(SINK,),
    ),
    Mutation(
        name="a replay takes rows of nobody along",
        why="rows that others have written are gone",
        file="sinks/iceberg/removing.py",
        old="        Or(IsNull(term=lane), IsNull(term=number)),\n",
        new="        NotEqualTo(term=lane, value=literal(key.lane)),\n",
        tests=(SINK,),
    ),
    Mutation(
        name="of a rollback no batch is thought to be gone",
        why="check finds nothing, and a batch whose rows were rolled away counts as in the table",
        file="sinks/iceberg/opened.py",
        old="            if away is None or str(batch.key) in away:\n",
        new="            if away is not None and not away:\n",
        tests=("tests/sinks/test_iceberg_sink.py",),
    ),
    Mutation(
        name="a batch whose snapshot has expired was not rolled away",
        why="check finds nothing, and a batch whose rows were rolled away counts as in the table",
        file="sinks/iceberg/log.py",
        old="            if snapshot is None or snapshot.summary is None:\n                return None\n",
        new="            if snapshot is None or snapshot.summary is None:\n                return list(found)\n",
        tests=("tests/sinks/test_iceberg_sink.py",),
    ),
]
