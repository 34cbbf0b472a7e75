"""``make contract [SYSTEM=…]``: run the contract suites and print, for each, which system passed which case.

A system joins by an entry in the table of its suite (``tests/contract/test_store.py``, …); nothing here names one.
Exit status 1 if a case failed, 2 if no suite has the system.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.contract.registered import system_of

HERE = Path(__file__).parent
PASSED, FAILED, NONE = "ok", "FAILED", "-"

Matrix = dict[str, dict[str, dict[str, str]]]
"""Suite → case → system → how it went."""


class Matrices:
    """A plugin of pytest that keeps how each case went.

    :param systems: the only systems to look at; empty: all.
    """

    def __init__(self, systems: Sequence[str]) -> None:
        self._wanted = systems
        self._of: dict[str, tuple[str, str, str]] = {}
        self.results: Matrix = defaultdict(lambda: defaultdict(dict))
        self.known: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave only the cases of the wanted systems."""
        kept, left = [], []
        for item in items:
            system = system_of(item)
            self.known |= {system, system and _family(system)} - {None}
            if system is None or (self._wanted and not {system, _family(system)} & {*self._wanted}):
                left.append(item)
                continue
            suite = item.path.stem.removeprefix("test_")
            self._of[item.nodeid] = (suite, _case(item, system), system)
            kept.append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A case that failed anywhere, in its set-up too, has failed."""
        suite, case, system = self._of[report.nodeid]
        cells = self.results[suite][case]
        if report.failed:
            cells[system] = FAILED
        elif report.when == "call":
            cells.setdefault(system, PASSED)


def _family(system: str) -> str:
    """The system of which this one is a way to use it: ``jdbc`` of ``jdbc, by time``."""
    return system.partition(", ")[0]


def _case(item: pytest.Item, system: str) -> str:
    """The test's name as a sentence, with what it is parametrised by beside the system."""
    name, _, parameters = item.name.partition("[")
    others = [part for part in parameters.removesuffix("]").split("-") if part and part not in system.split("-")]
    return name.removeprefix("test_").replace("_", " ") + (f" ({', '.join(others)})" if others else "")


def text(results: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """The matrices, one below the other."""
    lines = []
    for suite, cases in results.items():
        systems = sorted({system for cells in cases.values() for system in cells})
        width = max(map(len, (suite, *cases)))
        lines.append("  ".join([suite.upper().ljust(width), *systems]))
        for case, cells in cases.items():
            row = (cells.get(system, NONE).ljust(len(system)) for system in systems)
            lines.append("  ".join([case.ljust(width), *row]).rstrip())
        passed = {system: sum(cells.get(system) == PASSED for cells in cases.values()) for system in systems}
        counts = (f"{passed[system]}/{len(cases)}".ljust(len(system)) for system in systems)
        lines += ["  ".join(["passed".ljust(width), *counts]).rstrip(), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="contract", description=__doc__)
    parser.add_argument(
        "--system", action="append", default=[], help="only this one, in all its ways; may be given again"
    )
    given, for_pytest = parser.parse_known_args(arguments)
    matrices = Matrices(given.system)
    named = ["-m", ""] if given.system else []
    status = pytest.main(["-q", "-p", "no:cacheprovider", *named, str(HERE), *for_pytest], plugins=[matrices])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(status)
    unknown = set(given.system) - matrices.known
    if unknown:
        print(f"no contract suite has {', '.join(sorted(unknown))}; there are {', '.join(sorted(matrices.known))}")
        return 2
    print(f"\n{text(matrices.results)}", end="")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
