"""``make simulate SECONDS=600 SEED=…``: worlds, one after the other, until the time is over. A world that breaks a
promise is shrunk and its story printed. Exit status 1 then."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulator.moves import MOVES
from tests.simulator.play import STEPS, Played, play, shrink
from tests.simulator.systems import SYSTEMS
from tests.support.systems import DEFAULT, surroundings


def main() -> int:
    """Play."""
    given = _parser().parse_args()
    with surroundings(given.system):
        return _main(given)


def _main(given: argparse.Namespace) -> int:
    if given.world is not None:
        played = play(given.world, system=given.system, steps=given.steps)
        print(_story(played, given) if played.broken else "\n".join([*played.story, "no promise was broken"]))
        return 1 if played.broken else 0
    print(f"system {given.system}, seed {given.seed}", flush=True)
    began, worlds, operations = time.monotonic(), 0, 0
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    try:
        while time.monotonic() - began < given.seconds and (given.worlds is None or worlds < given.worlds):
            played = play(f"{given.seed}/{worlds}", system=given.system, steps=given.steps)
            worlds += 1
            operations += played.operations
            counts += played.counts
            if played.broken is None:
                continue
            broken[played.broken] += 1
            print(f"world {played.seed}: {played.how}", flush=True)
            if broken[played.broken] == 1:
                print(_story(played, given), flush=True)
    except KeyboardInterrupt:
        print("\nStopped.")
    seconds = time.monotonic() - began
    rows: list[tuple[str, object]] = [("worlds", worlds), *sorted((name, counts[name]) for name in ("batches", "rows"))]
    rows += [(f"  {name}", counts[name]) for name in sorted(MOVES, key=lambda name: -counts[name])]
    rows += [("operations of processes", operations), ("operations a second", round(operations / max(seconds, 1e-9)))]
    rows += [("broken promises", broken.total()), *((f"  {promise}", n) for promise, n in broken.most_common())]
    print("\n".join(f"{name:44} {value:>10}" for name, value in rows))
    return 1 if broken else 0


def _story(played: Played, given: argparse.Namespace) -> str:
    found = shrink(played, system=given.system) if given.shrink else played
    return f"{found.text()}\nplay it again: python -m tests.simulator --world {found.seed}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="begin no world after so many seconds")
    parser.add_argument("--worlds", type=int, help="so many worlds at most")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="printed; the same seed, the same worlds")
    parser.add_argument("--steps", type=int, default=STEPS, help="moves in a world")
    parser.add_argument("--system", choices=sorted(SYSTEMS), default=DEFAULT, help="what pipelines live in")
    parser.add_argument("--world", help="play this one world again, named as in a failure: SEED/NUMBER")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="tell the whole story")
    return parser


if __name__ == "__main__":
    sys.exit(main())
