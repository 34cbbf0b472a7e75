"""P12: plan over a million objects seen and a thousand new, beside the listing alone.

The bucket is of the benchmark: it lists, without a wait. A service's pages take longer, for both sides. The checkpoint
lies on a disk: P11 has one in a bucket.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from airflow_provider_microbatch.sources.file.listing import FoundFile
from benchmarks.harness import ROOT, Row, paired, python_result, python_seconds
from benchmarks.listed_bucket import LAND, PER_FOLDER, SIZE, WRITTEN, etag_of, folder_of
from benchmarks.p5_planning import OURS
from benchmarks.seen_files import record_seen
from tests.support.object_store import environment

RUNS = 5
KEYS = int(os.environ.get("P12_KEYS", 1_000_000))

PEER = """
import time
import obstore
from obstore.store import S3Store
client = S3Store("lake", virtual_hosted_style_request=False)
started, found = time.perf_counter(), 0
for page in obstore.list(client, "landing", chunk_size=1_000):
    found += len(page)
seconds = time.perf_counter() - started
assert found, "there are objects"
print(seconds)
"""


def measure() -> Row:
    """The row of the table."""
    what = f"plan, {KEYS:,} objects of a bucket seen and {PER_FOLDER:,} new / the listing alone"
    row = Row(name="P12", what=what, reach=1.3)
    megabytes: list[int] = []
    with tempfile.TemporaryDirectory() as folder, _bucket() as url:
        record_seen(Path(folder), (_found(number) for number in range(KEYS // PER_FOLDER)), top="s3a://lake/")
        numbers, environs = count(), environment(url)

        def ours() -> float:
            urllib.request.urlopen(f"{url}{LAND}", timeout=60).close()
            told = (folder, "s3://lake/landing", str(next(numbers)), str(PER_FOLDER), "unordered")
            result = python_result(OURS, *told, **environs)
            megabytes.append(result["megabytes"])
            return float(result["seconds"])

        paired(row, ours=ours, peer=lambda: python_seconds(PEER, **environs), runs=RUNS)
    return replace(row, note=f"the planning process takes {statistics.median(megabytes):.0f} MB in all")


def _found(number: int) -> list[FoundFile]:
    return [
        FoundFile(f"s3a://lake/{key}", SIZE, WRITTEN * 1_000_000_000, etag=etag_of(key)) for key in folder_of(number)
    ]


@contextmanager
def _bucket() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.listed_bucket", str(KEYS)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.wait()
