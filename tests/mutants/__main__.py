"""``make mutants``: break a copy of the code in every listed way, and see which test catches it.

The tests are run on the unbroken code first: a test that fails anyway catches nothing. Exit status 1 if a mutation
survives, or if one is out of date.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.environments import ENVIRONMENTS
from tests.mutants.mutation import PACKAGE, Mutation
from tests.mutants.mutations import MUTATIONS

TOP = Path(__file__).resolve().parents[2]
COPIED = (
    "airflow_provider_microbatch",
    "tests",
    "demo",
    "dags",
    "docs",
    "benchmarks",
    "requirements",
    "pyproject.toml",
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
)
CAUGHT = Path(__file__).with_name("caught.json")
"""Which test caught a mutation last time: it is tried first and alone, and only if it passes all tests are run."""
SECONDS = 240
BASELINE_SECONDS = 1200
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """:param caught_by: the test that failed; None if the mutation survived.
    :param why: what there is to say where no test is named.
    :param hung: no test failed in time. A machine that is too busy looks like a mutant that never ends.
    """

    mutation: Mutation
    caught_by: str | None = None
    why: str = ""
    hung: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.mutation.name:52} {self.seconds:4.0f} s  {self.caught_by or self.why}"


@contextmanager
def copy(top: Path, *, copied: Callable[[str, str], object] = shutil.copy2) -> Iterator[Path]:
    """What the tests need of a tree, in a folder of its own.

    :param copied: how a file gets there. A link takes no time, and keeps the bytecode beside it good.
    """
    # What somebody's runs have left may be of other tests; what `compiled` has made is of these.
    ignored = None if copied is os.link else shutil.ignore_patterns("__pycache__")
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        folder = Path(temporary)
        for name in COPIED:
            source = top / name
            if source.is_dir():
                shutil.copytree(source, folder / name, copy_function=copied, ignore=ignored)
            else:
                copied(str(source), str(folder / name))
        # Pythons and jars that tests need, made once: without requirements and these, tests of other Sparks are none.
        made = (top / ENVIRONMENTS.name).resolve()
        made.mkdir(exist_ok=True)
        (folder / ENVIRONMENTS.name).symlink_to(made, target_is_directory=True)
        yield folder


def run_tests(
    folder: Path, tests: Sequence[str], *, seconds: float, compiles: bool = False
) -> subprocess.CompletedProcess[str]:
    """Until one fails.

    :param compiles: only import them, and leave the bytecode for all copies.
    :raises subprocess.TimeoutExpired: if they take too long.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    path = f"{folder}{os.pathsep}{folder / 'tests' / 'acme'}"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if compiles:
        command.append("--collect-only")
        del environment["PYTHONDONTWRITEBYTECODE"]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def compiled(mutations: Sequence[Mutation], top: Path) -> str | None:
    """Leave the bytecode of package and tests in the tree: what went wrong."""
    compileall.compile_dir(top / PACKAGE, quiet=1)
    files = sorted({file for mutation in mutations for file in mutation.tests})
    done = run_tests(top, files, seconds=BASELINE_SECONDS, compiles=True)
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


def baseline(mutations: Sequence[Mutation], top: Path) -> str | None:
    """All tests that the mutations name, on the code as it is: what failed."""
    files = sorted({file for mutation in mutations for file in mutation.tests})
    with copy(top) as folder:
        done = run_tests(folder, files, seconds=BASELINE_SECONDS)
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


def judge(mutation: Mutation, top: Path, first: str | None) -> Verdict:
    """Apply one mutation to a fresh copy and run its tests until one fails.

    :param top: the tree that is copied.
    :param first: the test to try before all others.
    """
    began = time.monotonic()
    caught_by, why, hung = None, "SURVIVED", False
    with copy(top, copied=os.link) as folder:
        try:
            mutation.apply(folder)
            for tests in ([first] if first else [], mutation.tests):
                done = run_tests(folder, tests, seconds=SECONDS) if tests else None
                failed = _FAILED.findall(done.stdout) if done is not None and done.returncode == 1 else []
                if failed:
                    caught_by = failed[0]
                    break
                # 4 is pytest's word for a test that is not there: the list of firsts is older than the tests.
                if done is not None and done.returncode not in (0, 4):
                    why = f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}"
        except subprocess.TimeoutExpired:
            why, hung = f"HUNG for {SECONDS} s", True
        except ValueError as error:
            why = f"OUT OF DATE: {error}"
    return Verdict(mutation=mutation, caught_by=caught_by, why=why, hung=hung, seconds=time.monotonic() - began)


def main() -> int:
    """Judge all, or those named."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations to try; default: all")
    parser.add_argument("--workers", type=int, default=2, help="mutants at once")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests on the unbroken code first")
    parser.add_argument("--remember", action="store_true", help=f"write what caught each mutation to {CAUGHT.name}")
    given = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if not given.names or mutation.name in given.names]
    if not chosen:
        parser.error("no mutation has such a name")
    caught = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}
    # Of one moment: what is edited while this runs, which takes an hour, is judged by nobody.
    with copy(TOP) as top:
        if not given.no_baseline:
            failed = baseline(chosen, top)
            if failed is not None:
                print(f"{failed}\nThe tests fail on the unbroken code, so they would prove nothing.")
                return 1
            print("the tests pass on the unbroken code", flush=True)
        failed = compiled(chosen, top)
        if failed is not None:
            print(f"{failed}\nThe tests cannot be imported.")
            return 1
        survivors, hung = 0, 0
        with ThreadPoolExecutor(given.workers) as pool:
            for verdict in pool.map(lambda mutation: judge(mutation, top, caught.get(mutation.name)), chosen):
                survivors += verdict.caught_by is None and not verdict.hung
                hung += verdict.hung
                print(verdict, flush=True)
                if verdict.caught_by is not None and "::" in verdict.caught_by:
                    caught[verdict.mutation.name] = verdict.caught_by
    if given.remember:
        known = {mutation.name: caught[mutation.name] for mutation in MUTATIONS if mutation.name in caught}
        CAUGHT.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(chosen)} mutations, {survivors} not caught, {hung} at which the tests hung")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
