"""Mutations of the record of the plan that was refused last, and of the command that leads on from the refusal."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

REFUSED = ("tests/execution/test_refused_plan.py",)
COMMANDS = ("tests/sources/test_set_offset_commands.py",)

MUTATIONS = [
    Mutation(
        name="the plan that was refused first stays the plan to come",
        why="a definition that is refused a second time is not found: set-offset opens another table",
        file="checkpoint/refused_plans.py",
        old="self._store.compare_and_put(lane, data, version=there.version) is not None:",
        new="there:",
        tests=REFUSED,
    ),
    Mutation(
        name="a plan that was refused before the newest batch counts",
        why="a definition that was taken back days ago says what lies between two positions: rows are lost or doubled",
        file="execution/refused_plan.py",
        old="        if entry is None or not is_position(entry):\n",
        new="        if False:\n",
        tests=REFUSED,
    ),
    Mutation(
        name="a plan that was refused in a log that was rewound counts",
        why="as before",
        file="execution/refused_plan.py",
        old="    if before != refused.after:\n",
        new="    if False:\n",
        tests=REFUSED,
    ),
    Mutation(
        name="a plan that was refused before a batch that was rewound counts",
        why="as before",
        file="execution/refused_plan.py",
        old="    if checkpoint.attempts.latest_epoch(BatchKey(lane, refused.next)) != refused.epoch:\n",
        new="    if False:\n",
        tests=REFUSED,
    ),
    Mutation(
        name="a plan that was refused before a position and a batch that was rewound counts",
        why="as before",
        file="execution/refused_plan.py",
        old="    if newest >= refused.next and checkpoint",
        new="    if False and checkpoint",
        tests=REFUSED,
    ),
    Mutation(
        name="the janitor removes the definition of the plan to come",
        why="the command of the error asks the source as the last attempt ran it, and is refused",
        file="execution/retention.py",
        old="            needed |= set() if refused is None else {refused.definition}\n",
        new="",
        tests=REFUSED,
    ),
    Mutation(
        name="the definition of a refused plan may be a path",
        why="user code that can write the checkpoint has a command read a file elsewhere",
        file="checkpoint/refused_plans.py",
        old="if not is_digest(definition) or not (is_digest(after)",
        new="if not (is_digest(after)",
        tests=REFUSED,
    ),
    Mutation(
        name="the command of an error names no lane",
        why="it sets the position of the live lane, whose rows are lost or doubled",
        file="checkpoint/set_offset_command.py",
        old='    return " ".join(words + ',
        new='    return " ".join(words or ',
        tests=COMMANDS,
    ),
    Mutation(
        name="the command of an error is not quoted",
        why="a shell takes it apart: it is refused, or means another checkpoint",
        file="checkpoint/set_offset_command.py",
        old='"set-offset", quote(location)]',
        new='"set-offset", location]',
        tests=COMMANDS,
    ),
    Mutation(
        name="the command of an error passes over lost records alone",
        why="a position that no partition has is refused, and there is no way on",
        file="sources/kafka/by_hand.py",
        old="one: min(max(self._topics.from_(position, one), earliest[one]), highest[one])",
        new="one: self._topics.from_(position, one)",
        tests=COMMANDS,
    ),
    Mutation(
        name="rows that cannot be told from those that were read lie where they lay",
        why="the command of the error is refused: what was planned is not there any more",
        file="sources/jdbc/by_time.py",
        old="                if is_other or self._untold(table, read, now) is not None:\n",
        new="                if False:\n",
        tests=COMMANDS,
    ),
    Mutation(
        name="a position of which nobody knows what lies before it has to be readable from there",
        why="as before, though both is allowed by name",
        file="upkeep/commands/set_offset.py",
        old=" if after is False else None\n",
        new="\n",
        tests=COMMANDS,
    ),
]
