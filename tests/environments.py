"""Python environments beside the locked one, each made once and kept: a pyspark of another version, docker-compose.

pyspark of two versions cannot share an environment, and a checkpoint of the v2 format needs Spark 4.2.
``python -m tests.environments`` makes them all.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENTS = REPOSITORY / ".environments"
QUICK_JAVA = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For drivers that live for seconds: they end before what Java's second compiler has made of their code is of use."""


def environment(name: str) -> Path:
    """The python of an environment that holds ``requirements/<name>.txt`` and nothing else.

    The first call makes it, which takes some 20 seconds; parallel calls wait for each other. A marker is written
    last, so that one that was interrupted is never taken for whole.

    :param name: such as ``compose``; a requirements file of that name exists.
    """
    requirements = REPOSITORY / "requirements" / f"{name}.txt"
    stamp = hashlib.sha256(requirements.read_bytes()).hexdigest()
    ENVIRONMENTS.mkdir(exist_ok=True)
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = folder / "complete"
        if marker.exists() and marker.read_text() == stamp and python.exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        for command in (
            [*uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [*uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(requirements)],
        ):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        marker.write_text(stamp)
    return python


def spark_environment(version: str) -> Path:
    """The python of an environment with ``pyspark==version``.

    :param version: one of :func:`spark_versions`.
    """
    return environment(f"pyspark-{version}")


def spark_versions() -> list[str]:
    """The versions that a ``requirements/pyspark-<version>.txt`` exists for."""
    files = (REPOSITORY / "requirements").glob("pyspark-*.txt")
    return sorted(file.stem.removeprefix("pyspark-") for file in files)


@contextmanager
def spark_script(python: Path, script: Path, *arguments: str) -> Iterator[Callable[[str], str]]:
    """A script that uses pyspark, and answers each line that it is given with a line; it ends with the ``with`` block.

    :param python: the environment's python; its ``bin`` is put first on PATH, where pyspark looks for its scripts.
    :param script: the file.
    :param arguments: of the script.
    :return: gives it a line, and returns its answer; AssertionError with all that it printed if it ended instead.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    with (
        tempfile.TemporaryFile(mode="w+") as errors,
        subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**kept, **QUICK_JAVA, "PATH": f"{python.parent}{os.pathsep}{kept.get('PATH', '')}"},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def ask(line: str) -> str:
            print(line, file=given, flush=True)
            answer = answers.readline()
            if not answer:
                errors.seek(0)
                raise AssertionError(f"{script.name} {arguments} ended with {process.wait()}\n{errors.read()}")
            return answer.rstrip("\n")

        yield ask
        given.close()


if __name__ == "__main__":
    # Before the tests rather than among them: an installer that writes gigabytes stalls everything that waits for the
    # disk, and an Airflow that waits too long counts its tasks for dead.
    for each in ("compose", *(f"pyspark-{version}" for version in spark_versions())):
        print(f"environment {each}", flush=True)
        environment(each)
