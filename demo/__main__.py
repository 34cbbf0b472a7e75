"""``make demo``: a real Airflow and a real Spark take order files to a table, while one task is killed."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_microbatch import configuration
from airflow_provider_microbatch.cli.table import batch_table
from airflow_provider_microbatch.execution.summary import summaries
from demo.composition import prepare
from demo.drive import Drive
from demo.machines import MachineError
from demo.proof import check_is_clean, compare_rows, no_java_left, no_process_left, verdict
from demo.running_airflow import LocalAirflowError
from demo.settings import Setting, on_one_machine, without_shared_disk

ROOT = Path(__file__).resolve().parent.parent
FEWEST_BATCHES = 2
INTERRUPTED = 130
"""Exit status after Ctrl-C before the end, as shells have it."""


class Story:
    """Prints events with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        """One event, one line."""
        print(f"[{time.monotonic() - self._started:6.1f} s] {line}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    :return: 0 if everything it claims held, 1 if anything was off, 130 when it was stopped before its end.
    """
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--batches", type=_batches, default=5, help="how many micro-batches (default: %(default)s)")
    parser.add_argument(
        "--s3",
        action="store_true",
        help="on machines that share no disk: Celery workers; landing, table, checkpoint in a bucket (moto's server)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with landing, lake, checkpoint and logs")
    options = parser.parse_args(arguments)
    if subprocess.run([ROOT / "scripts" / "check-java"], check=False, stdin=subprocess.DEVNULL).returncode != 0:
        return 1
    _stop_once()
    if options.s3:
        try:
            prepare()
        except MachineError as error:
            print(error, file=sys.stderr)
            return 1
    home = Path(tempfile.mkdtemp(prefix="microbatch-demo-"))
    status = 1
    try:
        setting = without_shared_disk if options.s3 else on_one_machine
        with setting(home, batches=options.batches) as chosen:
            status = _demo(chosen, batches=options.batches)
    except (LocalAirflowError, MachineError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        status = INTERRUPTED
        print("\nStopped.")
    finally:
        if options.keep or status == 1:
            print(f"Landing, lake, checkpoint and logs are kept in {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return status


def _demo(setting: Setting, *, batches: int) -> int:
    story = Story()
    configuration.hand_down()  # of connections, as for the command line: a checkpoint in a bucket is looked into
    airflow, place = setting.airflow, setting.place
    dag_id = place.dag_id
    status = INTERRUPTED
    try:
        story.say("starting Airflow: scheduler, DAG processor, triggerer, API server")
        with airflow:
            story.say(f"Airflow is up, its logs are in {airflow.home / 'logs'}")
            airflow.unpause(dag_id)
            story.say(f"DAG {dag_id} runs; watch it at {airflow.grid_url(dag_id)}")
            drive = Drive(airflow=airflow, dag_id=dag_id, checkpoint=place.checkpoint, till=place.till, say=story.say)
            killed = drive.run(batches=batches, kills=setting.kills)
            print(f"\n{batch_table(summaries(drive.checkpoint), run_header='DAG run')}\n")
            status = verdict(
                [
                    *setting.tidy(),
                    compare_rows(place.landed(), place.lake()),
                    *(drive.recovered(each) for each in killed),
                    drive.runs_ended_well(),
                    place.no_stage_left(),
                    no_java_left(airflow.drivers_and_executors()),
                    check_is_clean(place.checkpoint),
                    *setting.more_proofs(),
                ]
            )
            if sys.stdout.isatty():
                print(f"\nGrid view: {airflow.grid_url(dag_id)}")
                print(f"Batches with their rows: {airflow.grid_url(dag_id)}/tasks/micro_batch/task_instances")
                print("It stays up until you press Ctrl-C.", flush=True)
                signal.pause()
            print(
                "\nTo look at the grid, run this in a terminal: Airflow stays up there until you press Ctrl-C.",
                flush=True,
            )
    except KeyboardInterrupt:
        # It may have come in the middle of a stop that had begun already.
        airflow.stop()
        if status == INTERRUPTED:
            raise
    story.say("Airflow is stopped")
    return max(status, verdict([no_process_left(airflow.processes())]))


def _stop_once() -> None:
    """Ctrl-C, SIGTERM and a closed terminal end the demo in one way; a second one does not disturb the stop."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: object) -> None:
        for each in signals:
            signal.signal(each, lambda number, frame: None)
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, stop)


def _batches(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_BATCHES:
        raise argparse.ArgumentTypeError(
            f"{text!r}: at least {FEWEST_BATCHES}, so that one behind the first can be killed"
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
