"""What tests need beside the locked environment, each made once and kept: a pyspark of another version, docker-compose,
the packages of the image, jars of a server or a connector, a server that Node.js runs.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support.local_files import JAR, behind

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENTS = REPOSITORY / ".environments"
QUICK_JAVA = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For drivers that live for seconds: they end before what Java's second compiler has made of their code is of use."""


def environment(name: str, *, compiled: bool = False) -> Path:
    """The python of an environment that holds ``requirements/<name>.txt`` and nothing else.

    The first call makes it, which takes some 20 seconds; parallel calls wait for each other. A marker is written
    last, so that one that was interrupted is never taken for whole.

    :param name: such as ``compose``; a requirements file of that name exists.
    :param compiled: with the bytecode of all that is in it: it is read by processes that could not keep their own.
    """
    requirements = REPOSITORY / "requirements" / f"{name}.txt"
    python = ENVIRONMENTS / name / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    bytecode = ["--compile-bytecode"] if compiled else []
    _made_once(
        python,
        name,
        requirements,
        [*uv, "venv", "--quiet", "--python", sys.executable, str(ENVIRONMENTS / name)],
        [*uv, "pip", "sync", "--quiet", *bytecode, "--python", str(python), "--require-hashes", str(requirements)],
    )
    return python


def jars(name: str) -> list[Path]:
    """The jars that ``tests/support/jars/<name>/pom.xml`` names, with all that they need.

    The first call fetches them by Maven, which takes some 10 seconds.

    :param name: such as ``kafka-broker``.
    """
    pom = REPOSITORY / "tests" / "support" / "jars" / name / "pom.xml"
    assert shutil.which("mvn"), "Maven is not installed ('mvn' on PATH): apt-get install maven, or brew install maven"
    lib = ENVIRONMENTS / name / "lib"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    _made_once(lib, name, pom, ["mvn", "--quiet", "--batch-mode", "--file", str(pom), goal, f"-DoutputDirectory={lib}"])
    return sorted(lib.glob("*.jar"))


def node_packages(name: str) -> Path:
    """The folder ``node_modules`` of what ``tests/support/node/<name>/package-lock.json`` names, by digests.

    The first call installs it by npm, which takes half a minute. No package runs a script of its own.

    :param name: such as ``azurite``.
    """
    source, folder = REPOSITORY / "tests" / "support" / "node" / name, ENVIRONMENTS / name
    for program in ("node", "npm"):
        assert shutil.which(program), f"Node.js is not installed ('{program}' on PATH): apt-get install nodejs npm"
    # npm takes no link for a prefix.
    prefix = str(folder.resolve())
    npm = ["npm", "--prefix", prefix, "--loglevel=error", "--ignore-scripts", "--no-audit", "--no-fund", "ci"]
    files = [str(source / "package.json"), str(source / "package-lock.json")]
    made = folder / "node_modules"
    _made_once(made, name, Path(files[1]), ["mkdir", "-p", str(folder)], ["cp", *files, str(folder)], npm)
    return made


def spark_classes() -> Path:
    """The folder of an archive of the classes of the locked Spark, see :mod:`tests.support.spark_classes`.

    The first call makes it, which takes a minute or more.
    """
    folder = ENVIRONMENTS / "spark-classes"
    command = [sys.executable, "-m", "tests.support.spark_classes", str(folder)]
    _made_once(folder / "archive.json", folder.name, REPOSITORY / "requirements" / "dev.txt", command)
    return folder


def local_files() -> Path:
    """The folder of a jar for Spark's Java, see :mod:`tests.support.local_files`. The first call makes it."""
    folder = ENVIRONMENTS / "local-files"
    source = REPOSITORY / "tests" / "support" / "java" / "LocalFiles.java"
    command = [sys.executable, "-m", "tests.support.local_files", str(folder)]
    _made_once(folder / JAR, folder.name, source, command)
    return folder


def _made_once(made: Path, name: str, made_of: Path, *commands: list[str]) -> None:
    """Run the commands that fill the folder ``name``, unless they have, out of the same file, and ``made`` is there."""
    stamp = hashlib.sha256(made_of.read_bytes()).hexdigest()
    ENVIRONMENTS.mkdir(exist_ok=True)
    folder = ENVIRONMENTS / name
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = folder / "complete"
        if marker.exists() and marker.read_text() == stamp and made.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        for command in commands:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=REPOSITORY
            )
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        marker.write_text(stamp)


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
    java = {**QUICK_JAVA, **behind(ENVIRONMENTS / "local-files")}
    with (
        tempfile.TemporaryFile(mode="w+") as errors,
        subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**kept, **java, "PATH": f"{python.parent}{os.pathsep}{kept.get('PATH', '')}"},
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


def main() -> None:
    """Make all of them: what is installed, what is fetched by Maven, and the rest beside each other, since each of the
    three mostly waits for what the others do not need."""
    supported = REPOSITORY / "tests" / "support"

    def installed() -> Iterator[tuple[str, Callable[[], object]]]:
        for each in ("compose", *(f"pyspark-{version}" for version in spark_versions())):
            yield f"environment {each}", partial(environment, each)
        yield "environment docker", partial(environment, "docker", compiled=True)

    def fetched() -> Iterator[tuple[str, Callable[[], object]]]:
        # By one Maven at a time: they share a folder of what they have fetched.
        for each in sorted(path.parent.name for path in (supported / "jars").glob("*/pom.xml")):
            yield f"jars {each}", partial(jars, each)

    def others() -> Iterator[tuple[str, Callable[[], object]]]:
        for each in sorted(path.parent.name for path in (supported / "node").glob("*/package.json")):
            yield f"packages of Node.js {each}", partial(node_packages, each)
        yield "local files of Spark", local_files
        yield "classes of Spark", spark_classes

    def make(these: Iterator[tuple[str, Callable[[], object]]]) -> None:
        for what, call in these:
            print(what, flush=True)
            call()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(make, these) for these in (installed(), fetched(), others())]:
            done.result()


if __name__ == "__main__":
    # Before the tests rather than among them: an installer that writes gigabytes stalls everything that waits for the
    # disk, and an Airflow that waits too long counts its tasks for dead.
    main()
