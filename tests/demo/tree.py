"""A process tree like that of a task: a Python process, and below it one that is called java."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

_JAVA = "#!/bin/sh\necho started\nread line\n"
_TASK = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


class Tree:
    """:param folder: for the program that is called java.
    :param tag: an argument of it.
    """

    def __init__(self, folder: Path, *, tag: str) -> None:
        program = folder / "java"
        program.write_text(_JAVA)
        program.chmod(0o755)
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _TASK, str(program), f"--conf=spark.microbatch.tag={tag}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == b"started\n"
        self.task = psutil.Process(self._popen.pid)
        (self.java,) = self.task.children()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in (self.task, self.java):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.communicate()

    def wait_for_task(self) -> int:
        """Exit status of the task, once it has ended."""
        return self._popen.wait(timeout=10)
