"""The same reader through Spark Connect, whose options and paths go another way than a classic session's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources.support import World

CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from airflow_provider_microbatch.runtime.files import read
spark = SparkSession.builder.remote("local[1]").getOrCreate()
results = [read(spark, arguments) for arguments in json.loads(sys.stdin.read())]
print("ROWS", json.dumps([[row.asDict() for row in result.frame.collect()] for result in results]))
spark.stop()
"""


@pytest.mark.spark
def test_connect_reads_exactly_the_planned_files_and_takes_no_name_for_a_glob(world: World) -> None:
    names = [
        "100%.json",
        "[1].json",
        "a b.json",
        "back\\slash.json",
        "star*.json",
        "what?.json",
        "{a,b}.json",
        "ü.json",
    ]
    for number, name in enumerate(names):
        world.land(f"day=1/{name}", f'{{"id": {number}}}')
    inferring = world.open(schema=None)
    end = inferring.latest_offset(None)
    for name in ("1.json", "a.json", "starfish.json", "whats.json", "backslash.json"):
        world.land(f"day=1/{name}", '{"id": 100}')
    declared = world.open(schema="day int, id long")
    reads = [inferring.read(None, end), declared.read(None, end), declared.read(end, end)]

    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        input=json.dumps([read.arguments for read in reads]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": _path()},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    lines = [line.partition("ROWS ")[2] for line in done.stdout.splitlines() if "ROWS " in line]
    assert lines, done.stderr[-3000:]
    rows = json.loads(lines[-1])
    expected = [{"id": number, "day": 1} for number in range(len(names))]
    assert sorted(rows[0], key=lambda row: row["id"]) == expected
    assert sorted(rows[1], key=lambda row: row["id"]) == expected
    assert rows[2] == []


def _path() -> str:
    """The server is started by spark-submit, which must be found beside this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
