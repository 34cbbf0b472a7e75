"""Every state of the protocol within bounds is visited: two task processes alive at once and the janitor, three
batches, a clear, each process killed or put to sleep before any change it makes. In each state the promises hold."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from airflow_provider_microbatch.checkpoint.key import LIVE, BatchKey
from airflow_provider_microbatch.checkpoint.verify import verify_all
from tests.execution.model import SPLIT_WISE, Sleeping, Who, advance, checkpoint, look, modelled
from tests.execution.modelled_world import HOUR_MS, ROWS, World

pytestmark = pytest.mark.slow

JANITOR = -1
BOUND = int(os.environ.get("MICROBATCH_MODEL_STATES", "400"))
"""How many states are visited where there are too many for all of them; 0 visits all, which takes hours."""


@dataclass(frozen=True)
class State:
    """:param asleep: processes before their next change.
    :param done: runs that have ended well, with their clear number.
    :param tries: how many processes each run has had, with its clear number.
    :param starts: how many more task processes may be started.
    :param kills: how many more processes may be killed.
    :param hours: how many more times all leases may run out.
    :param janitors: how many more times the janitor may be started.
    """

    world: World
    asleep: tuple[Sleeping, ...] = ()
    done: frozenset[tuple[int, int]] = frozenset()
    tries: tuple[tuple[tuple[int, int], int], ...] = ()
    starts: int = 4
    kills: int = 1
    hours: int = 1
    janitors: int = 1

    def digest(self) -> tuple[object, ...]:
        asleep = tuple(sorted(process.digest for process in self.asleep))
        return (
            self.world.digest, asleep, self.done, self.tries, self.starts, self.kills, self.hours, self.janitors,
        )  # fmt: skip


Woken = dict[tuple[int, int], tuple[World, Sleeping | None, bool]]
"""World and process → what :func:`advance` makes of them. In many states they are the same, and what else may happen is
not."""


_KEPT = 50_000
"""Each holds a whole world; a search of hours has more of them than there is memory."""


def successors(state: State, woken: Woken) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    for index, process in enumerate(state.asleep):
        others = state.asleep[:index] + state.asleep[index + 1 :]
        seen = state.world.digest, process.digest
        if seen not in woken:
            if len(woken) == _KEPT:
                woken.clear()
            woken[seen] = advance(state.world, process)
        world, after, well = woken[seen]
        who = process.who
        done = state.done | {(who.run, who.clear)} if well and who.run != JANITOR else state.done
        asleep = others if after is None else (*others, after)
        yield f"{who} goes on", replace(state, world=world, asleep=asleep, done=done)
        if state.kills:
            yield f"{who} is killed", replace(state, asleep=others, kills=state.kills - 1)
    if state.hours and any(path.startswith("leases/") for path in state.world.files):
        world = replace(state.world, now_ms=state.world.now_ms + HOUR_MS)
        yield "an hour passes", replace(state, world=world, hours=state.hours - 1)
    tasks = [process.who for process in state.asleep if process.who.run != JANITOR]
    if state.janitors and len(tasks) == len(state.asleep):
        yield "the janitor begins", _begin(replace(state, janitors=state.janitors - 1), Who(JANITOR))
    if state.starts and len(tasks) < 2:
        for run, clear in _startable(state):
            tries = dict(state.tries)
            tries[run, clear] = tries.get((run, clear), 0) + 1
            begun = replace(state, starts=state.starts - 1, tries=tuple(sorted(tries.items())))
            yield f"run {run} begins", _begin(begun, Who(run, tries[run, clear], clear))


def _begin(state: State, who: Who) -> State:
    return replace(state, asleep=(*state.asleep, Sleeping(who, ())))


def _startable(state: State) -> Iterator[tuple[int, int]]:
    """A run that has not ended well is tried again, the next one begins beside it; run 0 is cleared once."""
    open_runs = [run for run in range(ROWS) if (run, 0) not in state.done]
    for run in open_runs[:2]:
        yield run, 0
    if (0, 0) in state.done and (0, 1) not in state.done:
        yield 0, 1


def check(world: World) -> None:
    """What holds at every moment."""
    log = look(world, lambda: checkpoint().lane(LIVE))
    planned, committed = look(world, log.offset_log.ids), look(world, log.commit_log.ids)
    assert planned == list(range(len(planned))), "ids are contiguous"
    assert committed == list(range(len(committed))), "commits too"
    assert len(planned) - len(committed) in (0, 1), "one batch at most is planned and not committed"
    for number in range(ROWS):
        found = world.table.get(BatchKey(LIVE, number))
        assert found is None or found[1][0] == number + 1, "a batch has its own row"
        assert found is not None or number not in committed, "what is committed is in the table"
        assert found is None or number in planned, "what is in the table was planned"
        assert found is None or number <= len(committed), "what is in the table is committed before the next"
    for key, (epoch, _) in world.table.items():
        attempts = look(world, lambda key=key: checkpoint().attempts.all(key))
        published = next(attempt for attempt in attempts if attempt.epoch == epoch)
        answered = look(world, lambda key=key: checkpoint().replays.epochs.ends(key))
        if answered:
            assert published.run is not None
            assert published.run.clear_number == 1, "an answered replay is in the table"
    for key, epoch in world.stages:
        assert world.table.get(key, (0, None))[0] != epoch, "a stage is moved, not copied"


def check_step(before: State, after: State) -> None:
    """What holds from one moment to the next."""
    for key, (epoch, _) in before.world.table.items():
        now = after.world.table.get(key)
        assert now is not None, "readers find the batch, the old or the new"
        assert now[0] >= epoch, "an attempt that has lost never comes back"
        if now[0] > epoch:
            assert any(who.clear for who in (process.who for process in before.asleep)), "only a replay replaces"
    for path, (data, _) in before.world.files.items():
        if path.startswith(("offsets/", "commits/", "attempts/", "replays/")):
            assert after.world.files.get(path, (b"",))[0] == data, "entries are never changed"


def check_decision(world: World, process: Sleeping) -> None:
    """What holds when a process decides to publish: it has not lost. (It may lose while it sleeps; then the sink is
    what keeps two apart.)"""
    name, arguments = process.before or ("", ())
    if name in ("publish", "replace"):
        key, epoch = arguments
        attempts = look(world, lambda: checkpoint().attempts)
        assert look(world, lambda: attempts.latest_epoch(key)) == epoch, "an attempt that is fenced does not publish"
        assert look(world, lambda: attempts.ended(key, epoch)) is None, "nor one that was given up"


def check_recovery(state: State) -> None:
    """Whoever was killed when: the next runs bring every batch into the table, and one run of the janitor leaves no
    stage and no lease."""
    world = replace(state.world, now_ms=state.world.now_ms + HOUR_MS)
    world, _, well = advance(world, Sleeping(Who(JANITOR), ()), changes=None)
    assert well
    dead = [stage for stage in world.stages if stage[0] not in world.table]
    assert dead == [], "the janitor leaves no stage of a dead attempt"
    for run in range(ROWS + 1):
        clear = max((clear for who, clear in dict(state.tries) if who == run), default=0)
        for attempt in (8, 9):
            world, _, well = advance(world, Sleeping(Who(run, attempt, clear), ()), changes=None)
            assert well
    world = replace(world, now_ms=world.now_ms + HOUR_MS)
    world, _, _ = advance(world, Sleeping(Who(JANITOR), ()), changes=None)
    assert {key.id: row for key, (_, (row, _)) in world.table.items()} == {number: number + 1 for number in range(ROWS)}
    assert world.stages == {}
    assert (world.halves, world.begun) == ({}, frozenset()), "nothing is kept of what is committed"
    assert [path for path in world.files if path.startswith("subtasks/")] == []
    assert [path for path in world.files if path.startswith("leases/")] == []
    assert look(world, lambda: verify_all(checkpoint())) == []
    for key in world.table:
        assert look(world, lambda key=key: checkpoint().replays.pending(key)) == []
    if (0, 1) in dict(state.tries):
        answered = look(world, lambda: checkpoint().replays.epochs.ends(BatchKey(LIVE, 0)))
        assert answered == [1], "a clear is a request, is answered, and asks once"


def explore(first: State, *, bound: int) -> tuple[int, int]:
    """Visit states, nearest first.

    :param bound: how many; 0 for all.
    :return: how many states and steps there were.
    """
    seen, waiting, steps = {first.digest()}, deque([first]), 0
    woken: Woken = {}
    checked: set[int] = set()
    recovered = set()
    while waiting:
        state = waiting.popleft()
        for _, after in successors(state, woken):
            steps += 1
            if after.world.digest != state.world.digest:
                check_step(state, after)
                for process in after.asleep:
                    if not any(process is one for one in state.asleep):
                        check_decision(after.world, process)
            digest = after.digest()
            if digest in seen:
                continue
            seen.add(digest)
            if after.world.digest not in checked:
                checked.add(after.world.digest)
                check(after.world)
            if not after.asleep:
                world = (after.world.digest, tuple(who for who, _ in after.tries))  # how often makes no difference
                if world not in recovered:
                    recovered.add(world)
                    check_recovery(after)
            waiting.append(after)
            if bound and len(seen) >= bound:
                return len(seen), steps
    return len(seen), steps


def after(*processes: Who) -> World:
    """What these leave behind, one after the other."""
    world = World()
    for who in processes:
        world, _, well = advance(world, Sleeping(who, ()), changes=None)
        assert well
    return world


def cleared(**budgets: int) -> State:
    """Two batches are done, and run 0 is cleared from here on."""
    tries = (((0, 0), 1), ((1, 0), 1))
    world = after(Who(0, 1), Who(1, 1))
    return State(world, done=frozenset({(0, 0), (1, 0)}), tries=tries, **budgets)


SETTINGS: dict[str, Callable[[], State]] = {
    "one that is killed, and the janitor": lambda: State(World(), starts=1, kills=1, hours=1, janitors=1),
    "a clear that is killed, and the janitor": lambda: cleared(starts=1, kills=1, hours=1, janitors=1),
}
"""Small enough to be visited as a whole."""


def half_way(**budgets: int) -> State:
    """Run 0 sleeps just before it ends its second half, and its lease has run out."""
    world, process = World(), Sleeping(Who(0, 1), ())
    while process.before is None or process.before[0] != "finish":
        world, process = _one_change(world, process)
    world, process = _one_change(world, process)
    while process.before is None or process.before[0] != "finish":
        world, process = _one_change(world, process)
    world = replace(world, now_ms=world.now_ms + HOUR_MS)
    return State(world, asleep=(process,), tries=(((0, 0), 1),), **budgets)


def _one_change(world: World, process: Sleeping) -> tuple[World, Sleeping]:
    world, after, _ = advance(world, process)
    assert after is not None
    return world, after


SPLIT_WISE_SETTINGS: dict[str, Callable[[], State]] = {
    "one that is killed, the janitor, and one after it": lambda: State(World(), starts=2, kills=1, hours=1, janitors=1),
    "a clear, and another process beside it": lambda: cleared(starts=2, kills=0, hours=0, janitors=0),
    "one that wakes up half way, another one, and the janitor": lambda: half_way(starts=1, kills=1, janitors=1),
}
"""With halves of a batch that pass from attempt to attempt."""

LARGE: dict[str, Callable[[], State]] = {
    "two processes side by side": lambda: State(World(), starts=2, kills=0, hours=0, janitors=0),
    "a clear, and another process beside it": lambda: cleared(starts=2, kills=0, hours=0, janitors=0),
    "everything at once, from the beginning": lambda: State(World()),
    "everything at once, from a clear on": cleared,
}
"""Too many states to visit all of them at every run; the nearest are."""


@pytest.mark.parametrize("first", SETTINGS.values(), ids=SETTINGS)
def test_the_promises_hold_in_every_state(first: Callable[[], State]) -> None:
    with modelled():
        states, steps = explore(first(), bound=0)
    print(f"{states:,} states, {steps:,} steps: all")
    assert steps > states > 500


@pytest.mark.parametrize("first", LARGE.values(), ids=LARGE)
def test_the_promises_hold_in_the_nearest_states(first: Callable[[], State]) -> None:
    with modelled():
        states, steps = explore(first(), bound=BOUND)
    print(f"{states:,} states, {steps:,} steps, bound {BOUND:,}")
    assert not BOUND or states == BOUND


@pytest.mark.parametrize("first", SPLIT_WISE_SETTINGS.values(), ids=SPLIT_WISE_SETTINGS)
def test_halves_that_pass_to_another_attempt_are_in_the_table_once_and_whole(first: Callable[[], State]) -> None:
    with modelled(SPLIT_WISE):
        states, steps = explore(first(), bound=BOUND)
    print(f"{states:,} states, {steps:,} steps, bound {BOUND:,}")
    assert not BOUND or states == BOUND
