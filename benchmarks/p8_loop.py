"""P8: the streaming loop through the real scheduler, a micro-batch a DAG run on a warm engine, beside the same DAG with
a task that does nothing.

Both DAGs are ``@continuous`` with one task and one active run. Seconds a run are from the end of a run to the end of
the next, so all that Airflow does between two runs is in them; batches a minute are their inverse.
"""

from __future__ import annotations

import os
from dataclasses import replace
from statistics import median

from benchmarks.harness import Row, paired
from benchmarks.p2_one_batch import SCHEMA, TRANSFORM, land
from benchmarks.scheduled import DEFAULT_IDLE, Scheduled, scheduled

PAIRS = int(os.environ.get("P8_PAIRS", 3))
RUNS = int(os.environ.get("P8_RUNS", 20))
RATE = 0.85
SHORT_IDLE = 0.1

BATCHES = f"""
import os
from datetime import datetime
from airflow.sdk import DAG
from airflow_provider_microbatch import FileSink, FileSource, Pipeline
from airflow_provider_microbatch.operators.micro_batch import MicroBatchOperator
home = os.environ["BENCH_HOME"]
pipeline = Pipeline(
    "loop", checkpoint=f"{{home}}/loop/checkpoint", transform="job.py:transform", sink=FileSink(f"{{home}}/loop/lake"),
    sources={{"orders": FileSource(f"{{home}}/loop/landing", format="json", schema={SCHEMA!r}, max_files=1)}},
)
with DAG("batches", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    MicroBatchOperator(task_id="micro_batch", pipeline=pipeline, conn_id="spark_connect_default")
"""

EMPTY = """
from datetime import datetime
from airflow.sdk import DAG, BaseOperator
class Nothing(BaseOperator):
    def execute(self, context):
        return None
"""

EMPTY_RUNS = f"""{EMPTY}
with DAG("empty", schedule="@continuous", start_date=datetime(2026, 1, 1), max_active_runs=1):
    Nothing(task_id="nothing")
"""


def measure() -> list[Row]:
    """The row of the table, and the same with a scheduler that idles less."""
    return [_row(idle) for idle in (DEFAULT_IDLE, SHORT_IDLE)]


def _row(idle: float) -> Row:
    what = f"a batch of the loop, warm / an empty run ({'default' if idle == DEFAULT_IDLE else f'{idle} s'} idle)"
    row = Row(name="P8", what=what, reach=1 / RATE)
    dags = {"batches.py": BATCHES, "empty.py": EMPTY_RUNS, "job.py": TRANSFORM}
    with scheduled(dags, idle=idle) as through:
        paired(row, ours=lambda: _ours(through), peer=lambda: through.loop("empty", RUNS), runs=PAIRS)
    return replace(row, note=rates(row, RATE, ours=60.0, peer=60.0, unit="a minute"))


def _ours(through: Scheduled) -> float:
    before = through.committed("loop")
    # Runs go on until the DAG is paused, and each must find a file.
    for number in range(before, before + 3 * RUNS + 10):
        land(through.home / "loop" / "landing", number, files=1, rows=100)
    seconds = through.loop("batches", RUNS)
    made = through.committed("loop") - before
    if made < RUNS:
        raise RuntimeError(f"{made} batches were made by {RUNS} runs")
    return seconds


def rates(row: Row, reach: float, *, ours: float, peer: float, unit: str) -> str:
    """A row of seconds, said as the rates that are its inverse.

    :param reach: the ratio of rates to reach; higher is better.
    :param ours: how much is done in a run of our side.
    :param peer: in a run of the peer.
    """
    left, right = ours / median(row.ours), peer / median(row.peer)
    return f"{left:.4g} {unit} / {right:.4g} = {1 / row.ratio * ours / peer:.2f} (reach {reach})"
