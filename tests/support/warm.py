"""A warm server as ``microbatch engine start`` starts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.cli.main import main
from airflow_provider_microbatch.engines import processes, server


@dataclass(frozen=True)
class Warm:
    """A running engine: its folder, and the connection to it as Airflow has it."""

    folder: Path
    running: server.Running
    connection: dict[str, Any]


@contextmanager
def warm_server(folder: Path) -> Iterator[Warm]:
    """Runs until the end, when nothing of it may be left."""
    folder.chmod(0o700)
    try:
        assert main(["engine", "start", "--dir", str(folder), "--master", "local[2]"]) == 0
        running = server.status(folder).running
        assert running is not None
        (connection,) = json.loads((folder / server.CONNECTION).read_text()).values()
        yield Warm(folder, running, connection)
    finally:
        assert main(["engine", "stop", "--dir", str(folder)]) == 0
    assert not processes.find(running.tag)
    assert main(["engine", "status", "--dir", str(folder)]) == 1
