"""``microbatch engine``: start and stop a warm engine on this machine."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_provider_microbatch.cli.setting import setting
from airflow_provider_microbatch.engines.spark_connect.wire import default_folder

NAME = "engine"
HELP = "Start and stop a warm Spark Connect server on this machine, with a resident runner beside it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument(
        "--dir", type=Path, default=default_folder(), metavar="DIR", help="its folder (default: %(default)s)"
    )
    parser.add_argument("--master", help="start: Spark's master (default: local[*])")
    parser.add_argument("--conf", type=setting, action="append", default=[], metavar="KEY=VALUE",
                        help="start: a setting of the server; may be given again")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do the action, and print the state of the engine.

    :return: exit status: 0, or 1 if ``status`` finds no engine.
    """
    from airflow_provider_microbatch.engines import server

    folder: Path = arguments.dir.absolute()
    if arguments.action == "stop":
        ended = server.stop(folder)
        _print(arguments, {"stopped": ended}, "stopped" if ended else f"no engine runs in {folder}")
        return 0
    started, connection, before = False, _text(folder / server.CONNECTION), server.address(folder)
    if arguments.action == "start":
        with _interrupted_by_signals():
            _, started = server.start(folder, master=arguments.master or "local[*]", conf=dict(arguments.conf))
    found = server.status(folder)
    if found.running is None:
        _print(arguments, {"running": None}, f"no engine runs in {folder}")
        return 1
    running = found.running
    seconds = time.time() - running.started
    facts = {**asdict(running), "uptime_seconds": round(seconds), "attempts": found.attempts}
    facts["started_now"] = started
    state = "started" if started else "runs already" if arguments.action == "start" else "runs"
    lines = [
        f"engine {state}: {running.url}, Spark {running.spark}, {running.master}, up {seconds:.0f} s",
        f"server pid {running.server_pid}, runner pid {running.runner_pid}, {found.attempts} attempts running",
    ]
    if arguments.action == "start":
        if not started and arguments.master not in (None, running.master):
            lines.append(
                f"It goes on with the master {running.master}, not {arguments.master}: stop it first to have another "
                "one."
            )
        if started and connection == _text(folder / server.CONNECTION):
            lines.append(
                "Port and token are those of the engine before: Airflow's connection to it is still right, where it "
                "was imported."
            )
        elif started and before is not None and before != server.address(folder):
            lines.append(
                "Somebody else has the port of the engine before, and may have heard its token: both are new, and "
                "Airflow's connection to it has to be imported again."
            )
        lines += [
            f"Tell Airflow (the file holds the server's token; port and token stay when the engine is started again):\n"
            f"  airflow connections import --overwrite {folder / server.CONNECTION}",
            f"and use MicroBatchOperator(conn_id={server.CONN_ID!r}).",
        ]
    _print(arguments, facts, "\n".join(lines))
    return 0


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Have a start that is told to end also end the processes that it has started."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _print(arguments: argparse.Namespace, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts) if arguments.json else text)
