"""Mutations of a slot of PostgreSQL as a source."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

SLOT = "tests/sources/test_slot.py"
ROWS = "tests/runtime/test_slot_rows.py"
SNAPSHOT = "tests/sources/test_slot_snapshot.py"
TABLE = "tests/sources/test_slot_table.py"

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
        old="            self._checked(server, start)\n        end = ",
        new="        end = ",
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
        file="sources/slot/copying.py",
        old="        session.execute(f\"SET TRANSACTION SNAPSHOT '{moment}'\")\n",
        new="",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="children by INHERITS are not looked for",
        why="their rows are in the snapshot, and their changes are in no batch",
        file="sources/slot/table.py",
        old="    if below and root.kind != _PARTITIONED:",
        new="    if below and root.kind != _TABLE:",
        tests=(TABLE,),
    ),
    Mutation(
        name="an old row may be told without its key",
        why="a delete has no key, and the row stays in a merged table for ever",
        file="sources/slot/table.py",
        old="    if one.identity != _FULL and not set(source.key) <= set(one.told):",
        new="    if one.identity != _FULL and not one.told:",
        tests=(TABLE,),
    ),
    Mutation(
        name="a publication of inserts alone will do",
        why="what is deleted stays in a merged table for ever",
        file="sources/slot/table.py",
        old='if lacking := [action for action in _ACTIONS if not publication[f"pub{action}"]]:',
        new='if lacking := [action for action in _ACTIONS[:1] if not publication[f"pub{action}"]]:',
        tests=(TABLE,),
    ),
    Mutation(
        name="a partition tells what its table tells",
        why="a batch stops for good at a large value that an update of a partition's row has left as it was",
        file="sources/slot/table.py",
        old="    for one in [root, *below]:\n        if",
        new="    for one in [root]:\n        if",
        tests=(TABLE,),
    ),
    Mutation(
        name="who waits for a copy locks the table",
        why="a migration and the copy wait for each other, and all who read or write the table wait for the migration",
        file="sources/slot/snapshot.py",
        old="                self._make(session)\n",
        new='                session.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")\n'
        "                self._make(session)\n",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a table that was written anew is copied as it is",
        why="its rows of before are hidden from the moment of the slot, and in no batch",
        file="sources/slot/copying.py",
        old="    if not is_as_it_was or [",
        new="    if [",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a policy hides rows from a copy",
        why="rows that the role may not see are in no batch until they are changed",
        file="sources/slot/copying.py",
        old='        session.execute("SET LOCAL row_security = off")\n',
        new="",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a slot is taken for one's own since one has made some",
        why="a slot of somebody else is dropped, with all that it held",
        file="sources/slot/snapshot.py",
        old="not any(_is_of(note, stands_at) for note in notes)",
        new="not notes",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a copy is put on record whatever has become of its slot",
        why="the position is before the slot, and the pipeline stands still for good",
        file="sources/slot/snapshot.py",
        old="if self._stands_at(session) != lsn:",
        new="if self._stands_at(session) is None:",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="columns of a snapshot are known by their places",
        why="two columns are swapped when the schema's order has changed since the copy",
        file="runtime/slot_snapshot.py",
        old='enumerate(arguments["copied"])',
        new='enumerate(name for name, _ in arguments["columns"])',
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a checkpoint says which files are opened",
        why="who can write to it has any file of the worker read into the table",
        file="sources/slot/snapshot.py",
        old="if not _is_of(note, place.lsn) or not all(",
        new="if not all(",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a slot stays whose copy has lost to another one",
        why="it holds back the log of the database, and nobody reads it",
        file="sources/slot/snapshot.py",
        old="            self._undo(session, note)\n            raise SourceError(",
        new="            raise SourceError(",
        tests=(SNAPSHOT,),
    ),
    Mutation(
        name="a lock of who makes a slot ends at once",
        why="two processes drop each other's slots, and the position is before the one that is there",
        file="sources/slot/snapshot.py",
        old="            session.execute(NO_LIMITS)\n            (is_mine,)",
        new="            session.execute(NO_LIMITS)\n            session.commit()\n"
        "            session.autocommit = True\n            (is_mine,)",
        tests=(SNAPSHOT,),
    ),
]
