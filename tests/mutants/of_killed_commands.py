"""Mutations of what a person does after a command was killed, or a checkpoint restored: of what is printed, and what is
refused."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

KILLED = "tests/execution/test_commands_killed.py"
TWO_LIVES = "tests/execution/test_two_lives.py"
LOST_ROWS = "tests/postgres/test_lost_rows.py"
STATE = "tests/state/test_commands.py"

MUTATIONS = [
    Mutation(
        name="a killed command is named only by the same one, which has finished it",
        why="nobody learns that its batches are out of the table",
        file="cli/maintaining.py",
        old="    if finished is not None and not arguments.json:\n",
        new="    if finished is not None and not arguments.json and finished.command == command:\n",
        tests=("tests/cli/test_maintenance.py",),
    ),
    Mutation(
        name="a killed export writes into its copy whatever its record says",
        why="whoever can write the checkpoint has the next export write a file of his elsewhere",
        file="upkeep/commands/stored_steps.py",
        old="    if not are_entries or (changed and not step.hand_over):\n",
        new="    if False:\n",
        tests=("tests/cli/test_hostile_record.py",),
    ),
    Mutation(
        name="an export that has finished what it had begun is planned again",
        why="it is refused, since its copy is there: who types it again is told that it failed",
        file="cli/maintaining.py",
        old="    is_done = once and finished is not None and finished.command == command\n",
        new="    is_done = False\n",
        tests=(KILLED,),
    ),
    Mutation(
        name="a copy that was killed is said to be finished by a repair",
        why="it is refused, and who follows check stands where he was",
        file="checkpoint/maintenance.py",
        old="(--drop-output), or copies the checkpoint (copy, export, import), ",
        new="(--drop-output), ",
        tests=(KILLED,),
    ),
    Mutation(
        name="a copy that slept removes what another has opened the new place with",
        why="an entry of the log that the pipeline goes on from is gone",
        file="upkeep/commands/moving.py",
        old="                if _came_late(store, target, path, data):\n                    target",
        new="                if True:\n                    target",
        tests=("tests/execution/test_copy.py",),
    ),
    Mutation(
        name="a batch is made again beside one of another life",
        why="the rows of both are in the table twice",
        file="execution/replay.py",
        old="    check_of_this_life(checkpoint, sink, key)\n    check_none_lost",
        new="    check_none_lost",
        tests=(TWO_LIVES,),
    ),
    Mutation(
        name="check has what another life's batch may hold made again",
        why="who follows it is refused, and does not know why",
        file="upkeep/table_check.py",
        old="        if other is not None:\n",
        new="        if False:\n",
        tests=(TWO_LIVES,),
    ),
    Mutation(
        name="check has a batch made again in whose place another life's is",
        why="who follows it is refused",
        file="upkeep/table_check.py",
        old="    if isinstance(told, (ForeignBatchError, RolledBackError)):\n",
        new="    if False:\n",
        tests=(TWO_LIVES,),
    ),
    Mutation(
        name="a batch is published beside its rows whose record was removed",
        why="its rows are in the table twice",
        file="sinks/postgres/open.py",
        old="        elif (left := rows.unrecorded(batch.key)) is not None:\n",
        new="        elif (left := None) is not None:\n",
        tests=(LOST_ROWS,),
    ),
    Mutation(
        name="a position is set where batches keep state",
        why="the next batch has nothing to go on from",
        file="upkeep/commands/set_offset.py",
        old="    check_stateless(checkpoint, recorded)\n",
        new="",
        tests=(STATE,),
    ),
    Mutation(
        name="a stateful checkpoint counts on behind a table",
        why="the next batch has nothing to go on from",
        file="upkeep/commands/start_behind.py",
        old="    check_stateless(checkpoint, recorded)\n",
        new="",
        tests=(STATE,),
    ),
    Mutation(
        name="a batch that was set by hand is said to be of before the state",
        why="the way on that is named is a new table, where a rewind is enough",
        file="execution/stateful.py",
        old="    if state is None and is_position(load_batch(checkpoint, before).entry):\n",
        new="    if False:\n",
        tests=(STATE,),
    ),
    Mutation(
        name="a position is set over what the table has and no log knows",
        why="its rows are read again, and are in the table twice",
        file="upkeep/commands/set_offset.py",
        old="        _check_tables(drafting, recorded, BatchKey(lane, position.batch_id), allow_reread=allow_reread)\n",
        new="",
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="a figure that is null keeps every batch from being shown",
        why="log and show end by an error of Python, for the whole lane",
        file="execution/summary.py",
        old="        if figures is not None\n",
        new="",
        tests=("tests/cli/test_commands.py",),
    ),
    Mutation(
        name="a copy outlives its sign of life",
        why="after half a minute it is said to be killed, and a second person does the same beside it",
        file="upkeep/commands/apply.py",
        old="                return not maintenance.hold(begun.number)\n",
        new="                return False\n",
        tests=("tests/execution/test_exchange.py",),
    ),
    Mutation(
        name="a position is set, and only tables are asked that attempts wrote to",
        why="the table that refused the plan has a lost life's batch: its number is used up, its rows are there twice",
        file="upkeep/commands/set_offset.py",
        old=", *((sink, True) for sink in others)]",
        new="]",
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="no position is set where a pipeline had named another's table once",
        why="it was refused and never written to, and the pipeline cannot be moved any more",
        file="upkeep/commands/set_offset.py",
        old="check_next(drafting.checkpoint, sink, key, only_own=only_own)",
        new="check_next(drafting.checkpoint, sink, key, only_own=False)",
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="the clock of any lane's worker says which table is today's",
        why="a clock that was ahead has a former table asked, and the rows in today's are there twice",
        file="upkeep/commands/site.py",
        old='dict.fromkeys(attempt.definition or "" for attempt in attempts if attempt is not None)',
        new='{self._newest_definition() or "": None}',
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="a position is set without a word though the server of the table is away",
        why="whoever allows rows to be read twice is not told that nobody has looked",
        file="upkeep/commands/set_offset.py",
        old='            if not allow_reread:\n                raise MaintenanceError(\n                    f"{what}',
        new='            if False:\n                raise MaintenanceError(\n                    f"{what}',
        tests=("tests/execution/test_set_offset.py",),
    ),
    Mutation(
        name="after a restore a rewind does not look at what was taken",
        why="batches are taken out of the table whose rows are nowhere else",
        file="upkeep/commands/rewind.py",
        old='            if why is not None:\n                raise MaintenanceError(f"source {name!r}: {why}")\n',
        new="",
        tests=("tests/execution/test_whose_batch.py",),
    ),
]
