"""P19: a job of many tables. Its DAG file beside that of a job of one table, and a run in which each table has a batch,
on the warm engine, beside as many mapped tasks that do nothing.

The file is parsed in a process that has imported its operators already: P10 measures these. The runs go through a real
scheduler, from their start to their end; as many tasks run at once as the scheduler allows, on both sides.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Row, paired, python_seconds
from benchmarks.p2_one_batch import SCHEMA, land
from benchmarks.p8_loop import EMPTY, rates
from benchmarks.scheduled import Scheduled, scheduled

TABLES = int(os.environ.get("P19_TABLES", 200))
PAIRS = int(os.environ.get("P19_PAIRS", 1))
PARSES = int(os.environ.get("P19_PARSES", 9))
PARSE_REACH = 1.1
RATE = 0.8

DAG = f"""
import os
from datetime import datetime
from airflow.sdk import DAG
from airflow_provider_microbatch import FileSink, FileSource
from airflow_provider_microbatch.graph.tables import TableJob, folders_of
from airflow_provider_microbatch.operators.tables import micro_batch_tables
home = os.environ["BENCH_HOME"]
job = TableJob(
    "tables", checkpoint=f"{{home}}/checkpoints", tables=folders_of(f"{{home}}/landing"), transform="job.py:transform",
    source=lambda table: FileSource(f"{{home}}/landing/{{table}}", format="json", schema={SCHEMA!r}, max_files=1),
    sink=lambda table: FileSink(f"{{home}}/lake/{{table}}"),
)
with DAG("tables", schedule=None, start_date=datetime(2026, 1, 1)):
    micro_batch_tables(job, max_pipelines={TABLES}, conn_id="spark_connect_default")
"""

PEER = f"""{EMPTY}
with DAG("empty_mapped", schedule=None, start_date=datetime(2026, 1, 1)):
    class Table(Nothing):
        def __init__(self, *, table, **kwargs):
            super().__init__(**kwargs)
    Table.partial(task_id="table").expand(table=[f"t{{number}}" for number in range({TABLES})])
"""

TRANSFORM = """
from pyspark.sql import functions as F
def transform(batch):
    (rows,) = batch.sources.values()
    return rows.withColumn("cents", F.round(F.col("amount") * 100).cast("long"))
"""

PARSE = """
import sys, time
text = sys.argv[1]
exec(text, {})
started = time.perf_counter()
exec(text, {})
print(time.perf_counter() - started)
"""


def measure() -> list[Row]:
    """The rows of the table."""
    return [_parse(), _run()]


def _parse() -> Row:
    row = Row(name="P19", what=f"parse of a DAG of a job of {TABLES} tables / of one table", reach=PARSE_REACH)
    with tempfile.TemporaryDirectory() as many, tempfile.TemporaryDirectory() as one:
        for home, tables in ((many, TABLES), (one, 1)):
            for number in range(tables):
                Path(home, "landing", f"t{number}").mkdir(parents=True)

        def seconds(home: str) -> float:
            return python_seconds(PARSE, DAG, BENCH_HOME=home, AIRFLOW_HOME=home)

        return paired(row, ours=lambda: seconds(many), peer=lambda: seconds(one), runs=PARSES)


def _run() -> Row:
    row = Row(name="P19", what=f"a run of {TABLES} tables, warm / {TABLES} empty mapped tasks", reach=1 / RATE)
    with scheduled({"tables.py": DAG, "peers.py": PEER, "job.py": TRANSFORM}) as through:
        paired(row, ours=lambda: _batches(through), peer=lambda: through.run("empty_mapped"), runs=PAIRS)
    return replace(row, note=rates(row, RATE, ours=60.0 * TABLES, peer=60.0 * TABLES, unit="batches a minute"))


def _batches(through: Scheduled) -> float:
    """Seconds of a run in which each table has one batch."""
    before = [_made(through, number) for number in range(TABLES)]
    for number in range(TABLES):
        land(through.home / "landing" / f"t{number}", before[number], files=1, rows=100)
    seconds = through.run("tables")
    made = [_made(through, number) - before[number] for number in range(TABLES)]
    if made != [1] * TABLES:
        raise RuntimeError(f"of {TABLES} tables {made.count(1)} had one batch")
    return seconds


def _made(through: Scheduled, number: int) -> int:
    return through.committed_in(f"checkpoints/t{number}")
