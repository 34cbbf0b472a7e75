"""P7: one append to the offset log, beside the bare system calls that make an append atomic and durable."""

from __future__ import annotations

import os
import tempfile
import time
from itertools import count
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import OffsetEntry
from airflow_provider_microbatch.stores.location import open_store
from benchmarks.harness import Row, paired

RUNS = 9
APPENDS = 200


def measure() -> Row:
    """The row of the table."""
    row = Row(
        name="P7", what=f"{APPENDS} appends to the offset log / write + fsync + link + fsync of the folder", reach=1.5
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(open_store(f"{folder}/checkpoint"))
        checkpoint.claim(pipeline="bench", sources=["orders"], format="v2")
        bare = Path(folder, "bare")
        bare.mkdir()
        ids = count()

        def ours() -> float:
            started = time.perf_counter()
            for number in [next(ids) for _ in range(APPENDS)]:
                entry = OffsetEntry(ends={"orders": f'{{"logOffset":{number}}}'}, batch_timestamp_ms=number)
                assert checkpoint.offset_log.add(number, entry)
            return time.perf_counter() - started

        def peer() -> float:
            data = (Path(folder, "checkpoint/offsets/0")).read_bytes()
            started = time.perf_counter()
            for number in [next(ids) for _ in range(APPENDS)]:
                append(bare, str(number), data)
            return time.perf_counter() - started

        return paired(row, ours=ours, peer=peer, runs=RUNS)


def append(folder: Path, name: str, data: bytes) -> None:
    """The bare system calls."""
    temporary = os.open(folder / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(temporary, data)
    os.fsync(temporary)
    os.close(temporary)
    os.link(folder / f".{name}", folder / name)
    (folder / f".{name}").unlink()
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
