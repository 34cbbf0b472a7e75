"""Mutations of a slot of PostgreSQL as a source."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SLOT = "tests/sources/test_slot.py"
ROWS = "tests/runtime/test_slot_rows.py"
SERVERS = "tests/sources/test_slot_servers.py"
BATCHES = "tests/runtime/test_slot_batches.py"
TEXTS = "tests/runtime/test_pg_texts.py"
SNAPSHOT = "tests/sources/test_slot_snapshot.py"

MUTATIONS = [
    Mutation(
        name="a slot is moved on over what is set aside",
        why="a batch that is set aside can never be made",
        file="sources/slot/open.py",
        old="                to = min(to, begin)\n",
        new="                to = max(to, begin)\n",
        tests=(SLOT,),
    ),
    Mutation(
        name="a slot is not looked at once more when a batch is planned",
        why="what another pipeline lets go of meanwhile is in no batch, and nobody notices",
        file="sources/slot/open.py",
        old="            self._checked(server, start)\n        if not",
        new="        if not",
        tests=(SLOT,),
    ),
    Mutation(
        name="a slot is moved on without a look at who has come meanwhile",
        why="a command takes back batches whose changes are gone a moment later",
        file="sources/slot/open.py",
        old="            if self._let_go(moved_to) < to:\n",
        new="            if self._let_go(moved_to) > to:\n",
        tests=(SLOT,),
    ),
    Mutation(
        name="changes of a slot are not counted when they are read",
        why="a batch is published with fewer changes than were planned",
        file="runtime/slot.py",
        old='    if found.changes != arguments["changes"]:',
        new='    if found.changes > arguments["changes"]:',
        tests=(SLOT,),
    ),
    Mutation(
        name="a row that moves to another key is an update",
        why="a merged table keeps the row under its old key for ever",
        file="runtime/slot_rows.py",
        old="            if old is not None and form.key(old) != form.key(new):",
        new="            if old is not None and not form.key(old):",
        tests=(ROWS,),
    ),
    Mutation(
        name="a snapshot is of whenever its rows are copied",
        why="what is committed between the slot and the copy is in both",
        file="sources/slot/snapshot.py",
        old="            cursor.execute(f\"SET TRANSACTION SNAPSHOT '{snapshot}'\")\n",
        new="",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a position inside of a commit record has its transaction behind it",
        why="a batch is planned with changes that no read gives, and stops the pipeline",
        file="sources/slot/open.py",
        old="                    if one.lsn < begin or not one.changes:",
        new="                    if one.end <= begin or not one.changes:",
        tests=(SLOT,),
    ),
    Mutation(
        name="a transaction of other tables is a batch",
        why="each of them starts a job of Spark's without rows",
        file="sources/slot/open.py",
        old="one.lsn < begin or not one.changes:",
        new="one.lsn < begin:",
        tests=(SLOT,),
    ),
    Mutation(
        name="transactions of other tables end a look",
        why="changes behind many of them are never seen",
        file="sources/slot/server.py",
        old="            if most is None or messages < most:",
        new="            if most is None or messages:",
        tests=(SLOT,),
    ),
    Mutation(
        name="the transaction that was read last is not looked for",
        why="what a restored database has committed meanwhile is passed over in silence",
        file="sources/slot/open.py",
        old="        if not is_known:",
        new="        if is_known is None:",
        tests=(SERVERS,),
    ),
    Mutation(
        name="another server's smaller places are offered as a way on",
        why="a merge drops each change that comes then, and the batches are green",
        file="sources/slot/open.py",
        old="            way_on = lower if state.moved_to < position.lsn else anew",
        new="            way_on = anew",
        tests=(SERVERS,),
    ),
    Mutation(
        name="a batch of Arrow's is bounded by rows alone",
        why="2,000 rows of a megabyte are more than an array of texts takes, and the batch fails at each retry",
        file="runtime/slot.py",
        old="len(chunk) >= _AT_ONCE or size >= _BYTES_AT_ONCE:",
        new="len(chunk) >= _AT_ONCE:",
        tests=(BATCHES,),
    ),
    Mutation(
        name="a note of another server's place counts for this one",
        why="a process that died has every batch refused once the database has moved, and no command leads out",
        file="sources/slot/letting_go.py",
        old="        return is_same and self.lsn <= written_to",
        new="        return self.lsn <= written_to",
        tests=(SERVERS,),
    ),
    Mutation(
        name="a note of a place beyond the log's end counts",
        why="a process that died has every batch refused once the database was restored, and no command leads out",
        file="sources/slot/letting_go.py",
        old="        return is_same and self.lsn <= written_to",
        new="        return is_same",
        tests=(SERVERS,),
    ),
    Mutation(
        name="a publication that was made again is PostgreSQL's own error",
        why="every look fails, and nothing says how to go on",
        file="runtime/slot.py",
        old='            if "output plugin" not in (error.diag.context or ""):',
        new='            if "output plugin" in (error.diag.context or ""):',
        tests=(SLOT,),
    ),
    Mutation(
        name="zeros behind a number count against its scale",
        why="a numeric without a scale stops the batch for good, though its values fit",
        file="runtime/pg_texts.py",
        old='Decimal(text.rstrip("0") if "." in text else text)',
        new="Decimal(text)",
        tests=(TEXTS,),
    ),
    Mutation(
        name="zeros before the point are dropped too",
        why="1,200 becomes 12 in the table",
        file="runtime/pg_texts.py",
        old='Decimal(text.rstrip("0") if "." in text else text)',
        new='Decimal(text.rstrip("0") or "0")',
        tests=(TEXTS,),
    ),
    Mutation(
        name="the lag of a slot hides what it has the server keep",
        why="a batch that is set aside fills the server's disk, and the lag that is watched is 0",
        file="sources/slot/open.py",
        old='"kept_bytes": state.written_to - state.kept_from}',
        new='"kept_bytes": max(0, behind)}',
        tests=(SLOT,),
    ),
    Mutation(
        name="a key with a password is no matter of the check",
        why="batches are planned that no executor can read",
        file="sources/slot/server.py",
        old='    if connection.extra.get("sslpassword"):',
        new='    if connection.extra.get("sslpasswords"):',
        tests=(SERVERS,),
    ),
]
