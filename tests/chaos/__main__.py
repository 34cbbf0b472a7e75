"""``make chaos N=1000 SEED=… SYSTEM=…``: worlds of task runs that die, until ``N`` kills have happened.

At least one kill in twenty goes through a real scheduler and a real spark-submit; the others hit the same code on a
small engine, which is a process of its own. With ``SYSTEM=state`` every driver is Spark's. Exit status 1 if anything
was lost, doubled, orphaned or wrong.
"""

from __future__ import annotations

import argparse
import functools
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.offspring import adopt_orphans, end_offspring
from tests.chaos.tally import Tally, append, total
from tests.chaos.world import World
from tests.support.served_systems import SYSTEMS
from tests.support.systems import DEFAULT, surroundings

REAL_SHARE = 20
"""One kill in so many is real."""
STATE = "state"
"""The system whose drivers are real ones in all its worlds; its task runs go through no scheduler."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def play(folder: Path, system: str, runs: int, seed: str) -> Tally:
    """One world on the small engine; its folder stays if something was wrong."""
    root = folder / seed.replace("/", "-")
    root.mkdir()
    return _settle(_world(system)(root, seed=seed, system=system).play(runs=runs), root)


def _world(system: str) -> type[World]:
    if system != STATE:
        return World
    from tests.chaos.state.world import StateWorld  # it imports Airflow, as every task of it needs it

    return StateWorld


def play_real(folder: Path, system: str, kills: int, seed: str, seconds: float) -> Tally:
    """The real world; its folder stays if something was wrong."""
    # They import Airflow and PostgreSQL's driver, which the small worlds get along without.
    from tests.chaos.real.world import RealWorld
    from tests.support.postgres import postgres

    root = folder / "real"
    root.mkdir()

    def say(line: str) -> None:
        print(line, flush=True)

    with postgres() as server:
        world = RealWorld(root, seed=seed, system=system, database=server.database("chaos"))
        return _settle(world.play(kills=kills, seconds=seconds, say=say), root)


def _settle(tally: Tally, root: Path) -> Tally:
    if tally.bad:
        tally.failures.append(f"it is kept in {root}")
    else:
        shutil.rmtree(root)
    return tally


def main() -> int:
    """Play."""
    given = _parser().parse_args()
    if given.add_up:
        tally = total(*given.add_up)
        print(tally.text())
        return 1 if tally.bad else 0
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=given.folder)).resolve()
    _stop_once()
    adopt_orphans()
    print(f"system {given.system}, seed {given.seed}", flush=True)
    if given.system == STATE:
        from tests.chaos.state.task import prepare

        prepare(folder)
    else:
        SYSTEMS[given.system](folder).checkpoint()  # a server that it needs is this process's, and one for all worlds
    tally = Tally()
    try:
        with surroundings(given.system):
            _play_all(given, folder, tally)
    except KeyboardInterrupt:
        print(f"\nStopped. What was under way is in {folder}; done had been:")
        print(tally.text())
        return INTERRUPTED
    finally:
        end_offspring()
    if not tally.bad:
        shutil.rmtree(folder)
    print(tally.text())
    if given.out is not None:
        append(given.out, given.seed, tally)
        print(f"\nall runs in {given.out}\n{total(given.out).text()}")
    return 1 if tally.bad else 0


def _play_all(given: argparse.Namespace, folder: Path, tally: Tally) -> None:
    if given.world is not None:
        tally.add(play(folder, given.system, given.runs, given.world))
        return
    real = given.real
    if real is None:
        real = math.ceil(given.kills / REAL_SHARE) if given.worlds is None and given.system != STATE else 0
    if given.worlds != 0 and given.kills > real:
        _play_small(given, folder, tally, kills=given.kills - real)
    if real:
        tally.add(play_real(folder, given.system, real, str(given.seed), given.seconds))


def _play_small(given: argparse.Namespace, folder: Path, tally: Tally, *, kills: int) -> None:
    began, number = time.monotonic(), 0

    def wanted() -> bool:
        if given.worlds is not None:
            return number < int(given.worlds)
        return tally.total < kills and time.monotonic() - began < given.seconds

    with ProcessPoolExecutor(given.workers, initializer=_be_quiet) as pool, _ended_at_once():
        while wanted():
            many = given.workers * 2 if given.worlds is None else min(given.workers * 2, given.worlds - number)
            seeds = [f"{given.seed}/{number + offset}" for offset in range(many)]
            number += len(seeds)
            for one in pool.map(functools.partial(play, folder, given.system, given.runs), seeds):
                tally.add(one)
            rate = tally.total / (time.monotonic() - began)
            wrong = ", ".join(f"{count} {name}" for name, count in tally.wrong.items()) or "nothing wrong"
            print(f"{tally.total} kills, {rate:.1f} a second, {wrong}", flush=True)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Who is interrupted waits for no world that is in the middle, as the pool would."""
    try:
        yield
    except KeyboardInterrupt:
        end_offspring()
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="go on until so many kills have happened")
    parser.add_argument(
        "--real", type=int, help="so many of them through a real scheduler and spark-submit (default: one in twenty)"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="printed; the same seed makes the same worlds"
    )
    parser.add_argument("--system", choices=sorted([*SYSTEMS, STATE]), default=DEFAULT, help="what pipelines live in")
    parser.add_argument("--runs", type=int, default=6, help="task runs in a world")
    parser.add_argument("--workers", type=int, default=2, help="worlds at once")
    parser.add_argument("--worlds", type=int, help="exactly so many worlds, however many kills; 0: none but the real")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin nothing new after so many seconds, in each part"
    )
    parser.add_argument("--world", help="play this one world again, named as in a failure: SEED/NUMBER")
    parser.add_argument("--folder", type=Path, help="where worlds lie; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="file of JSON lines to add the result to; the sum of it is printed")
    parser.add_argument("--add-up", type=Path, nargs="+", metavar="FILE", help="only print the sum of such files")
    return parser


def _stop_once() -> None:
    """Ctrl-C, SIGTERM and a closed terminal end the run in one way; a second one does not disturb the stop."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, stop)


def _be_quiet() -> None:
    """A worker does not answer Ctrl-C; the driver ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
