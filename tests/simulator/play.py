"""Play a world from its seed, tell its story, and shrink what breaks a promise to the moves that it takes."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_microbatch.exceptions import MicroBatchError
from tests.simulator import moves_of_airflow as moves_of_airflow  # these register their moves
from tests.simulator import moves_of_commands as moves_of_commands
from tests.simulator import moves_of_compactions as moves_of_compactions
from tests.simulator import moves_of_letters as moves_of_letters
from tests.simulator import moves_of_machines as moves_of_machines
from tests.simulator import moves_of_people as moves_of_people
from tests.simulator import moves_of_places as moves_of_places
from tests.simulator import moves_of_restores as moves_of_restores
from tests.simulator import moves_of_state as moves_of_state
from tests.simulator import moves_of_topics as moves_of_topics
from tests.simulator.moves import MOVES, Move
from tests.simulator.moves_of_state import REFUSED_WITH_STATE
from tests.simulator.promises import look, look_at_rest
from tests.simulator.rest import come_to_rest
from tests.simulator.seams import simulated
from tests.simulator.systems import STATE, TOPICS
from tests.simulator.world import Broken, World
from tests.support.merged_changes import ShownError
from tests.support.systems import DEFAULT

MEMORY = Path("/dev/shm")
"""Where worlds lie, if it is there: their files are gone in a moment."""
STEPS = 400

Script = Sequence[tuple[int, str]]
"""Number and move of each step. A step's chances come from its number, so that what is left of a shrunk script does the
same as before."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """:param seed: of the world.
    :param script: what was played.
    :param broken: the promise that was broken, or None.
    :param how: what was seen.
    :param story: a line for everything that happened.
    :param counts: moves and batches.
    :param operations: of all processes.
    """

    seed: str
    script: Script
    broken: str | None
    how: str
    story: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    operations: int = 0

    def text(self) -> str:
        """For people."""
        return "\n".join([f"seed {self.seed}, {len(self.script)} steps", *self.story, f"BROKEN: {self.how}"])


def happens_in(move: Move, system: str) -> bool:
    """Whether there may be something to do for the move."""
    if move.only_in and system not in move.only_in:
        return False
    if system == STATE:
        return not move.topics and move.name not in REFUSED_WITH_STATE
    return not move.state and (system in TOPICS or not move.topics)


def script_of(seed: str, steps: int = STEPS, *, system: str = DEFAULT) -> Script:
    """The moves of a world. Each has about half of the moves that are not in all of them: what rarely meets, meets more
    often where less else happens."""
    chance = random.Random(f"script {seed}")
    moves = [move for move in MOVES.values() if happens_in(move, system)]
    kits = {move.kit: chance.random() < 0.5 for move in moves if not move.always}
    chosen = [move for move in moves if move.always or kits[move.kit]]
    names = chance.choices([move.name for move in chosen], [move.weight for move in chosen], k=steps)
    return list(enumerate(names))


def play(seed: str, *, script: Script | None = None, system: str = DEFAULT, steps: int = STEPS) -> Played:
    """Play a world to its end.

    :param script: what happens; None: what the seed says.
    """
    script = script_of(seed, steps, system=system) if script is None else script
    with _folder(seed) as root:
        world = World(root, seed=seed, system=system)
        broken: Broken | None = None
        with simulated(world):
            try:
                _live(world, script)
            except Broken as found:
                broken = found
        return Played(
            seed=seed,
            script=script,
            broken=None if broken is None else broken.promise,
            how="" if broken is None else str(broken),
            story=world.story,
            counts=world.counts,
            operations=world.processes.operations,
        )


@contextmanager
def _folder(seed: str) -> Iterator[Path]:
    """An empty folder for the world, at the same path for the same seed: paths are in what is written and hashed."""
    top = (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"simulated-{os.getuid()}"
    top.mkdir(exist_ok=True)
    name = seed.replace("/", "-")
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = top / name
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _live(world: World, script: Script) -> None:
    try:
        for number, name in script:
            world.random.seed(f"{world.seed} {number}")
            told = MOVES[name].happen(world)
            if told is not None:
                world.counts[name] += 1
                world.say(told)
            look(world)
        world.random.seed(f"{world.seed} rest")
        come_to_rest(world)
        look_at_rest(world)
    except ShownError as error:
        raise Broken("a table shows what its changes do not make", str(error)) from error
    except MicroBatchError as error:
        raise Broken("what looks from outside cannot", f"{type(error).__name__}: {error}") from error
    for subject in world.subjects.values():
        world.counts["batches"] += len(subject.table())
        world.counts["rows"] += len(subject.landed())


def shrink(played: Played, *, system: str = DEFAULT, tries: int = 600) -> Played:
    """The same broken promise by fewer moves: chunks of the script are left out, smaller ones each time, as long as it
    still breaks."""
    best, size = played, max(1, len(played.script) // 2)
    while tries > 0:
        at, before = 0, len(best.script)
        while at < len(best.script) and tries > 0:
            tries -= 1
            less = [*best.script[:at], *best.script[at + size :]]
            again = play(best.seed, script=less, system=system)
            if again.broken == best.broken:
                best = again
            else:
                at += size
        if size == 1 and len(best.script) == before:
            break
        size = max(1, size // 2)
    return best
