"""``make chaos N=1000 SEED=…``: worlds of task runs that die, until ``N`` kills have happened."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.chaos.tally import Tally, append, total
from tests.chaos.world import World


def play(folder: Path, runs: int, seed: str) -> Tally:
    """One world; its folder stays if something was wrong."""
    root = folder / seed.replace("/", "-")
    root.mkdir()
    tally = World(root, seed=seed).play(runs=runs)
    if tally.bad:
        tally.failures.append(f"world {seed} is kept in {root}")
    else:
        shutil.rmtree(root)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="go on until so many kills have happened")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="printed; the same seed makes the same worlds"
    )
    parser.add_argument("--runs", type=int, default=6, help="task runs in a world")
    parser.add_argument("--workers", type=int, default=2, help="worlds at once")
    parser.add_argument("--worlds", type=int, help="exactly so many worlds, however many kills")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new world after so many seconds")
    parser.add_argument("--world", help="play this one world again, named as in a failure: SEED/NUMBER")
    parser.add_argument("--folder", type=Path, help="where worlds lie; default: a temporary folder")
    parser.add_argument("--add", type=Path, help="file of JSON lines to add the result to; the sum of it is printed")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=given.folder))
    print(f"seed {given.seed}", flush=True)
    tally, began = Tally(), time.monotonic()

    def wanted(played: int) -> bool:
        if given.worlds is not None:
            return played < given.worlds
        return tally.total < given.kills and time.monotonic() - began < given.seconds

    if given.world is not None:
        tally = play(folder, given.runs, given.world)
    else:
        number = 0
        with ProcessPoolExecutor(given.workers) as pool:
            while wanted(number):
                seeds = [f"{given.seed}/{number + offset}" for offset in range(given.workers * 2)]
                number += len(seeds)
                for one in pool.map(functools.partial(play, folder, given.runs), seeds):
                    tally.add(one)
                rate = tally.total / (time.monotonic() - began)
                wrong = ", ".join(f"{count} {name}" for name, count in tally.wrong.items()) or "nothing wrong"
                print(f"{tally.total} kills, {rate:.1f} a second, {wrong}", flush=True)
    print(tally.text())
    if not tally.bad:
        shutil.rmtree(folder)
    if given.add is not None:
        append(given.add, given.seed, tally)
        print(f"\nall runs in {given.add}\n{total(given.add).text()}")
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
