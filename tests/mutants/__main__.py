"""``make mutants``: apply each mutation to a copy of the repository and see which test catches it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import MUTATIONS, Mutation

TOP = Path(__file__).resolve().parents[2]
COPIED = ("airflow_provider_microbatch", "tests", "pyproject.toml")
SECONDS = 240
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """:param caught_by: the tests that failed, or why there is no answer."""

    mutation: Mutation
    caught: bool
    caught_by: str


def copy_to(folder: Path) -> None:
    """What the tests of a mutation need, so that the work tree is never touched."""
    for name in COPIED:
        source = TOP / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def judge(mutation: Mutation) -> Verdict:
    """Apply one mutation to a fresh copy and run its tests until one fails."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary)
        copy_to(folder)
        mutation.apply(folder)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutation, True, f"(the tests hung for {SECONDS} s)")
        failed = _FAILED.findall(done.stdout)
        if done.returncode == 1 and failed:
            return Verdict(mutation, True, ", ".join(failed))
        if done.returncode == 0:
            return Verdict(mutation, False, "SURVIVED")
        return Verdict(mutation, False, f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations to try; default: all")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if not given.names or mutation.name in given.names]
    survivors = 0
    with ThreadPoolExecutor(given.workers) as pool:
        for verdict in pool.map(judge, chosen):
            survivors += not verdict.caught
            print(f"{verdict.mutation.name:52} {verdict.caught_by}", flush=True)
    print(f"{len(chosen)} mutations, {survivors} survived")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
