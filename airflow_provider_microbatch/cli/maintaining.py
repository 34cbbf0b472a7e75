"""The common part of the commands that change a checkpoint: finish an interrupted command, show the plan, apply it."""

from __future__ import annotations

import argparse
import getpass
import json
import socket
from collections.abc import Callable, Collection
from shlex import quote

from airflow_provider_microbatch.checkpoint.key import BatchKey
from airflow_provider_microbatch.checkpoint.maintenance import Maintenance
from airflow_provider_microbatch.cli.opening import asked_batch, open_checkpoint, open_checkpoint_store
from airflow_provider_microbatch.cli.table import text_table
from airflow_provider_microbatch.clock import now_ms
from airflow_provider_microbatch.engines.lookup import find_engine
from airflow_provider_microbatch.stores import Store
from airflow_provider_microbatch.upkeep.commands.apply import Applier
from airflow_provider_microbatch.upkeep.commands.plan import Drafting, Plan
from airflow_provider_microbatch.upkeep.commands.steps import Step


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all of these commands have."""
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and do nothing")
    parser.add_argument(
        "--despite-audits",
        action="store_true",
        help="also while a stage of the steps waits for its audits; who takes its batch out drops it",
    )


def maintain(
    arguments: argparse.Namespace,
    *,
    store: Store,
    command: str,
    make: Callable[[Drafting], Plan],
    dry_run: bool,
    told: Collection[str] = (),
    give_up: bool = False,
    once: bool = False,
) -> int:
    """Print the plan and, unless this is a dry run, apply it.

    :param arguments: uses ``json``, ``sources`` and ``despite_audits``.
    :param store: store of the checkpoint.
    :param command: the command as it was typed, without the location.
    :param make: makes the plan; called again before the plan is applied.
    :param told: locations that the user has named besides the checkpoint's own.
    :param give_up: give up a killed command, instead of finishing it.
    :param once: the command is refused where it was done already. Typed again after a kill, it only finishes the killed
        command.
    :return: exit status: 0, or 1 if something is left that the command cannot mend.
    :raises MicroBatchError: if the command is refused; nothing was changed then.
    """
    at_ms, by = now_ms(), whoami()
    applier = Applier(
        store=store,
        engine_of=find_engine,
        clock_ms=now_ms,
        told=told,
        typed=command,
        despite_audits=arguments.despite_audits,
    )

    def plan() -> Plan:
        return make(Drafting(store, command=command, at_ms=at_ms, by=by, sources=arguments.sources))

    finishable = applier.finishable() if give_up else None
    if finishable is not None and not arguments.json:
        print(
            f"note: `microbatch repair {quote(store.location)}` would finish `microbatch {finishable.command}` (by "
            f"{finishable.by}). --give-up is for what cannot be finished."
        )
    ended = applier.give_up(by=by) if give_up and not dry_run else None
    if ended is not None and not arguments.json:
        print(f"{ended} is given up: none of its steps is done any more. What it has done by then stays.")
    left = applier.unfinished()
    if left is not None and dry_run:
        return _show_unfinished(arguments, left, store, applier.steps_of(left), give_up=give_up)
    finished = applier.finish()
    if finished is not None and not arguments.json:
        # Before the plan is made, which may be refused: nobody would be told that the batches are out of the table.
        print(f"finished what `microbatch {finished.command}` (by {finished.by}) had begun")
    given_up = applier.given_up
    if given_up is not None and not arguments.json:
        print(
            f"`microbatch {given_up.command}` (by {given_up.by}) was killed before its first step: nothing of it was "
            "done, and runs begin again. Type it again if it is still wanted."
        )
    is_done = once and finished is not None and finished.command == command
    shown = Plan(command=command) if is_done else plan()
    if shown.steps and not dry_run:
        if not arguments.json:
            _print_plan(shown)
        applier.apply(plan, by=by, shown=shown)
    elif not arguments.json:
        _print_plan(shown)
    if arguments.json:
        done = {"location": store.location, "dry_run": dry_run, "finished": finished.command if finished else None}
        print(json.dumps({**done, **shown.to_dict()}, ensure_ascii=False, indent=2))
    else:
        print(f"{store.location}: {'done' if is_done else _outcome(shown, dry_run)}")
    return 1 if shown.problems else 0


def whoami() -> str:
    """User and host, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _outcome(plan: Plan, dry_run: bool) -> str:
    counted = f"{len(plan.steps)} step{'' if len(plan.steps) == 1 else 's'}"
    done = (
        "nothing to do" if not plan.steps else f"{counted}, dry run: nothing was done" if dry_run else f"{counted} done"
    )
    return done + (f"; {len(plan.problems)} left that this command cannot mend" if plan.problems else "")


def maintain_batch(arguments: argparse.Namespace, *, command: str, make: Callable[[Drafting, BatchKey], Plan]) -> int:
    """As :func:`maintain`, for a command about one batch, which takes no options of its own."""
    store = open_checkpoint_store(arguments.location, sources=arguments.sources)
    key = asked_batch(arguments, open_checkpoint(arguments.location, sources=arguments.sources))
    return maintain(
        arguments,
        store=store,
        command=f"{command} {key}",
        make=lambda drafting: make(drafting, key),
        dry_run=arguments.dry_run,
    )


def _show_unfinished(
    arguments: argparse.Namespace, left: Maintenance, store: Store, steps: tuple[Step, ...], *, give_up: bool
) -> int:
    if arguments.json:
        print(json.dumps({"location": store.location, "dry_run": True, "unfinished": vars(left)}, indent=2))
        return 0
    print(_steps_table(steps))
    print(
        f"{store.location}: `microbatch {left.command}` (by {left.by}) has begun these steps and not ended. Without "
        f"--dry-run they are {'given up' if give_up else 'finished'} first. Dry run: nothing was done"
    )
    return 0


def _print_plan(plan: Plan) -> None:
    if plan.steps:
        print(_steps_table(plan.steps))
    for note in plan.notes:
        print(f"note: {note}")
    for problem in plan.problems:
        print(f"left as it is: {problem.where}\n  {problem.what}\n  what to do: {problem.remedy}")


def _steps_table(steps: tuple[Step, ...] | list[Step]) -> str:
    return text_table(("step", "what", "why"), [(step.kind, step.what, step.why) for step in steps])
