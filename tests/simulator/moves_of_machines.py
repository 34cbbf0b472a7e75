"""Moves of machines: who goes on, who dies, sleeps or wakes up, how disk, cluster and clock behave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_microbatch.checkpoint.key import LIVE
from tests.simulator.disk import FULL, READ_ONLY, UNREACHABLE
from tests.simulator.engine import DIES, DIES_HALF_WAY, HANGS, LIES_DEAD, OUTLIVES
from tests.simulator.moves import move
from tests.simulator.processes import FROZEN, RUNS, Process

if TYPE_CHECKING:
    from tests.simulator.world import World


def _workers(world: World, *, state: str = RUNS) -> list[Process]:
    """Living processes that are no jobs of the cluster."""
    jobs = {found.process for _, found in world.cluster.alive()}
    return [process for process in world.processes.living() if process.state == state and process not in jobs]


@move("go on", weight=160, always=True)
def go_on(world: World) -> str | None:
    """One thread goes on for a while."""
    threads = [thread for process in world.processes.living() for thread in world.processes.ready(process)]
    if not threads:
        return None
    thread, process = (chosen := world.random.choice(threads)), chosen.process
    wanted = world.random.choice([1, 3, 10, 40, 150, 400, 1500])
    done = 0
    while done < wanted and thread in world.processes.ready(process):
        world.processes.go_on(thread)
        done += 1
    where = "has ended" if process.gone else f"is before: {thread.at}"
    return f"{process.name} {'' if thread.name == 'main' else f'({thread.name}) '}goes on, {where}"


@move("time passes", weight=14, always=True)
def time_passes(world: World) -> str | None:
    seconds = world.random.choice([0.1, 1, 5, 21, 30, 65, 130, 700])
    world.now_ms += round(seconds * 1000)
    return f"{seconds} s pass"


@move("a process dies", weight=8, always=True)
def dies(world: World) -> str | None:
    workers = _workers(world) + _workers(world, state=FROZEN)
    if not workers:
        return None
    process = world.random.choice(workers)
    world.processes.kill(process)
    return f"SIGKILL: {process.name} dies before: {process.at}"


@move("a process freezes", weight=5)
def freezes(world: World) -> str | None:
    workers = _workers(world)
    if not workers:
        return None
    process = world.random.choice(workers)
    process.state = FROZEN
    return f"{process.name} freezes before: {process.at}"


@move("a frozen process wakes up", weight=6)
def wakes_up(world: World) -> str | None:
    frozen = _workers(world, state=FROZEN)
    if not frozen:
        return None
    process = world.random.choice(frozen)
    process.state = RUNS
    return f"{process.name} wakes up before: {process.at}"


def _next_job(fate: str, story: str) -> None:
    @move(f"a job {fate}", weight=2)
    def happens(world: World) -> str | None:
        world.cluster.next.append(fate)
        return f"a job to come {story}"


_next_job(DIES, "dies at its start")
_next_job(DIES_HALF_WAY, "dies half way")
_next_job(HANGS, "hangs")
_next_job(LIES_DEAD, "runs, and the engine does not know it")
_next_job(OUTLIVES, "goes on when it is told to end")


@move("an answer of the disk is lost", weight=5)
def answer_lost(world: World) -> str | None:
    world.lost_answer = world.random.choice(["done", "not done"])
    return f"the next change of the disk gets no answer ({world.lost_answer})"


@move("the disk has trouble", weight=3)
def disk_trouble(world: World) -> str | None:
    world.disk.trouble = world.random.choice([FULL, READ_ONLY, UNREACHABLE])
    return f"the disk is {world.disk.trouble}"


@move("the disk is well again", weight=6, always=True)
def disk_well(world: World) -> str | None:
    if world.disk.trouble is None:
        return None
    world.disk.trouble = None
    return "the disk is well again"


@move("the table is away", weight=2)
def table_away(world: World) -> str | None:
    """As where its file system is not mounted. A checkpoint that never had a batch there cannot know."""
    subject = world.random.choice(list(world.subjects.values()))
    may_be = not subject.is_away and subject.kept is None and len(world.subjects) == 1
    lane = subject.checkpoint().lane(LIVE)
    if not may_be or not subject.table() or all(map(lane.is_position, lane.commit_log.ids())):
        return None
    if not subject.system.take_away():
        return None
    subject.is_away = True
    return f"the table of {subject.name} is away"


@move("the table is back", weight=6, always=True)
def table_back(world: World) -> str | None:
    for subject in world.subjects.values():
        if subject.is_away and subject.system.bring_back():
            subject.is_away = False
            world.touched = True
            return f"the table of {subject.name} is back"
    return None


@move("the cluster cannot be asked", weight=2)
def cluster_unreachable(world: World) -> str | None:
    world.cluster.unreachable = True
    return "the cluster cannot be reached"


@move("the cluster can be asked again", weight=6, always=True)
def cluster_reachable(world: World) -> str | None:
    if not world.cluster.unreachable:
        return None
    world.cluster.unreachable = False
    return "the cluster can be reached again"
