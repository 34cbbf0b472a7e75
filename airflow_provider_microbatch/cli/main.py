"""The ``microbatch`` command: look at a checkpoint, tidy it up and mend it, without starting Airflow or, except for
``peek``, ``state`` and ``dead-letters --replay``, Spark; and start or stop a warm engine, make a class archive, list
the files of a table, or try a user's own source or sink."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_microbatch import __version__, configuration
from airflow_provider_microbatch.checkpoint.key import LIVE
from airflow_provider_microbatch.cli import (
    add_source,
    adopt,
    check,
    check_sink,
    check_source,
    class_archive,
    compact,
    copy,
    dead_letters,
    engine,
    export,
    files,
    forget,
    import_,
    janitor,
    log,
    peek,
    rename_source,
    repair,
    rewind,
    set_offset,
    show,
    start_behind,
    state,
    withdraw_clear,
)
from airflow_provider_microbatch.exceptions import MicroBatchError
from airflow_provider_microbatch.lifetime import lifetime

COMMANDS = (
    log,
    show,
    peek,
    state,
    dead_letters,
    forget,
    check,
    janitor,
    compact,
    repair,
    rewind,
    set_offset,
    rename_source,
    add_source,
    start_behind,
    adopt,
    withdraw_clear,
    export,
    import_,
    copy,
)
WITHOUT_CHECKPOINT = (engine, class_archive, check_sink, check_source, files)
_WHOLE_CHECKPOINT = (
    state,
    check,
    janitor,
    compact,
    repair,
    rename_source,
    add_source,
    start_behind,
    export,
    import_,
    copy,
    forget,
)
EXIT_CANNOT_READ = 2
"""The same as argparse's own status for wrong usage."""


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """The command line; each command is a module with ``NAME``, ``HELP``, ``add_arguments`` and ``run``.

    :param word: the first one that was typed. If it names a command, that one is made alone: all of them take ten times
        as long.
    """
    names = {command.NAME for command in (*WITHOUT_CHECKPOINT, *COMMANDS)}
    made = names & {word} or names
    parser = argparse.ArgumentParser(
        prog="microbatch", description="Look at the checkpoint of a pipeline, tidy it up and mend it."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (command for command in WITHOUT_CHECKPOINT if command.NAME in made):
        own = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    for command in (command for command in COMMANDS if command.NAME in made):
        sub = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        if command is import_:
            import_.add_origin(sub)
        sub.add_argument("location", metavar="LOCATION", help="the checkpoint: a path, or a URL (file:, sql:)")
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument(
            "--sources",
            type=_names,
            default=(),
            metavar="NAME,…",
            help="names in the pipeline's order; needed only for a v1 checkpoint that Spark alone has written",
        )
        if command not in _WHOLE_CHECKPOINT:
            sub.add_argument("--lane", default=LIVE, help="lane of the logs (default: %(default)s)")
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :param arguments: as on the command line; None takes the process's own.
    :return: exit status: 0 fine; 1 ``check``, ``check-sink`` or ``check-source`` found something, ``engine`` found no
        engine, or ``janitor``, ``compact``, ``repair`` or ``dead-letters --replay`` left something undone; 2 wrong
        usage, a checkpoint that cannot be read, or a change that is refused.
    """
    words = sys.argv[1:] if arguments is None else arguments
    parsed = build_parser(next(iter(words), None)).parse_args(words)
    configuration.hand_down()
    if arguments is None:  # the process is the command's own
        configuration.find_in_database()
    try:
        with _without_doings("pyiceberg"), lifetime():
            status: int = parsed.run(parsed)
        sys.stdout.flush()
    except MicroBatchError as error:
        print(f"microbatch: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_CANNOT_READ
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would flush stdout once more at exit and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


@contextmanager
def _without_doings(library: str) -> Iterator[None]:
    """Leave what a library tells of its own doings out of a command's output: where Airflow has configured the log, a
    line for each file that pyiceberg opens would hide what the command says. Warnings stay."""
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


if __name__ == "__main__":
    sys.exit(main())
