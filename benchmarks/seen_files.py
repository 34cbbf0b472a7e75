"""A tree of files that were all planned, with a checkpoint of ours and one of Spark's beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_microbatch.checkpoint.checkpoint import Checkpoint
from airflow_provider_microbatch.checkpoint.entries import CommitEntry, OffsetEntry
from airflow_provider_microbatch.checkpoint.handover import hand_over
from airflow_provider_microbatch.sources.file.listing import FoundFile
from airflow_provider_microbatch.sources.file.log import SourceLog, offset_of
from airflow_provider_microbatch.sources.file.seen import SeenFiles
from airflow_provider_microbatch.stores.location import open_store

PER_FOLDER = 1_000


def make_seen(home: Path, files: int) -> int:
    """A tree of files that are all in the source log, and a checkpoint that has read them; returns the log's end.

    :param files: how many; thousands.
    """
    return record_seen(home, (_folder(home / "landing", number) for number in range(files // PER_FOLDER)))


def record_seen(home: Path, entries: Iterable[list[FoundFile]], *, top: str = "/") -> int:
    """A checkpoint that has read these files, each list an entry of the source log; returns the log's end.

    :param top: what all their paths begin with.
    """
    checkpoint = Checkpoint(open_store(f"{home}/checkpoint"))
    checkpoint.claim(pipeline="bench", sources=["orders"], format="v1")
    log, end = SourceLog(checkpoint.source_log("orders"), top=top), -1
    for end, files in enumerate(entries):
        log.add(end, files)
    entry = OffsetEntry(ends={"orders": offset_of(end)}, starts={"orders": None}, batch_timestamp_ms=0)
    checkpoint.offset_log.add(0, entry)
    checkpoint.commit_log.add(0, CommitEntry())
    # What a plan does in passing: the entries are many, and they are indexed.
    seen = SeenFiles(log, checkpoint.source_state("orders"))
    seen.refresh()
    seen.save()
    return end


def _folder(landing: Path, number: int) -> list[FoundFile]:
    folder = landing / f"date={number:06d}"
    folder.mkdir(parents=True)
    paths = [f"{folder}/part-{part:05d}-{number:08x}.json" for part in range(PER_FOLDER)]
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    return [FoundFile(path, 0, os.stat(path).st_mtime_ns) for path in paths]  # noqa: PTH116


def hand_to_spark(home: Path, end: int) -> Path:
    """The same checkpoint as it was before anything new, as Spark takes it."""
    copied = home / "spark"
    copied.mkdir()
    for name in ("metadata", "offsets/0", "commits/0", "microbatch/identity"):
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(home / "checkpoint" / name, copied / name)
    (copied / "sources/0").mkdir(parents=True)
    for number in range(end + 1):
        os.link(home / "checkpoint/sources/0" / str(number), copied / "sources/0" / str(number))
    hand_over(Checkpoint(open_store(str(copied))))
    return copied
