"""What a machine must have is asked for before anything is set up, in one line that says how to get it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run_check(name: str, *arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    for tool in ("sh", "sed", "head"):
        found = shutil.which(tool)
        assert found is not None
        if not (path / tool).exists():
            (path / tool).symlink_to(found)
    return subprocess.run(
        [str(SCRIPTS / name), *arguments],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def assert_one_line(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    for part in parts:
        assert part in line


def test_missing_java_is_one_line_that_says_how_to_install_it(tmp_path: Path) -> None:
    assert_one_line(run_check("check-java", path=tmp_path), "No Java", "apt-get install openjdk-17")


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    run = run_check("check-java", path=tmp_path, JAVA_HOME="/no/such/folder")
    assert_one_line(run, "/no/such/folder/bin/java", "set JAVA_HOME")


@pytest.mark.parametrize(
    ("said", "major"),
    [('openjdk version "1.8.0_392"', "Java 8"), ('openjdk version "11.0.21" 2023-10-17', "Java 11"), ("?", "unknown")],
)
def test_an_old_java_is_named(said: str, major: str, tmp_path: Path) -> None:
    program(tmp_path / "java", f"echo '{said}' >&2")
    assert_one_line(run_check("check-java", path=tmp_path), major, "17 or newer")


@pytest.mark.parametrize(
    "said", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19', 'x version "25-ea"']
)
def test_a_new_java_is_taken(said: str, tmp_path: Path) -> None:
    program(tmp_path / "java", f"echo '{said}' >&2")
    run = run_check("check-java", path=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_missing_python_is_one_line_that_says_how_to_install_it(tmp_path: Path) -> None:
    assert_one_line(run_check("check-python", "python9", path=tmp_path), "python9", "Install Python 3.11")


def test_an_old_python_is_named(tmp_path: Path) -> None:
    program(tmp_path / "python3", '[ "$1" = --version ] && echo Python 3.9.1 || exit 1')
    assert_one_line(run_check("check-python", "python3", path=tmp_path), "Python 3.9.1", "PYTHON=")


def test_this_python_is_taken(tmp_path: Path) -> None:
    run = run_check("check-python", sys.executable, path=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
